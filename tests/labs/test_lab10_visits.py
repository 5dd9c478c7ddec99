"""What a kernel visits, counted, against what its mask shows: skipping is told from walking everything."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest

from grader.judge.capstone import benchmark, manifest, problems, visits
from grader.judge.capstone.harness import ChangedPath
from grader.judge.capstone.manifest import Capstone, CapstoneShape, ManifestError
from grader.report.model import Diagnosis
from grader.worker.traffic_model import LaunchRecord, TensorTraffic, Traffic

SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions" / "lab10_capstone"
MASKS = (
    "causal",
    "window:30,20",
    "causal+window:40,0",
    "window:9,4+global:3",
    "causal+window:9,0+global:3",
    "documents:100,28",
    "causal+documents:100,28",
    "blocks:64:1/3",
    "causal+blocks:64:1/3",
)


def capstone_with(mask: str, **path: Any) -> Capstone:
    told = manifest.read((SOLUTIONS / "reference" / manifest.FILE).read_bytes())
    one = told.shapes[0].model_copy(update={"mask": mask, "seq_q": 128, "seq_k": 128})
    return told.model_copy(update={"shapes": (one,), "path": told.path.model_copy(update=path)})


class Failed(Exception):
    pass


class Told:
    """A judge that keeps the diagnosis."""

    def measure(self, name: str, value: object) -> None:
        """Nobody reads it."""

    def fail(self, message: str, *, diagnosis: Diagnosis | None = None) -> NoReturn:
        assert diagnosis is not None
        raise Failed(diagnosis.id)


def worker(rows: int, keys: int, *, skips: bool, products: bool = True) -> Any:
    """A kernel with tiles of rows by keys, as the tracer would count it on the narrow problem of its call."""

    def traced_call(function: str, q: Any, k: Any, v: Any, **options: Any) -> Any:
        seq_q, d = q.data.shape[2:]
        mask = next(shape.visible for shape in told if shape.visible.options().keys() <= options.keys())
        seen = mask.visible(np.arange(seq_q), seq_q, k.data.shape[2])
        pairs = visits.area(seen if skips else np.ones_like(seen), rows, keys)
        width = d * q.data.itemsize
        tensors = {
            "q": TensorTraffic(seq_q * width, readers=seq_q // rows, most=rows * width),
            "k": TensorTraffic(pairs // rows * width),
        }
        record = LaunchRecord("kernel", tensors=tensors, dot_flops=4 * d * pairs if products else 0)
        return SimpleNamespace(traffic=Traffic(1, [record], tensors))

    told: list[CapstoneShape] = []
    return SimpleNamespace(traced_call=traced_call, told=told)


def judged(mask: str, **kernel: Any) -> None:
    capstone, one = capstone_with(mask), worker(**kernel)
    one.told += problems.narrow(capstone)
    visits.judge_skipping(Told(), ChangedPath(capstone, one, "f", "m"), np.random.default_rng(1))  # type: ignore[arg-type]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("rows", "keys"), [(16, 16), (32, 128), (128, 32), (128, 128)])
def test_kernel_that_skips_is_taken_for_one_whatever_its_tiles(mask: str, rows: int, keys: int) -> None:
    judged(mask, rows=rows, keys=keys, skips=True)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("products", [True, False])
@pytest.mark.parametrize(("rows", "keys"), [(16, 16), (128, 64)])
def test_kernel_that_visits_every_tile_is_not(mask: str, products: bool, rows: int, keys: int) -> None:
    with pytest.raises(Failed, match="hidden-keys-visited"):
        judged(mask, rows=rows, keys=keys, skips=False, products=products)


def test_area_is_that_of_the_tiles_with_something_in_them() -> None:
    seen = np.zeros((6, 9), dtype=bool)
    seen[0, 0] = seen[5, 8] = True
    assert visits.area(seen, 2, 4) == 2 * 8
    assert visits.area(seen, 8, 16) == 128
    assert visits.area(~seen, 1, 1) == 52


def test_nothing_is_counted_where_nothing_is_claimed() -> None:
    path = ChangedPath(capstone_with("causal", skips=False), None, "f", "m")  # type: ignore[arg-type]
    visits.judge_skipping(Told(), path, np.random.default_rng(1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [("skips = true\n", "", "`skips` is missing"), ("skips = true", 'skips = "yes"', "skips")],
)
def test_attention_with_a_mask_says_whether_it_skips(old: str, new: str, why: str) -> None:
    text = (SOLUTIONS / "reference" / manifest.FILE).read_text()
    with pytest.raises(ManifestError, match=why):
        manifest.read(text.replace(old, new, 1).encode())


def test_every_pair_takes_its_time() -> None:
    shape = CapstoneShape(
        name="s", batch=2, q_heads=3, kv_heads=1, seq_q=4, seq_k=6, head_dim=8, dtype="float16", mask="window:0,0"
    )
    assert benchmark.computed(shape) == 4 * 2 * 3 * 8 * 24
    causal = shape.model_copy(update={"mask": "causal+window:0,0"})
    assert benchmark.computed(causal) == 4 * 2 * 3 * 8 * (3 + 4 + 5 + 6)
