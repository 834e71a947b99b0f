"""Compile one Triton kernel for sm_90, without a GPU.

    python compile_one_kernel.py FILE --warps 4 --line 1 --scale 2

FILE is written anew with the kernel, which begins this many lines further down and multiplies by the scale.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def scaled(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * {scale}, mask=offsets < n)
"""
SIGNATURE = {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--warps", type=int, default=4)
    parser.add_argument("--line", type=int, default=1)
    parser.add_argument("--scale", type=float, default=2)
    arguments = parser.parse_args()
    arguments.file.write_text("\n" * arguments.line + KERNEL.format(scale=arguments.scale))
    os.utime(arguments.file, (1_700_000_000, 1_700_000_000))
    spec = importlib.util.spec_from_file_location("kernel", arguments.file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    source = ASTSource(module.scaled, SIGNATURE, {(3,): 128}, None)
    triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": arguments.warps})
    print(json.dumps({}))


if __name__ == "__main__":
    main()
