"""The floor: the bare system calls of a restore, made by a small C program that this module compiles."""

from __future__ import annotations

import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tools.bench.peers import Place


def links(place: Place) -> float:
    """Folders and hard links."""
    return _run("link", place, place.fresh("floor-link"))


def copies(place: Place) -> float:
    """Folders, and a create, write and close for each file."""
    return _run("copy", place, place.fresh("floor-copy"))


def _run(what: str, place: Place, target: Path) -> float:
    command = [str(_program()), what, str(place.corpus), str(target)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@cache
def _program() -> Path:
    program = Path(tempfile.mkdtemp(prefix="kstore-floor-")) / "floor"
    source = Path(__file__).with_name("floor.c")
    subprocess.run(["cc", "-O2", "-o", str(program), str(source)], check=True)
    return program
