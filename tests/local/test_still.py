"""A commit that asks only for times still finds every change."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event, Thread

import pytest

from kstore.damaged import set_aside_blob
from kstore.digest import digest_of
from kstore.errors import CacheRootError
from kstore.local.state import StateFolder
from kstore.operations.commit import commit
from kstore.report import CommitReport, CommitStatus
from kstore.worker import Worker
from tests.local.stillness import StillConformance
from tests.trees import KEY, Node

TICK = 0.15
"""Seconds after which a time is trusted."""
PATIENCE = 60.0


@pytest.fixture
def node(tmp_path: Path, host: object) -> Node:
    """A worker whose cache root was committed and then found to be still."""
    node = Node(tmp_path)
    node.restore()
    node.tree.wrapper()
    node.tree.graph()
    node.tree.kernel()
    node.tree.put("inductor/ab/x.cu", b"in place")
    node.tree.timings({"one": 1.0})
    time.sleep(TICK)
    assert node.commit().status is CommitStatus.COMMITTED
    return node


class TestStill(StillConformance):
    """The tests of stillness after a commit."""


def test_where_nothing_moves_nobody_waits_for_who_has_the_root(node: Node) -> None:
    reports = list[CommitReport]()
    committing = Thread(target=lambda: reports.append(node.commit()), daemon=True)
    with node.store.worker(KEY, before_import=False).state.locked():
        committing.start()
        committing.join(PATIENCE)
        assert [report.status for report in reports] == [CommitStatus.UNCHANGED]


def test_a_worker_that_has_waited_for_another_to_commit_scans_no_more(node: Node, scans: list[Worker]) -> None:
    node.tree.wrapper("two")
    worker, reports = node.store.worker(KEY, before_import=False), list[CommitReport]()
    asked, committed = Event(), Event()
    committing = Thread(target=lambda: reports.append(commit(worker)), daemon=True)
    locked = worker.state.locked

    def asking() -> AbstractContextManager[None]:
        asked.set()
        assert committed.wait(PATIENCE)
        return locked()

    worker.state.locked = asking  # type: ignore[method-assign, assignment]
    committing.start()
    assert asked.wait(PATIENCE)
    time.sleep(TICK)
    assert Node(node.location.parent).commit().status is CommitStatus.COMMITTED
    committed.set()
    committing.join(PATIENCE)

    assert [report.status for report in reports] == [CommitStatus.UNCHANGED]
    assert len(scans) == 1


def test_every_commit_says_that_the_root_is_empty(node: Node) -> None:
    for component in node.store.worker(KEY, before_import=False).root.folders.values():
        shutil.rmtree(component, ignore_errors=True)
        Path(component).mkdir(parents=True, exist_ok=True)
    time.sleep(TICK)
    assert [node.commit().found for _ in range(3)] == [0] * 3


@pytest.mark.parametrize("trouble", [OSError("no space"), CacheRootError("no space")])
def test_what_cannot_be_remembered_is_committed_all_the_same(
    node: Node, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    def refuse(*_: object) -> None:
        refused.append(trouble)
        raise trouble

    refused = list[Exception]()
    node.tree.wrapper("two")
    time.sleep(TICK)
    monkeypatch.setattr(StateFolder, "save_still", refuse)
    assert (node.commit().status, refused) == (CommitStatus.COMMITTED, [trouble])


def in_place(node: Node) -> None:
    (node.tree.root / "inductor/ab/x.cu").write_bytes(b"IN PLACE")


def copied_with_all_times_set_back(node: Node) -> None:
    folder = node.tree.root / "inductor/ab"
    before = folder.stat()
    (folder / "cnew.py").write_bytes(b"new")
    os.utime(folder / "cnew.py", ns=(0, 0))
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: list[Callable[[Node], object]] = [
    lambda node: node.tree.wrapper("two"),
    lambda node: node.tree.graph("ftwo"),
    lambda node: node.tree.graph("fone", "for other guards"),
    lambda node: node.tree.kernel("two"),
    lambda node: node.tree.timings({"two": 2.0}),
    lambda node: node.tree.put("vllm/torch_compile_cache/a/b.py", b"a component that was not there"),
    in_place,
    copied_with_all_times_set_back,
]


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_committed(node: Node, change: Callable[[Node], object]) -> None:
    change(node)
    assert node.commit().status is CommitStatus.COMMITTED
    time.sleep(TICK)
    assert [node.commit().status for _ in range(3)] == [CommitStatus.UNCHANGED] * 3


def test_what_is_in_the_folder_that_a_component_has_now_is_committed(node: Node, tmp_path: Path) -> None:
    node.environ["TRITON_CACHE_DIR"] = str(tmp_path / "kernels")
    node.tree.kernel("two", below=os.path.relpath(tmp_path / "kernels", node.tree.root))
    assert node.commit().new_files == 8


def test_a_change_right_after_it_was_found_still_is_committed_too(node: Node) -> None:
    for number in range(20):
        node.tree.put(f"inductor/ab/c{number}.py", b"%d" % number)
        assert node.commit().status is CommitStatus.COMMITTED
        node.commit()


def test_what_was_young_when_it_was_committed_is_looked_at_once_more(
    tmp_path: Path, host: object, scans: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    node.restore()
    with monkeypatch.context() as patch:
        patch.setattr("kstore.local.index._TICK_NS", 3600 * 10**9)
        node.tree.wrapper()
        node.commit()
    time.sleep(TICK)
    assert [node.commit().status for _ in range(3)] == [CommitStatus.UNCHANGED] * 3
    assert len(scans) == 2


def in_place_with_an_old_time(node: Node) -> None:
    in_place(node)
    os.utime(node.tree.root / "inductor/ab/x.cu", ns=(1, 1))


@pytest.mark.parametrize("change", [CHANGES[0], in_place_with_an_old_time])
def test_while_one_change_is_young_all_is_looked_at(
    node: Node, scans: list[Worker], monkeypatch: pytest.MonkeyPatch, change: Callable[[Node], object]
) -> None:
    before = time.time_ns() - 50_000_000  # the clock of files may be that late
    change(node)
    monkeypatch.setattr("kstore.local.still.is_settled", lambda moment_ns, _: moment_ns < before)
    assert [node.commit().status for _ in range(2)] == [CommitStatus.COMMITTED, CommitStatus.UNCHANGED]
    node.commit()
    assert len(scans) == 3


def test_what_somebody_still_writes_straight_to_its_name_is_looked_at_again(node: Node) -> None:
    """Its folder is told only when the file is made."""
    path = node.tree.root / "inductor/ab/cslow.py"
    path.touch()
    time.sleep(TICK)
    for content in (b"half", b"and the rest"):
        path.write_bytes(content)
        assert node.commit().status is CommitStatus.COMMITTED


def test_while_something_is_passed_over_all_is_looked_at(node: Node, scans: list[Worker]) -> None:
    """An empty file may be filled, of which its folder is not told."""
    path = node.tree.root / "inductor/ab/cempty.py"
    path.touch()
    for _ in range(2):
        time.sleep(TICK)
        report = node.commit()
        assert (report.status, [skipped.path for skipped in report.skipped]) == (
            CommitStatus.UNCHANGED, ["inductor/ab/cempty.py"],
        )  # fmt: skip
    assert len(scans) == 2
    path.write_bytes(b"and now it has something in it")
    assert node.commit().status is CommitStatus.COMMITTED


def test_a_file_that_goes_is_no_news_and_is_looked_for(node: Node, scans: list[Worker]) -> None:
    shutil.rmtree(node.tree.root / "triton")

    assert node.commit().status is CommitStatus.UNCHANGED
    assert len(scans) == 1


def test_what_another_worker_publishes_is_seen(node: Node, scans: list[Worker]) -> None:
    other = Node(node.location.parent, "other")
    other.tree.wrapper("two")
    other.commit()
    scans.clear()

    assert node.commit().generation == 2
    assert len(scans) == 1


def test_a_key_that_was_forgotten_is_seen(node: Node, scans: list[Worker]) -> None:
    node.store.forget(KEY)
    node.commit()

    assert len(scans) == 1


def test_what_was_quarantined_of_other_keys_is_looked_at_once(
    node: Node, scans: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_aside_blob(node.store.storage.backend, digest_of(b"of another key"))
    with monkeypatch.context() as patch:
        patch.setattr("kstore.operations.merging.merge", None)  # It is not merged either.
        assert node.commit().status is CommitStatus.UNCHANGED
    assert [node.commit().status for _ in range(3)] == [CommitStatus.UNCHANGED] * 3
    assert len(scans) == 1


def test_what_is_quarantined_of_its_own_is_put_back(node: Node, scans: list[Worker]) -> None:
    set_aside_blob(node.store.storage.backend, digest_of(b"of another key"))
    node.commit()
    set_aside_blob(node.store.storage.backend, digest_of(b"in place"))

    assert node.commit().status is CommitStatus.COMMITTED
    assert [node.commit().status for _ in range(3)] == [CommitStatus.UNCHANGED] * 3
    assert len(scans) == 2
    assert node.store.verify().ok


def test_another_store_is_not_taken_for_this_one(node: Node, tmp_path: Path) -> None:
    shutil.rmtree(node.location)

    assert node.commit().status is CommitStatus.COMMITTED


@pytest.mark.parametrize("times", [None, 7, [7], [2**70, ""], ["1", ""], [None, ""], [-1, ""], [0, ""], [1, ""]])
def test_damaged_times_are_looked_at_no_more(node: Node, scans: list[Worker], times: object) -> None:
    (path,) = (node.tree.root / ".kstore").glob("still-*")
    fields, _, paths = path.read_bytes().partition(b"\n")
    content = json.loads(fields)
    content["still"]["folders"]["inductor"] = times
    path.write_bytes(json.dumps(content).encode() + b"\n" + paths)

    assert node.commit().status is CommitStatus.UNCHANGED
    assert len(scans) == 1


def test_paths_that_are_damaged_or_cut_short_are_looked_at_no_more(node: Node, scans: list[Worker]) -> None:
    (path,) = (node.tree.root / ".kstore").glob("still-*")
    fields, _, paths = path.read_bytes().partition(b"\n")
    for damaged in (b"", paths[:-1], paths[1:], paths[:-1] + b"\0", b"x" + paths[1:]):
        path.write_bytes(fields + b"\n" + damaged)
        assert node.commit().status is CommitStatus.UNCHANGED

    assert len(scans) == 5


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"sync": "", "still": "{}", "quarantine": ""}', b"\xff"])
def test_a_damaged_memory_counts_as_no_memory(node: Node, scans: list[Worker], content: bytes) -> None:
    (path,) = (node.tree.root / ".kstore").glob("still-*")
    path.write_bytes(content)

    assert node.commit().status is CommitStatus.UNCHANGED
    assert len(scans) == 1
