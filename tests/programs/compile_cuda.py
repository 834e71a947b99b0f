"""Compile and run small models on the GPU, Triton kernels of a user's own among them; report what the caches did.

    python compile_cuda.py [--mode MODE]

The caller decides where the caches are. The last line on stdout is JSON:

    {"outputs": SHA-256 of all outputs, "counters": as compile_models says, "triton": {"hits": n, "compiled": n},
     "slug": the GPU's name as kstore finds it now that torch is there, "seconds": s}

`triton` counts what Triton itself was asked for in this process: kernels that Inductor loads from the bundle of a
graph are not among them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter

import torch
import triton
import triton.language as tl
from compile_models import SEED, TransformerBlock, digest_of
from torch import Tensor, nn
from torch._dynamo.utils import counters

from kstore.environment import gpu_slug

DEVICE = "cuda"


@triton.jit
def scale_and_add(left, right, out, factor, count, BLOCK: tl.constexpr):
    """out = factor · left + right."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(left + at, inside) * factor + tl.load(right + at, inside)
    tl.store(out + at, value, inside)


def call_own_kernel(left: Tensor, right: Tensor) -> Tensor:
    out = torch.empty_like(left)
    scale_and_add[(triton.cdiv(left.numel(), 256),)](left, right, out, 0.5, left.numel(), BLOCK=256)
    return out


def run_transformer(mode: str) -> list[Tensor]:
    block = TransformerBlock(width=512, heads=8).eval().to(DEVICE, torch.bfloat16)
    return [torch.compile(block, mode=mode)(torch.randn(4, 128, 512).to(DEVICE, torch.bfloat16))]


def run_convolution(mode: str) -> list[Tensor]:
    network = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.SiLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 16), nn.Softmax(dim=-1),
    )  # fmt: skip
    return [torch.compile(network.eval().to(DEVICE), mode=mode)(torch.randn(8, 3, 64, 64).to(DEVICE))]


def run_dynamic(mode: str) -> list[Tensor]:
    network = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 128)).eval().to(DEVICE)
    compiled = torch.compile(network, dynamic=True, mode=mode)
    return [compiled(torch.randn(rows, 256).to(DEVICE)) for rows in (16, 48, 112)]


def run_own_kernel(mode: str) -> list[Tensor]:
    """Once alone, through Triton's own cache, and once in a graph of Inductor's."""
    left, right = torch.randn(1000).to(DEVICE), torch.randn(1000).to(DEVICE)
    compiled = torch.compile(lambda a, b: call_own_kernel(a.sin(), b) * 2, mode=mode)
    return [call_own_kernel(left, right), compiled(left, right)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile and run small models on the GPU.")
    parser.add_argument("--mode", default="default")
    mode = parser.parse_args().mode
    asked: Counter[bool] = Counter()
    triton.knobs.compilation.listener = lambda *, cache_hit, **_: asked.update([cache_hit])
    started = time.perf_counter()
    outputs = []
    for run in (run_transformer, run_convolution, run_dynamic, run_own_kernel):
        torch.manual_seed(SEED)
        torch._dynamo.reset()
        with torch.no_grad():
            outputs += [output.cpu() for output in run(mode)]
    report = {
        "outputs": digest_of(outputs),
        "counters": {area: dict(counters[area]) for area in ("inductor", "aot_autograd")},
        "triton": {"hits": asked[True], "compiled": asked[False]},
        "slug": gpu_slug(),
        "seconds": round(time.perf_counter() - started, 3),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
