"""What a restore placed is known by its folders' times, until somebody touches them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kstore import folders
from kstore.calls import Listing, Status, list_each
from kstore.environment import Host
from kstore.local import untouched
from kstore.local.index import Known, KnownFolder
from kstore.local.untouched import UNMARKED, Mark, Untouched, mark_folders
from kstore.published.manifest import Files, Flag
from kstore.report import CommitStatus, RestoreStatus
from kstore.threads import Pool
from tests.trees import Node, Tree, contents, entry, shared_object

Change = Callable[[Tree, str], object]
TICK = 0.15
"""Seconds after which a time is trusted."""
pytestmark = pytest.mark.usefixtures("host")


@pytest.fixture
def builder(tmp_path: Path, layout: str) -> Node:
    """A worker that has published two kernels, a module and a graph."""
    node = Node(tmp_path, "builder", layout=layout)
    for name in ("one", "two"):
        node.tree.kernel(name)
    node.tree.wrapper()
    node.tree.graph()
    node.commit()
    return node


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that are read, except one that a restore makes for a compiler."""
    found: list[str] = []

    def list_noting(folders: Sequence[str]) -> list[Listing]:
        found.extend(folder for folder in folders if not folder.endswith("/tunableop"))
        return list_each(folders)

    monkeypatch.setattr(folders, "list_each", list_noting)
    return found


def test_a_commit_after_a_restore_reads_no_folder(node: Node, listed: list[str]) -> None:
    assert node.commit().status is CommitStatus.UNCHANGED
    assert listed == []


def test_a_restore_after_a_restore_reads_no_folder(node: Node, listed: list[str]) -> None:
    for _ in range(2):
        assert node.restore().status is RestoreStatus.CURRENT
    assert listed == []


def test_only_the_folders_that_changed_are_read(node: Node, listed: list[str]) -> None:
    new = node.tree.kernel("three")
    report = node.commit()
    assert (report.status, report.new_files) == (CommitStatus.COMMITTED, 8)
    assert {os.path.relpath(path, node.tree.root) for path in listed} == {"triton", new}


def test_a_restore_that_finds_all_in_place_leaves_it_known(node: Node, listed: list[str]) -> None:
    for name in ("one", "two"):
        listed.clear()
        node.tree.put(f"inductor/{name}/c.py", name.encode())
        time.sleep(TICK)
        node.restore()
    assert {f"{node.tree.root}/inductor", f"{node.tree.root}/inductor/two"}.issuperset(listed)


def test_what_an_earlier_restore_has_placed_is_known_after_one_of_what_is_new(
    node: Node, builder: Node, listed: list[str]
) -> None:
    builder.tree.wrapper("new")
    builder.commit()
    assert node.restore().placed == 1
    listed.clear()
    node.tree.put("inductor/own/c.py", b"own")
    node.restore()
    assert listed and not [folder for folder in listed if "/triton/" in folder]


def test_locks_that_a_compiler_makes_cost_one_folder(node: Node, listed: list[str]) -> None:
    """Where nothing but the mark of the restore is remembered."""
    for still in (node.tree.root / ".kstore").glob("still-*"):
        still.unlink()
    node.tree.put("inductor/locks/c.lock", b"")
    assert node.restore().status is RestoreStatus.CURRENT
    assert {os.path.relpath(path, node.tree.root) for path in listed} == {"inductor"}


def replace_one(tree: Tree, kernel: str) -> None:
    tree.put(f"{kernel}/k.cubin", b"better code")


def add_one(tree: Tree, kernel: str) -> None:
    tree.put(f"{kernel}/k.asm", b"more of it")


@pytest.mark.parametrize("change", [replace_one, add_one])
def test_a_change_below_is_committed(change: Change, node: Node, tmp_path: Path) -> None:
    kernel = next(path for path in node.published() if path.startswith("triton/")).rpartition("/")[0]
    change(node.tree, kernel)
    assert node.commit().status is CommitStatus.COMMITTED
    other = Node(tmp_path, "other")
    other.restore()
    assert contents(other.tree.root / kernel).keys() == contents(node.tree.root / kernel).keys()
    for name, data in contents(node.tree.root / kernel).items():
        assert name.startswith("__grp__") or (other.tree.root / kernel / name).read_bytes() == data


