"""One cache root, several hosts: what was built on one is never loaded on another, nor published as the other's."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from kstore.environment import Host, HostUnknown
from kstore.errors import KstoreError
from kstore.local.cacheroot import CacheRoot
from kstore.local.outside import mark_machine, moved_here
from kstore.operations.answer import AnotherRestore
from kstore.operations.request import Request
from kstore.operations.restore import report_placed
from kstore.published.manifest import Files, Manifest
from kstore.ranks import Verdict
from kstore.report import RestoreStatus
from tests.trees import KEY, Node, Tree, contents, count_folders_written_anew, shared_object

pytestmark = pytest.mark.usefixtures("host")


def go_to_host(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host(name * 16, {}))
    let_the_hint_be(name, monkeypatch)


def let_the_hint_be(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is seen of a host without the compiler."""
    monkeypatch.setattr("kstore.environment.ownhost.host_hint", lambda _: name)


def _hosts(node: Node) -> dict[str, Files]:
    return Manifest.load(node.store.snapshot(node.newest()).data).hosts


def test_objects_that_were_taken_out_of_a_key_do_not_come_back(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tree.put("inductor/ab/c1.main.so", shared_object())
    node.commit()
    node.store.quarantine(KEY)
    wrapper = node.tree.wrapper()
    node.commit()
    assert (list(node.published()), _hosts(node).get("a" * 16, {})) == ([wrapper], {})


def test_a_root_that_outlives_its_host_does_not_pass_its_objects_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    path = node.tree.put("inductor/ab/c1.main.so", shared_object())
    node.tree.wrapper()
    node.commit()
    monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host("b" * 16, {}))
    assert Node(tmp_path).commit().status == "unchanged"
    node.tree.wrapper("another")
    assert [skip.path for skip in Node(tmp_path).commit().skipped] == [path]
    assert set(Manifest.load(node.store.snapshot(node.newest()).data).hosts) == {"a" * 16}
    Node(tmp_path).restore()
    assert not node.tree.has(path)
    assert len(contents(node.tree.root)) == 2


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The compiler cannot be run, until this is undone."""

    def refuse(_: object) -> Host:
        raise HostUnknown("g++ cannot be run just now")

    with monkeypatch.context() as patch:
        patch.setattr("kstore.environment.ownhost.detect_host", refuse)
        yield patch


def test_objects_wait_until_it_is_known_which_host_they_are_for(tmp_path: Path, unasked: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    path, wrapper = node.tree.put("inductor/ab/c1.main.so", shared_object()), node.tree.wrapper()
    assert [skip.path for skip in node.commit().skipped] == [path]
    assert (set(node.published()), _hosts(node)) == ({wrapper}, {})
    unasked.undo()
    Node(tmp_path).restore()
    assert Node(tmp_path).commit().new_files == 1
    assert set(_hosts(node)) == {"a" * 16}


def test_they_come_with_the_first_commit_that_knows_though_nothing_has_moved(
    tmp_path: Path, unasked: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    node.restore()
    node.tree.put("inductor/ab/c1.main.so", shared_object())
    node.tree.wrapper()
    time.sleep(0.15)  # Times are trusted by then.
    assert [len(Node(tmp_path).commit().skipped) for _ in range(2)] == [1, 1]
    unasked.undo()
    assert Node(tmp_path).commit().new_files == 1


def test_that_the_compiler_cannot_be_asked_is_said_once_however_many_commits_follow(
    tmp_path: Path, unasked: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path)
    node.tree.put("inductor/ab/c1.main.so", shared_object())
    for _ in range(3):
        assert Node(tmp_path).commit().skipped
    assert [record.message for record in caplog.records] == ["g++ cannot be run just now"]


def test_a_root_whose_host_cannot_be_asked_for_keeps_its_objects(tmp_path: Path, unasked: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host("a" * 16, {}))
        node = Node(tmp_path)
        path = node.tree.put("inductor/ab/c1.main.so", shared_object())
        node.commit()
    node.tree.wrapper()
    Node(tmp_path).restore()
    assert [skip.path for skip in Node(tmp_path).commit().skipped] == [path]
    unasked.undo()
    assert Node(tmp_path).restore().ok
    assert Node(tmp_path).commit().status == "unchanged"
    assert (node.tree.has(path), set(_hosts(node))) == (True, {"a" * 16})


def test_objects_that_were_left_out_since_the_host_was_unknown_come_with_the_next_restore(
    tmp_path: Path, unasked: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host("a" * 16, {}))
        builder = Node(tmp_path, "builder")
        path = builder.tree.put("inductor/ab/c1.main.so", shared_object())
        builder.tree.wrapper()
        builder.commit()
    other = Node(tmp_path, "other")
    assert [skip.path for skip in other.restore().skipped] == [path]
    assert "built for hosts other than this one" not in caplog.text
    unasked.undo()
    assert Node(tmp_path, "other").restore().files == 2
    assert other.tree.has(path)


def test_another_host_tries_itself_whether_a_library_can_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 2.14 on, torch leaves a mark beside a library that it could load, and then does not try to load it again."""
    builder = Node(tmp_path, "builder")
    library = builder.tree.put("inductor/ab/c1.so", shared_object())
    mark = builder.tree.put(f"{library}.load_ok", b"")
    builder.tree.wrapper()
    assert builder.commit().new_files == 3
    same = Node(tmp_path, "same")
    assert same.restore().files == 3
    assert same.tree.read(mark) == b""
    assert same.commit().status == "unchanged"
    go_to_host("b", monkeypatch)
    other = Node(tmp_path, "other")
    other.restore()
    assert not other.tree.has(mark)
    assert len(contents(other.tree.root)) == 1


