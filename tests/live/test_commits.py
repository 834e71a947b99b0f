"""The thread that commits while a job runs."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.digest import digest_of
from kstore.errors import KstoreError, StoreUnavailable, WaitTimeout
from kstore.live import commits, lookout, schedule
from kstore.live.commits import LiveCommits
from kstore.live.lookout import Seen
from kstore.local.watch import Blind
from kstore.report import CommitReport, CommitStatus
from kstore.upload.uploader import Uploader
from kstore.used import last_used
from tests.gc.stores import kernels, restored
from tests.leases import is_held
from tests.trees import KEY, Node, Tree, shared_object
from tests.waiting import until

PATIENCE = 60.0
SOON, NEVER = 0.1, 3600.0
Start = Callable[..., LiveCommits]


@pytest.fixture
def node(tmp_path: Path, layout: str) -> Node:
    return Node(tmp_path, layout=layout)


@pytest.fixture
def start(node: Node) -> Iterator[Start]:
    """Begins to commit, soon by default."""
    started = []

    def begin(settle: float = SOON, every: float = NEVER) -> LiveCommits:
        live = LiveCommits(node.store, KEY, settle=settle, every=every)
        live.start()
        started.append(live)
        return live

    yield begin
    for live in started:
        live.discard()
        live._thread.join(PATIENCE)
        assert not live._thread.is_alive()


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be watched."""

    def refuse(watch: object) -> None:
        raise Blind("the limit is reached")

    monkeypatch.setattr("kstore.local.watch.FolderWatch.start", refuse)


def watching(live: LiveCommits) -> bool:
    """Whether there is nothing to do except watch."""
    return live._lookout.is_watching


def files(node: Node) -> int:
    ref = node.store.newest(node.store.scope(KEY))
    return ref.files if ref else 0


def test_what_was_there_at_the_start_is_published(node: Node, start: Start) -> None:
    node.tree.wrapper("one")
    start()
    until(lambda: files(node) == 1)


