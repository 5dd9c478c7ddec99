"""Measures the fused decode step against separate steps: `python measure.py` in this folder on a GPU. Three minutes.

Writes benchmark.csv, benchmark.png, appendix/parts.csv (what each of the two changes brings, and the step on a cache of
16-token pages) and README.md's block of figures. No time without a passed test: O is first compared with float64 on
sampled heads of the very tensors that are timed, and the new token's slot with the rotated k. Each step is replayed
from a CUDA graph on a cold L2, as a server would run it. Rows that are there from this machine are kept: delete
benchmark.csv to start anew.
"""

from __future__ import annotations

import csv
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import fused_decode
import torch

from grader.bench import capstone as kit
from grader.judge.capstone.manifest import CapstoneShape, Rotary

HERE = Path(__file__).resolve().parent
WINDOWS, SAMPLED_HEADS, PAGE_SIZE = 40, 6, 16


class Step:
    """A decode step at a shape: seq_k - 1 tokens are there."""

    def __init__(self, shape: CapstoneShape, rotary: Rotary) -> None:
        torch.manual_seed(shape.seed)
        self.shape, self.rotary, self.tokens = shape, rotary, shape.seq_k - 1
        dtype, d = getattr(torch, shape.dtype), shape.head_dim
        self.q = torch.randn(shape.batch, shape.q_heads, 1, d, device="cuda", dtype=dtype)
        new, cache = (shape.batch, shape.kv_heads, 1, d), (shape.batch, shape.kv_heads, shape.seq_k, d)
        self.k_new, self.v_new = (torch.randn(new, device="cuda", dtype=dtype) for _ in "kv")
        self.k_cache, self.v_cache = (torch.randn(cache, device="cuda", dtype=dtype) for _ in "kv")
        self.lens = torch.full((shape.batch,), self.tokens, device="cuda", dtype=torch.int32)

    def call(self, function: Any) -> Any:
        return partial(
            function, self.q, self.k_new, self.v_new, self.k_cache, self.v_cache, self.lens,
            rotary_base=self.rotary.base, rotary_dim=self.rotary.dim, interleaved=self.rotary.interleaved,
        )  # fmt: skip

    def paged_call(self) -> Any:
        """The fused step over pages of 16 tokens in random order."""
        shape, d = self.shape, self.shape.head_dim
        a_sequence = -(-shape.seq_k // PAGE_SIZE)
        order = torch.randperm(shape.batch * a_sequence, device="cuda")
        pages = []
        for cache in (self.k_cache, self.v_cache):
            rows = torch.zeros(shape.batch, a_sequence * PAGE_SIZE, shape.kv_heads, d, device="cuda", dtype=cache.dtype)
            rows[:, : shape.seq_k] = cache.transpose(1, 2)
            physical = torch.empty(len(order), PAGE_SIZE, shape.kv_heads, d, device="cuda", dtype=cache.dtype)
            physical[order] = rows.reshape(-1, PAGE_SIZE, shape.kv_heads, d)
            pages.append(physical)
        return partial(
            fused_decode.fused_decode_step, self.q[:, :, 0], self.k_new[:, :, 0], self.v_new[:, :, 0], *pages,
            order.reshape(shape.batch, -1).to(torch.int32), self.lens, base=self.rotary.base,
            interleaved=self.rotary.interleaved, rotary_dim=self.rotary.dim,
        )  # fmt: skip

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """x (…, d) in float64, at the new token's position; pairs in halves."""
        half = self.rotary.dim // 2
        exponents = torch.arange(half, device="cuda", dtype=torch.float64) / half
        angles = self.tokens * self.rotary.base**-exponents
        first, second, rest = x.double().split((half, half, x.shape[-1] - 2 * half), dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)

    def error(self, o: torch.Tensor) -> tuple[float, float]:
        """(largest error, allowed) of sampled heads. Allowed: twice what rounding q, k and P leaves, plus one ulp."""
        shape, dtype = self.shape, self.q.dtype
        worst, bound = 0.0, 1.0
        for i in range(SAMPLED_HEADS):
            b, h = (i * 7) % shape.batch, (i * 5) % shape.q_heads
            kv = h // (shape.q_heads // shape.kv_heads)
            q, k_new = self.turned(self.q[b, h]), self.turned(self.k_new[b, kv]).to(dtype).double()
            k = torch.cat((self.k_cache[b, kv, : self.tokens].double(), k_new))
            v = torch.cat((self.v_cache[b, kv, : self.tokens], self.v_new[b, kv])).double()
            exact = torch.softmax(q @ k.T * shape.head_dim**-0.5, -1) @ v
            s = q.to(dtype).float() @ k.float().T * shape.head_dim**-0.5
            p = torch.exp(s - s.max())
            honest = (p.to(dtype).float() @ v.float() / p.sum()).to(dtype)
            allowed = float(2 * (honest.double() - exact).abs().max() + torch.finfo(dtype).eps * exact.abs().max())
            found = float((o[b, h].double() - exact).abs().max())
            if not found / allowed <= worst / bound:
                worst, bound = found, allowed
        return worst, bound

    def slot_error(self) -> tuple[float, float]:
        """(largest error, allowed) of the new token's k in its slot; its v must be there to the bit."""
        wanted = self.turned(self.k_new[:, :, 0])
        found = self.k_cache[:, :, self.tokens].double()
        same_v = torch.equal(self.v_cache[:, :, self.tokens], self.v_new[:, :, 0])
        return (
            float((found - wanted).abs().max()) if same_v else float("nan"),
            float(torch.finfo(self.q.dtype).eps * wanted.abs().max()),
        )


def tested(step: Step, name: str, call: Any) -> None:
    """Run the call once and raise unless O and the slot are right."""
    step.k_cache[:, :, step.tokens] = torch.nan
    step.v_cache[:, :, step.tokens] = torch.nan
    o, _ = call()
    kit.judge_error(f"{step.shape.name}, {name}: O", step.error(o))
    kit.judge_error(f"{step.shape.name}, {name}: the new token's slot", step.slot_error())


def parts(step: Step) -> list[tuple[str, str, str]]:
    """What each change brings: the fused step with lab 08's splits, with its own, and on small pages."""
    shape = step.shape
    tiles = -(-shape.seq_k // fused_decode.choose_tiles(step.q.dtype).block_n)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    programs = shape.batch * shape.kv_heads
    old = fused_decode.splits_of_lab08(programs, tiles, sms)
    capability = torch.cuda.get_device_capability()
    new = fused_decode.splits_by_waves(programs, tiles, fused_decode.resident_programs(sms, capability, shape.head_dim))
    paged = step.paged_call()
    kit.judge_error(f"{shape.name}, pages: O", step.error(paged()[0][:, :, None]))
    calls = {
        "separate": step.call(fused_decode.separate_steps),
        f"fused, {old} splits (lab 08's rule)": partial(paged, num_splits=old),
        f"fused, {new} splits (by waves)": partial(paged, num_splits=new),
    }
    samples = kit.interleaved_ms(calls, WINDOWS, graph=True)
    pages = {name: "contiguous" if name == "separate" else f"pages of {PAGE_SIZE}" for name in calls}
    return [(shape.name, f"{name}, {pages[name]}", f"{statistics.median(ms):.5g}") for name, ms in samples.items()]


def told(table: kit.Table, rows: list[tuple[str, str, str]]) -> str:
    """README.md's block of figures."""
    rates = ["| at | tokens a second, before | after |", "|---|---|---|"]
    for shape in table.capstone.timed:
        both = [row for row in table.rows if row["shape"] == shape.name]
        figures = [f"{shape.batch / float(row['median_ms']) * 1000:.0f}" for row in both]
        rates.append(f"| {shape.name} | {' | '.join(figures)} |")
    lines = ["| at | step | median, ms |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return (
        f"{kit.measured_on(table.rows)} CUDA graph replays, both in turns, each on a cold L2.\n\n"
        f"{kit.comparison(table.rows, ('gbs',))}\n\nOne attention layer, so many new tokens a second:\n\n"
        + "\n".join(rates)
        + "\n\nThe parts (appendix/parts.csv):\n\n"
        + "\n".join(lines)
    )


def main() -> int:
    kit.need_gpu()
    capstone = kit.load(HERE)
    assert capstone.path.rotary is not None
    table = kit.Table(HERE, capstone, kit.machine("cuda"))
    rows: list[tuple[str, str, str]] = []
    for shape in capstone.timed:
        step = Step(shape, capstone.path.rotary)
        calls = {"before": step.call(fused_decode.separate_steps), "after": step.call(fused_decode.fused_step)}
        for name, call in calls.items():
            tested(step, name, call)
        if not table.has(shape):
            for name, samples in kit.interleaved_ms(calls, WINDOWS, graph=True).items():
                table.put(shape, kit.kernel_figures(shape, samples), name)
                print(f"{shape.name}, {name}: {statistics.median(samples):.4f} ms", flush=True)
        rows += parts(step)
    path = HERE / "appendix" / "parts.csv"
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("shape", "step", "median_ms"), *rows])
    kit.draw(HERE)
    kit.put_figures(HERE, told(table, rows))
    return 0


if __name__ == "__main__":
    sys.exit(kit.run(main))


# kept-from-students-2f5c7f390c8f5425
