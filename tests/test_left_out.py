"""What cannot be taken, or put in its place, is reported, and costs nothing else."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

import pytest

from kstore.local.found import Scan, Skipped
from kstore.local.index import Known
from kstore.local.link import LinkMode
from kstore.local.move import Mover
from kstore.local.place import Placer
from kstore.merge import merge
from kstore.operations import restoration
from kstore.operations.wanted import choose_wanted, hindered
from kstore.published.manifest import Entry, Files, Flag
from kstore.report import CommitStatus
from tests.trees import HOUR, Node, entry, failing_to_read, grouped


def without_its_list(folder: Path) -> None:
    """A cleaner has removed it, or its writer has not come to it yet."""
    next(folder.glob("__grp__*")).unlink()


def half_begun(folder: Path) -> None:
    """As a compiler leaves it that was killed or is still at work."""
    for path in folder.iterdir():
        path.unlink()
    (folder / "tmp.pid_123_x").mkdir()


@pytest.fixture
def node(tmp_path: Path, layout: str) -> Node:
    """A worker that has restored two kernels and a graph."""
    other = Node(tmp_path, "other", layout=layout)
    for name in ("one", "two"):
        other.tree.kernel(name)
    other.tree.graph()
    other.commit()
    node = Node(tmp_path, layout=layout)
    node.restore()
    return node


@pytest.mark.parametrize("make", [without_its_list, half_begun])
def test_a_kernel_that_is_being_written_is_not_there(node: Node, make: Callable[[Path], None]) -> None:
    kernel = node.tree.kernel("one")
    make(node.tree.root / kernel)
    report = node.restore()
    assert (report.placed, report.left_out) == (0, 8)
    assert report.skipped == ((kernel, "it is being written"),)
    assert report.components["triton"].files == 8


def test_what_is_behind_a_link_is_not_there(tmp_path: Path, node: Node, layout: str) -> None:
    """A folder that a user has moved to another disk; nothing is written through a link."""
    third = Node(tmp_path, "third", layout=layout)
    (tmp_path / "disk").mkdir()
    (third.tree.root / "inductor").mkdir(parents=True)
    (third.tree.root / "inductor/fxgraph").symlink_to(tmp_path / "disk")
    report = third.restore()
    assert (report.placed, report.left_out) == (16, 1)
    assert report.skipped == (("inductor/fxgraph", "something else is in its place"),)
    assert list((tmp_path / "disk").iterdir()) == []


def test_what_is_too_deep_costs_itself(tmp_path: Path, layout: str) -> None:
    node = Node(tmp_path, layout=layout)
    node.tree.wrapper("one")
    deepest = "/".join(["cutedsl", *["d"] * 100])
    node.tree.put(f"{deepest}/there", b"this")
    os.makedirs(node.tree.root / deepest / "/".join(["e"] * 400))
    report = node.commit()
    assert (report.new_files, report.skipped) == (2, ((f"{deepest}/e", "it is too deep"),))


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.EXDEV])
def test_what_cannot_be_put_in_its_place_costs_itself(
    tmp_path: Path, node: Node, error: int, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in a component is another user's, or a mount of its own."""
    third = Node(tmp_path, "third", layout=layout)
    third.tree.graph("fmine")
    rename = os.rename

    def refuse(source: str, target: str) -> None:
        if "/stage-" in source and target.endswith("/on"):
            raise OSError(error, os.strerror(error), source)
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    for placed in (16, 0):
        report = third.restore()
        assert (report.placed, report.left_out) == (placed, 1)
        assert report.skipped == (("inductor/fxgraph/on", f"it cannot be put in its place: {os.strerror(error)}"),)
    assert third.commit().files == 18, "it is not taken out of what is published"
    monkeypatch.undo()
    assert third.restore().placed == 1


def meanwhile(monkeypatch: pytest.MonkeyPatch, compile_something: Callable[[], object]) -> None:
    """Call it once everything is staged and nothing is in its place."""
    place = Placer.place

    def interrupted(placer: Placer, wanted: Any, packs: Any, folders: Any, before_move: Any, **options: Any) -> Any:
        def late() -> None:
            time.sleep(0.02)  # until the clock of file times advances
            compile_something()
            before_move()

        return place(placer, wanted, packs, folders, late, **options)

    monkeypatch.setattr(Placer, "place", interrupted)