def test_a_request_while_the_thread_ends_is_answered(node: Node, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal handler may do."""
    live = start()
    until(lambda: watching(live))
    assert live.publish(PATIENCE).ok
    answers: list[CommitReport] = []
    asking = threading.Thread(target=lambda: answers.append(live.publish(PATIENCE)))
    stop = live._lookout.stop_watch

    def stop_once_asked() -> None:
        asking.start()
        until(lambda: not live._requests.empty())
        stop()

    monkeypatch.setattr(live._lookout, "stop_watch", stop_once_asked)
    live.discard()
    live._thread.join(PATIENCE)
    asking.join(PATIENCE)
    assert [answer.ok for answer in answers] == [True]


def test_a_request_after_the_thread_has_answered_all_others_is_answered(
    node: Node, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it has not ended yet."""
    live = start(settle=NEVER)
    answer, has_answered, is_to_end = live._answer_what_is_left, threading.Event(), threading.Event()

    def answer_and_linger() -> None:
        answer()
        if threading.current_thread() is live._thread:
            has_answered.set()
            is_to_end.wait(PATIENCE)

    monkeypatch.setattr(live, "_answer_what_is_left", answer_and_linger)
    report = live.publish(PATIENCE, is_last=True)
    assert has_answered.wait(PATIENCE)
    assert live.publish(PATIENCE) == report
    is_to_end.set()


def test_what_appears_is_published(node: Node, start: Start, tmp_path: Path) -> None:
    live = start()
    until(lambda: watching(live))
    node.tree.wrapper("one")
    until(lambda: files(node) == 1)
    node.tree.kernel("one")
    until(lambda: files(node) == 9)
    assert restored(tmp_path, "reader") == kernels(node)


def test_others_wait_for_it_until_nothing_changes_any_more(
    node: Node, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "_DONE_AFTER", SOON)
    assert node.restore(wait=PATIENCE).leads
    live = start()
    until(lambda: watching(live))
    assert is_held(node)
    node.tree.wrapper("one")
    until(lambda: live.checkpoints)
    assert node.newest().lease
    until(lambda: not is_held(node))
    node.tree.wrapper("two")
    until(lambda: len(live.checkpoints) == 2)
    assert not node.newest().lease


def test_who_need_not_wait_any_longer_is_told_once(node: Node, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread goes back to sleep: a server may run for weeks after that."""
    monkeypatch.setattr(commits, "_DONE_AFTER", 0.0)
    released = []
    monkeypatch.setattr(node.store, "release", released.append)
    live = start()
    node.tree.wrapper("one")
    until(lambda: released)
    for _ in range(3):
        live.publish(PATIENCE)
    assert released == [KEY]


@pytest.mark.parametrize(("published", "changed"), [(70.0, 100.0), (100.0, 70.0)])
def test_others_wait_for_half_a_minute_after_what_came_last(node: Node, published: float, changed: float) -> None:
    """Though it may be a change that cannot be published yet."""
    live = LiveCommits(node.store, KEY, settle=SOON, every=NEVER)
    live._there_at, live._lookout.seen = published, Seen(1, changed)
    assert live._done_at == 130.0


def test_others_do_not_wait_for_one_that_started_again_and_has_nothing_to_publish(
    node: Node, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "_DONE_AFTER", SOON)
    assert node.restore(wait=PATIENCE).leads
    node.tree.wrapper("one")
    assert node.store.checkpoint(KEY).status is CommitStatus.COMMITTED
    assert node.restore(wait=PATIENCE).leads  # as after a kill
    live = start()
    until(lambda: not is_held(node))
    assert not live.checkpoints


def test_others_do_not_wait_for_what_cannot_be_published(
    node: Node, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a store with too little room for kernels, and enough for a lease."""
    monkeypatch.setattr(commits, "_DONE_AFTER", SOON)
    assert node.restore(wait=PATIENCE).leads
    publish = node.store.checkpoint

    def publish_once(key: str) -> CommitReport:
        if live.checkpoints:
            raise StoreUnavailable("too little is left")
        node.tree.wrapper("two")
        return publish(key)

    monkeypatch.setattr(node.store, "checkpoint", publish_once)
    node.tree.wrapper("one")
    live = start()
    until(lambda: not is_held(node))
    assert live._is_held_up


def test_others_wait_for_one_that_has_found_nothing_yet(
    node: Node, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that was forgotten has a generation, and nothing in it."""
    node.tree.wrapper("one")
    node.commit()
    node.store.forget(KEY)
    shutil.rmtree(node.tree.root)
    monkeypatch.setattr(commits, "_DONE_AFTER", 0.0)
    assert node.restore(wait=PATIENCE).leads
    live = start()
    until(lambda: watching(live) and live._last and live._schedule._was_watched)
    live.publish(PATIENCE)  # It has looked whether to release by then.
    assert live._last and live._last.generation == 2
    assert is_held(node)


def test_others_wait_until_they_are_released_if_that_is_expected(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "_DONE_AFTER", 0.0)
    assert node.restore(wait=PATIENCE).leads
    live = LiveCommits(node.store, KEY, settle=SOON, every=NEVER, expects_release=True)
    live.start()
    node.tree.wrapper("one")
    until(lambda: live.checkpoints and watching(live) and live._schedule._was_watched)
    live.publish(PATIENCE)
    assert is_held(node)
    assert live.publish(PATIENCE, releases=True).ok
    assert not is_held(node)
    live.discard()
    live._thread.join(PATIENCE)


def test_nobody_waits_for_ever_to_be_released(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the URL of the server is wrong."""
    monkeypatch.setattr(commits, "_DONE_UNRELEASED_AFTER", SOON)
    assert node.restore(wait=PATIENCE).leads
    live = LiveCommits(node.store, KEY, settle=SOON, every=NEVER, expects_release=True)
    live.start()
    node.tree.wrapper("one")
    until(lambda: not is_held(node))
    assert live.checkpoints
    live.discard()
    live._thread.join(PATIENCE)


def test_while_nothing_changes_nothing_is_done(node: Node, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    live = start()
    node.tree.wrapper("one")
    until(lambda: live.checkpoints)
    until(lambda: watching(live) and live._schedule._was_watched)  # It looks once more after the watch has started.
    time.sleep(SOON)
    rounds = []
    for of, step in ((live, "_round"), (live._lookout, "look")):
        monkeypatch.setattr(of, step, lambda *what: rounds.append(what))
    time.sleep(5 * SOON)
    assert rounds == []


def test_while_files_keep_coming_it_is_published_every_so_often(node: Node, start: Start) -> None:
    """The tree never settles."""
    start(settle=NEVER, every=SOON)
    for number in range(3):
        node.tree.wrapper(str(number))
        until(lambda number=number: files(node) == number + 1)


def test_a_batch_is_uploaded_ahead_so_that_the_last_commit_only_publishes(
    node: Node, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "_BEAT", SOON)
    monkeypatch.setattr(schedule, "BATCH", 8)
    monkeypatch.setattr(schedule, "SHARE", 1e9)
    uploads: list[str] = []
    upload = node.store.upload_ahead
    monkeypatch.setattr(node.store, "upload_ahead", lambda key: (upload(key), uploads.append(key)))
    live = start(settle=NEVER)
    until(lambda: live._lookout.seen.changes)
    node.tree.kernel("one")
    until(lambda: uploads)
    node.store.upload_ahead(KEY)  # what came after the batch, if anything
    report = live.publish(PATIENCE, is_last=True)

    assert live.checkpoints == [report]
    assert (report.status, report.new_files, report.new_blobs) == (CommitStatus.COMMITTED, 8, 1)


def test_a_group_that_is_being_written_is_published_when_it_is_whole(node: Node, start: Start) -> None:
    group = node.tree.root / node.tree.kernel("one")
    busy = group / "tmp.pid_1_2"
    busy.mkdir()
    live = start()
    node.tree.wrapper("one")
    until(lambda: files(node) == 1)
    busy.rmdir()
    node.tree.put(f"{group.relative_to(node.tree.root)}/k.extra", b"the last file")
    until(lambda: files(node) == 10)
    until(lambda: live.checkpoints[-1].skipped == ())


def test_what_a_server_runs_on_is_marked_as_used(node: Node, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if it compiles nothing any more."""
    monkeypatch.setattr("kstore.live.schedule.IDLE", 0.2)
    node.tree.wrapper("one")
    node.commit()
    sync = node.tree.root / ".kstore/sync.json"
    then = sync.stat().st_mtime - 86400
    os.utime(sync, (then, then))
    start()
    until(lambda: last_used(node.store.storage.backend, node.store.scope(KEY)) > 0)


def test_a_thread_that_commits_only_when_asked_makes_no_round_of_its_own(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.live.schedule.IDLE", 0.0)
    node.tree.wrapper("one")
    live = LiveCommits(node.store, KEY, settle=SOON, every=NEVER, only_asked=True)
    live.start()
    live._requests.put(None)
    until(live._requests.empty)
    live.discard()
    live._thread.join(PATIENCE)
    assert files(node) == 0


def test_a_checkpoint_can_be_asked_for(node: Node, start: Start) -> None:
    live = start(settle=NEVER)
    node.tree.wrapper("one")
    live.publish_soon()
    until(lambda: files(node) == 1)


def test_with_nothing_new_nothing_is_published(node: Node, start: Start) -> None:
    live = start(settle=NEVER)
    node.tree.wrapper("one")
    first, again = live.publish(PATIENCE), live.publish(PATIENCE)
    assert (first.status, again.status) == (CommitStatus.COMMITTED, CommitStatus.UNCHANGED)
    assert live.checkpoints == [first]


def test_what_is_discarded_is_not_published(node: Node, start: Start) -> None:
    live = start(settle=NEVER)
    node.tree.wrapper("one")
    live.discard()
    live._thread.join(PATIENCE)
    assert files(node) == 0


def test_after_a_discarded_end_nobody_waits_for_this_worker(node: Node, start: Start) -> None:
    """The process of a block that has failed may go on for long."""
    assert node.restore(wait=PATIENCE).leads
    live = start(settle=NEVER)
    live.discard()
    live._thread.join(PATIENCE)
    assert not is_held(node)


def test_what_somebody_waits_for_comes_before_what_is_due(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    live, rounds = LiveCommits(node.store, KEY, settle=SOON, every=NEVER), list[schedule.Step]()
    monkeypatch.setattr(live, "_plan", lambda: None if rounds else schedule.Plan(schedule.Step.AHEAD, 0.0))
    monkeypatch.setattr(live, "_round", lambda step, *_: rounds.append(step))
    live._requests.put(commits._Request(is_last=True))
    live._serve()
    assert rounds == [schedule.Step.CHECKPOINT]


def test_after_the_end_a_request_is_told_what_the_last_commit_did(node: Node, start: Start) -> None:
    """As a signal handler may do."""
    live = start()
    node.tree.wrapper("one")
    report = live.publish(PATIENCE, is_last=True)
    live._thread.join(PATIENCE)
    assert live.publish(PATIENCE) == report


def test_a_last_commit_that_failed_can_be_asked_for_again(
    node: Node, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start(settle=NEVER)
    node.tree.wrapper("one")
    monkeypatch.setattr(node.store, "commit", _failing_once(node.store.commit))
    with pytest.raises(StoreUnavailable, match="it is away"):
        live.publish(PATIENCE, is_last=True)
    live._thread.join(PATIENCE)

    report = live.publish(PATIENCE, is_last=True)
    assert (report.status, files(node)) == (CommitStatus.COMMITTED, 1)
    assert live.publish(PATIENCE) == report


def test_after_a_discarded_end_there_is_nothing_to_tell(node: Node, start: Start) -> None:
    live = start(settle=NEVER)
    live.discard()
    live._thread.join(PATIENCE)
    with pytest.raises(KstoreError, match="the job has ended"):
        live.publish(PATIENCE)


def test_a_store_that_hangs_holds_up_who_asks_no_longer_than_he_waits(
    node: Node, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start(settle=NEVER)
    until(lambda: live._lookout.seen.changes)
    released = threading.Event()
    monkeypatch.setattr(node.store.storage, "open", lambda: released.wait(PATIENCE))
    with pytest.raises(WaitTimeout, match=r"committing to .* has taken more than 0\.01 s"):
        live.publish(0.01)
    released.set()


def test_where_no_thread_can_be_started_who_asks_commits(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    node.tree.wrapper("one")
    live = LiveCommits(node.store, KEY, settle=NEVER, every=NEVER)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    live.start()
    assert "nothing is committed while the job runs" in caplog.text
    assert live.publish(PATIENCE, is_last=True).new_files == 1


# ---- trouble


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_store_that_goes_away_and_comes_back_is_reported_once_each(
    node: Node, start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "_FIRST_PAUSE", 0.01)
    failures = []
    live = start(every=SOON)
    node.tree.wrapper("one")
    until(lambda: files(node) == 1)
    until(lambda: watching(live))

    failed = live._schedule.failed
    monkeypatch.setattr(live._schedule, "failed", lambda now: (failures.append(now), failed(now)))
    node.location.rename(node.location.with_name("away"))
    node.tree.wrapper("two")
    until(lambda: len(failures) > 3)
    assert not node.location.exists()
    assert len(told(caplog)) == 1
    assert "is not published for now" in told(caplog)[0] and "is gone" in told(caplog)[0]

    node.location.with_name("away").rename(node.location)
    until(lambda: files(node) == 2)
    until(lambda: len(told(caplog)) == 2)
    assert told(caplog)[1] == f"what is compiled is published to {node.location} again"


def test_a_store_that_is_away_at_the_end_is_an_error_for_who_asks(node: Node, start: Start) -> None:
    live = start(settle=NEVER)
    node.tree.wrapper("one")
    live.publish(PATIENCE)
    node.tree.wrapper("two")
    node.location.rename(node.location.with_name("away"))
    with pytest.raises(StoreUnavailable, match="is gone"):
        live.publish(PATIENCE, is_last=True)


def test_a_store_that_was_there_only_at_the_beginning_is_not_made_anew(
    node: Node, start: Start, tmp_path: Path
) -> None:
    """What was committed to another one would be hidden once its filesystem is back."""
    Node(tmp_path, "other").store.create()
    node.tree.wrapper("one")
    live = start(settle=NEVER)
    until(lambda: live._lookout.seen.changes)
    node.location.rename(node.location.with_name("away"))
    with pytest.raises(StoreUnavailable, match="is gone"):
        live.publish(PATIENCE, is_last=True)
    assert not node.location.exists()


def test_a_store_that_was_never_there_is_made(node: Node, start: Start) -> None:
    live = start(settle=NEVER)
    until(lambda: live._lookout.seen.changes)
    assert not node.location.exists()
    node.tree.wrapper("one")
    assert live.publish(PATIENCE).generation == 1


@pytest.mark.usefixtures("blind")
def test_where_nothing_can_be_watched_that_is_reported_once_and_the_root_is_scanned_every_so_often(
    node: Node, start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(every=SOON)
    for number in range(3):
        node.tree.wrapper(str(number))
        until(lambda number=number: files(node) == number + 1)
    until(lambda: told(caplog))  # A busy machine may have had no time to watch until now.
    assert told(caplog) == ["the limit is reached; the cache root is looked through every 0.1 s instead"]


@pytest.mark.usefixtures("blind")
def test_what_was_left_out_is_looked_at_again_though_its_folder_tells_of_nothing(
    node: Node, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, a shared object that a linker writes in place, and nobody watches."""

    lock = node.tree.root / node.tree.put("inductor/locks/cone.lock", b"")
    library = node.tree.root / node.tree.put("inductor/ab/cone.so", shared_object()[:1000])
    with open(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        live = start(every=SOON)
        node.tree.wrapper("one")
        until(lambda: live.checkpoints and live._last and live._last.status is CommitStatus.UNCHANGED)
        assert files(node) == 1
        library.write_bytes(shared_object())
    until(lambda: files(node) == 2)


def test_what_was_left_out_is_looked_at_again_though_nothing_changes(node: Node, start: Start) -> None:
    """For example, when what a killed compiler has left is old enough to be a leftover."""
    lock = node.tree.root / node.tree.put("inductor/locks/cone.lock", b"")
    node.tree.put("inductor/ab/cone.so", shared_object())
    with open(lock) as held:  # only for reading, so that the watch does not see it closed
        fcntl.flock(held, fcntl.LOCK_EX)
        live = start(every=SOON)
        node.tree.wrapper("one")
        until(lambda: watching(live) and live._schedule.once_more(0.0) is None)
        assert files(node) == 1
    until(lambda: files(node) == 2)


def test_where_all_threads_are_one_nothing_is_watched_and_the_job_keeps_its_priority(
    node: Node, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For example, where gevent has patched Python, and watchdog with it."""
    for module in (commits, lookout):
        monkeypatch.setattr(module, "is_apart", lambda: False)
    monkeypatch.setattr(os, "setpriority", lambda *_: pytest.fail("the job's priority is changed"))
    node.tree.wrapper("one")
    live = start(every=SOON)
    until(lambda: files(node) == 1)
    node.tree.wrapper("two")
    until(lambda: files(node) == 2)
    until(lambda: "gevent or eventlet has patched this process" in caplog.text)
    assert live._thread.is_alive()


IN_PLACE = "cutedsl/x/kernel.mlir"
HALF, WHOLE = b"half", b"half and half"


def is_published(node: Node, data: bytes) -> bool:
    found = node.store.newest(node.store.scope(KEY)) and node.published().get(IN_PLACE)
    return bool(found and found.digest == digest_of(data))


@pytest.mark.usefixtures("blind")
def test_what_is_written_in_its_place_is_seen_though_nothing_can_be_watched(node: Node, start: Start) -> None:
    node.tree.put(IN_PLACE, HALF)
    start(every=SOON)
    until(lambda: is_published(node, HALF))
    (node.tree.root / IN_PLACE).write_bytes(WHOLE)
    until(lambda: is_published(node, WHOLE))


def test_what_is_written_in_its_place_is_seen_by_the_watch(node: Node, start: Start) -> None:
    """Its folder tells nothing."""
    node.tree.put(IN_PLACE, HALF)
    live = start()
    until(lambda: is_published(node, HALF) and watching(live) and live._schedule.once_more(0.0) is None)
    (node.tree.root / IN_PLACE).write_bytes(WHOLE)
    until(lambda: is_published(node, WHOLE))


def test_what_is_written_in_its_place_while_a_checkpoint_is_made_is_in_the_next(
    node: Node, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No watch is on at that time, and its folder tells nothing."""
    node.tree.put(IN_PLACE, HALF)
    publish, rounds = Uploader.upload, list[int]()

    def upload(*arguments: Any, **options: Any) -> Any:
        rounds.append(1)
        if len(rounds) == 1:
            (node.tree.root / IN_PLACE).write_bytes(WHOLE)
        return publish(*arguments, **options)

    monkeypatch.setattr(Uploader, "upload", upload)
    start()
    until(lambda: is_published(node, WHOLE))


def test_a_store_that_cannot_be_opened_at_first_is_committed_to_later(
    node: Node, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.store.storage, "open", _failing_once(node.store.storage.open))
    node.tree.wrapper("one")
    start()
    until(lambda: files(node) == 1)


def test_a_root_that_cannot_be_used_at_first_is_committed_from_later(
    node: Node, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    node.tree.root.write_bytes(b"no folder")
    live = start(every=SOON)
    until(lambda: "keeps trying" in caplog.text)
    time.sleep(5 * SOON)
    assert (caplog.text.count("keeps trying"), live.folders) == (1, [])
    node.tree.root.unlink()
    node.tree.wrapper("one")
    until(lambda: files(node) == 1)


def rename(root: Path) -> None:
    root.rename(root.with_name("old"))
    root.mkdir()


def exchange(root: Path) -> None:
    """By a name that leads elsewhere from now on."""
    other = root.with_name("link")
    other.symlink_to(root.with_name("new"))
    other.replace(root)


@pytest.mark.parametrize("change", [rename, exchange])
def test_another_folder_in_the_place_of_the_root_is_seen(
    change: Callable[[Path], None], tmp_path: Path, layout: str
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "first").mkdir()
    (tmp_path / "worker").symlink_to(tmp_path / "first")
    if change is rename:
        (tmp_path / "worker").unlink()
    node = Node(tmp_path, "worker", layout=layout)
    live = LiveCommits(node.store, KEY, settle=SOON, every=SOON)
    live.start()
    try:
        node.tree.wrapper("one")
        until(lambda: files(node) == 1)
        until(lambda: watching(live) and live._schedule._was_watched)
        change(node.tree.root)
        node.tree.wrapper("two")
        until(lambda: files(node) == 2)
    finally:
        live.discard()
        live._thread.join(PATIENCE)


def test_a_folder_that_a_job_chooses_while_it_runs_is_looked_into(
    node: Node, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.tree.wrapper("one")
    start(every=SOON)
    until(lambda: files(node) == 1)
    node.environ["TRITON_CACHE_DIR"] = str(tmp_path / "elsewhere")
    Tree(tmp_path / "elsewhere").put(f"{'A' * 52}/kernel.so", shared_object())
    until(lambda: files(node) == 2)


def test_trouble_with_looking_is_reported_once_and_does_not_end_it(
    node: Node, start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, where memory is short for a while."""
    live = start(every=SOON)
    node.tree.wrapper("one")
    until(lambda: files(node) == 1)
    until(lambda: watching(live))
    refused: list[object] = []

    def refuse(activity: object) -> int:
        refused.append(activity)
        raise MemoryError("too little is left")

    with monkeypatch.context() as patch:
        patch.setattr(lookout.Activity, "look", refuse)
        node.tree.wrapper("two")
        until(lambda: len(refused) > 2)
    until(lambda: files(node) == 2)
    until(lambda: len(told(caplog)) == 2)
    assert "too little is left" in told(caplog)[0]
    assert "again" in told(caplog)[1]


def test_a_watch_that_could_not_be_turned_on_is_not_relied_on(
    node: Node, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[object] = []
    turn_on = lookout.FolderWatch.start

    def refuse_once(watch: lookout.FolderWatch) -> None:
        refused.append(watch)
        if len(refused) == 1:
            raise MemoryError("too little is left")
        turn_on(watch)

    monkeypatch.setattr(lookout.FolderWatch, "start", refuse_once)
    live = start(every=SOON)
    until(lambda: refused and watching(live) and live._schedule._was_watched)
    node.tree.wrapper("one")
    until(lambda: files(node) == 1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("is_away_at_first", [False, True])
def test_a_log_of_the_job_s_that_fails_does_not_end_it(
    node: Node, start: Start, monkeypatch: pytest.MonkeyPatch, is_away_at_first: bool
) -> None:
    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise SystemError("the log is full")

    logger = logging.getLogger("kstore")
    monkeypatch.setattr(logger, "handlers", [Failing()])
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    monkeypatch.setattr(schedule, "_FIRST_PAUSE", 0.01)
    if is_away_at_first:
        monkeypatch.setattr(node.store, "checkpoint", _failing_once(node.store.checkpoint))
    live = start()
    for number in 1, 2:
        node.tree.wrapper(str(number))
        until(lambda: len(live.checkpoints) >= number)  # noqa: B023

    assert live._thread.is_alive()


def _failing_once(function: Callable[..., Any]) -> Callable[..., Any]:
    failures = iter([StoreUnavailable("it is away")])

    def call(*arguments: Any) -> Any:
        for failure in failures:
            raise failure
        return function(*arguments)

    return call


@pytest.mark.parametrize("is_last", [False, True])
def test_if_the_thread_has_died_who_asks_commits(
    node: Node, start: Start, monkeypatch: pytest.MonkeyPatch, is_last: bool
) -> None:
    def die() -> None:
        raise SystemExit  # which ends a thread silently

    live = start(settle=NEVER)
    node.tree.wrapper("one")
    live.publish(PATIENCE)
    monkeypatch.setattr(live, "_plan", die)
    live.publish_soon()
    live._thread.join(PATIENCE)
    node.tree.wrapper("two")
    report = live.publish(PATIENCE, is_last=is_last)

    assert (report.status, report.new_files) == (CommitStatus.COMMITTED, 2 if is_last else 1)
    assert files(node) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_if_the_thread_dies_before_it_begins_who_asks_commits(
    node: Node, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        raise MemoryError

    monkeypatch.setattr(commits, "block_signals", die)
    live = start()
    live._thread.join(PATIENCE)
    node.tree.wrapper("one")
    assert live.publish(PATIENCE, is_last=True).status is CommitStatus.COMMITTED


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_request_as_the_thread_dies_publishes_what_there_is(
    node: Node, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers = threading.Event(), list[CommitReport]()
    live = start(settle=NEVER)
    until(lambda: live._lookout.seen.changes or watching(live))

    def die() -> None:
        asked.wait(PATIENCE)
        raise SystemExit

    monkeypatch.setattr(live, "_plan", die)
    live.publish_soon()
    asking = threading.Thread(target=lambda: answers.append(live.publish(PATIENCE, is_last=True)))
    node.tree.wrapper("one")
    asking.start()
    until(lambda: not live._requests.empty())
    asked.set()
    asking.join(PATIENCE)
    assert [answer.status for answer in answers] == [CommitStatus.COMMITTED]
    assert files(node) == 1


def may_raise_priorities() -> bool:
    """Tried in a child, which has a priority of its own."""
    lowered = "import os; os.nice(5); os.setpriority(os.PRIO_PROCESS, 0, 0)"
    return subprocess.run([sys.executable, "-c", lowered], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not may_raise_priorities(), reason="this user may not raise priorities")
def test_the_last_commit_has_the_priority_of_who_waits_for_it(
    node: Node, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    priorities = []
    commit = node.store.commit

    def noted(key: str) -> CommitReport:
        priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return commit(key)

    monkeypatch.setattr(node.store, "commit", noted)
    live = start(settle=NEVER)
    live.publish(PATIENCE, releases=True)
    live.publish(PATIENCE, is_last=True)
    assert priorities == [10, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())]


def test_the_thread_has_a_low_priority_and_gets_no_signals(node: Node, start: Start) -> None:
    import os
    import signal

    live = start(settle=NEVER)
    until(lambda: live._lookout.seen.changes)
    task = Path(f"/proc/self/task/{live._thread.native_id}")
    blocked = int(next(line for line in (task / "status").read_text().splitlines() if "SigBlk" in line).split()[1], 16)
    assert blocked >> (signal.SIGTERM - 1) & 1
    assert os.getpriority(os.PRIO_PROCESS, live._thread.native_id or 0) == 10
    assert os.getpriority(os.PRIO_PROCESS, os.getpid()) == 0 or os.getpriority(os.PRIO_PROCESS, 0) < 10