@pytest.mark.parametrize("what", ["triton/*/k.cubin", "triton/*", "inductor/??/*.py", "inductor/fxgraph", "triton"])
def test_what_was_taken_away_is_restored(what: str, node: Node, builder: Node) -> None:
    path = next(node.tree.root.glob(what))
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    time.sleep(0.02)  # until the clock of file times advances
    assert node.restore().placed > 0
    assert contents(node.tree.root).keys() >= contents(builder.tree.root).keys() - contents_of_state(builder)
    assert node.commit().status is CommitStatus.UNCHANGED


def contents_of_state(node: Node) -> set[str]:
    return {name for name in contents(node.tree.root) if name.startswith(".kstore/")}


def test_what_others_add_to_a_folder_is_restored_after_a_commit(node: Node, builder: Node, tmp_path: Path) -> None:
    """The commit's generation has it, and the folder still has its old time."""
    kernel = next(path for path in node.published() if path.startswith("triton/")).rpartition("/")[0]
    add_one(builder.tree, kernel)
    builder.commit()
    node.tree.wrapper("mine")
    node.commit()
    assert not node.tree.has(f"{kernel}/k.asm")
    node.restore()
    assert node.tree.read(f"{kernel}/k.asm") == b"more of it"
    assert Node(tmp_path, "other").restore().skipped == ()


def test_what_others_add_to_a_folder_is_restored_by_the_next_restore(node: Node, builder: Node) -> None:
    kernel = next(path for path in node.published() if path.startswith("triton/")).rpartition("/")[0]
    add_one(builder.tree, kernel)
    builder.commit()
    for _ in range(2):
        node.restore()
        assert node.tree.read(f"{kernel}/k.asm") == b"more of it"
        assert node.commit().status is CommitStatus.UNCHANGED


def test_a_folder_that_was_there_before_is_read(builder: Node, tmp_path: Path, layout: str) -> None:
    node = Node(tmp_path, layout=layout)
    node.tree.kernel("own")
    node.restore()
    assert node.commit().new_files == 8
    assert Node(tmp_path, "other").restore().files == len(builder.published())


def test_what_was_not_placed_is_not_taken_to_be_there(builder: Node, tmp_path: Path, layout: str) -> None:
    lost = next(path for path in builder.published() if path.endswith(".cubin"))
    damage(builder, lost)
    node = Node(tmp_path, layout=layout)
    assert node.restore().left_out > 0
    assert builder.store.verify(repair=True)
    builder.commit()
    assert node.restore().left_out == 0
    assert node.tree.has(lost)


def test_a_folder_that_lacks_a_file_is_not_taken_to_have_all(tmp_path: Path) -> None:
    """Also if nothing else in it had to be dropped for that."""
    builder, node = Node(tmp_path, "builder", layout="loose"), Node(tmp_path, layout="loose")
    lost, _ = (builder.tree.put(f"inductor/ab/{name}.py", name.encode()) for name in ("lost", "other"))
    builder.commit()
    digest = builder.published()[lost].digest.hex()
    (blob,) = builder.location.rglob(digest)
    blob.rename(tmp_path / digest)
    assert node.restore().left_out == 1
    (tmp_path / digest).rename(blob)
    assert (node.restore().placed, node.tree.has(lost)) == (1, True)


@pytest.mark.parametrize("is_index_lost", [False, True])
def test_a_folder_that_lacks_what_is_new_is_not_taken_to_have_it(tmp_path: Path, is_index_lost: bool) -> None:
    """Although it is as an earlier restore has placed it."""
    builder, node = Node(tmp_path, "builder", layout="loose"), Node(tmp_path, layout="loose")
    builder.tree.put("inductor/ab/old.py", b"old")
    builder.commit()
    node.restore()
    lost = builder.tree.put("inductor/ab/new.py", b"new")
    builder.commit()
    digest = builder.published()[lost].digest.hex()
    (blob,) = builder.location.rglob(digest)
    blob.rename(tmp_path / digest)
    assert node.restore().left_out == 1
    for index in (node.tree.root / ".kstore").glob("index-*") if is_index_lost else ():
        index.unlink()
    assert node.restore().left_out == 1
    (tmp_path / digest).rename(blob)
    assert (node.restore().placed, node.tree.has(lost)) == (1, True)


