"""A restore is counted after its caller has the answer, and trouble with the count is no trouble for the job."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.backends import PosixBackend
from kstore.blobs.loose import blob_name
from kstore.report import RestoreReport, RestoreStatus
from kstore.stats.pages import read_hits, read_misses
from kstore.stats.record import finish, record
from kstore.stats.totals import Totals
from tests.trees import ENVIRONMENT, GPU, KEY, Node, contents, in_processes

WORKERS = 8


@pytest.fixture
def published(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.tree.kernel()
    node.commit()
    return node


def settings(node: Node, name: str, **more: Any) -> dict[str, Any]:
    root = node.location.parent / name
    return {"store": node.location, "cache_root": root, "gpu": GPU, "environment": ENVIRONMENT, "environ": {}, **more}


def restore(node: Node, name: str = "worker", key: str = KEY, **more: Any) -> kstore.RestoreReport:
    report = kstore.restore(key, **settings(node, name, **more))
    finish(10)
    return report


def hits(node: Node) -> Totals:
    return read_hits(node.store.storage.backend, node.store.scope(KEY))


def test_a_restore_is_counted_with_what_it_did(published: Node) -> None:
    report = restore(published)
    assert restore(published).status is RestoreStatus.CURRENT
    found = hits(published)
    assert (found.timing(RestoreStatus.RESTORED).count, found.timing(RestoreStatus.CURRENT).count) == (1, 1)
    (slowest, _) = found.slowest
    assert (slowest.generation, slowest.files, slowest.bytes) == (1, report.files, report.bytes)
    assert slowest.worker.endswith(f"@{os.uname().nodename}")


def test_a_miss_is_counted_for_a_key_that_has_nothing(published: Node) -> None:
    assert restore(published, key="model/v2").status is RestoreStatus.MISS
    (scope,) = read_misses(published.store.storage.backend)
    assert scope == published.store.scope("model/v2")


def test_a_restore_of_which_nothing_was_whole_is_a_miss(published: Node) -> None:
    for entry in published.published().values():
        (published.location / blob_name(entry.digest)).unlink()
    report = restore(published)
    assert (report.status, report.ok) == (RestoreStatus.RESTORED, False)
    missed = read_misses(published.store.storage.backend)[published.store.scope(KEY)]
    assert (hits(published).restores, missed.misses) == (0, 1)


def test_a_user_with_a_long_name_is_counted_with_what_others_have_counted(
    published: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore(published, "first")
    monkeypatch.setenv("LOGNAME", "somebody" * 30)
    restore(published, "second")
    assert hits(published).hits == 2
    assert {sample.worker[:8] for sample in hits(published).newest} >= {"somebody"}


def test_one_file_more_is_in_the_store_however_many_restores_there_are(published: Node) -> None:
    restore(published, "first")
    before = set(contents(published.location))
    for number in range(5):
        restore(published, f"worker-{number}")
    new = {path for path in set(contents(published.location)) ^ before if not path.startswith("stats/")}
    assert new == set()
    assert [path for path in contents(published.location) if path.startswith("stats/")] == [
        f"stats/{GPU}/{KEY}/@{ENVIRONMENT}/0.6"
    ]


def test_a_worker_that_only_reads_is_not_counted(published: Node) -> None:
    before = contents(published.location)
    restore(published, mode="read")
    restore(published, key="model/v2", mode="read")
    assert contents(published.location) == before


def test_counting_can_be_switched_off(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    restore(published, stats=False)
    restore(published, "other", environ={"KSTORE_STATS": "false"})
    assert hits(published).restores == 0


def test_a_store_is_not_made_to_count_that_it_is_missing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert restore(node).status is RestoreStatus.MISS
    assert not node.location.exists()


def test_a_restore_that_failed_is_not_counted(published: Node) -> None:
    (published.location / "kstore.json").write_text("damaged")
    assert restore(published).status is RestoreStatus.FAILED
    assert not (published.location / "stats").exists()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (RestoreStatus.FAILED, "it is damaged"),
        (RestoreStatus.TIMEOUT, ""),
        (RestoreStatus.MISS, "another rank cannot reach the store"),
    ],
)
def test_what_ended_in_trouble_found_nothing_missing(published: Node, status: RestoreStatus, error: str) -> None:
    scope = published.store.scope("model/v2")
    record(published.store, RestoreReport(status, scope.key, scope.gpu, scope.environment, error=error))
    finish(10)
    assert not (published.location / "stats").exists()


def test_a_store_that_cannot_be_written_is_no_trouble(published: Node, caplog: pytest.LogCaptureFixture) -> None:
    (published.location / "stats").write_text("in the way")
    assert restore(published).status is RestoreStatus.RESTORED
    assert [record for record in caplog.records if record.levelname != "DEBUG" and "count" in record.message] == []


def test_a_store_that_hangs_holds_nobody_up(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, ended, threads = threading.Event(), threading.Event(), list[threading.Thread]()
    create = PosixBackend.put_if_absent

    def hang(self: PosixBackend, name: str, data: bytes) -> bool:
        if name.startswith("stats/"):
            threads.append(threading.current_thread())
            hangs.set()
            ended.wait(30)
        return create(self, name, data)

    monkeypatch.setattr(PosixBackend, "put_if_absent", hang)
    report = kstore.restore(KEY, **settings(published, "worker"))
    assert report.status is RestoreStatus.RESTORED
    assert hangs.wait(30)
    finish(0.01)  # returns, as it does at the end of the process
    assert [thread.daemon for thread in threads] == [True]  # or the process would not end
    ended.set()


def test_the_end_of_a_process_waits_no_longer_for_many_than_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = [100.0], list[float]()

    class Hanging(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            waits.append(timeout or 0.0)
            now[0] += timeout or 0.0

    monkeypatch.setattr("kstore.stats.record._running", {Hanging() for _ in range(3)})
    monkeypatch.setattr("kstore.stats.record.time.monotonic", lambda: now[0])
    finish(2.0)
    assert waits == [2.0, 0.0, 0.0]


def test_those_that_have_counted_are_not_kept(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    running: set[threading.Thread] = set()
    monkeypatch.setattr("kstore.stats.record._running", running)
    for number in range(3):
        kstore.restore(KEY, **settings(published, f"worker-{number}"))
        for thread in running:
            thread.join()
    assert len(running) == 1


def test_the_end_of_a_process_waits_until_its_restore_is_counted(published: Node) -> None:
    code = "import kstore, sys; kstore.restore(sys.argv[1], store=sys.argv[2], cache_root=sys.argv[3], gpu=sys.argv[4], environment=sys.argv[5])"  # noqa: E501
    root = published.location.parent / "process"
    subprocess.run([sys.executable, "-c", code, KEY, published.location, root, GPU, ENVIRONMENT], check=True)
    assert hits(published).hits == 1


def restore_at_once(node: Node, name: str) -> str:
    return restore(node, name).status


def test_workers_that_restore_at_once_are_all_counted(published: Node) -> None:
    """Four tries each: losing one takes four lost races in a row. The rest of the fleet is as if it were alone."""
    in_processes(restore_at_once, [(published, f"worker-{number}") for number in range(WORKERS)])
    assert WORKERS - 1 <= hits(published).hits <= WORKERS


def test_a_commit_says_in_its_ref_what_it_took(published: Node) -> None:
    published.tree.wrapper("new")
    before = time.time()
    report = published.commit()
    effort = published.newest().effort
    assert effort
    assert (effort.uploaded, effort.new_files) == (report.uploaded, 1)
    assert 0 <= effort.seconds <= time.time() - before + 1


def test_a_generation_that_nobody_committed_says_nothing(published: Node) -> None:
    published.tree.wrapper("new")
    published.commit()
    published.store.rollback(KEY)
    assert published.newest().effort is None
    published.store.forget(KEY)
    assert published.newest().effort is None


def test_threads_that_restore_at_once_do_not_disturb_each_other(
    published: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: set[threading.Thread] = set()

    class Other(threading.Thread):
        """While this thread is asked whether it is at work, another thread has its restore counted."""

        def is_alive(self) -> bool:
            running.add(Other())
            return False

        def join(self, timeout: float | None = None) -> None:
            return

    running.add(Other())
    monkeypatch.setattr("kstore.stats.record._running", running)
    assert restore(published).status is RestoreStatus.RESTORED
    assert hits(published).timing(RestoreStatus.RESTORED).count == 1


def test_trouble_with_counting_is_no_trouble_with_the_restore(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise MemoryError

    monkeypatch.setattr("kstore.stats.record.atexit.register", fail)
    monkeypatch.setattr("kstore.stats.record._running", set())
    assert restore(published).status is RestoreStatus.RESTORED
