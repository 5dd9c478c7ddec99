"""What the worked capstones of lab10 say of their kernels: skipping, fusing, patches that add the file beside them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes  # noqa: F401 - bfloat16 by its name
import numpy as np
import pytest
from small_submission import small_submission

pytest.importorskip("triton")

from grader import canary
from grader.course import Course
from grader.judge.anatomy import source
from grader.judge.capstone import manifest, patch
from grader.judge.capstone.masks import Mask, parse
from grader.judge.oracle import softmax_attention
from grader.judge.upstream import UnavailableError
from grader.profiles import load_profile
from grader.sandbox.submission import Submission
from grader.worker.wire import Tensor

ROOT = Path(__file__).resolve().parents[2]
COURSE = Course.find(ROOT)
CAPSTONES = ROOT / "solutions" / "lab10_capstone"
LAB08 = ROOT / "solutions" / "lab08_decode" / "reference"
FILES = {"A": "window_global.py", "B": "fused_decode.py", "C": "audit.py", "D": "local_forward.py"}
FUNCTIONS = {"A": "window_global_attention", "D": "local_attention"}
BLOCK_M, BLOCK_N, HEAD_DIM = 32, 16, 32
SMALL_TILES = f"\n\n\ndef choose_tiles(*_):\n    return Tiles({BLOCK_M}, {BLOCK_N}, 4, 2)\n"
MASKS = [
    ("A", 150, 150, "causal+window:40,0+global:5"),
    ("A", 113, 203, "window:17,9+global:70"),
    ("A", 203, 113, "causal+window:30,0+global:3"),
    ("D", 150, 150, "causal+window:40,0"),
    ("D", 203, 113, "window:17,9"),
    ("D", 70, 203, "window:-1,0"),
]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Submission]]:
    """The attention kernels, with tiles so small that short sequences have many."""
    opened = {}
    for option in FUNCTIONS:
        text = (CAPSTONES / option / FILES[option]).read_text(encoding="utf-8") + SMALL_TILES
        record = {FUNCTIONS[option]: COURSE.lab("lab10").record_paths["attention"]}
        opened[option] = small_submission(tmp_path_factory.mktemp(option), text, runtime="triton", record=record)
        opened[option].target = load_profile(ROOT, "a100-80gb")
    yield opened
    for submission in opened.values():
        submission.close()


def draw(seq_q: int, seq_k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seq_q + seq_k)
    sizes = ((1, 2, seq_q), (1, 1, seq_k), (1, 1, seq_k))
    q, k, v = (rng.standard_normal((*size, HEAD_DIM)).astype(np.float16) for size in sizes)
    return q, k, v


def tiles_seen(mask: Mask, seq_q: int, seq_k: int) -> list[np.ndarray]:
    """For each tile of query rows: which key tiles hold a key that one of its rows sees."""
    starts = np.arange(0, seq_k, BLOCK_N)
    found = []
    for first in range(0, seq_q, BLOCK_M):
        seen = mask.visible(np.arange(first, min(first + BLOCK_M, seq_q)), seq_q, seq_k).any(axis=0)
        found.append(np.logical_or.reduceat(seen, starts))
    return found


@pytest.mark.parametrize(("option", "seq_q", "seq_k", "text"), MASKS)
def test_kernel_loads_the_tiles_with_a_visible_key_and_no_other(
    kernels: dict[str, Submission], option: str, seq_q: int, seq_k: int, text: str
) -> None:
    mask = parse(text)
    tensors = [Tensor(values) for values in draw(seq_q, seq_k)]
    traced = kernels[option].traced_call(FUNCTIONS[option], *tensors, **mask.options())
    lengths = np.minimum(BLOCK_N, seq_k - np.arange(0, seq_k, BLOCK_N))
    rows = 2 * sum(int(lengths[seen].sum()) for seen in tiles_seen(mask, seq_q, seq_k))  # 2 heads
    assert rows < 2 * -(-seq_q // BLOCK_M) * seq_k  # the mask hides tiles
    assert traced.traffic.loaded("k") == traced.traffic.loaded("v") == rows * HEAD_DIM * 2


@pytest.mark.parametrize(("option", "seq_q", "seq_k", "text"), [MASKS[0], MASKS[1], MASKS[4]])
def test_kernel_isnt_moved_by_what_lies_in_hidden_tiles(
    kernels: dict[str, Submission], option: str, seq_q: int, seq_k: int, text: str
) -> None:
    mask, (q, k, v) = parse(text), draw(seq_q, seq_k)
    for number, seen in enumerate(tiles_seen(mask, seq_q, seq_k)):
        hidden = np.repeat(~seen, BLOCK_N)[:seq_k]
        if not hidden.any() or number % 2 == 0:
            continue
        poisoned = [np.where(hidden[:, None], np.float16(np.nan), x) for x in (k, v)]
        o, _ = kernels[option].call(FUNCTIONS[option], Tensor(q), *map(Tensor, poisoned), **mask.options())
        rows = np.arange(number * BLOCK_M, min((number + 1) * BLOCK_M, seq_q))
        scores = q[0, :, rows].swapaxes(0, 1).astype(np.float64) @ k[0, 0].T.astype(np.float64) * HEAD_DIM**-0.5
        wanted, _ = softmax_attention(scores, mask.visible(rows, seq_q, seq_k), v[0, 0].astype(np.float64))
        assert np.abs(o.data[0][:, rows].astype(np.float64) - wanted).max() < 4e-3


def scattered(dtype: str, group: int, lens: list[int]) -> list[Tensor]:
    """Arguments of a step: tokens in pages in any order, NaN where there is none."""
    rng, (batch, heads, d, page) = np.random.default_rng(5), (len(lens), 2, 64, 16)

    def normal(*size: int) -> np.ndarray:
        return rng.standard_normal(size).astype(np.float32).astype(dtype)

    pages = max(lens) // page + 1
    order = rng.permutation(batch * pages + 3)[: batch * pages].reshape(batch, pages).astype(np.int32)
    caches = [np.full((batch * pages + 3, page, heads, d), np.nan, np.float32).astype(dtype) for _ in "kv"]
    for b, length in enumerate(lens):
        for j in range(length):
            for cache in caches:
                cache[order[b, j // page], j % page] = normal(heads, d)
    tokens = [normal(batch, heads * group, d), normal(batch, heads, d), normal(batch, heads, d)]
    return [Tensor(values) for values in (*tokens, *caches, order, np.array(lens, np.int32))]


@pytest.mark.parametrize(
    ("dtype", "group", "interleaved", "rotary_dim", "lens", "splits"),
    [
        ("bfloat16", 1, True, 32, [63, 64, 130], 3),
        ("float16", 4, False, 64, [0, 5, 130], None),
        ("float16", 7, True, 64, [90, 2, 77], 7),
    ],
)
def test_fused_step_equals_lab08s_on_scattered_pages(
    tmp_path: Path, dtype: str, group: int, interleaved: bool, rotary_dim: int, lens: list[int], splits: int | None
) -> None:
    text = (CAPSTONES / "B" / FILES["B"]).read_text(encoding="utf-8")
    beside = {
        "lab08_decode.py": (LAB08 / "paged_decode.py").read_text(encoding="utf-8"),
        "rope.py": (LAB08 / "rope.py").read_text(encoding="utf-8"),
    }
    tensors, options = scattered(dtype, group, lens), {"interleaved": interleaved, "rotary_dim": rotary_dim}
    record = dict.fromkeys(("decode_step", "fused_decode_step"), COURSE.lab("lab08").record["decode_step"])
    found = []
    with small_submission(tmp_path, text, runtime="triton", files=beside, record=record) as submission:
        for function, module in (("decode_step", "lab08_decode"), ("fused_decode_step", "answer")):
            done = submission.mutating_call(
                function, *tensors, module=module, mutable=("k_cache", "v_cache"), num_splits=splits, **options
            )
            caches = (done.arguments["k_cache"], done.arguments["v_cache"])
            found.append([np.asarray(tensor.data, np.float32) for tensor in (*done.value, *caches)])
    for ours, lab08s, allowed in zip(*found, ({"float16": 2e-3, "bfloat16": 1.6e-2}[dtype], 1e-5, 0, 0), strict=True):
        # O by one unit of values up to 2; the caches to the bit, the new token and all that was there.
        np.testing.assert_allclose(ours, lab08s, rtol=0, atol=allowed)


def test_sdpa_with_bias_sees_what_the_mask_says(kernels: dict[str, Submission]) -> None:
    mask, (q, k, v) = parse("causal+window:30,0+global:3"), draw(90, 113)
    o = kernels["A"].call("sdpa_with_bias", Tensor(q), Tensor(k), Tensor(v), **mask.options())
    scores = q[0].astype(np.float64) @ k[0, 0].T.astype(np.float64) * HEAD_DIM**-0.5
    wanted, _ = softmax_attention(scores, mask.visible(np.arange(90), 90, 113), v[0, 0].astype(np.float64))
    assert np.abs(o.data[0].astype(np.float64) - wanted).max() < 4e-3


def test_splits_by_waves_never_start_a_wave_for_a_few_programs(tmp_path: Path) -> None:
    text = (CAPSTONES / "B" / FILES["B"]).read_text(encoding="utf-8")
    with small_submission(tmp_path, text, runtime="triton") as step:
        for programs, tiles, lab08, waves in [(8, 256, 64, 64), (128, 256, 5, 4), (32, 512, 17, 16), (512, 128, 2, 1)]:
            assert step.call("splits_of_lab08", programs, tiles, 132) == lab08
            assert step.call("splits_by_waves", programs, tiles, 132 * 4) == waves


@pytest.mark.parametrize(("dtype", "card"), [("bfloat16", "a100-80gb"), ("float8_e4m3", "h200")])
def test_audit_without_a_gpu_is_the_emulation_whatever_card_is_told(tmp_path: Path, dtype: str, card: str) -> None:
    sizes = {"seq_q": 40, "seq_k": 300, "head_dim": 32, "mask": "causal", "rotary_base": 100.0}
    case = {"dtype": dtype, "inputs": "normal", "seed": 1, **sizes}
    text = (CAPSTONES / "C" / FILES["C"]).read_text(encoding="utf-8")
    with small_submission(tmp_path, text, runtime="triton") as audit:
        audit.target = load_profile(ROOT, card)
        found, wanted = (audit.call(f"{name}_attention", case, [0, 7, 39]) for name in ("device", "emulated"))
    assert all(np.array_equal(found[name], wanted[name]) for name in ("q", "k", "v", "o"))


@pytest.mark.slow
def test_patched_package_gives_gradients_where_the_pinned_one_raises(tmp_path: Path) -> None:
    try:
        release = source.load()
    except UnavailableError as error:
        pytest.skip(str(error))
    folder = CAPSTONES / "E"
    changed = patch.apply(patch.parse((folder / patch.FILE).read_bytes()), release.files)
    answers = []
    for name, files in (("before", {}), ("after", {path: text.encode() for path, text in changed.items()})):
        for path, content in (release.package() | files).items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_bytes(content)
        asked = [
            {"do": "prove", "function": "flash_attn_func", "layout": layout, "head_dim": 64}
            for layout in ("contiguous", "channels-first")
        ]
        done = subprocess.run(
            [sys.executable, str(folder / "appendix" / "step.py"), str(tmp_path / name)],
            input="".join(json.dumps(request) + "\n" for request in asked),
            capture_output=True,
            text=True,
            check=True,
        )
        answers.append([json.loads(line) for line in done.stdout.splitlines()])
    (plain, raised), (plain_after, repaired) = answers
    assert plain == plain_after
    assert raised == {"raised": "dq must have contiguous last dimension"}
    assert max(repaired.values()) <= 2.0


@pytest.mark.parametrize("option", sorted(FILES))
def test_patch_adds_the_file_that_lies_beside_it(option: str) -> None:
    folder = CAPSTONES / option
    told = manifest.read((folder / manifest.FILE).read_bytes())
    added = patch.apply(patch.parse((folder / patch.FILE).read_bytes()), {})
    assert list(added) == list(told.files) == [FILES[option]]
    assert added[FILES[option]] == canary.unmarked((folder / FILES[option]).read_text(encoding="utf-8"))
