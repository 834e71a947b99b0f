"""Verify finds files of the local cache root with other content than was restored, and leaves a worker its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kstore.environment import Host
from tests.trees import KEY, Node, contents, shared_object

LAUNCHER = "triton/LAUNCHER/launcher.so"
MODULE = "inductor/ab/cmodule.so"


@pytest.fixture(autouse=True)
def known(host: Host) -> None:
    """A host that is known without running the compiler."""


@pytest.fixture
def builder(layout: str, tmp_path: Path) -> Node:
    """A worker that has committed what is copied: executable files, in a group and in none, and a kernel's list."""
    builder = Node(tmp_path, "builder", layout=layout)
    for path in (LAUNCHER, MODULE):
        builder.tree.put(path, shared_object(), mode=0o755)
    builder.tree.kernel()
    builder.commit()
    return builder


@pytest.fixture
def worker(builder: Node, layout: str, tmp_path: Path) -> Node:
    """A worker that has restored it."""
    worker = Node(tmp_path, "worker", layout=layout)
    worker.restore()
    assert worker.store.verify(KEY).ok
    return worker


def flipped(data: bytes) -> bytes:
    return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]


def write_into(node: Node, path: str) -> None:
    """In place, as no compiler writes these files."""
    (node.tree.root / path).write_bytes(flipped(node.tree.read(path)))


def rot(node: Node, path: str) -> None:
    """In place, and no time shows it."""
    before = (node.tree.root / path).stat()
    write_into(node, path)
    os.utime(node.tree.root / path, ns=(before.st_atime_ns, before.st_mtime_ns))


def list_of(node: Node) -> str:
    """The file of a kernel that holds paths."""
    (path,) = node.tree.root.glob("triton/*/__grp__*.json")
    return str(path.relative_to(node.tree.root))


@pytest.mark.parametrize("path", [LAUNCHER, MODULE, ""], ids=["in a group", "in none", "with paths"])
def test_a_copy_with_other_content_is_found_and_the_next_restore_brings_it_again(worker: Node, path: str) -> None:
    path, before = path or list_of(worker), contents(worker.tree.root)
    write_into(worker, path)
    assert worker.store.verify(KEY).local == [path]
    report = worker.store.verify(KEY, repair=True)
    assert (report.local, report.damage) == ([path], [])
    assert not worker.tree.has(path)
    worker.restore()
    assert contents(worker.tree.root) == before
    assert worker.store.verify(KEY).ok


@pytest.mark.parametrize("path", [LAUNCHER, MODULE, "triton/*/k.cubin"], ids=["in a group", "in none", "linked"])
def test_what_has_rotten_since_it_was_committed_is_found(builder: Node, path: str) -> None:
    (found,) = builder.tree.root.glob(path)
    rot(builder, path := str(found.relative_to(builder.tree.root)))
    assert builder.store.verify(KEY).local == [path]


def test_what_a_compiler_has_made_anew_is_the_worker_s_own(worker: Node) -> None:
    for path in (LAUNCHER, MODULE):
        worker.tree.put(path, flipped(worker.tree.read(path)), mode=0o755)
    worker.tree.kernel(variant="compiled here")
    before = contents(worker.tree.root)
    assert worker.store.verify(KEY, repair=True).ok
    assert contents(worker.tree.root) == before


def test_a_group_that_a_compiler_has_changed_is_the_worker_s_own(worker: Node) -> None:
    write_into(worker, LAUNCHER)
    worker.tree.put(f"{Path(LAUNCHER).parent}/more.json", b"{}")
    assert worker.store.verify(KEY).ok


def test_what_is_not_there_is_not_altered(worker: Node) -> None:
    (worker.tree.root / MODULE).unlink()
    assert worker.store.verify(KEY).ok


def test_components_that_a_worker_does_not_manage_are_not_looked_at(worker: Node, tmp_path: Path) -> None:
    write_into(worker, LAUNCHER)
    assert Node(tmp_path, "worker", layout=None, components=("inductor",)).store.verify(KEY).ok
