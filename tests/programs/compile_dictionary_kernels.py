"""Compile Triton kernels of many kinds for several GPUs, for `tools.dictionary`. No benchmark measures any of them.

    python compile_dictionary_kernels.py

None of these GPUs is needed. The caller decides where the caches are.
"""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ARCHITECTURES = (80, 90, 100)


@triton.jit
def histogram(x_ptr, counts_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(x_ptr + offsets, mask=offsets < n, other=0)
    tl.atomic_add(counts_ptr + found, 1, mask=offsets < n)


@triton.jit
def running_sum(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x_ptr + row * n + offsets, mask=offsets < n, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * n + offsets, tl.cumsum(values, axis=0), mask=offsets < n)


@triton.jit
def largest(x_ptr, where_ptr, n, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x_ptr + row * n + offsets, mask=offsets < n, other=float("-inf"))
    tl.store(where_ptr + row, tl.argmax(values, axis=0))


@triton.jit
def dropped(x_ptr, out_ptr, n, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x_ptr + offsets, mask=offsets < n)
    kept = tl.rand(seed, offsets) > 0.2
    tl.store(out_ptr + offsets, tl.where(kept, values / 0.8, 0.0), mask=offsets < n)


@triton.jit
def transposed(x_ptr, out_ptr, m, n, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    values = tl.load(x_ptr + rows[:, None] * n + columns[None, :], mask=inside)
    tl.store(out_ptr + columns[:, None] * m + rows[None, :], tl.trans(values), mask=tl.trans(inside))


@triton.jit
def attended(q_ptr, k_ptr, v_ptr, out_ptr, n, BLOCK: tl.constexpr):
    rows, inner = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    query = tl.load(q_ptr + rows[:, None] * BLOCK + inner[None, :])
    high = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    mixed = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        key = tl.load(k_ptr + columns[None, :] * BLOCK + inner[:, None])
        scores = tl.dot(query, key) * 0.125
        higher = tl.maximum(high, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        fading = tl.exp2(high - higher)
        value = tl.load(v_ptr + columns[:, None] * BLOCK + inner[None, :])
        mixed = mixed * fading[:, None] + tl.dot(weights.to(value.dtype), value)
        total, high = total * fading + tl.sum(weights, axis=1), higher
    tl.store(out_ptr + rows[:, None] * BLOCK + inner[None, :], (mixed / total[:, None]).to(query.dtype))


POINTERS: dict[triton.JITFunction, tuple[tuple[str, ...], ...]] = {
    histogram: (("*i32", "*i32"), ("*i64", "*i32")),
    running_sum: (("*fp32", "*fp32"), ("*bf16", "*fp32")),
    largest: (("*fp32", "*i32"), ("*fp16", "*i64")),
    dropped: (("*fp32", "*fp32"), ("*bf16", "*bf16")),
    transposed: (("*fp16", "*fp16"), ("*fp32", "*fp32")),
    attended: (("*fp16",) * 4, ("*bf16",) * 4),
}


def compile_kernel(
    kernel: triton.JITFunction, pointers: tuple[str, ...], architecture: int, options: Mapping[str, int]
) -> None:
    names = kernel.arg_names
    numbers = ("i32",) * (len(names) - len(pointers) - 1)
    signature = dict(zip(names, (*pointers, *numbers, "constexpr"), strict=True))
    divisible = {(position,): [["tt.divisibility", 16]] for position in range(len(names) - 1)}
    source = ASTSource(kernel, signature, {"BLOCK": 64}, divisible)
    triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


if __name__ == "__main__":
    for kernel, choices in POINTERS.items():
        for pointers in choices:
            for architecture in ARCHITECTURES:
                compile_kernel(kernel, pointers, architecture, {"num_warps": 4})
