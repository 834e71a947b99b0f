"""Torch's C++ extensions: ninja goes by times, and would load what was built from other sources."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from kstore.environment import Host
from tests.components.units import NeverMixed
from tests.trees import Node, contents, shared_object

FOLDER = "extensions/twice"


@pytest.fixture(autouse=True)
def known(host: Host) -> None:
    """A host that is known without running the compiler."""


def build(node: Node, source: str, flag: str) -> None:
    """Write what `load_inline` leaves."""
    node.tree.put(f"{FOLDER}/main.cpp", source.encode())
    node.tree.put(f"{FOLDER}/build.ninja", f"cflags = -DFLAG={flag}".encode())
    for name in ("main.o", "twice.so"):
        node.tree.put(f"{FOLDER}/{name}", shared_object() + f"{source}, {flag}".encode())


def built(node: Node) -> dict[str, bytes]:
    return contents(node.tree.root / FOLDER)


class TestSourceAndFlags(NeverMixed):
    files = 4
    build, built = staticmethod(build), staticmethod(built)


def test_one_that_is_being_built_waits_for_the_next_commit(tmp_path: Path) -> None:
    node = Node(tmp_path)
    build(node, "source", "1")
    lock = node.tree.root / FOLDER / "lock"
    os.close(os.open(lock, os.O_CREAT | os.O_EXCL))  # as torch before 2.14 does
    assert node.commit().new_files == 0
    lock.unlink()
    assert node.commit().new_files == 4


def test_one_that_ninja_still_builds_waits_though_nobody_holds_the_lock(tmp_path: Path) -> None:
    """Ninja outlives the process that was killed."""
    node = Node(tmp_path)
    build(node, "source", "1")
    ninja = node.tree.put(f"{FOLDER}/.ninja_lock", b"", age=0)
    assert node.commit().new_files == 0
    node.tree.put(ninja, b"", age=7200)  # Ninja was killed, too.
    assert node.commit().new_files == 4


@pytest.mark.parametrize("age", [0, 7200])
def test_the_lock_that_torch_leaves_says_something_only_while_it_is_held(tmp_path: Path, age: int) -> None:
    node = Node(tmp_path)
    build(node, "source", "1")
    lock = node.tree.root / FOLDER / "lock"
    with lock.open("w") as held:
        os.utime(lock, (time.time() - age,) * 2)
        fcntl.flock(held, fcntl.LOCK_EX)
        assert node.commit().new_files == 0
    assert node.commit().new_files == 4
    assert lock.exists()
