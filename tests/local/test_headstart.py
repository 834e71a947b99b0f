"""A restore into an empty root begins while the manifest is still being parsed, and nothing depends on it."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kstore.blobs.loose import blob_path, stamp
from kstore.calls import link_rows
from kstore.digest import digest_of
from kstore.environment import Host
from kstore.errors import CacheRootError, IntegrityError
from kstore.local.headstart import Begun, HeadStart
from kstore.local.link import LinkMode
from kstore.published.byfolder import Run
from kstore.published.manifest import Entry, Files, Flag, Manifest
from kstore.published.ref import Ref
from kstore.published.snapshot import Snapshot
from kstore.report import RestoreStatus
from tests.trees import KEY, Node, contents, publish

pytestmark = pytest.mark.usefixtures("host")


class Noted(NamedTuple):
    """What a restore goes on from."""

    folders: set[str]


class AllBegun(list[Noted]):
    """What all restores go on from."""

    def __init__(self) -> None:
        super().__init__()
        self.linked: set[str] = set()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> AllBegun:
    found, begun_with = AllBegun(), HeadStart.begun_with

    def look(start: HeadStart, snapshot: Snapshot) -> Begun | None:
        if answer := begun_with(start, snapshot):
            found.append(Noted(answer.folders))
        return answer

    def note(paths: Sequence[str], *rest: Any, **flags: Any) -> memoryview:
        errors = link_rows(paths, *rest, **flags)
        found.linked.update(path for path, error in zip(paths, errors, strict=True) if not error)
        return errors

    monkeypatch.setattr(HeadStart, "begun_with", look)
    monkeypatch.setattr("kstore.local.headstart.link_rows", note)
    return found


def filled(folder: Path, layout: str) -> Node:
    node = Node(folder, "builder", layout=layout)
    for name in ("one", "two"):
        node.tree.wrapper(name)
        node.tree.kernel(name)
        node.tree.graph(f"f{name}")
    node.tree.put("inductor/ab/x.cu", b"in place")
    node.commit()
    return node


@pytest.fixture
def builder(tmp_path: Path, layout: str) -> Node:
    return filled(tmp_path, layout)


@pytest.fixture
def linkable(tmp_path: Path) -> Node:
    """A worker of a store whose blobs are loose."""
    return filled(tmp_path, "loose")


def stages(node: Node) -> list[str]:
    return [name for name in os.listdir(node.tree.root / ".kstore") if name.startswith("stage")]


def publish_files(node: Node, files: Files, generation: int, hosts: dict[str, Files] | None = None) -> None:
    """Publish them as the newest generation, whatever a commit would say about them."""
    data = Manifest(files, hosts or {}).dump()
    node.store.create()
    node.store.storage.blobs.loose.put_many([(digest_of(data), data)])
    ref = Ref(node.store.scope(KEY), generation, digest_of(data), len(data), (), 0.0, "test", len(files), 1)
    assert publish(node.store.storage.refs, ref)


def stored(node: Node, data: bytes, flags: int = Flag.LINK, unit: int = 0) -> Entry:
    node.store.create()
    node.store.storage.blobs.loose.put_many([(digest_of(data), data)])
    return Entry(digest_of(data), len(data), 0, 0o644, int(flags), unit)


def test_all_is_as_it_would_be_without(builder: Node, begun: AllBegun, tmp_path: Path, layout: str) -> None:
    node = Node(tmp_path, layout=layout)
    report = node.restore()
    assert (report.status, report.left_out, report.skipped) == (RestoreStatus.RESTORED, 0, ())
    assert {path.removeprefix("inductor/") for path in contents(node.tree.root)} == {
        path.removeprefix("inductor/") for path in contents(builder.tree.root)
    }
    assert len(begun) == 1 and "inductor/fxgraph/on/fone" in begun[0].folders
    assert bool(begun.linked) == (layout == "loose")
    assert sum(report.used_modes.values()) == report.placed == report.files
    assert stages(node) == []
    assert node.commit().new_files == 0


def test_what_is_never_changed_in_place_is_linked(linkable: Node, begun: AllBegun, tmp_path: Path) -> None:
    node = Node(tmp_path)
    mode = node.restore().link_mode
    assert begun.linked == {path for path, entry in linkable.published().items() if entry.flags & Flag.LINK}
    for path in begun.linked:
        digest = linkable.published()[path].digest
        assert (node.tree.root / path).stat().st_mtime_ns % 10**9 == stamp(digest)
        blob = blob_path(str(node.store.storage.blobs.loose.folder), digest)
        assert os.path.samefile(blob, node.tree.root / path) == (mode is LinkMode.HARDLINK)


def test_a_restore_of_few_files_begins_nothing_early(
    builder: Node, begun: AllBegun, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.local.headstart._WORTHWHILE", 500)
    node = Node(tmp_path, layout=layout)
    assert node.restore().left_out == 0
    assert begun == []
    assert contents(node.tree.root).keys() == builder.published().keys()


def test_a_root_that_holds_anything_is_looked_at_first(
    builder: Node, begun: AllBegun, tmp_path: Path, layout: str
) -> None:
    node = Node(tmp_path, layout=layout)
    node.tree.put("inductor/ab/mine.py", b"mine")
    assert node.restore().status is RestoreStatus.RESTORED
    assert begun == []
    assert node.tree.read("inductor/ab/mine.py") == b"mine"


def test_nothing_of_a_damaged_generation_stays(tmp_path: Path, begun: AllBegun) -> None:
    node = Node(tmp_path)
    publish_files(node, {"inductor/ab/good.py": stored(node, b"good")}, 1)
    publish_files(node, {"inductor/cd/file": stored(node, b"a"), "inductor/cd/file/below": stored(node, b"b")}, 2)
    assert node.restore().generation == 1
    assert contents(node.tree.root) == {"inductor/ab/good.py": b"good"}
    assert sorted(os.listdir(node.tree.root / "inductor")) == ["ab"]
    assert len(begun) == 1 and stages(node) == []


CLIMBING = ["../x", "../../../x", "../../../folder/x", "inductor/../../../../x", "inductor/ab/../../../../../x", "//x"]


@pytest.mark.parametrize("path", CLIMBING)
@pytest.mark.parametrize("before", [0, 5000])
def test_what_leads_out_of_the_root_is_neither_made_nor_linked(tmp_path: Path, path: str, before: int) -> None:
    """Where such a path comes late, nothing else is placed either: nothing that was begun is kept."""
    node = Node(tmp_path, "victim")
    evil = stored(node, b"evil")
    many = {f"!/{number}/x": evil for number in range(before)}
    publish_files(node, {**many, path: evil}, 1)
    outside = {found for found in tmp_path.rglob("*") if "store" not in found.parts}
    with pytest.raises(IntegrityError):
        node.restore()
    new = {found for found in tmp_path.rglob("*") if "store" not in found.parts} - outside
    assert all(node.tree.root in (found, *found.parents) for found in new)
    assert contents(node.tree.root) == {} and stages(node) == []
    assert not {"x", "folder"}.intersection(os.listdir(node.tree.root / ".kstore"))


def test_a_blob_that_was_altered_is_not_linked(linkable: Node, begun: AllBegun, tmp_path: Path) -> None:
    path = next(path for path, entry in sorted(linkable.published().items()) if entry.flags & Flag.LINK)
    blob = Path(blob_path(str(linkable.store.storage.blobs.loose.folder), linkable.published()[path].digest))
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes().upper())
    node = Node(tmp_path)
    report = node.restore()
    assert path not in begun.linked and not node.tree.has(path)
    assert report.left_out >= 1 and report.placed == report.files - report.left_out


def test_a_way_by_which_nothing_came_is_not_reported(tmp_path: Path, begun: AllBegun) -> None:
    node = Node(tmp_path)
    linked, lost = stored(node, b"linked"), stored(node, b"lost", 0)
    publish_files(node, {"inductor/ab/x.py": linked, "inductor/ab/x.cu": lost}, 1)
    os.unlink(blob_path(str(node.store.storage.blobs.loose.folder), lost.digest))
    report = node.restore()
    assert (report.placed, report.left_out) == (1, 1)
    assert report.used_modes == {str(report.link_mode): 1}


def refused(count: int) -> memoryview:
    return memoryview(errno.EMLINK.to_bytes(4, "little") * count).cast("i")


def test_what_is_not_linked_at_once_comes_another_way(
    linkable: Node, begun: AllBegun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Perhaps only a blob's stamp is missing: then it is read, and linked."""
    monkeypatch.setattr("kstore.local.headstart.link_rows", lambda paths, *rest, **flags: refused(len(paths)))
    node = Node(tmp_path)
    report = node.restore()
    assert begun.linked == set()
    assert (report.left_out, contents(node.tree.root).keys()) == (0, linkable.published().keys())
    assert report.link_mode is not LinkMode.COPY


