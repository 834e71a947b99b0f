from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

MEMORY = 160
"""MiB. A Python set of a million digests takes more."""
PROGRAM = Path(__file__).parents[1] / "programs" / "collect_million.py"


@pytest.mark.slow
@pytest.mark.parametrize("blobs", [20_000, pytest.param(1_000_000, marks=pytest.mark.exhaustive)])
def test_any_number_of_blobs_is_collected_in_little_memory(
    blobs: int, record_property: Callable[[str, object], None]
) -> None:
    shared_memory = Path("/dev/shm")  # so many files take minutes on a disk
    with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as folder:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), f"{folder}/store", str(blobs)],
            check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2],
            env={"PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
    found = json.loads(done.stdout)
    record_property("told", f"gc of {blobs:,} blobs: {found}")
    manifests = blobs // 2 // 10_000
    assert (found["condemned"], found["deleted"], found["left"]) == (blobs // 2, blobs // 2, blobs // 2 + manifests)
    assert found["memory"] < MEMORY
