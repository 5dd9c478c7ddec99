"""The zoo's counts and listings: what they are counted from, and that a fixture is what its generator makes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grader.course import Course
from grader.errors import InfrastructureError
from grader.judge.hopper import zoo
from grader.kernels.zoo.counts import COUNTED, ptx_counts, ptx_instructions, sass_counts

COURSE = Course.find(Path(__file__))
FOLDER = COURSE.assignment_dir("lab09_fa3_probe")
KERNELS, STORED = FOLDER / "test_hidden_kernels.py", FOLDER / "test_hidden_zoo.json.gz"
OTHER_TRITON = "GRADE_ZOO_TRITON"
"""Environment variable: a folder with the Triton that the stored listings come from, where it isn't installed."""

PTX = """// .version 9.9 wgmma.mma_async in a remark;
.version 8.7
.target sm_90a
.visible .entry kernel(
    .param .u64 wgmma_param_0
)
.reqntid 128
{
    .reg .b32 %r<4>;
    .local .align 16 .b8 depot[64];
    .loc 1 2 3 // HGMMA
$L__BB0_1: // mbarrier.init
    @%p1 bra $L__BB0_1;
    {
    .reg .pred complete;
    waitLoop:
    mbarrier.try_wait.parity.shared::cta.b64 complete, [%r1], %r2;
    @!complete bra.uni waitLoop;
    }
    /* setmaxnreg.dec.sync.aligned.u32 24;
    st.local.b32 [%r1], %r2; */
    setmaxnreg.inc.sync.aligned.u32     240;
    .pragma "wgmma.mma_async; tcgen05.mma";
    @%p3 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];
    cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1, %r2}], [%r3];
    cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd1, {%r1, %r2}];
    cp.async.cg.shared.global [%r1], [%rd1], 16;
    cp.async.commit_group;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {%r1,%r2}, %rd1, %rd2, 1, 1, 1;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 { %r1 }, { %r2 }, { %r3 }, { %r1 };
    tcgen05.mma.cta_group::1.kind::f8f6f4 [%r1], %rd1, %rd2, %r2, 1;
    st.local.b32 [%r1], %r2;
    ld.local.b32 %r1, [%r2];
    ret;
}
    .section .debug_str { .b8 119 // wgmma
    }
"""


def test_ptx_counts_statements_alone() -> None:
    counts = ptx_counts(PTX)
    assert counts == {
        **dict.fromkeys(COUNTED, 1),
        "fp8": 2,
        "spills": 2,
        "register_limits": [240],
    }


def test_ptx_counts_without_guarded_ones_leaves_tma_load_out() -> None:
    assert ptx_counts(PTX, guarded=False)["tma_loads"] == 0
    assert ptx_counts(PTX, guarded=False)["tma_stores"] == 1


def test_ptx_instructions_of_a_label_and_a_brace_are_none() -> None:
    assert [name for _, name, _ in ptx_instructions(".version 8.0\n{ a: b: .reg .b32 x;\n} c: ret;")] == ["ret"]


def test_sass_counts_opcodes_of_the_json() -> None:
    told = [
        {"opcode": "HGMMA.64x64x16.F32", "operands": "R24,gdesc[UR4],R24"},
        {"opcode": "QGMMA.64x64x32.F32.E4M3.E4M3", "operands": "R24"},
        {"opcode": "HFMA2.MMA", "operands": "R5,-RZ,RZ,0,2"},
        {"predicate": "@P0", "opcode": "UTMALDG.2D", "operands": "[UR4],[UR6]"},
        {"opcode": "UTMAPF.L2.2D", "operands": "[UR4],[UR6]"},
        {"opcode": "USETMAXREG.TRY_ALLOC.CTAPOOL", "operands": "UP0,0xf0"},
        {"opcode": "USETMAXREG.DEALLOC.CTAPOOL", "operands": "0x18"},
        {"opcode": "EXIT"},
    ]
    text = json.dumps([{}, [{"function-name": "k", "sass-instructions": told}]])
    counts = {name: count for name, count in sass_counts(text).items() if count}
    assert counts == {"wgmma": 2, "fp8": 1, "tma_loads": 1, "setmaxnreg": 2, "register_limits": [24, 240]}
    assert sass_counts(text, guarded=False)["tma_loads"] == 0


def _consistent(listing: zoo.Listing) -> bool:
    """Whether the counts bear out what the kernel's author says of it."""
    truth = listing.truth
    wanted = {
        "none": not (truth["mma"] or truth["wgmma"] or truth["tcgen05"]),
        "ampere": bool(truth["mma"]) and not (truth["wgmma"] or truth["tcgen05"]),
        "hopper": bool(truth["wgmma"]) and not truth["tma_loads"],
        "hopper-tma": bool(truth["wgmma"] and truth["tma_loads"]),
        "hopper-specialised": bool(truth["wgmma"] and truth["setmaxnreg"] and truth["specialised"]),
        "blackwell": bool(truth["tcgen05"]),
    }
    return wanted[truth["generation"]]


@pytest.mark.parametrize("public", [True, False])
def test_zoo_is_what_its_author_says(public: bool) -> None:
    if public:
        pytest.importorskip("triton", reason="triton isn't installed")
    listings = zoo.compiled(zoo.PUBLIC) if public else zoo.stored(STORED)
    assert [f"{listing.name}.{listing.language}" for listing in listings if not _consistent(listing)] == []
    spilling = {listing.name for listing in listings if listing.truth["spills"]}
    assert spilling >= {"attention_spilling" if public else "spilling_sm90"}
    assert all(listing.truth["spills"] == 0 for listing in listings if listing.language == "ptx")


def test_stored_zoo_has_every_kernel_and_no_path_of_a_machine() -> None:
    listings = zoo.stored(STORED)
    assert {listing.triton for listing in listings} == {"3.6.0"}
    assert {listing.capability for listing in listings} == {80, 89, 90, 100}
    assert len({listing.name for listing in listings}) * 2 == len(listings) == 42
    assert not any(part in listing.text for listing in listings for part in ("/home/", "/root/", "/tmp/", "/work/"))


def test_compiled_with_an_unknown_name_is_an_infrastructure_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="triton isn't installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(InfrastructureError, match="no_such_kernel"):
        zoo.compiled(zoo.PUBLIC, ("no_such_kernel",))
    assert not list(tmp_path.rglob("*.json.gz"))


def _build(names: list[str], out: Path, version: str) -> list[dict[str, object]]:
    """Rows of a fresh build by the Triton of the stored listings; skips where it isn't at hand."""
    folder = os.environ.get(OTHER_TRITON, "")
    if zoo.triton_version() != version and not folder:
        pytest.skip(f"Triton {version} isn't installed, and {OTHER_TRITON} names no folder that has it")
    path = os.pathsep.join(part for part in (folder, str(COURSE.root)) if part)
    command = [sys.executable, "-P", "-m", "grader.kernels.zoo.build", str(KERNELS), str(out), *names]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, timeout=300)
    content = json.loads(gzip.decompress(out.read_bytes()))
    assert content["triton"] == version
    return list(content["specimens"])


def test_stored_sample_is_what_the_generator_makes(tmp_path: Path) -> None:
    stored = json.loads(gzip.decompress(STORED.read_bytes()))
    sample = ["tma_mma", "product_specialised", "local_declared"]
    rows = _build(sample, tmp_path / "zoo.json.gz", stored["triton"])
    assert rows == [row for row in stored["specimens"] if row["name"] in sample]
