from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

BLOBS = 1_000_000
MEMORY = 160
"""MiB. A Python set of as many digests takes more."""
PROGRAM = Path(__file__).parents[1] / "programs" / "collect_million.py"


@pytest.mark.slow
def test_a_million_blobs_are_collected_in_little_memory(record_property: Callable[[str, object], None]) -> None:
    shared_memory = Path("/dev/shm")  # as many files take minutes on a disk
    with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as folder:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), f"{folder}/store", str(BLOBS)],
            check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2],
            env={"PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
    found = json.loads(done.stdout)
    record_property("told", f"gc of {BLOBS:,} blobs: {found}")
    manifests = BLOBS // 2 // 10_000
    assert (found["condemned"], found["deleted"], found["left"]) == (BLOBS // 2, BLOBS // 2, BLOBS // 2 + manifests)
    assert found["memory"] < MEMORY
