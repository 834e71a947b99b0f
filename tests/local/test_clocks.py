"""How old a file is, is a matter between it and its filesystem, whatever this host's clock says."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from kstore.local import clocks
from kstore.local.clocks import clocks_of
from kstore.local.index import Index
from kstore.report import CommitStatus
from tests.trees import HOUR, Node, Tree

AHEAD = 2 * HOUR
"""Seconds by which this host's clock is ahead of that of the cache root's filesystem."""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A cache root on a server whose clock is behind this host's."""
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() + AHEAD)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + int(AHEAD * 1e9))
    return Tree(tmp_path / "root")


def write(tree: Tree, path: str, data: bytes) -> str:
    """Write a file that has just been changed, by the clock of its filesystem, however long the test takes."""
    target = tree.root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    now_ns = target.stat().st_mtime_ns + int(HOUR / 2 * 1e9)
    os.utime(target, ns=(now_ns, now_ns))
    return path


def test_what_was_written_just_now_is_not_trusted(tree: Tree) -> None:
    path = write(tree, "inductor/ab/c.best_config", b"young")
    found = tree.scan()
    assert (list(found.files), found.unsettled, found.index) == ([path], {path}, Index())


def test_a_change_within_a_tick_of_the_clock_is_published(tree: Tree) -> None:
    node = Node(tree.root.parent, "root")
    path = tree.root / write(tree, "inductor/ab/own.bin", b"one")
    status = path.stat()
    node.commit()
    path.write_bytes(b"two")
    os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert node.commit().status is CommitStatus.COMMITTED


def test_a_root_that_has_only_just_become_still_is_looked_at_again(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file may come within the tick of the clock in which its folder was listed."""
    node = Node(tree.root.parent, "root")
    folder = (tree.root / tree.put("inductor/ab/c.py", b"code", age=AHEAD + HOUR)).parent
    state = node.store.worker("model/v1", before_import=False).state
    monkeypatch.setattr(clocks, "_now", lambda *_: folder.stat().st_ctime_ns)
    node.commit()
    assert state.still() is None
    monkeypatch.setattr(clocks, "_now", lambda *_: folder.stat().st_ctime_ns + 10**9)
    node.commit()
    assert state.still() is not None


def test_a_kernel_that_is_being_written_is_busy(tree: Tree) -> None:
    kernel = tree.kernel()
    write(tree, f"{kernel}/k.ptx.tmp.pid_12_3f", b"half")
    assert tree.scan().busy == {kernel}


@pytest.fixture
def nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filesystem like NFS: no files without a name."""

    def refuse(_: str) -> int:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(clocks, "_of_nameless", refuse)


@pytest.mark.usefixtures("nameless")
def test_where_no_file_can_be_without_a_name_one_of_kstores_own_tells_the_time(tree: Tree) -> None:
    path = tree.root / "inductor/c.py"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"code")
    (tree.root / ".kstore").mkdir()
    folders = {"inductor": f"{tree.root}/inductor"}
    told = clocks_of(f"{tree.root}/.kstore", folders)["inductor"]
    assert 0 <= told - path.stat().st_mtime_ns < HOUR * 1e9
    time.sleep(0.03)
    assert clocks_of(f"{tree.root}/.kstore", folders)["inductor"] > told


@pytest.mark.usefixtures("nameless")
def test_nothing_else_is_written_for_the_time(tree: Tree) -> None:
    """Others may be able to write into a component's folder."""
    folder = tree.root / "triton"
    (folder / ".kstore").mkdir(parents=True)
    clock, other = folder / ".kstore/clock", tree.root / "other"
    other.write_bytes(b"precious")
    clock.symlink_to(other)
    assert clocks_of(f"{tree.root}/.kstore", {"triton": str(folder)}) == {"triton": 0}
    assert other.read_bytes() == b"precious"
    clock.unlink()
    os.mkfifo(clock)
    assert clocks_of(f"{tree.root}/.kstore", {"triton": str(folder)}) == {"triton": 0}


@pytest.mark.usefixtures("nameless")
def test_where_nobody_can_tell_the_time_nothing_is_trusted(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: str) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(clocks, "_of_named", full)
    path = tree.wrapper()
    found = tree.scan()
    assert (list(found.files), found.index) == ([path], Index())


def test_a_folder_that_may_not_be_written_leaves_it_to_others_to_tell_the_time(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {name: f"{tree.root}/{name}" for name in ("inductor", "triton")}
    for folder in folders.values():
        os.makedirs(folder)

    def refuse(folder: str) -> int:
        if folder.startswith(f"{tree.root}/triton"):
            return 5
        raise OSError(errno.EACCES, "not permitted")

    for look in ("_of_nameless", "_of_named"):
        monkeypatch.setattr(clocks, look, refuse)
    state = f"{tree.root}/.kstore"
    assert clocks_of(state, folders) == dict.fromkeys(folders, 5)
    del folders["triton"]
    assert clocks_of(state, folders)["inductor"] >= time.time_ns() - HOUR * 1e9


def test_each_filesystem_tells_its_own_time(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A component may be on another filesystem than the root."""
    folders = {name: f"{tree.root}/{name}" for name in ("inductor", "triton", "vllm")}
    state = f"{tree.root}/.kstore"
    devices = dict(zip([state, *folders.values()], (1, 1, 2, 2), strict=True))
    monkeypatch.setattr(clocks, "_device_of", devices.__getitem__)
    asked = list[str]()

    def now(folder: str, own: str) -> int:
        asked.append(own)
        return len(asked)

    monkeypatch.setattr(clocks, "_now", now)
    assert clocks_of(state, folders) == {"inductor": 1, "triton": 2, "vllm": 2}
    assert asked == [state, f"{folders['triton']}/.kstore"]