def test_what_a_compiler_writes_while_it_is_restored_stays_and_is_merged(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other workers of the node use the same root."""
    other, node = Node(tmp_path, "other", layout=layout), Node(tmp_path, layout=layout)
    other.tree.timings({"published": 1})
    other.commit()
    node.tree.timings({"older": 1}, "another")
    with monkeypatch.context() as patch:
        meanwhile(patch, lambda: os.utime(node.tree.root / node.tree.timings({"measured here": 2})))
        report = node.restore()
    assert (report.placed, report.left_out, report.link_mode, report.used_modes) == (0, 0, None, {})
    assert report.skipped == (("inductor/cache/system", "it was written while this was restored"),)
    node.commit()
    third = Node(tmp_path, "third")
    third.restore()
    assert json.loads(third.tree.read("inductor/cache/system")) == {"published": 1, "measured here": 2}


def test_what_it_writes_before_anything_is_staged_stays(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before staging, after the look at the root, a restore may wait for the compiler to say what the host is."""
    other, node = Node(tmp_path, "other", layout=layout), Node(tmp_path, layout=layout)
    timings, kernel = other.tree.timings({"published": 1}), other.tree.kernel("one", "published")
    other.commit()
    node.tree.timings({"older": 1}, "another")
    (node.tree.root / node.tree.kernel("one", "older") / "k.ptx").unlink()
    choose = restoration.choose_wanted

    def compile_and_choose(*arguments: Any) -> Any:
        time.sleep(0.02)  # until the clock of file times advances
        os.utime(node.tree.root / node.tree.timings({"mine": 2}))
        node.tree.kernel("one", "mine")
        return choose(*arguments)

    monkeypatch.setattr(restoration, "choose_wanted", compile_and_choose)
    report = node.restore()
    assert {skipped.reason for skipped in report.skipped} == {"it was written while this was restored"}
    assert json.loads(node.tree.read(timings)) == {"mine": 2}
    assert b"mine" in node.tree.read(f"{kernel}/k.ptx")


def test_measurements_from_before_a_restore_are_no_change_of_the_published_ones(tmp_path: Path, layout: str) -> None:
    """They are joined with those, and where both have measured the same, the published ones stay."""
    other, node, third = (Node(tmp_path, name, layout=layout) for name in ("other", "root", "third"))
    other.tree.timings({"both": 1, "published": 1})
    other.commit()
    path = node.tree.timings({"both": 2, "mine": 2})
    node.restore()
    node.commit()
    third.restore()
    assert json.loads(third.tree.read(path)) == {"both": 1, "published": 1, "mine": 2}


def test_what_is_measured_after_a_restore_prevails_although_it_restores_again(tmp_path: Path, layout: str) -> None:
    other, node, third = (Node(tmp_path, name, layout=layout) for name in ("other", "root", "third"))
    other.tree.timings({"both": 1, "published": 1})
    other.commit()
    node.restore()
    path = node.tree.timings({"both": 2, "mine": 2})
    node.restore()
    node.commit()
    third.restore()
    assert json.loads(third.tree.read(path)) == {"both": 2, "published": 1, "mine": 2}


def test_a_time_from_before_the_clock_was_set_back_is_not_taken_for_that(tmp_path: Path, layout: str) -> None:
    other, node = Node(tmp_path, "other", layout=layout), Node(tmp_path, layout=layout)
    for content in ("older", "newer"):
        kernel = other.tree.kernel("one", content)
        other.commit()
    node.restore(generation=1)
    for path in ((node.tree.root / kernel), *(node.tree.root / kernel).iterdir()):
        os.utime(path, 2 * (time.time() + 24 * HOUR,))
    assert node.restore().placed == 8
    assert b"newer" in node.tree.read(f"{kernel}/k.ptx")


def test_a_kernel_that_is_compiled_while_it_is_restored_stays(
    node: Node, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = node.tree.kernel("one", "older")
    third = Node(node.location.parent, "third", layout=layout)
    third.restore(generation=1)
    (third.tree.root / kernel / "k.ptx").unlink()
    with monkeypatch.context() as patch:
        meanwhile(patch, lambda: third.tree.kernel("one", "its own"))
        report = third.restore()
    assert report.placed == 0
    assert b"its own" in third.tree.read(f"{kernel}/k.ptx")
    assert third.commit().status is CommitStatus.UNCHANGED, "it does not take the place of the published one"
    assert third.restore().placed == 0


@pytest.mark.parametrize("commits", [False, True])
def test_a_group_that_could_not_be_replaced_once_is_replaced_by_the_next_restore(
    tmp_path: Path, node: Node, layout: str, commits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = Node(tmp_path, "third", layout=layout)
    third.restore()
    kernel = node.tree.kernel("one", "replaced")
    node.commit()
    rename = os.rename

    def refuse(source: str, target: str) -> None:
        if target.endswith(".old"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), source)
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        report = third.restore()
    assert report.skipped == ((kernel, f"it cannot be put in its place: {os.strerror(errno.EIO)}"),)
    if commits:
        assert third.commit().status is CommitStatus.UNCHANGED, "the old one is not published again"
    third.restore()
    assert b"replaced" in third.tree.read(f"{kernel}/k.ptx")


def test_what_it_writes_while_others_are_moved_stays(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, node = Node(tmp_path, "other", layout=layout), Node(tmp_path, layout=layout)
    names = ["one", "two", "three"]
    paths = [other.tree.timings({"published": 1}, name) for name in names]
    other.commit()
    node.restore()
    for name in names:
        other.tree.timings({"published": 2}, name)
    other.commit()
    move, compiled = Mover._move, list[str]()

    def compile_and_move(mover: Mover, path: str, folders: Any) -> None:
        if not compiled:
            time.sleep(0.02)  # until the clock of file times advances
            compiled.extend(name for name in names if node.tree.timings({"mine": 3}, name) != path)
            for written in paths:
                os.utime(node.tree.root / written)
        move(mover, path, folders)

    monkeypatch.setattr(Mover, "_move", compile_and_move)
    report = node.restore()
    assert [skip.reason for skip in report.skipped] == ["it was written while this was restored"] * len(names)
    assert [json.loads(node.tree.read(path)) for path in paths] == [{"mine": 3}] * len(names)


def test_a_group_that_was_being_written_is_no_change_of_the_published_one(tmp_path: Path, layout: str) -> None:
    other, node = Node(tmp_path, "other", layout=layout), Node(tmp_path, layout=layout)
    other.tree.kernel("one", "published")
    other.commit()
    kernel = node.tree.kernel("one", "its own")
    (node.tree.root / kernel / "tmp.pid_9_x").mkdir()
    assert node.restore().skipped == ((kernel, "it is being written"),)
    (node.tree.root / kernel / "tmp.pid_9_x").rmdir()
    assert node.commit().status is CommitStatus.UNCHANGED
    assert other.commit().status is CommitStatus.UNCHANGED


@pytest.mark.parametrize("ahead", [-HOUR / 2, 300.0])
def test_a_group_that_somebody_writes_waits(node: Node, ahead: float) -> None:
    """The clock of a filesystem may be ahead."""
    kernel = node.tree.kernel("three")
    leave(node.tree.root / kernel, ahead)
    report = node.commit()
    assert report.status is CommitStatus.UNCHANGED
    assert report.skipped == ((kernel, "tmp.pid_9_x: it is being written"),)


def test_what_a_killed_compiler_left_long_ago_holds_nothing_up(node: Node) -> None:
    leave(node.tree.root / node.tree.kernel("three"), -2 * HOUR)
    assert node.commit().new_files == 8


def leave(kernel: Path, ahead: float) -> None:
    folder = kernel / "tmp.pid_9_x"
    folder.mkdir()
    os.utime(folder, 2 * (time.time() + ahead,))


def test_a_file_that_does_not_fit_in_memory_costs_itself(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = node.tree.put("inductor/ab/dump.bin", b"of four terabytes")
    node.tree.wrapper()
    failing_to_read(monkeypatch, dump, MemoryError())
    report = node.commit()
    assert (report.status, report.new_files) == (CommitStatus.COMMITTED, 1)
    assert report.skipped == ((dump, "it does not fit in memory"),)


def chosen(files: Files, local: Files, busy: Set[str] = frozenset()) -> tuple[Set[str], dict[str, Skipped]]:
    """What is placed of a generation's files in a root that has compiled for itself, and why the rest is not."""
    found = Scan()
    found.known.update({path: Known(ours, ours.size, 1) for path, ours in local.items()})
    found.busy.update(busy)
    wanted = choose_wanted(files, found, merge({}, files, local, {}))
    return wanted.keys(), hindered(files, found, wanted)


@pytest.mark.parametrize("theirs", [grouped, lambda content: entry(content, Flag.LINK)], ids=["a group", "no group"])
def test_no_file_comes_into_a_group_that_stays_whatever_another_version_made_of_it(
    theirs: Callable[[str], Entry],
) -> None:
    """Each kernel is from one build."""
    local = {f"triton/K/{name}": grouped(f"{name} of ours") for name in ("ptx", "cubin")}
    files = {f"triton/K/{name}": theirs(f"{name} of theirs") for name in ("ptx", "cubin", "sass")}
    assert chosen(files, local) == (set(), {"triton/K/sass": ("triton/K", "something else is in its place")})


@pytest.mark.parametrize("theirs", [grouped, lambda content: entry(content, Flag.LINK)], ids=["a group", "no group"])
def test_no_file_comes_into_a_folder_that_is_being_written_whatever_another_version_made_of_it(
    theirs: Callable[[str], Entry],
) -> None:
    files = {"triton/K/ptx": theirs("theirs")}
    assert chosen(files, {}, {"triton/K"}) == (set(), {"triton/K/ptx": ("triton/K", "it is being written")})


@pytest.mark.parametrize("ours", ["triton/K", "triton/K/odd", "triton/K/deep/odd"])
def test_no_group_takes_the_place_of_what_is_none(ours: str) -> None:
    """A file where its folder would be, or a folder that holds something else."""
    files = {"triton/K/ptx": grouped("theirs")}
    assert chosen(files, {ours: entry("ours")}) == (
        set(), {"triton/K/ptx": ("triton/K", "something else is in its place")}
    )  # fmt: skip


def test_answers_that_were_published_come_beside_one_of_ours(tmp_path: Path, layout: str) -> None:
    """A slot is no group: in a root that has compiled for itself, the published answers are placed as well."""
    other, node = (Node(tmp_path, name, layout=layout) for name in ("other", "node"))
    slot = "inductor/fxgraph/ab/fabc"
    other.tree.put(f"{slot}/one", b"theirs")
    other.commit()
    node.tree.put(f"{slot}/two", b"ours")
    assert node.restore().placed == 1
    other.tree.put(f"{slot}/three", b"their variant")
    other.commit()
    node.commit()
    assert node.restore().placed == 1
    assert sorted(os.listdir(node.tree.root / slot)) == ["one", "three", "two"]


def test_what_a_worker_has_written_anew_stays_though_it_restores_again(tmp_path: Path, layout: str) -> None:
    """And the next commit publishes it."""
    other, node, third = (Node(tmp_path, name, layout=layout) for name in ("other", "node", "third"))
    path = other.tree.put("inductor/ab/one.py", b"published")
    other.commit()
    node.restore()
    (node.tree.root / path).unlink()
    node.tree.put(path, b"its own")
    assert (node.restore().placed, node.tree.read(path)) == (0, b"its own")
    node.commit()
    third.restore()
    assert third.tree.read(path) == b"its own"


def test_why_nothing_is_linked_is_reported(tmp_path: Path) -> None:
    """For example, where a filesystem shows all files as executable."""
    node = Node(tmp_path, layout="loose")
    node.tree.wrapper("one")
    for path in node.tree.root.rglob("*.py"):
        path.chmod(0o755)
    node.commit()
    report = Node(tmp_path, "other").restore()
    assert (report.placed, report.link_mode) == (1, LinkMode.COPY)
    assert report.link_why == "none of them may be linked: they change, or are executable"
