"""One rank of a Slurm job: makes a Triton kernel, leaves `made-<rank>` in $FOLDER, and waits to be ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.trees import Tree


def main() -> None:
    rank = os.environ["SLURM_PROCID"]
    Tree(Path(os.environ["TRITON_CACHE_DIR"]).parent).kernel(f"rank-{rank}")
    (Path(os.environ["FOLDER"]) / f"made-{rank}").touch()
    signal.pause()


if __name__ == "__main__":
    main()
