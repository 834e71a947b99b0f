"""One rank of a job that torchrun starts: restores a key several times with all other ranks, and says what it got.

    torchrun … restore_ranks.py KEY FOLDER COUNT [--gloo] [--commit]

With `--gloo` torch.distributed is initialised first; without it torch is not imported at all. With `--commit` the
last restore is a `kstore.synchronized` in which each rank makes a kernel of its own. FOLDER gets `<rank>.json`:

    {"torch": false, "restored": [report of each restore], "committed": report or null}
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import kstore
from tests.trees import Tree


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("key")
    parser.add_argument("folder", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("--gloo", action="store_true")
    parser.add_argument("--commit", action="store_true")
    options = parser.parse_args()
    if options.gloo:
        import torch.distributed

        torch.distributed.init_process_group("gloo")
    report: dict[str, Any] = {"restored": [], "committed": None}
    for _ in range(options.count - options.commit):
        report["restored"].append(kstore.restore(options.key, group=True).as_json())
    if options.commit:
        with kstore.synchronized(options.key, group=True) as cache:
            Tree(Path(cache.restored.cache_root)).kernel(f"rank-{os.environ['RANK']}")
        report["restored"].append(cache.restored.as_json())
        report["committed"] = cache.committed.as_json()
    report["torch"] = "torch" in sys.modules
    (options.folder / f"{os.environ['RANK']}.json").write_text(json.dumps(report))
    if options.gloo:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
