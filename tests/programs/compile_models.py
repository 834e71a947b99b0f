"""Compile and run small models with torch.compile on the CPU, and report what the caches did.

    python compile_models.py NAME...

Names: `transformer`, `convolution`, `dynamic` (one graph for several batch sizes), `guarded` (one graph under two
guards: two files in one slot), `training` (also runs backward) and `mlp-<anything>` (a different graph for each
suffix: `mlp-a`, `mlp-b` …). `gpt2`, `vit` and `unet` need the packages that public_models.py names.

The caller decides where the caches are: this program sets no cache variable. The seed and the number of threads are
fixed, so cache keys and outputs are the same in every process. The last line on stdout is JSON:

    {"outputs": {NAME: SHA-256}, "counters": {"inductor": {…}, "aot_autograd": {…}}, "seconds": s}

The digest is over the exact bytes of all outputs (for `training` the loss and the gradients). `seconds` is the wall
time of building, compiling and running the models, without the import of torch.

In a run that compiles nothing, `fxgraph_cache_miss`, `fxgraph_cache_bypass` and `fxgraph_lookup_write_file` (inductor)
and `autograd_cache_saved` (aot_autograd) are absent or 0. Other counters do not show this: on a hit Inductor adds the
counters of the original compile, and `autograd_cache_miss` is 1 in a perfect warm run of `dynamic`, because Dynamo asks
once more when it starts a trace again.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn import functional

SEED = 20
THREADS = 2


class TransformerBlock(nn.Module):
    """One decoder block: causal attention and a gated feed-forward, each after a root-mean-square norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.RMSNorm(width)
        self.feed_forward_norm = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (self.split_heads(part) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(mixed.transpose(1, 2).flatten(2))

    def feed_forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Guarded(nn.Module):
    """The branch changes nothing in the graph, but its condition becomes a guard of the compiled code."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > 16:
            return functional.gelu(x).softmax(dim=-1)
        return functional.gelu(x).softmax(dim=-1)


def run_transformer() -> list[Tensor]:
    block = torch.compile(TransformerBlock(width=64, heads=4).eval())
    with torch.no_grad():
        return [block(torch.randn(2, 32, 64))]


def run_convolution() -> list[Tensor]:
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.SiLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10), nn.Softmax(dim=-1),
    )  # fmt: skip
    with torch.no_grad():
        return [torch.compile(network.eval())(torch.randn(2, 3, 32, 32))]


def run_dynamic() -> list[Tensor]:
    network = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 24))
    return run_batches(network, width=48, batches=(4, 7, 19))


def run_guarded() -> list[Tensor]:
    return run_batches(Guarded(), width=40, batches=(8, 24))


def run_batches(network: nn.Module, *, width: int, batches: Iterable[int]) -> list[Tensor]:
    compiled = torch.compile(network.eval(), dynamic=True)
    with torch.no_grad():
        return [compiled(torch.randn(batch, width)) for batch in batches]


def run_training() -> list[Tensor]:
    network = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.LayerNorm(64), nn.Linear(64, 8))
    compiled = torch.compile(network)
    loss = functional.cross_entropy(compiled(torch.randn(16, 32)), torch.arange(16) % 8)
    loss.backward()
    return [loss, *(parameter.grad for parameter in network.parameters() if parameter.grad is not None)]


def run_mlp(variant: str) -> list[Tensor]:
    digest = hashlib.sha256(variant.encode()).digest()
    width, rows = 32 + 8 * digest[0], 4 + digest[1]
    activation = (nn.GELU(), nn.SiLU(), nn.Tanh(), nn.Softplus())[digest[2] % 4]
    network = nn.Sequential(nn.Linear(32, width), activation, nn.LayerNorm(width), nn.Linear(width, 16))
    with torch.no_grad():
        return [torch.compile(network.eval())(torch.randn(rows, 32))]


MODELS: dict[str, Callable[[], list[Tensor]]] = {
    "transformer": run_transformer,
    "convolution": run_convolution,
    "dynamic": run_dynamic,
    "guarded": run_guarded,
    "training": run_training,
}


PUBLIC = ("gpt2", "vit", "unet")
"""The models of public_models.py."""


def run(name: str) -> list[Tensor]:
    """Outputs of the named model, which do not depend on the models that ran before it."""
    torch.manual_seed(SEED)
    torch._dynamo.reset()
    if name.startswith("mlp-"):
        return run_mlp(name.removeprefix("mlp-"))
    if name in PUBLIC:
        import public_models

        found: list[Tensor] = getattr(public_models, f"run_{name}")()
        return found
    return MODELS[name]()


def digest_of(tensors: Iterable[Tensor]) -> str:
    """SHA-256 over dtype, shape and exact bytes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().contiguous()
        digest.update(f"{plain.dtype} {tuple(plain.shape)}\n".encode())
        digest.update(ctypes.string_at(plain.data_ptr(), plain.nbytes))
    return digest.hexdigest()


def model_name(text: str) -> str:
    if text in MODELS or text in PUBLIC or text.startswith("mlp-"):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join([*MODELS, *PUBLIC])}, mlp-<anything>")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile and run small models on the CPU.")
    parser.add_argument("names", nargs="+", type=model_name, metavar="NAME")
    names = parser.parse_args().names
    torch.set_num_threads(THREADS)
    started = time.perf_counter()
    outputs = {name: digest_of(run(name)) for name in names}
    seconds = round(time.perf_counter() - started, 3)
    counted = {area: dict(counters[area]) for area in ("inductor", "aot_autograd")}
    print(json.dumps({"outputs": outputs, "counters": counted, "seconds": seconds}))


if __name__ == "__main__":
    main()
