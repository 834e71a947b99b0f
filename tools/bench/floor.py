"""The floor: the bare system calls of a restore or a commit, made by a small C program that this module compiles."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path


def run(what: str, source: Path, target: Path) -> float:
    """Make `target` from `source`, and return how many seconds it took.

    `what` is one of:

    - `copy`: folders, and an open, a write and a close for each file; contents are read before the time starts
    - `link`: the same, but a hard link for each file that has another name
    - `store`: 256 folders, and the same as `copy` for each file, except that reading it is timed and that the file is
      whole before a link gives it its name
    """
    command = [str(_program()), what, str(source), str(target)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@cache
def _program() -> Path:
    folder = tempfile.mkdtemp(prefix="kstore-floor-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program = Path(folder, "floor")
    source = Path(__file__).with_name("floor.c")
    subprocess.run(["cc", "-O2", "-o", str(program), str(source)], check=True)
    return program
