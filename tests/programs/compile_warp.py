"""Compile a module with NVIDIA Warp for the CPU, and report whether its cache had it."""

from __future__ import annotations

import contextlib
import io
import json

import warp as wp


@wp.kernel
def scaled(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * 2.0 + wp.sin(x[i])


def main() -> None:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        x, out = wp.ones(16, dtype=float, device="cpu"), wp.zeros(16, dtype=float, device="cpu")
        wp.launch(scaled, dim=16, inputs=[x, out], device="cpu")
    told = said.getvalue()
    counts = {"compiled": told.count("(compiled)"), "cached": told.count("(cached)")}
    print(json.dumps({"result": float(out.numpy()[0]), **counts}))


main()
