"""Compile and run small models on the GPU, including Triton kernels of a user's own; report what the caches did.

    python compile_cuda.py [--mode MODE] [PART...]

Parts: `own-kernels`, `transformer`, `feed-forward`, `convolution`, `dynamic`; all of them if none is named. The caller
decides where the caches are. The last line on stdout is JSON:

    {"outputs": SHA-256 of all outputs, "counters": as compile_models says, "triton": {"hits": n, "compiled": n},
     "slug": the GPU's name as kstore finds it now that torch is imported, "seconds": s}

`triton` counts what Triton itself was asked for in this process. Kernels that Inductor loads from the bundle of a
graph do not count, and neither do those that its compile processes compile.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

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


@triton.autotune([triton.Config({"BLOCK": size}) for size in (64, 256, 1024)], key=["count"], cache_results=True)
@triton.jit
def square(source, out, count, BLOCK: tl.constexpr):
    """out = source², in blocks of the size that was found to be the fastest. Which size that is stays on disk."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + at, at < count)
    tl.store(out + at, value * value, at < count)


def call_own_kernel(left: Tensor, right: Tensor) -> Tensor:
    out = torch.empty_like(left)
    scale_and_add[(triton.cdiv(left.numel(), 256),)](left, right, out, 0.5, left.numel(), BLOCK=256)
    return out


def call_tuned_kernel(source: Tensor) -> Tensor:
    out = torch.empty_like(source)
    square[lambda config: (triton.cdiv(source.numel(), config["BLOCK"]),)](source, out, source.numel())
    return out


def run_own_kernels(mode: str) -> list[Tensor]:
    """The kernels alone, through Triton's own cache, and in an Inductor graph."""
    left, right = torch.randn(1000).to(DEVICE), torch.randn(1000).to(DEVICE)
    compiled = torch.compile(lambda a, b: call_own_kernel(a.sin(), b) * 2, mode=mode)
    return [call_own_kernel(left, right), call_tuned_kernel(left), compiled(left, right)]


def run_transformer(mode: str) -> list[Tensor]:
    block = TransformerBlock(width=512, heads=8).eval().to(DEVICE, torch.bfloat16)
    return [torch.compile(block, mode=mode)(random(4, 128, 512))]


def run_feed_forward(mode: str) -> list[Tensor]:
    """What such a block has besides attention."""
    block = TransformerBlock(width=512, heads=8).eval().to(DEVICE, torch.bfloat16)
    return [torch.compile(block.feed_forward, mode=mode)(random(4, 128, 512))]


def run_convolution(mode: str) -> list[Tensor]:
    network = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.SiLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 16), nn.Softmax(dim=-1),
    )  # fmt: skip
    return [torch.compile(network.eval().to(DEVICE, torch.bfloat16), mode=mode)(random(8, 3, 64, 64))]


def run_dynamic(mode: str) -> list[Tensor]:
    network = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 128))
    compiled = torch.compile(network.eval().to(DEVICE, torch.bfloat16), dynamic=True, mode=mode)
    # The next call of a CUDA graph writes to where this one's output is.
    return [compiled(random(rows, 256)).clone() for rows in (16, 48, 112)]


def random(*shape: int) -> Tensor:
    """Drawn on the CPU."""
    return torch.randn(*shape).to(DEVICE, torch.bfloat16)


PARTS: dict[str, Callable[[str], list[Tensor]]] = {
    "own-kernels": run_own_kernels,
    "transformer": run_transformer,
    "feed-forward": run_feed_forward,
    "convolution": run_convolution,
    "dynamic": run_dynamic,
}


@dataclass
class Found:
    """What `run` found."""

    outputs: list[Tensor] = field(default_factory=list)
    asked: Counter[bool] = field(default_factory=Counter)
    """How often Triton was asked for a kernel, by whether it had the kernel."""


def run(mode: str, names: Iterable[str]) -> Found:
    """Runs parts, one after the other. Outputs are on the CPU."""
    found = Found()
    triton.knobs.compilation.listener = lambda *, cache_hit, **_: found.asked.update([cache_hit])
    for name in names:
        torch.manual_seed(SEED)
        torch._dynamo.reset()
        with torch.no_grad():
            found.outputs += [output.cpu() for output in PARTS[name](mode)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile and run small models on the GPU.")
    parser.add_argument("--mode", default="default")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    options = parser.parse_args()
    started = time.perf_counter()
    found = run(options.mode, options.parts or PARTS)
    report = {
        "outputs": digest_of(found.outputs),
        "counters": {area: dict(counters[area]) for area in ("inductor", "aot_autograd")},
        "triton": {"hits": found.asked[True], "compiled": found.asked[False]},
        "slug": gpu_slug(),
        "seconds": round(time.perf_counter() - started, 3),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