def test_where_nothing_can_be_linked_all_is_copied(
    linkable: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*asked: object) -> memoryview:
        return memoryview(errno.EXDEV.to_bytes(4, "little")).cast("i")

    monkeypatch.setattr("kstore.local.link.link_each", refuse)
    monkeypatch.setattr("kstore.local.link.clone_each", refuse)
    node = Node(tmp_path)
    report = node.restore()
    assert (report.link_mode, report.left_out) == (LinkMode.COPY, 0)
    assert contents(node.tree.root).keys() == linkable.published().keys()


@pytest.mark.parametrize("flags", [Flag.LINK, Flag.LINK | Flag.GROUP])
def test_what_is_of_this_host_takes_the_place_of_what_is_of_any(tmp_path: Path, host: Host, flags: Flag) -> None:
    """No commit publishes both. The link made for the one for any host must not be taken for this host's file."""
    node, unit = Node(tmp_path), 2 * bool(flags & Flag.GROUP)
    of_any, of_host = stored(node, b"of any host", flags, unit), stored(node, b"of this host", flags | Flag.HOST, unit)
    files = {"triton/K/both": of_any, "triton/K/other": of_any, "triton/L/third": of_any}
    publish_files(node, files, 1, {host.fingerprint: {"triton/K/both": of_host}})
    assert node.restore().left_out == 0
    found = contents(node.tree.root)
    assert (found["triton/K/both"], found["triton/L/third"]) == (b"of this host", b"of any host")
    assert ("triton/K/other" in found) == (unit == 0)


