"""Write Triton kernels as source files and compile them for one GPU architecture, without a GPU.

    python compile_kernels.py --sources DIR --count N --release R [--changed-share 0.1] [--first I]

Kernels I … I+N-1 become `DIR/kernel_<i>.py`, one kernel a file, so that a change to one kernel never shifts the
line numbers of another (they are part of Triton's key). Each file also says how to compile its kernel.
`TRITON_CACHE_DIR` decides where the results go. The last line on stdout is JSON:

    {"kernels": N, "hits": found in the cache, "compiled": built, "seconds": wall time without imports}

In release 1, the text of kernel i depends on i alone. A later release R changes a share of the kernels and no
others: with P = round(1 / changed share), those with (i + R) % P == 0. So with the default share of a tenth,
any ten consecutive kernels contain exactly one that differs from release 1. A changed kernel has one different
constant in its body; a share of 0 changes none. Run again with the same cache, sources and release, every kernel
is a hit.

Two runs may work on one DIR at the same time. The path of DIR is in the debug lines of every artifact: artifacts
are byte-equal only if they were built from the same DIR.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from string import Template
from types import ModuleType
from typing import TypeVar

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

Choice = TypeVar("Choice")

TARGET = GPUTarget("cuda", 90, 32)
IMAGE_TIME = 1_700_000_000
BEFORE_3_3 = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 3)

FRAME = Template('''"""Kernel $index: $family."""

import triton
import triton.language as tl

SIGNATURE = $signature
CONSTEXPRS = $constexprs
OPTIONS = $options


@triton.jit
def $name($parameters):
$body''')

POINTWISE = """\
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32) * $scale + $shift
    tl.store(out_ptr + offsets, $activation, mask=mask)
"""

GATED = """\
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < n
    gate = tl.load(x_ptr + row * 2 * n + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * n + n + columns, mask=mask, other=0.0).to(tl.float32)
    x = gate * $scale
    residual = tl.load(y_ptr + row * n + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * n + columns, $activation * up + residual * $shift, mask=mask)
"""

REDUCTION = """\
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + columns, mask=columns < n, other=0.0).to(tl.float32) * $scale
        total += tl.where(columns < n, $activation, 0.0)
    tl.store(out_ptr + row, tl.sum(total, axis=0) * $shift)
"""

SOFTMAX = """\
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    x = tl.load(x_ptr + row * n + columns, mask=mask, other=-float("inf")).to(tl.float32) * $scale
    weights = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * n + columns, weights / (tl.sum(weights, axis=0) + $shift), mask=mask)
