"""Kernels that Triton compiles and its interpreter, as it comes, can't run or runs wrong: a group of features each."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice

N = tl.constexpr(16)
HALF = tl.constexpr(0.5)


@triton.jit
def index_is_a_tensor(x, o, n):
    total = tl.zeros([16], tl.float32)
    for j in range(0, n, 4):
        j = tl.multiple_of(j, 4)
        total += j.to(tl.int64).to(tl.float32)
    for j in tl.range(0, 3, num_stages=2, flatten=True, disallow_acc_multi_buffer=True, loop_unroll_factor=2):
        total += j.to(tl.float32)
    for j in range(n - 1, -1, -2):
        total += j.to(tl.float32)
    for j in range(n.to(tl.int64)):
        tl.static_assert(j.dtype == tl.int64)
        total += (j + tl.zeros([16], tl.int64)).to(tl.float32)
    last = 0
    for j in range(n // 2):
        last = j
    tl.store(o + tl.arange(0, 16), total + last.to(tl.float32))


@triton.jit
def static_range(x, o, n):
    total = tl.zeros([16], tl.float32)
    for j in tl.static_range(0, 4):
        if j % 2 == 0:
            total += tl.full([16], j, tl.float32)
        else:
            total += j * 1.0
    tl.store(o + tl.arange(0, 16), total)


@triton.jit
def control_flow(x, o, n):
    i = tl.arange(0, 16)
    doubled = 1
    while doubled < n:
        doubled = doubled * 2
    steps = 0
    while (steps < 3) and (doubled > 0):
        steps += 1
    if tl.program_id(0) == 0 and n != 7 or n == 3:  # noqa: RUF021 - as it's often written
        kind = 4.0
    elif not (n > 2):
        kind = 5.0
    else:
        kind = 6.0
    chosen = 3 if n > 4 else 2
    tl.store(o + i, doubled.to(tl.float32) + steps + kind + chosen.to(tl.float32))
    if n > 3:
        return
    tl.store(o + i, 0.0)


@triton.jit
def sum_and_rest(a, b):
    return a + b, (a - b, 2)


@triton.jit
def tuples_and_numbers(x, o, n):
    i = tl.arange(0, 16)
    v = tl.load(x + i)
    s, rest = sum_and_rest(v, v)
    d, two = rest
    one, half = 1, 0.5
    pair = (0, 1.0)
    for j in range(n):
        pair = (pair[0] + j, pair[1])
    more = (v, 1.0) + (half,)  # noqa: RUF005 - as it's often written
    tl.store(o + i, s + d + two + one.to(tl.float32) + half.to(tl.float16).to(tl.float32) + pair[0] + more[1])


@triton.jit
def constants(x, o, n, B: tl.constexpr, FLAG: tl.constexpr, MODE: tl.constexpr, KIND: tl.constexpr, NONE: tl.constexpr):
    DOUBLE: tl.constexpr = B * 2
    i = tl.arange(0, DOUBLE // 2)
    v = tl.load(x + i).to(KIND)
    if FLAG and MODE == "three" and NONE is None:
        v = v * 3
    w = (HALF * v) + v * HALF
    w = w + N.value + B.value + HALF * n + n / HALF - n // N
    tl.store(o + i, w + (n > HALF).to(tl.float32) + tl.cdiv(B, DOUBLE))


@triton.jit
def hints_and_prints(x, o, n):
    i = tl.max_contiguous(tl.multiple_of(tl.arange(0, 16), 16), 16)
    n = tl.multiple_of(n, 8)
    tl.assume(n > 0)
    tl.static_assert(N == 16)
    tl.static_print("compiling", N)
    tl.device_print("printed", i)
    print("printed", i)
    tl.device_assert(n > 100, "only checked in a kernel for debugging")
    assert n > 100, "likewise"
    tl.debug_barrier()
    tl.store(o + i, tl.load(x + i))


@triton.jit
def builtin_min_max(x, o, n):
    i = tl.arange(0, 16)
    v = tl.load(x + i)
    tl.store(o + i, min(v, 15 - v) + min(n, 4) + max(n * 0, 4))


@triton.jit
def scalar_arguments(x, o, n, factor, flag, wide, nothing, one):
    i = tl.arange(0, 16)
    v = tl.load(x + i * one) * factor.to(tl.float16).to(tl.float32)
    if flag:
        v = v + 1
    if nothing is not None:
        v = v * 0
    high = (wide // 2**39).to(tl.int32)
    tl.store(o + i, v + high + (wide - wide).to(tl.float32))


@triton.jit
def integers(x, o, n):
    v = tl.arange(0, 16) - n
    u = tl.arange(0, 16).to(tl.uint32) * 3
    quotients = (v // 3) * 100 + v % 3
    bits = (v >> 1) + (v & 3) + (v ^ 1) + (v | 4) + ~v + (-v) + (v << 1)
    unsigned = (u % 7).to(tl.int32) + tl.umulhi(u, u).to(tl.int32)
    tl.store(o + tl.arange(0, 16), (quotients + bits + unsigned).to(tl.float32))


@triton.jit
def shapes(x, o, n):
    i = tl.arange(0, 16)
    v = tl.load(x + i)
    square = tl.reshape(v, (4, 4))
    turned = tl.permute(tl.trans(square.T), (0, 1)) + square.trans() - tl.trans(square, 1, 0)
    left, right = tl.split(tl.join(v, v + 1))
    wide = tl.expand_dims(v, [0, 2]).reshape(16) + v.expand_dims(0).broadcast_to(2, 16).sum(0)
    both = tl.interleave(tl.load(x + tl.arange(0, 8) * 2), tl.load(x + tl.arange(0, 8) * 2 + 1))
    tl.static_assert(v.shape[0] == 16 and v.numel == 16)
    tl.store(o + i, turned.reshape(16) + left + right + wide + both + tl.zeros_like(v))


@triton.jit
def reductions(x, o, n):
    i = tl.arange(0, 16)
    v = tl.load(x + i).reshape(4, 4)
    kept = tl.broadcast_to(tl.sum(v, axis=0, keep_dims=True), (4, 4)).reshape(16)
    largest, place = tl.max(v, 1, return_indices=True)
    least = tl.min(v, -1, return_indices=True, return_indices_tie_break_left=False)
    same = (place - tl.argmax(v, 1)).sum() + (least[1] - tl.argmin(v, 1)).sum()
    tl.store(o + i, kept + tl.max(largest) + v.sum() + same + tl.xor_sum(i))


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def added(a, b):
    return a + b


@triton.jit
def merge_log_sums(m1, s1, m2, s2):
    m = tl.maximum(m1, m2)
    return m, s1 * tl.exp(m1 - m) + s2 * tl.exp(m2 - m)


@triton.jit
def own_reductions_and_scans(x, o, n):
    i = tl.arange(0, 16)
    v = tl.load(x + i)
    m, s = tl.reduce((v, tl.full([16], 1.0, tl.float32)), 0, merge_log_sums)
    scans = tl.associative_scan(v, 0, added) + tl.cumsum(v, 0, reverse=True) + tl.cumprod(v * 0 + 1.5, 0)
    tl.store(o + i, m + tl.log(s) + tl.reduce(v, 0, larger) + scans)


@triton.jit
def orders(x, o, n):
    i = tl.arange(0, 16)
    v = tl.load(x + i)
    counted = tl.histogram(i // 4, 16)
    tl.store(o + i, tl.sort(v, descending=True) + tl.gather(v, 15 - i, 0) + tl.flip(v, 0) + counted)
    tl.store(o + tl.arange(0, 4), tl.topk(v, 4))


@triton.jit
def maths(x, o, n):
    i = tl.arange(0, 16)
    v = tl.load(x + i)
    r = tl.math.exp2(v / 16) + tl.log2(v + 1) + tl.math.rsqrt(v + 1) + tl.sigmoid(v) + tl.erf(v / 8) + tl.floor(v / 3)
    r += tl.math.ceil(v / 3) + tl.abs(v - 8) + tl.softmax(v) + tl.sqrt_rn(v) + tl.clamp(v, 2.0, 5.0)
    r += tl.fma(v, 2.0, 1.0) + tl.cos(v) + tl.sin(v) + tl.exp(-v) + tl.math.div_rn(v, 2.0) + tl.fdiv(v, 2.0)
    tl.store(o + i, r)


@triton.jit
def device_library(x, o, n):
    i = tl.arange(0, 16)
    v = tl.load(x + i)
    r = libdevice.tanh(v / 8) + cuda_libdevice.log1p(v) + libdevice.exp2(v / 8) + libdevice.rsqrt(v + 1)
    r += libdevice.pow(v, 2.0) + libdevice.rint(v / 3) + libdevice.fmod(v, 3.0) + libdevice.isinf(v).to(tl.float32)
    r += libdevice.fast_expf(v / 8) + libdevice.atan2(v, v + 1) + libdevice.trunc(v / 3) + libdevice.fma(v, v, 1.0)
    r += tl.extra.cuda.libdevice.erf(v / 8) + libdevice.float_as_int(v).to(tl.float32, bitcast=True)
    tl.store(o + i, r)


@triton.jit
def bfloat16(x, o, n):
    i = tl.arange(0, 16)
    v = tl.load(x + i).to(tl.bfloat16)
    w = v * 0.3 + tl.full([16], 1.1, tl.bfloat16)
    ordered = -tl.sort(-v)
    scanned = tl.associative_scan(v, 0, added) - tl.cumsum(v, 0)
    extremes = tl.max(v - 20.0, 0) - tl.min(v - 20.0, 0)
    limited = tl.clamp(tl.fma(v, v * 0 + 1, v), -100.0, 100.0)
    tl.store(o + i, w.to(tl.float32) + (ordered + scanned + extremes).to(tl.float32) + limited.to(tl.float32))


@triton.jit
def pointers(x, o, n, wide):
    i = tl.arange(0, 16)
    source = tl.where(i < 8, x + i, x + 15)
    source = tl.where(i < 8, source, x + i + (wide - wide))
    bits = tl.load(source, eviction_policy="evict_last", cache_modifier=".ca").to(tl.int32, bitcast=True)
    tl.store(o.to(tl.pointer_type(tl.int32), bitcast=True) + i, bits, cache_modifier=".wb")
    p, q = x + tl.arange(0, 4), o + tl.arange(0, 4)
    for _ in range(2):
        tl.store(q, tl.load(p, (i < 4).to(tl.int32).sum() > 0) * 2)
        p += 4
        q = q + 4


@triton.jit
def block_pointers(x, o, n):
    p = tl.make_block_ptr(x, (16,), (1,), (0,), (8,), (0,))
    q = tl.make_block_ptr(base=o, shape=(n * 2,), strides=(1,), offsets=(0,), block_shape=(8,), order=(0,))
    for _ in range(2):
        tl.store(q, tl.load(p, boundary_check=(0,), padding_option="zero") * 2, boundary_check=(0,))
        p = tl.advance(p, (8,))
        q = tl.advance(q, [8])


@triton.jit
def device_descriptors(x, o, n):
    source = tl.make_tensor_descriptor(x, [4, 4], [4, 1], [2, 4])
    target = tl.make_tensor_descriptor(o, shape=[4, 4], strides=[4, 1], block_shape=[2, 4])
    for j in range(0, 4, 2):
        target.store([j, 0], source.load([j, 0]) * 2)


@triton.jit
def host_descriptors(source, target):
    row = tl.program_id(0) * 2
    target.store([row, 0], source.load([row, 0]) * 2)


@triton.jit
def tuple_arguments(pointers, factors, o):
    i = tl.arange(0, 16)
    total = tl.zeros([16], tl.float32)
    for k in tl.static_range(2):
        total += tl.load(pointers[k] + i) * factors[k]
    tl.store(o + i, total)


@triton.jit
def square_of(x, o, SIZE: tl.constexpr, KIND: tl.constexpr):
    i = tl.arange(0, SIZE)
    at = i[:, None] * SIZE + i[None, :]
    v = tl.load(x + at)
    tl.store(o + at, tl.dot(v, v, out_dtype=KIND))


@triton.jit
def products(x, o, n):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    v = tl.load(x + at)
    total = tl.dot(v, v, tl.full([16, 16], 1.0, tl.float32), input_precision="ieee")
    total = tl.dot(v, v.T, acc=total, input_precision="ieee")
    deep = tl.dot(v[None, :, :], v[None, :, :], input_precision="ieee").reshape(16, 16)
    tl.store(o + at, total + deep)


@triton.jit
def atomics(x, o, n):
    i = tl.arange(0, 16)
    v = tl.load(x + i)
    tl.store(o + i, 0.0)
    tl.atomic_add(o + i, v + 1, mask=i < 12, sem="relaxed", scope="cta")
    tl.atomic_max(o + i, v + 5, mask=i < 4)
    old = tl.atomic_xchg(o + i, v * 2)
    tl.store(o + i, old + tl.atomic_add(o, 0.0))


@triton.jit
def add_in_four(x, o):
    i = tl.arange(0, 16)
    tl.atomic_add(o + i % 4, tl.load(x + i), mask=i < 12)


@triton.jit
def count_down(x, n: tl.constexpr):
    if n == 0:
        return x
    else:  # noqa: RET505 - the compiler leaves out a branch, not what follows it
        return count_down(x + 1, n - 1)


@triton.jit
def least_or_largest(v, n):
    if n > 100:
        return tl.min(v)
    return tl.max(v)


@triton.jit
def helpers(x, o, n):
    i = tl.arange(0, 16)
    v = tl.load(x + i)
    tl.store(o + i, count_down(v, 3) + added(b=1.0, a=v) + least_or_largest(v, n))


@triton.jit
def float8_and_float64(x, o, n):
    i = tl.arange(0, 16)
    v = tl.load(x + i)
    small = v.to(tl.float8e4nv).to(tl.float32) + v.to(tl.float8e5).to(tl.float16).to(tl.float32)
    tl.store(o + i, small + (v.to(tl.float64) * 1.5).to(tl.float32) + tl.cast(v, tl.float16).to(v.dtype))


@triton.jit
def random_numbers(x, o, n):
    i = tl.arange(0, 16)
    r = tl.rand(42, i)
    tl.store(o + i, tl.where((r >= 0) & (r < 1) & (tl.randint(1, i) == tl.randint(1, i)), 1.0, 0.0))


@triton.jit
def descriptor_adds(x, o, n):
    target = tl.make_tensor_descriptor(o, shape=[4, 4], strides=[4, 1], block_shape=[2, 4])
    source = tl.make_tensor_descriptor(x, shape=[4, 4], strides=[4, 1], block_shape=[2, 4])
    for j in range(0, 4, 2):
        target.atomic_add([j, 0], source.load([j, 0]) * 2)


@triton.jit
def loop_without_steps(x, o, n):
    for j in range(0, 8, n - 8):
        tl.store(o + j, 1.0)


@triton.jit
def far_loop(x, o, n):
    for _ in range(n + 2147483630, 2147483647, 8):
        tl.store(o, 1.0)


@triton.jit
def one_or_two(n):
    if n > 3:
        return 1
    return 2


@triton.jit
def number_from_a_branch(x, o, n):
    tl.store(o + tl.arange(0, 16), tl.load(x + tl.arange(0, 16)) + one_or_two(n).to(tl.float32))


@triton.jit
def wrong_assumption(x, o, n):
    tl.assume(n > 100)
    tl.store(o + tl.arange(0, 16), tl.load(x + tl.arange(0, 16)))


@triton.jit
def bits_add_up(x, o, n):
    bit = tl.load(x + tl.arange(0, 16)) > -1000.0
    tl.store(o + tl.arange(0, 16), (bit + bit).to(tl.float32) + (bit * bit).to(tl.float32))


@triton.jit
def number_beats_nan(x, o, n):
    value = tl.load(x + tl.arange(0, 16))
    nan = value * float("inf") - value * float("inf")
    both = tl.maximum(nan, value) + tl.minimum(value, nan) + tl.clamp(nan, 1.0, 2.0)
    tl.store(o + tl.arange(0, 16), both)


@triton.jit
def true_hints(x, o, n):
    i = tl.max_contiguous(tl.multiple_of(tl.arange(0, 16), 16), 16)
    j = tl.max_constancy(i // 4, 4)
    tl.store(o + i, tl.load(x + i) + tl.multiple_of(j * 8, 8).to(tl.float32))


@triton.jit
def false_multiple(x, o, n):
    i = tl.multiple_of(tl.arange(0, 16) * 7 % 16, 16)
    tl.store(o + i, tl.load(x + i))


@triton.jit
def false_run(x, o, n):
    i = tl.max_contiguous(tl.arange(0, 16) * 7 % 16, 16)
    tl.store(o + i, tl.load(x + i))


@triton.jit
def false_constant(x, o, n):
    i = tl.max_constancy(tl.arange(0, 16), 2)
    tl.store(o + i, tl.load(x + i))


@triton.jit
def masks_by_arithmetic(x, o, n):
    """`and` of two conditions, carried through operations for which NumPy makes bytes of booleans."""
    i = tl.arange(0, 16)
    never, always = i < 0, i >= 0
    low, high = (i > 3) >> never, (i < 12) << never
    low, high = low // always, high & ((high % always) == never)
    tl.store(o + i, tl.full((16,), -1.0, tl.float32))
    tl.store(o + i, tl.load(x + i, mask=low & high, other=7.0), mask=(low & high) >> never)


@triton.jit
def shift_of_a_bit(x, o, n):
    i = tl.arange(0, 16)
    tl.store(o + i, ((i > 3) >> (i > 5)).to(tl.float32))


@triton.jit
def shift_too_far(x, o, n):
    i = tl.arange(0, 16)
    tl.store(o + i, (i << (i + 17)).to(tl.float32))


@triton.jit
def shift_backwards(x, o, n):
    i = tl.arange(0, 16)
    tl.store(o + i, (i >> (i - 8)).to(tl.float32))


@triton.jit
def division_by_zero(x, o, n):
    i = tl.arange(0, 16)
    tl.store(o + i, (i // (i - i)).to(tl.float32))


@triton.jit
def nan_as_whole_number(x, o, n):
    i = tl.arange(0, 16)
    tl.store(o + i, (tl.load(x + i) * float("inf")).to(tl.int32).to(tl.float32))


@triton.jit
def place_of_nan(x, o, n):
    nan = tl.load(x + tl.arange(0, 16)) * float("inf") * 0.0
    tl.store(o + tl.arange(0, 16), tl.argmax(nan, 0).to(tl.float32))


@triton.jit
def bfloat16_nan_as_whole_number(x, o, n):
    i = tl.arange(0, 16)
    tl.store(o + i, (tl.load(x + i) * float("inf")).to(tl.bfloat16).to(tl.int32).to(tl.float32))