def test_names_that_the_root_refuses_leave_nothing_of_their_group(tmp_path: Path, begun: AllBegun) -> None:
    node = Node(tmp_path)
    group = Flag.LINK | Flag.GROUP
    files = {"triton/K/short": stored(node, b"a", group, 2), f"triton/K/{'x' * 300}": stored(node, b"b", group, 2)}
    publish_files(node, {**files, "triton/L/file": stored(node, b"c", group, 2)}, 1)
    report = node.restore()
    assert len(begun) == 1 and report.left_out == 2
    assert contents(node.tree.root) == {"triton/L/file": b"c"}
    assert os.listdir(node.tree.root / "triton") == ["L"] and stages(node) == []


def test_names_that_the_root_refuses_are_left_out_by_the_next_restore_too(tmp_path: Path) -> None:
    """The folder that lacks them must not be taken for whole."""
    node = Node(tmp_path)
    publish_files(node, {f"inductor/ab/{name}": stored(node, name.encode()) for name in ("short", "x" * 300)}, 1)
    assert [node.restore().left_out for _ in range(3)] == [1, 1, 1]


def test_a_root_that_is_full_says_so(
    builder: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    def refuse(paths: Sequence[str]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), paths[0])

    monkeypatch.setattr("kstore.local.headstart.make_folders", refuse)
    node = Node(tmp_path, layout=layout)
    with pytest.raises(CacheRootError, match="No space left"):
        node.restore()
    assert contents(node.tree.root) == {} and stages(node) == []


def test_what_was_dropped_takes_nothing_more(tmp_path: Path) -> None:
    """The thread that parses a manifest may not know yet that nobody waits for it any more."""
    node = Node(tmp_path)
    node.restore()
    state = node.tree.state()
    begun = Begun(state, None)
    begun.see([Run("inductor/ab", ("x.py",), b"")])
    assert os.path.isdir(begun.stage)
    begun.drop()
    begun.see([Run("inductor/cd", ("x.py",), b"")])
    assert (begun.making, begun.linking, begun.folders) == ([], [], set())
    assert stages(node) == []


