"""Compile a function with JAX for the CPU, and report what its persistent cache had.

python compile_jax.py --depth 3
"""

from __future__ import annotations

import argparse
import json
import logging

import jax
import jax.numpy as jnp


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--depth", type=int, default=3)
    depth = parser.parse_args().depth

    told: list[str] = []
    handler = logging.Handler(logging.DEBUG)
    handler.emit = lambda record: told.append(record.getMessage())
    log = logging.getLogger("jax._src.compiler")
    log.setLevel(logging.DEBUG)
    log.addHandler(handler)
    log.propagate = False

    @jax.jit
    def function(x):
        for _ in range(depth):
            x = jnp.sin(x) @ jnp.cos(x).T
        return x

    result = float(function(jnp.ones((64, 64)))[0, 0])
    hits = sum("compilation cache hit" in line for line in told)
    misses = sum("COMPILATION CACHE MISS" in line for line in told)
    print(json.dumps({"result": result, "hits": hits, "misses": misses}))


main()