def damage(node: Node, path: str) -> None:
    """Make a blob unreadable, or the first frame of the pack that it is in."""
    entry = node.published()[path]
    for file in node.location.rglob("*"):
        if file.name == entry.digest.hex() or file.parent.name == "packs":
            data = bytearray(file.read_bytes())
            data[16] ^= 0xFF
            file.chmod(0o644)
            file.write_bytes(data)


def test_files_that_are_changed_in_place_are_looked_at(tmp_path: Path, layout: str) -> None:
    builder, node = Node(tmp_path, "builder", layout=layout), Node(tmp_path, layout=layout)
    path = builder.tree.timings({"a": 1})
    builder.commit()
    node.restore()
    with (node.tree.root / path).open("r+b") as file:
        file.write(json.dumps({"b": 2}).encode())
    node.commit()
    other = Node(tmp_path, "other", layout=layout)
    other.restore()
    assert json.loads(other.tree.read(path)) == {"a": 1, "b": 2}


@pytest.mark.parametrize("restores", [1, 2])
def test_a_time_that_was_set_back_is_not_believed(restores: int, node: Node) -> None:
    """systemd-tmpfiles sets it back after it has removed a file because of its age."""
    for _ in range(1, restores):
        node.restore()
    path = clean(node)
    assert node.restore().placed > 0
    assert path.exists()


def clean(node: Node) -> Path:
    """Remove a file, and set its folder's time back."""
    path = next(node.tree.root.glob("triton/*/k.cubin"))
    before = path.parent.stat()
    path.unlink()
    os.utime(path.parent, ns=(before.st_atime_ns, before.st_mtime_ns))
    return path


def test_what_was_taken_away_after_a_commit_is_restored_though_the_time_was_set_back(builder: Node) -> None:
    """Here it is the index that vouches for the folder."""
    time.sleep(TICK)
    builder.commit()
    path = clean(builder)
    assert builder.restore().placed > 0
    assert path.exists()


def test_a_group_is_bound_to_a_host_as_a_whole(tmp_path: Path, layout: str) -> None:
    """Even if only a folder in it has changed, which the index knows."""
    builder, node = Node(tmp_path, "builder", layout=layout), Node(tmp_path, layout=layout)
    kernel = builder.tree.kernel()
    builder.tree.put(f"{kernel}/below/notes", b"any")
    builder.commit()
    node.restore()
    node.tree.put(f"{kernel}/below/launcher.so", shared_object())
    os.utime(node.tree.root / kernel / "below", (0, 0))
    node.restore()
    node.commit()
    (bound,) = builder.store.snapshot(node.newest()).manifest.hosts.values()
    assert {f"{kernel}/k.cubin", f"{kernel}/below/launcher.so"} <= bound.keys()


def test_what_an_older_kstore_remembers_is_read(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    path = node.tree.root / ".kstore" / "sync.json"
    content = json.loads(path.read_bytes())
    del content["placing"], content["untouched"]
    path.write_text(json.dumps(content))
    assert node.restore().status is RestoreStatus.CURRENT
    assert "merged as new" not in caplog.text


def test_under_other_folders_nothing_is_believed(node: Node, listed: list[str]) -> None:
    """Other components are managed now: what the time says was said about the earlier ones."""
    elsewhere = node.tree.root / "elsewhere"
    node.environ["TRITON_CACHE_DIR"] = str(elsewhere)
    shutil.copytree(node.tree.root / "triton", elsewhere)
    node.commit()
    assert str(elsewhere) in listed


def test_on_another_host_nothing_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    def be_on(host: str) -> None:
        monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host(host * 16, {"cpu": host}))

    for host in "ab":
        be_on(host)
        builder = Node(tmp_path, f"builder {host}", layout=layout)
        # One host-bound file makes a whole group so.
        builder.tree.put(f"{builder.tree.kernel()}/launcher.so", shared_object())
        bound = builder.tree.put(f"{builder.tree.kernel()}/k.cubin", f"for {host}".encode())
        builder.commit()
    node = Node(tmp_path, layout=layout)
    for host in "abba":
        be_on(host)
        node.commit()
        node.restore()
        assert node.tree.read(bound).endswith(host.encode())