def test_once_a_restore_has_ended_nothing_is_begun(tmp_path: Path) -> None:
    node = Node(tmp_path)
    publish_files(node, {"inductor/ab/x.py": stored(node, b"x")}, 1)
    start = HeadStart(node.tree.cacheroot(), node.tree.state())
    with start:
        assert start.follow(node.store.storage.blobs, node.newest()) is not None
    assert start.follow(node.store.storage.blobs, node.newest()) is None
    assert stages(node) == []


def test_what_was_below_and_is_here_by_now_is_linked(tmp_path: Path, begun: AllBegun) -> None:
    node = Node(tmp_path)
    files = {f"inductor/ab/{n}.py": stored(node, b"%d" % n, Flag.LINK | Flag.BELOW * (n % 2)) for n in range(6)}
    publish_files(node, files, 1)
    report = node.restore()
    assert begun.linked == {f"inductor/ab/{n}.py" for n in (0, 2, 4)}
    assert (report.left_out, report.used_modes.get("copy", 0)) == (0, 0)


def test_where_a_component_is_not_managed_nothing_that_was_begun_is_taken(tmp_path: Path, begun: AllBegun) -> None:
    node = Node(tmp_path)
    publish_files(node, {"inductor/ab/x.py": stored(node, b"x"), "unknown/x.py": stored(node, b"y")}, 1)
    report = node.restore()
    assert len(begun) == 1 and [skipped.path for skipped in report.skipped] == ["unknown"]
    assert contents(node.tree.root) == {"inductor/ab/x.py": b"x"}
    assert "unknown" not in os.listdir(node.tree.root) and stages(node) == []


def test_where_a_component_is_elsewhere_by_now_nothing_that_was_begun_is_taken(
    tmp_path: Path, begun: AllBegun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example in a mount that was made meanwhile."""
    node = Node(tmp_path)
    publish_files(node, {f"{name}/ab/x.py": stored(node, name.encode()) for name in ("inductor", "triton")}, 1)
    monkeypatch.setattr("kstore.local.place.find_elsewhere", lambda *_: {"triton"})
    assert (node.restore().placed, len(begun)) == (2, 1)
    assert contents(node.tree.root) == {"inductor/ab/x.py": b"inductor", "triton/ab/x.py": b"triton"}
    assert stages(node) == []


@pytest.fixture
def one(tmp_path: Path) -> Node:
    """A worker of a store with one generation."""
    node = Node(tmp_path)
    publish_files(node, {"inductor/ab/x.py": stored(node, b"x")}, 1)
    return node


def test_what_was_begun_is_of_one_generation_only(one: Node) -> None:
    with HeadStart(one.tree.cacheroot(), one.tree.state()) as start:
        see = start.follow(one.store.storage.blobs, one.newest())
        assert see and start.begun_with(Snapshot(one.newest(), b"", see))
        assert start.begun_with(Snapshot(one.newest(), b"")) is None


def test_nothing_is_begun_with_a_generation_of_a_store_below(one: Node) -> None:
    """Its blobs may be here, or there."""
    with HeadStart(one.tree.cacheroot(), one.tree.state()) as start:
        assert start.follow(one.store.storage.blobs, replace(one.newest(), depth=1)) is None


@pytest.mark.parametrize("error", [OSError(errno.EROFS, os.strerror(errno.EROFS)), CacheRootError("cannot be written")])
def test_where_nothing_can_be_staged_nothing_is_begun(
    one: Node, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The restore itself will say so."""

    def refuse(*asked: object) -> None:
        raise error

    monkeypatch.setattr("kstore.local.headstart.Begun", refuse)
    with HeadStart(one.tree.cacheroot(), one.tree.state()) as start:
        assert start.follow(one.store.storage.blobs, one.newest()) is None


def test_where_a_component_is_in_another_mount_nothing_is_begun(one: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was linked in the cache root's own could not be moved there."""
    monkeypatch.setattr("kstore.local.headstart.find_elsewhere", lambda root, components: {"inductor"})
    with HeadStart(one.tree.cacheroot(), one.tree.state()) as start:
        assert start.follow(one.store.storage.blobs, one.newest()) is None


def test_where_a_folder_cannot_be_read_nothing_is_begun(one: Node) -> None:
    one.tree.put("inductor", b"a file")
    with HeadStart(one.tree.cacheroot(), one.tree.state()) as start:
        assert start.follow(one.store.storage.blobs, one.newest()) is None
