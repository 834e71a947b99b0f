"""What `kstore demo` runs twice: restore, compile a small model for the CPU, commit.

    python -m kstore.cli.demo_program STORE CACHE_ROOT MODEL

MODEL is `block`, or `trivial` if the compilers only have to run once. The last line on stdout is JSON: `import` and
`first_call` in seconds, `output` a digest of the exact result, `compiled` how many graphs torch could not find in its
cache, and the reports `restore` and `commit`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import kstore

KEY = "demo"


def main() -> None:
    """Run as a program."""
    store, cache_root, model = sys.argv[1:]
    os.chdir(os.path.dirname(store))  # The user's kstore.toml is not read there.
    cache = kstore.synchronized(
        KEY, store=store, cache_root=cache_root, mode="readwrite", components=("inductor", "triton"), strict=True
    )
    with cache:
        result = _first_call(_MODELS[model])
    reports = {"restore": cache.restored.as_json(), "commit": cache.committed.as_json()}
    print(json.dumps(result | reports))


def _first_call(make: Callable[[], tuple[Any, Any]]) -> dict[str, Any]:
    """Compile and run once. torch is imported here, after the restore has set its variables."""
    started = time.perf_counter()
    import torch
    from torch._dynamo.utils import counters

    imported = time.perf_counter() - started
    torch.manual_seed(0)
    model, argument = make()
    started = time.perf_counter()
    with torch.no_grad():
        compiled: Any = torch.compile(model)
        output = compiled(argument)
    return {
        "import": imported,
        "first_call": time.perf_counter() - started,
        "output": hashlib.sha256(output.numpy().tobytes()).hexdigest(),
        "compiled": counters["inductor"]["fxgraph_cache_miss"],
    }


def _block() -> tuple[Any, Any]:
    """A transformer layer and a batch for it."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, activation="gelu", batch_first=True, norm_first=True)
    return torch.nn.Sequential(layer, torch.nn.Linear(64, 32), torch.nn.Softmax(-1)).eval(), torch.randn(2, 32, 64)


def _trivial() -> tuple[Any, Any]:
    import torch

    return (lambda x: x.sin() + 1), torch.randn(64)


_MODELS = {"block": _block, "trivial": _trivial}

if __name__ == "__main__":
    main()