"""

LAYER_NORM = """\
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    x = tl.load(x_ptr + row * n + columns, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / n
    centred = tl.where(mask, x - mean, 0.0)
    x = centred * tl.rsqrt(tl.sum(centred * centred, axis=0) / n + $shift)
    weight = tl.load(y_ptr + columns, mask=mask, other=0.0).to(tl.float32) * $scale
    tl.store(out_ptr + row * n + columns, $activation * weight, mask=mask)
"""

ROTARY = """\
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    cosine = tl.load(y_ptr + row * 2 * n + columns, mask=mask, other=0.0).to(tl.float32) + $shift
    sine = tl.load(y_ptr + row * 2 * n + n + columns, mask=mask, other=0.0).to(tl.float32)
    left = tl.load(x_ptr + row * 2 * n + columns, mask=mask, other=0.0).to(tl.float32) * $scale
    right = tl.load(x_ptr + row * 2 * n + n + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * 2 * n + columns, left * cosine - right * sine, mask=mask)
    tl.store(out_ptr + row * 2 * n + n + columns, right * cosine + left * sine, mask=mask)
"""

MATMUL = """\
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        inside = start + depth < k
        left = tl.load(x_ptr + rows[:, None] * k + start + depth, mask=inside[None, :], other=0.0)
        right = tl.load(y_ptr + (start + depth)[:, None] * n + columns, mask=inside[:, None], other=0.0)
        total = tl.dot(left, right, total)
    x = total * $scale + $shift
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(out_ptr + rows[:, None] * n + columns, $activation, mask=inside)
"""

# Family: (body, run-time arguments). Pointers end in "_ptr".
FAMILIES = {
    "pointwise": (POINTWISE, ("x_ptr", "out_ptr", "n")),
    "gated": (GATED, ("x_ptr", "y_ptr", "out_ptr", "n")),
    "reduction": (REDUCTION, ("x_ptr", "out_ptr", "n")),
    "softmax": (SOFTMAX, ("x_ptr", "out_ptr", "n")),
    "layer_norm": (LAYER_NORM, ("x_ptr", "y_ptr", "out_ptr", "n")),
    "rotary": (ROTARY, ("x_ptr", "y_ptr", "out_ptr", "n")),
    "matmul": (MATMUL, ("x_ptr", "y_ptr", "out_ptr", "m", "n", "k")),
}

ACTIVATIONS = (
    "x",
    "tl.maximum(x, 0.0)",
    "x * tl.sigmoid(x)",
    "0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))",
    "tl.abs(x)",
    "tl.exp(tl.minimum(x, 0.0))",
    "tl.log(1.0 + tl.exp(-tl.abs(x))) + tl.maximum(x, 0.0)",
)
DTYPES = ("fp32", "fp16", "bf16")
BLOCKS = (128, 256, 512, 1024)
TILES = ((16, 32, 32), (32, 32, 32), (32, 64, 32), (64, 64, 32))


class Choices:
    """The choices for one kernel: drawn from its index, the same on every machine and Python version."""

    def __init__(self, index: int) -> None:
        self.digest = iter(hashlib.sha256(f"kernel {index}".encode()).digest())

    def one_of(self, options: tuple[Choice, ...]) -> Choice:
        return options[next(self.digest) % len(options)]

    def fraction(self) -> float:
        return (next(self.digest) * 256 + next(self.digest) + 1) / 65536


def source_text(index: int, *, changed: int) -> str:
    """The source file of one kernel; `changed` is 0, or the release that changed it."""
    choices = Choices(index)
    family = tuple(FAMILIES)[index % len(FAMILIES)]
    body, arguments = FAMILIES[family]
    dtype = choices.one_of(DTYPES)
    constexprs = block_sizes(family, choices)
    options = {"num_warps": choices.one_of((4, 8)), "num_stages": choices.one_of((2, 3))}
    constants = {"activation": choices.one_of(ACTIVATIONS), "scale": choices.fraction() + changed}
    return FRAME.substitute(
        index=index,
        family=family,
        name=f"{family}_{index:05d}",
        signature={name: f"*{dtype}" if name.endswith("_ptr") else "i32" for name in arguments},
        constexprs=constexprs,
        options=options,
        parameters=", ".join([*arguments, *(f"{name}: tl.constexpr" for name in constexprs)]),
        body=Template(body).substitute(constants, shift=choices.fraction()),
    )


def block_sizes(family: str, choices: Choices) -> dict[str, int]:
    if family == "matmul":
        return dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), choices.one_of(TILES), strict=True))
    return {"BLOCK": choices.one_of(BLOCKS)}


def changed_release(index: int, *, release: int, share: float) -> int:
    """`release` if it changed this kernel, else 0."""
    if release == 1 or share == 0:
        return 0
    return release if (index + release) % round(1 / share) == 0 else 0


def write_source(path: Path, text: str) -> None:
    """Replace the whole file, because another process may import it; leave it alone if it is already the same."""
    if path.exists() and path.read_text() == text:
        return
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(text)
    # A cubin's line table holds its source's modification time, which is the same in all containers of an image.
    os.utime(temporary, (IMAGE_TIME, IMAGE_TIME))
    temporary.replace(path)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kernel_of(module: ModuleType) -> triton.JITFunction:
    return next(value for value in vars(module).values() if isinstance(value, triton.JITFunction))


def attributes(signature: dict[str, str]) -> dict[tuple[int], list[list[object]]]:
    """What the launcher finds for ordinary tensors: all pointers and sizes are divisible by 16."""
    return {(position,): [["tt.divisibility", 16]] for position in range(len(signature))}


def source_of(module: ModuleType) -> ASTSource:
    if BEFORE_3_3:
        from triton.backends.compiler import AttrsDescriptor

        aligned = AttrsDescriptor.from_hints(dict.fromkeys(range(len(module.SIGNATURE)), 16))
        return ASTSource(kernel_of(module), module.SIGNATURE, module.CONSTEXPRS, aligned)
    signature = module.SIGNATURE | dict.fromkeys(module.CONSTEXPRS, "constexpr")
    return ASTSource(kernel_of(module), signature, module.CONSTEXPRS, attributes(module.SIGNATURE))


def compile_kernel(path: Path) -> None:
    module = load(path)
    triton.compile(source_of(module), target=TARGET, options=module.OPTIONS)


def compiling(results: Counter[bool]) -> None:
    """Count whether each kernel was found."""
    if hasattr(triton, "knobs"):
        triton.knobs.compilation.listener = lambda *, cache_hit, **_: results.update([cache_hit])
        return
    # Triton 3.3 and older tell nobody, but every kernel is asked for its hash, and one that is not found is then made.
    find, make = ASTSource.hash, ASTSource.make_ir

    def ask(source: ASTSource) -> object:
        results[True] += 1
        return find(source)

    def build(source: ASTSource, *arguments: object) -> object:
        results.update({True: -1, False: 1})
        return make(source, *arguments)

    ASTSource.hash, ASTSource.make_ir = ask, build


def write_sources(arguments: argparse.Namespace) -> Iterator[Path]:
    arguments.sources.mkdir(parents=True, exist_ok=True)
    for index in range(arguments.first, arguments.first + arguments.count):
        path = arguments.sources / f"kernel_{index:05d}.py"
        changed = changed_release(index, release=arguments.release, share=arguments.changed_share)
        write_source(path, source_text(index, changed=changed))
        yield path


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Write Triton kernels and compile them without a GPU.")
    parser.add_argument("--sources", type=lambda text: Path(text).absolute(), required=True, metavar="DIR")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--release", type=int, required=True, help="1, 2, 3 …")
    parser.add_argument("--changed-share", type=float, default=0.1, help="of kernels a release > 1 changes")
    parser.add_argument("--first", type=int, default=0, help="index of the first kernel")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    # A .pyc is trusted by size and whole seconds: two releases within one second would run the same code.
    sys.dont_write_bytecode = True
    results: Counter[bool] = Counter()
    compiling(results)
    started = time.perf_counter()
    for path in write_sources(arguments):
        compile_kernel(path)
    seconds = round(time.perf_counter() - started, 3)
    counts = {"kernels": arguments.count, "hits": results[True], "compiled": results[False]}
    print(json.dumps(counts | {"seconds": seconds}))


if __name__ == "__main__":
    main()
