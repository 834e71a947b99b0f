"""Compile small models as `compile_models.py` does, between a load and a save of a mega-cache.

    python use_megacache.py [--load FILE] [--restore KEY] [--save FILE] [--commit KEY] [--twice] NAME...

`--load` and `--save` are torch's own way, with a file; `--restore` and `--commit` are kstore's, with a key. With
`--twice` torch is asked for its mega-cache after each model already. In addition to the names of `compile_models.py`
there are `guarded-below` and `guarded-above`: `guarded` under one of its guards. The last line on stdout is JSON, with
the fields of `compile_models.py` and

    {"restored": status, "committed": the commit's report, "saved": {KIND: entries that torch saved}}
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import compile_models
import torch
import torch._dynamo  # as a program that uses torch.compiler has it: its import pins torch's cache folder
from torch._dynamo.utils import counters

from kstore.integrations import megacache

for guard, batch in {"guarded-below": 8, "guarded-above": 24}.items():
    run = partial(compile_models.run_batches, compile_models.Guarded(), width=40, batches=(batch,))
    compile_models.MODELS[guard] = run


def load(options: argparse.Namespace, report: dict[str, Any]) -> None:
    if options.load:
        assert torch.compiler.load_cache_artifacts(options.load.read_bytes()) is not None
    if options.restore:
        report["restored"] = megacache.load(options.restore).status


def save(options: argparse.Namespace, report: dict[str, Any]) -> None:
    if options.save:
        data, info = torch.compiler.save_cache_artifacts()
        options.save.write_bytes(data)
        report["saved"] = {kind: len(keys) for kind, keys in info.artifacts.items()}
    if options.commit:
        report["committed"] = megacache.save(options.commit).as_json()


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile small models between a load and a save.")
    parser.add_argument("names", nargs="+", type=compile_models.model_name, metavar="NAME")
    parser.add_argument("--load", type=Path)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--restore", metavar="KEY")
    parser.add_argument("--commit", metavar="KEY")
    parser.add_argument("--twice", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(compile_models.THREADS)
    started = time.perf_counter()
    report: dict[str, Any] = {"outputs": {}}
    load(options, report)
    for name in options.names:
        report["outputs"][name] = compile_models.digest_of(compile_models.run(name))
        if options.twice:
            torch.compiler.save_cache_artifacts()
    save(options, report)
    report["seconds"] = round(time.perf_counter() - started, 3)
    report["counters"] = {area: dict(counters[area]) for area in ("inductor", "aot_autograd")}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