def test_what_is_for_other_hosts_is_reported_until_there_is_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    builder = Node(tmp_path, "builder")
    path = builder.tree.put("inductor/ab/c1.main.so", shared_object())
    builder.tree.wrapper()
    builder.commit()
    go_to_host("b", monkeypatch)
    other = Node(tmp_path, "other")
    assert other.restore().files == 1
    assert "left out: 1 file of generation 1" in caplog.text
    assert "built for hosts other than this one" in caplog.text

    other.tree.put(path, shared_object() + b"b")
    other.commit()
    caplog.clear()
    assert Node(tmp_path, "third").restore().files == 2
    assert caplog.text == ""


@pytest.mark.parametrize("published", [False, True], ids=["after a miss", "after a restore without any"])
def test_objects_that_were_never_committed_stay_on_the_host_that_they_were_built_on(
    tmp_path: Path, published: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job is killed before its first commit, and the volume with its cache root is given to another node."""
    if published:
        other = Node(tmp_path, "other")
        other.tree.wrapper()
        other.commit()
    go_to_host("a", monkeypatch)
    Node(tmp_path).restore()
    tree = Tree(tmp_path / "node")
    built = tree.put("inductor/ab/c1.main.so", shared_object())
    Node(tmp_path).restore()
    assert tree.has(built), "it is the same host still"

    go_to_host("b", monkeypatch)
    node = Node(tmp_path)
    node.restore()
    assert not tree.has(built)
    own = tree.put("inductor/ab/c2.main.so", shared_object() + b"b")
    node.restore()
    assert tree.has(own), "it was built on this one"
    node.commit()
    assert {host: list(files) for host, files in _hosts(node).items()} == {"b" * 16: [own]}


@pytest.mark.parametrize("published", ["nothing", "portable", "host-bound"])
def test_a_commit_takes_nothing_for_its_own_that_may_have_been_built_where_the_root_was_restored(
    tmp_path: Path, published: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job is killed, the volume with its cache root is given to another node, and only `kstore commit` runs there."""
    go_to_host("a", monkeypatch)
    if published != "nothing":
        publish_wrapper(tmp_path)
    if published == "host-bound":
        other = Node(tmp_path, "other")
        other.tree.put("inductor/ab/c0.main.so", shared_object() + b"0")
        other.commit()
    node = Node(tmp_path)
    node.restore()
    built = node.tree.put("inductor/ab/c1.main.so", shared_object())

    go_to_host("b", monkeypatch)
    node.tree.wrapper("another")
    assert built in [skip.path for skip in Node(tmp_path).commit().skipped]
    own = node.tree.put("inductor/ab/c2.main.so", shared_object() + b"b")
    assert built in [skip.path for skip in Node(tmp_path).commit().skipped]
    assert [list(files) for host, files in _hosts(node).items() if host == "b" * 16] == [[own]]
    Node(tmp_path).restore()
    assert (node.tree.has(built), node.tree.has(own)) == (False, True)


def test_a_compiler_that_was_chosen_after_the_restore_builds_what_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program sets CXX, or PATH: it is on the same machine."""
    publish_wrapper(tmp_path)
    let_the_hint_be("machine gcc", monkeypatch)
    node = Node(tmp_path)
    node.restore()
    built = node.tree.put("inductor/ab/c1.main.so", shared_object())
    let_the_hint_be("machine clang", monkeypatch)
    assert Node(tmp_path).commit().skipped == ()
    assert list(_hosts(node)["a" * 16]) == [built]


@pytest.mark.parametrize("restored", [False, True])
def test_a_miss_on_another_host_takes_out_what_was_committed_on_the_one_before_and_nothing_later(
    tmp_path: Path, restored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_to_host("a", monkeypatch)
    node = Node(tmp_path)
    if restored:
        node.restore()
    built = node.tree.put("inductor/ab/c1.main.so", shared_object())
    node.commit()
    node.store.forget(KEY)

    go_to_host("b", monkeypatch)
    own, built_again = "inductor/ab/c2.main.so", list[str]()
    for _ in range(3):
        assert Node(tmp_path).restore().status is RestoreStatus.MISS
        assert not node.tree.has(built)
        if not node.tree.has(own):
            built_again.append(node.tree.put(own, shared_object() + b"b"))
    assert built_again == [own]
    node = Node(tmp_path)
    node.commit()
    assert {host: list(files) for host, files in _hosts(node).items()} == {"b" * 16: [own]}


def test_a_commit_that_was_killed_does_not_make_its_root_forget_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_to_host("a", monkeypatch)
    node = Node(tmp_path)
    built = node.tree.put("inductor/ab/c1.main.so", shared_object())
    node.commit()
    (node.tree.root / ".kstore/base").write_bytes(b"of a later commit, which has not come to write the record of it")

    go_to_host("b", monkeypatch)
    node = Node(tmp_path)
    node.restore()
    assert not node.tree.has(built)
    node.tree.wrapper()
    node.commit()
    assert list(_hosts(node)) == ["a" * 16]


def fail(*_: object) -> Any:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def a_server_has_errors(node: Node, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("kstore.operations.restore.choose", fail)
    node.restore()


def the_store_is_not_mounted(node: Node, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("kstore.storage.Storage.open", fail)
    node.restore()


def the_generation_is_not_there(node: Node, patch: pytest.MonkeyPatch) -> None:
    node.restore(generation=7)


def the_newest_ref_is_damaged(node: Node, patch: pytest.MonkeyPatch) -> None:
    (ref,) = Path(node.store.location).glob("refs/*/*/*/@*/1")
    ref.chmod(0o644)
    ref.write_text("{")
    node.restore()


however_it_fails = pytest.mark.parametrize(
    "restore",
    [a_server_has_errors, the_store_is_not_mounted, the_generation_is_not_there, the_newest_ref_is_damaged],
)


@however_it_fails
def test_a_restore_that_fails_leaves_nothing_of_the_host_before(
    restore: Callable[[Node, pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job goes on with what is in the root, and commits it."""
    tree, built = root_from_host_a(tmp_path, monkeypatch)
    go_to_host("b", monkeypatch)
    with monkeypatch.context() as patch, pytest.raises(KstoreError):
        restore(Node(tmp_path), patch)
    assert not tree.has(built)
    own = tree.put("inductor/ab/c2.main.so", shared_object() + b"b")
    with suppress(KstoreError):
        Node(tmp_path).restore()
    assert tree.has(own), "it was built on this one"


@however_it_fails
def test_a_new_root_remembers_its_host_though_the_restore_failed(
    restore: Callable[[Node, pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the job built without it stays on that host, too."""
    publish_wrapper(tmp_path)
    go_to_host("a", monkeypatch)
    with monkeypatch.context() as patch, pytest.raises(KstoreError):
        restore(Node(tmp_path), patch)
    tree = Tree(tmp_path / "node")
    built = tree.put("inductor/ab/c1.main.so", shared_object())

    go_to_host("b", monkeypatch)
    with suppress(KstoreError):
        Node(tmp_path).restore()
    assert not tree.has(built)


def root_from_host_a(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Tree, str]:
    """A root into which a job on host a restored, and an object that it has built and not committed."""
    publish_wrapper(folder)
    go_to_host("a", monkeypatch)
    Node(folder).restore()
    tree = Tree(folder / "node")
    return tree, tree.put("inductor/ab/c1.main.so", shared_object())


def publish_wrapper(folder: Path) -> None:
    other = Node(folder, "other")
    other.tree.wrapper()
    other.commit()


def no_rank_is_heard(node: Node, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("kstore.ranks.Agreement.vote", lambda *_: Verdict(False, "rank 1: no space left on device"))
    restore_as_rank(node)


def the_others_never_answer(node: Node, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("kstore.ranks.Agreement.vote", fail)
    restore_as_rank(node)


def restore_as_rank(node: Node, rank: str = "0") -> None:
    node.environ |= {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    node.restore(group=True)


def nobody_can_be_told(node: Node, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("kstore.ranks.Agreement.offer", fail)
    restore_as_rank(node)


def rank_0_never_says(node: Node, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("kstore.ranks.Agreement.read_offer", fail)
    restore_as_rank(node, "1")


def the_store_hangs(node: Node, patch: pytest.MonkeyPatch) -> None:
    """The store has stopped answering: whoever asked has given up by then."""
    patch.setattr("kstore.store.attempt", fail)
    node.restore()


@pytest.mark.parametrize(
    "restore", [no_rank_is_heard, the_others_never_answer, nobody_can_be_told, rank_0_never_says, the_store_hangs]
)
def test_a_worker_that_is_kept_from_restoring_leaves_nothing_of_the_host_before(
    restore: Callable[[Node, pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, built = root_from_host_a(tmp_path, monkeypatch)
    go_to_host("b", monkeypatch)
    with monkeypatch.context() as patch:
        with suppress(KstoreError):
            restore(Node(tmp_path), patch)
        assert not tree.has(built)
        own = tree.put("inductor/ab/c2.main.so", shared_object() + b"b")
        with suppress(KstoreError):
            restore(Node(tmp_path), patch)
        assert tree.has(own), "it was built on this one"


def test_ranks_of_two_hosts_in_one_root_do_not_rely_on_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two images on one node: each takes out what was built on the other, and reports what it has placed itself."""
    publish_wrapper(tmp_path)
    placed = {}
    for host in "a", "b":
        go_to_host("a", monkeypatch)
        node = Node(tmp_path)
        node.restore()
        go_to_host(host, monkeypatch)
        worker = node.store._ready_worker(KEY, 0)
        snapshot = worker.storage.snapshot(node.newest())
        placed[host] = report_placed(worker, snapshot, RestoreStatus.RESTORED) is not None
    assert placed == {"a": True, "b": False}


@pytest.mark.parametrize("cut", ["by an error", "by another restore"])
def test_what_was_built_since_is_published_also_if_the_first_commit_fails(
    cut: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_to_host("a", monkeypatch)
    node = Node(tmp_path)
    node.tree.wrapper()
    node.commit()

    go_to_host("b", monkeypatch)
    Node(tmp_path).restore()
    own = node.tree.put("inductor/ab/c2.main.so", shared_object())
    if cut == "by an error":
        with monkeypatch.context() as patch, pytest.raises(KstoreError):
            patch.setattr("kstore.published.refs.Refs.publish", fail)
            Node(tmp_path).commit()
    else:
        Node(tmp_path).restore()
        assert node.tree.has(own)
    assert Node(tmp_path).commit().skipped == ()
    assert list(_hosts(node)["b" * 16]) == [own]


def test_a_host_that_only_the_compiler_tells_is_remembered_before_what_was_found_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a first commit that is cut off would make its own objects look like those of the host before."""
    go_to_host("a", monkeypatch)
    node = Node(tmp_path)
    built = node.tree.put("inductor/ab/c1.main.so", shared_object())
    node.commit()

    go_to_host("b", monkeypatch)
    let_the_hint_be("a", monkeypatch)
    own = node.tree.put("inductor/ab/c2.main.so", shared_object() + b"b")
    with monkeypatch.context() as patch, pytest.raises(KstoreError):
        patch.setattr("kstore.published.refs.Refs.publish", fail)
        Node(tmp_path).commit()
    assert [skip.path for skip in Node(tmp_path).commit().skipped] == [built]
    assert {host: list(files) for host, files in _hosts(node).items()} == {"a" * 16: [built], "b" * 16: [own]}


@pytest.mark.parametrize("lost", ["base", "index"])
def test_either_of_what_a_root_remembers_tells_what_the_host_before_has_built(
    tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base may be damaged. An index is of one version of the component table, and the new host may have another."""
    node = Node(tmp_path)
    built = node.tree.put("inductor/ab/c1.main.so", shared_object())
    node.commit()
    for file in (node.tree.root / ".kstore").glob(f"{lost}*"):
        file.unlink()

    monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host("b" * 16, {}))
    own = node.tree.put("inductor/ab/c2.main.so", shared_object() + b"b")
    assert [skip.path for skip in Node(tmp_path).commit().skipped] == [built]
    assert {host: list(files) for host, files in _hosts(node).items()} == {"a" * 16: [built], "b" * 16: [own]}


STUCK = "inductor/ab/cstuck.main.so"
PUBLISHED = "inductor/ab/c0.main.so"


@contextmanager
def stuck() -> Iterator[None]:
    """One object cannot be removed."""
    unlink = os.unlink

    def refuse(path: str, **options: Any) -> None:
        if str(path).endswith(STUCK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        unlink(path, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        yield


@pytest.mark.parametrize("published", [False, True], ids=["a miss", "a restore"])
def test_an_object_that_cannot_be_removed_costs_nothing_else(
    published: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if published:
        publish_wrapper(tmp_path)
    go_to_host("a", monkeypatch)
    tree = Tree(tmp_path / "node")
    Node(tmp_path).restore()
    others = [tree.put(f"inductor/{name}/c1.main.so", shared_object()) for name in ("aa", "zz")]
    tree.put(STUCK, shared_object() + b"stuck")

    go_to_host("b", monkeypatch)
    with stuck():
        report = Node(tmp_path).restore()
    assert report.status is (RestoreStatus.CURRENT if published else RestoreStatus.MISS)
    assert not any(map(tree.has, others))
    assert [skip.path for skip in report.skipped] == [STUCK] * published
    if published:
        assert [skip.path for skip in Node(tmp_path).commit().skipped] == [STUCK]
        assert _hosts(Node(tmp_path)) == {}
    Node(tmp_path).restore()
    assert not tree.has(STUCK)


def test_objects_that_are_taken_out_of_one_folder_are_forgotten_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be fifty thousand, and what is known of the folder is written anew for each time that any is."""
    go_to_host("a", monkeypatch)
    tree = Tree(tmp_path / "node")
    Node(tmp_path).restore()
    foreign = [tree.put(f"inductor/ab/c{number}.main.so", shared_object()) for number in range(40)]
    go_to_host("b", monkeypatch)
    written = count_folders_written_anew(monkeypatch)
    Node(tmp_path).restore()
    assert not any(map(tree.has, foreign))
    assert written == ["inductor/ab"]


def root_with_what_cannot_be_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A root that host b has taken over, and knows to be its own, except for an object of host a's."""
    go_to_host("b", monkeypatch)
    builder = Node(folder, "builder")
    builder.tree.put(PUBLISHED, shared_object())
    builder.commit()
    go_to_host("a", monkeypatch)
    Node(folder).restore()
    tree = Tree(folder / "node")
    tree.put(STUCK, shared_object() + b"stuck")
    go_to_host("b", monkeypatch)
    with stuck():
        Node(folder).restore()
    return tree


def test_an_object_that_is_built_anew_over_one_that_could_not_be_removed_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = root_with_what_cannot_be_removed(tmp_path, monkeypatch)
    tree.put(STUCK, shared_object() + b"built on b")
    assert Node(tmp_path).commit().skipped == ()
    assert {host: set(files) for host, files in _hosts(Node(tmp_path)).items()} == {"b" * 16: {PUBLISHED, STUCK}}


def test_an_object_that_could_not_be_removed_is_not_the_next_hosts_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is the same, and another compiler makes it another host: only the root knows about the object."""
    tree = root_with_what_cannot_be_removed(tmp_path, monkeypatch)
    monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host("c" * 16, {}))
    own = tree.put("inductor/ab/c2.main.so", shared_object() + b"c")
    assert [skip.path for skip in Node(tmp_path).commit().skipped] == [PUBLISHED, STUCK]
    assert list(_hosts(Node(tmp_path))["c" * 16]) == [own]


def test_a_worker_that_waits_for_the_root_does_not_rely_on_a_restore_on_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_wrapper(tmp_path)
    answers = {}
    for host in "a", "b":
        go_to_host("a", monkeypatch)
        Node(tmp_path).restore()
        go_to_host(host, monkeypatch)
        another = AnotherRestore(Node(tmp_path).store._ready_worker(KEY, 0), Request(None, None, 0.0, True))
        go_to_host("a", monkeypatch)
        Node(tmp_path).restore()
        go_to_host(host, monkeypatch)
        answers[host] = another.has_restored()
    assert answers == {"a": True, "b": False}


def test_what_is_as_it_was_placed_is_so_for_the_host_that_it_was_placed_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first restore on another host finds no store; the next one places what that host lacks."""
    for host in "a", "b":
        go_to_host(host, monkeypatch)
        builder = Node(tmp_path, f"builder-{host}")
        builder.restore()
        beside = builder.tree.wrapper("portable").rpartition("/")[0]
        own = builder.tree.put(f"{beside if host == 'b' else 'inductor/xx'}/c{host}.main.so", shared_object())
        builder.commit()

    go_to_host("a", monkeypatch)
    node = Node(tmp_path)
    node.restore()
    go_to_host("b", monkeypatch)
    (tmp_path / "store").rename(tmp_path / "away")
    assert Node(tmp_path).restore().status is RestoreStatus.MISS
    (tmp_path / "away").rename(tmp_path / "store")
    report = Node(tmp_path).restore()
    assert (report.placed, node.tree.has(own)) == (1, True)


# ---- A component's folder that moves without the cache root


def on_volume(folder: Path, host: str, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A worker on a host with a cache root of its own, whose Inductor writes into a folder on a volume."""
    go_to_host(host, monkeypatch)
    node = Node(folder, f"node-{host}")
    node.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "volume/inductor")
    return node


def committed(node: Node) -> None:
    node.restore()
    build(node, "c1")
    node.commit()


def killed(node: Node) -> None:
    node.restore()
    build(node, "c1")


def only_committed(node: Node) -> None:
    build(node, "c1")
    node.commit()


def build(node: Node, name: str) -> str:
    Tree(node.location.parent / "volume").put(f"inductor/ab/{name}.main.so", shared_object() + name.encode())
    return f"inductor/ab/{name}.main.so"


@pytest.mark.parametrize("use", [committed, killed, only_committed])
def test_what_was_built_in_a_folder_on_a_volume_is_not_used_on_the_next_host(
    use: Callable[[Node], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = Tree(tmp_path / "volume")
    use(on_volume(tmp_path, "a", monkeypatch))
    node = on_volume(tmp_path, "b", monkeypatch)
    node.restore()
    assert not volume.has("inductor/ab/c1.main.so")
    own = build(node, "c2")
    node.restore()
    assert volume.has(own), "it was built on this one"
    assert node.commit().skipped == ()
    assert list(_hosts(node)["b" * 16]) == [own]


@pytest.mark.parametrize("use", [committed, killed, only_committed])
def test_a_commit_alone_publishes_no_objects_in_a_folder_that_has_come_from_another_host(
    use: Callable[[Node], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(on_volume(tmp_path, "a", monkeypatch))
    node = on_volume(tmp_path, "b", monkeypatch)
    wrapper = Tree(tmp_path / "volume").wrapper()
    for _ in range(2):
        assert "inductor/ab/c1.main.so" in [skip.path for skip in node.commit().skipped]
    assert list(node.published()) == [wrapper]
    assert "b" * 16 not in _hosts(node)


def test_a_folder_that_has_come_from_another_host_leaves_what_was_built_elsewhere_in_the_root_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(on_volume(tmp_path, "a", monkeypatch))
    node = on_volume(tmp_path, "b", monkeypatch)
    own = node.tree.put("tvmffi/mine/lib.so", shared_object())
    assert [skip.path for skip in node.commit().skipped] == ["inductor/ab/c1.main.so"]
    assert {host: list(files) for host, files in _hosts(node).items()} == {"b" * 16: [own]}
    node.restore()
    assert node.tree.has(own)


def test_a_commit_vouches_for_no_folder_in_which_it_finds_no_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be hidden from it, as while a group is being written."""
    killed(on_volume(tmp_path, "a", monkeypatch))
    (tmp_path / "volume/inductor/ab/c1.main.so").rename(tmp_path / "hidden")
    node = on_volume(tmp_path, "b", monkeypatch)
    Tree(tmp_path / "volume").wrapper()
    node.commit()
    (tmp_path / "hidden").rename(tmp_path / "volume/inductor/ab/c1.main.so")
    assert [skip.path for skip in node.commit().skipped] == ["inductor/ab/c1.main.so"]


def test_a_folder_on_a_volume_that_stays_on_its_machine_keeps_what_was_built_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another key, with a root of its own, or a new root after the first one was cleaned away."""
    killed(on_volume(tmp_path, "a", monkeypatch))
    (tmp_path / "node-a").rename(tmp_path / "cleaned away")
    node = on_volume(tmp_path, "a", monkeypatch)
    node.restore()
    assert node.commit().new_files == 1
    assert list(_hosts(node)) == ["a" * 16]


def test_a_restore_that_fails_takes_out_what_a_volume_brings_from_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(on_volume(tmp_path, "a", monkeypatch))
    node = on_volume(tmp_path, "b", monkeypatch)
    with monkeypatch.context() as patch, pytest.raises(KstoreError):
        a_server_has_errors(node, patch)
    assert not Tree(tmp_path / "volume").has("inductor/ab/c1.main.so")


def test_the_uppermost_of_nested_component_folders_tells_the_machine(tmp_path: Path) -> None:
    """An engine redirects Inductor to a folder below its own only once it runs: no restore has seen it there."""
    volume = tmp_path / "volume"
    outer = CacheRoot(str(tmp_path / "root"), {"vllm": str(volume)}, {})
    nested = CacheRoot(str(tmp_path / "root"), {"vllm": str(volume), "inductor": str(volume / "a/inductor")}, {})
    mark_machine(outer, "a")
    mark_machine(nested, "a")
    assert moved_here(nested, "b") == {"vllm", "inductor"}
    mark_machine(outer, "b")
    assert moved_here(nested, "b") == set()
    assert [path.name for path in volume.rglob("*") if path.is_file()] == ["machine"]


def test_a_commit_does_not_vouch_for_a_folder_in_which_something_of_another_host_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache root came along and knows about it; another cache root on this host does not."""
    node = on_volume(tmp_path, "a", monkeypatch)
    only_committed(node)
    (tmp_path / "volume/inductor/.kstore/machine").unlink()  # as an earlier version of kstore leaves it
    (tmp_path / "node-a").rename(tmp_path / "node-b")
    node = on_volume(tmp_path, "b", monkeypatch)
    build(node, "c2")
    assert [skip.path for skip in node.commit().skipped] == ["inductor/ab/c1.main.so"]
    assert not (tmp_path / "volume/inductor/.kstore/machine").exists()


def test_a_restore_of_nothing_host_bound_does_not_wait_for_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Node(tmp_path).tree.wrapper()
    Node(tmp_path).commit()
    asked, answer = Event(), Event()

    def hang(environ: object) -> Host:
        asked.set()
        assert answer.wait(60)
        raise HostUnknown("g++ cannot be run just now")

    monkeypatch.setattr("kstore.environment.ownhost.detect_host", hang)
    try:
        assert Node(tmp_path, "n2").restore().status == "restored"
        assert asked.wait(60)  # concurrently, because most keys have something host-bound
    finally:
        answer.set()