def test_a_filesystem_that_refuses_the_time_is_read(
    builder: Node, tmp_path: Path, layout: str, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.local.untouched.utime_each", lambda paths, *times: [errno.EPERM] * len(paths))
    with Pool(1) as pool:
        assert mark_folders(["folder"], lambda _: str(tmp_path), pool) != tmp_path.stat().st_mtime_ns
    node = Node(tmp_path, layout=layout)
    assert node.restore().left_out == 0
    assert node.commit().status is CommitStatus.UNCHANGED
    assert listed


@pytest.mark.parametrize("part", [1, 10**9 - 1])
def test_the_time_of_placed_folders_is_at_random_in_a_second_that_is_over_and_never_a_whole_one(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever happens from now on has another time, also where a filesystem keeps whole seconds."""
    monkeypatch.setattr("kstore.local.untouched.secrets.randbelow", lambda below: {1: 0, below: below - 1}[part])
    before = time.time_ns()
    with Pool(1) as pool:
        marked = mark_folders([str(tmp_path)], str, pool)
    assert before - 3 * 10**9 < marked < time.time_ns() - 10**9
    assert marked % 10**9 == part
    assert tmp_path.stat().st_mtime_ns == marked


def test_every_folder_has_that_time_and_is_where_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untouched, "_AT_ONCE", 2)
    names = [f"{number}" for number in range(5)]
    for name in names:
        (tmp_path / name).mkdir()
    with Pool(1) as pool:
        marked = mark_folders(names, lambda name: f"{tmp_path}/{name}", pool)
    assert {(tmp_path / name).stat().st_mtime_ns for name in names} == {marked}


def test_what_keeps_folders_from_their_time_is_raised() -> None:
    def lost(folder: str) -> str:
        raise KeyError(folder)

    with Pool(1) as pool, pytest.raises(KeyError):
        mark_folders(["folder"], lost, pool)


def test_a_folder_stands_until_the_moment_when_all_was_in_place_and_none_does_without_a_mark() -> None:
    mark = Mark(5, 7)
    assert mark.stands(5, 7) and not mark.stands(5, 8) and not mark.stands(6, 7)
    assert not UNMARKED.stands(0, 0)


def test_what_is_in_a_folder_that_stands_is_known_by_its_files_and_by_those_further_below() -> None:
    linked, below = entry("linked", Flag.LINK), entry("of a store below", Flag.LINK | Flag.BELOW)
    files: Files = {
        "top": linked, "a/one": linked, "a/b/c/two": below, "a/d/three": linked, "changing/x.cu": entry("in place"),
    }  # fmt: skip
    placed = Untouched(Mark(5, 7), lambda: files)
    stands, touched = (Status(0, 0, 0, mtime_ns, 6, 1) for mtime_ns in (5, 6))

    found = placed.folder("a", stands)
    assert found and (found.mtime_ns, found.ctime_ns, {*found.folders}, found.files) == (5, 6, {"b", "d"}, ("one",))
    assert placed.folder("a/b", stands) == KnownFolder(5, 6, ("c",), ())
    assert placed.folder("a/b/c", stands) == KnownFolder(5, 6, (), ("two",))
    for path, status in (("a", touched), ("a", stands._replace(error=errno.EIO)), ("changing", stands), ("x", stands)):
        assert placed.folder(path, status) is None
    assert placed.files("a") == {"one": Known(linked, linked.size, 0)}
    assert placed.files("a/b/c") == {"two": Known(below._replace(flags=int(Flag.LINK)), below.size, 0)}
