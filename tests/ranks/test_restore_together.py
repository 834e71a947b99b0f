"""Restores by all ranks of a job."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import filelock
import pytest

import kstore
from kstore.blobs.loose import blob_name
from kstore.environment import Host
from kstore.errors import CacheRootError, KstoreError, StoreUnavailable, WaitTimeout
from kstore.gc import Policy
from kstore.local.found import Scan
from kstore.local.move import Mover
from kstore.local.state import State, StateFolder
from kstore.ranks import Agreement, Verdict
from kstore.report import RestoreReport, RestoreStatus
from kstore.worker import Worker
from tests.gc.stores import pass_time
from tests.ranks.fleet import Job, at_once, outcome, publish
from tests.trees import ENVIRONMENT, GPU, KEY, Node, contents

NODES = ("one", "one", "two", "two")
SHORT = 1.0


@pytest.fixture(autouse=True)
def known_host(host: Host) -> None:
    """No compiler is run."""


def spoil(folder: Path) -> None:
    """After this, no folder can be made there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_bytes(b"")


def statuses(reports: list[RestoreReport | Exception]) -> list[Any]:
    return [report.status if isinstance(report, RestoreReport) else type(report) for report in reports]


def of_ranks(reports: list[RestoreReport | Exception]) -> list[RestoreReport]:
    assert [report for report in reports if isinstance(report, Exception)] == []
    return [report for report in reports if isinstance(report, RestoreReport)]


def test_all_ranks_restore_and_one_of_each_node_places(tmp_path: Path) -> None:
    publisher = publish(tmp_path, "one", "two")
    reports = of_ranks(Job(tmp_path, NODES).restore())
    files = len(contents(publisher.tree.root))
    assert [(report.generation, report.files) for report in reports] == [(1, files)] * 4
    assert [sorted(report.placed for report in node) for node in (reports[:2], reports[2:])] == [[0, files]] * 2
    current = [RestoreStatus.CURRENT, RestoreStatus.RESTORED]
    assert [sorted(report.status for report in node) for node in (reports[:2], reports[2:])] == [current] * 2


def test_only_one_rank_of_a_node_reads_the_cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, "one")
    scans, scan = [], Worker.scan

    def count(worker: Worker, state: State) -> Scan:
        scans.append(worker.root.path)
        return scan(worker, state)

    monkeypatch.setattr(Worker, "scan", count)
    assert all(report.ok for report in of_ranks(Job(tmp_path, NODES).restore()))
    assert sorted(scans) == [str(tmp_path / "one"), str(tmp_path / "two")]


def test_all_ranks_restore_what_rank_0_chose_whatever_is_published_meanwhile(tmp_path: Path) -> None:
    publisher = publish(tmp_path, "one")
    job = Job(tmp_path, NODES)
    late = job.ranks.pop()

    def publish_and_join() -> RestoreReport:
        while not list((tmp_path / "store/groups").glob("*.*.0")):  # Rank 0 has chosen.
            pass
        publisher.tree.kernel("two")
        assert publisher.commit().generation == 2
        return late.restore(group=True)

    reports, last = at_once([job.restore, publish_and_join])
    assert {report.generation for report in (*of_ranks(reports), last)} == {1}


def test_what_one_rank_of_a_node_had_to_leave_out_the_others_do_not_say_is_there(tmp_path: Path) -> None:
    publisher = publish(tmp_path, "one")
    for entry in publisher.published().values():
        (publisher.location / blob_name(entry.digest)).unlink()
    reports = of_ranks(Job(tmp_path, ["node", "node"]).restore())
    assert [report.left_out for report in reports] == [8, 8]


def test_if_nothing_is_published_all_miss(tmp_path: Path) -> None:
    reports = of_ranks(Job(tmp_path, NODES).restore())
    assert [(report.status, report.error) for report in reports] == [(RestoreStatus.MISS, "")] * 4


def test_a_root_that_somebody_has_keeps_no_other_rank_from_missing(tmp_path: Path) -> None:
    job = Job(tmp_path, ("one", "two"), timeout=10.0)
    folder = job.ranks[1].tree.root / ".kstore"
    folder.mkdir(parents=True)
    held = filelock.FileLock(folder / "lock", thread_local=False)
    with ThreadPoolExecutor(2) as pool, held:
        first, second = (pool.submit(rank.restore, group=True) for rank in job.ranks)
        report = first.result(60)
        held.release()
        assert [report.error, second.result(60).error] == ["", ""]


def test_one_of_two_cold_jobs_compiles_and_the_other_restores_what_it_commits(tmp_path: Path) -> None:
    """A job waits as a whole: its ranks do not wait for each other."""
    first, second = Job(tmp_path, ("one", "two")), Job(tmp_path, ("three", "four"), port=29501)
    missed = of_ranks(first.restore(wait=60))
    assert [(report.status, report.leads) for report in missed] == [
        (RestoreStatus.MISS, True),
        (RestoreStatus.MISS, False),
    ]

    def compile_and_commit() -> None:
        rank_0 = first.ranks[0]
        rank_0.tree.kernel("one")
        assert rank_0.commit().ok

    reports, _ = at_once([lambda: second.restore(wait=60), compile_and_commit])
    assert [(report.generation, report.leads) for report in of_ranks(reports or [])] == [(1, False)] * 2


def test_all_start_from_the_seed(tmp_path: Path) -> None:
    publish(tmp_path, "one", key="other/v1")
    reports = of_ranks(Job(tmp_path, NODES).restore(seed="other/v1"))
    assert [(report.status, report.generation) for report in reports] == [(RestoreStatus.SEEDED, 1)] * 4


def test_rank_0_alone_says_which_generation(tmp_path: Path) -> None:
    publisher = publish(tmp_path, "one")
    publish(tmp_path, "two")
    first, second = Job(tmp_path, ("one", "two")).ranks
    reports = at_once([lambda: first.restore(group=True, generation=1), lambda: second.restore(group=True)])
    assert [report.generation for report in reports] == [1, 1]
    assert publisher.newest().generation == 2


def test_all_ranks_say_that_a_key_was_withdrawn(tmp_path: Path) -> None:
    publish(tmp_path, "one").store.forget(KEY)
    reports = of_ranks(Job(tmp_path, NODES).restore())
    assert [(report.status, report.withdrawn) for report in reports] == [(RestoreStatus.MISS, "forgotten")] * 4


@pytest.mark.parametrize("unusable", ["one", "two"])
def test_a_node_without_a_usable_cache_root_keeps_all_from_restoring(tmp_path: Path, unusable: str) -> None:
    publish(tmp_path, "one")
    spoil(tmp_path / unusable)
    reports = Job(tmp_path, NODES).restore()
    expected = [CacheRootError if node == unusable else RestoreStatus.MISS for node in NODES]
    assert statuses(reports) == expected
    other = "two" if unusable == "one" else "one"
    assert contents(tmp_path / other) == {}
    errors = [report.error for report in reports if isinstance(report, RestoreReport)]
    assert all(f"the cache root {tmp_path / unusable} cannot be made" in error for error in errors)


def test_where_it_need_not_be_uniform_the_other_node_restores(tmp_path: Path) -> None:
    publish(tmp_path, "one")
    spoil(tmp_path / "two")
    reports = Job(tmp_path, NODES).restore(uniform=False)
    assert [isinstance(report, CacheRootError) for report in reports] == [False, False, True, True]
    assert all(isinstance(report, RestoreReport) and report.ok for report in reports[:2])


def test_a_rank_that_fails_while_it_fetches_keeps_all_from_restoring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, "one")
    full = str(tmp_path / "two")
    real_staging = StateFolder.staging

    def staging(state: Any, folder: str | None = None) -> Any:
        if state._folder.startswith(full):
            raise OSError(28, "No space left on device")
        return real_staging(state, folder)

    monkeypatch.setattr(StateFolder, "staging", staging)
    reports = Job(tmp_path, NODES).restore()
    found = statuses(reports)
    assert found[:2] == [RestoreStatus.MISS] * 2
    # The other rank of that node fails as well, or has left it to the first one.
    assert CacheRootError in found[2:] and set(found[2:]) <= {RestoreStatus.MISS, CacheRootError}
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == {}
    assert not list((tmp_path / "one/.kstore").glob("stage-*"))


def test_a_rank_that_cannot_move_what_it_has_staged_says_so_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, "one")
    full = str(tmp_path / "two")
    move = Mover.move

    def fail(mover: Mover, paths: set[str], folders: set[str], among: set[str]) -> None:
        if mover._local("triton").startswith(full):
            raise OSError(28, "No space left on device")
        move(mover, paths, folders, among)

    monkeypatch.setattr(Mover, "move", fail)
    reports = Job(tmp_path, ("one", "two")).restore()
    assert statuses(reports) == [RestoreStatus.RESTORED, CacheRootError]


def test_a_rank_whose_store_hangs_keeps_all_from_restoring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, "one")
    hung, staging = threading.Event(), StateFolder.staging

    def hang(state: StateFolder, folder: str | None = None) -> Any:
        if state._folder.startswith(str(tmp_path / "two")):
            hung.wait(60)
        return staging(state, folder)

    monkeypatch.setattr(StateFolder, "staging", hang)
    others = set(threading.enumerate())
    environs = [rank.environ for rank in Job(tmp_path, ("one", "two")).ranks]
    settings: dict[str, Any] = {"store": tmp_path / "store", "gpu": GPU, "environment": ENVIRONMENT}
    reports = at_once(
        [
            partial(
                kstore.restore,
                KEY,
                group=True,
                cache_root=tmp_path / node,
                environ=environs[rank],
                timeout=timeout,
                **settings,
            )
            for rank, node, timeout in ((0, "one", 5 * SHORT), (1, "two", SHORT))
        ]
    )
    assert [report.status for report in reports] == [RestoreStatus.MISS, RestoreStatus.TIMEOUT]
    assert reports[0].error == "rank 1 has not been heard of for 4 s"
    hung.set()
    for thread in set(threading.enumerate()) - others:
        thread.join(60)
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == {}


def test_what_was_there_before_stays_where_nobody_restores(tmp_path: Path) -> None:
    publish(tmp_path, "one")
    spoil(tmp_path / "two")
    job = Job(tmp_path, ("one", "two"))
    job.ranks[0].tree.kernel("local")
    before = contents(tmp_path / "one")
    job.restore()
    assert contents(tmp_path / "one") == before


def test_a_rank_with_another_gpu_keeps_all_from_restoring(tmp_path: Path) -> None:
    publish(tmp_path, "one")
    job = Job(tmp_path, ("one", "two"))
    environ = job.ranks[1].environ
    job.ranks[1] = Node(tmp_path, "two", gpu="another-gpu", environ=environ)
    reports = job.restore()
    assert statuses(reports) == [RestoreStatus.MISS, StoreUnavailable]
    assert "another-gpu" in str(reports[1])


def test_a_node_with_another_store_is_never_heard_and_all_miss(tmp_path: Path) -> None:
    publish(tmp_path / "a", "one")
    publish(tmp_path / "b", "one")
    first = Job(tmp_path / "a", ("one", "two"), timeout=SHORT).ranks[0]
    second = Job(tmp_path / "b", ("one", "two"), timeout=SHORT).ranks[1]
    works = [lambda: outcome(lambda: first.restore(group=True)), lambda: outcome(lambda: second.restore(group=True))]
    report, error = at_once(works)
    assert isinstance(report, RestoreReport)
    assert (report.status, report.error) == (RestoreStatus.MISS, "rank 1 has not been heard of for 0.8 s")
    assert isinstance(error, WaitTimeout)
    assert "from the same store" in str(error)


def test_later_restores_are_agreed_upon_anew(tmp_path: Path) -> None:
    publisher = publish(tmp_path, "one")
    publish(tmp_path, "other", key="other/v1", name="other-publisher")
    job = Job(tmp_path, ("one", "two"))
    assert {report.generation for report in of_ranks(job.restore())} == {1}
    publisher.tree.kernel("two")
    publisher.commit()
    assert {report.generation for report in of_ranks(job.restore())} == {2}
    assert {report.generation for report in of_ranks(job.restore())} == {2}


def test_no_rank_holds_its_root_while_it_waits_for_one_that_still_needs_it(tmp_path: Path) -> None:
    """The node's other rank may not have ended its last restore yet, or may have to commit first."""
    publish(tmp_path, "one")
    job = Job(tmp_path, ("one", "one", "two", "two"))

    def work(rank: Node) -> list[object]:
        steps: list[object] = []
        for number in range(4):
            steps.append(rank.restore(group=True).generation)
            rank.tree.kernel(f"{rank.environ['RANK']}-{number}")
            assert rank.commit().ok
        return steps

    steps = at_once([partial(work, rank) for rank in job.ranks])
    assert steps == [steps[0]] * 4


def test_what_is_committed_between_the_vote_and_the_move_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = publish(tmp_path, "one")
    job = Job(tmp_path, ("one", "two"))
    vote = Agreement.vote

    def commit_first(agreement: Agreement, trouble: str = "") -> Verdict:
        if agreement.rank == 0:
            job.ranks[0].tree.kernel("local")
            assert Node(tmp_path, "one").commit().generation == 2
        return vote(agreement, trouble)

    monkeypatch.setattr(Agreement, "vote", commit_first)
    reports = of_ranks(job.restore())
    assert {report.generation for report in reports} == {1}
    assert len(list((tmp_path / "one/triton").iterdir())) == 2
    assert job.ranks[0].commit().generation == 2
    assert publisher.store.verify().ok


def test_a_later_run_of_the_same_job_is_not_misled_by_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = publish(tmp_path, "one")
    assert {report.generation for report in of_ranks(Job(tmp_path, NODES).restore())} == {1}
    publisher.tree.kernel("two")
    publisher.commit()
    monkeypatch.setattr("kstore.ranks.job._calls", Counter())
    reports = of_ranks(Job(tmp_path, ("three", "three", "four", "four")).restore())
    assert {report.generation for report in reports} == {2}


def test_a_job_of_one_rank_asks_nobody(tmp_path: Path) -> None:
    publish(tmp_path, "one")
    job = Job(tmp_path, ("one",))
    assert of_ranks(job.restore())[0].status is RestoreStatus.RESTORED
    assert not (tmp_path / "store/groups").exists()


def test_ranks_that_may_not_write_need_a_process_group(tmp_path: Path) -> None:
    publish(tmp_path, "one")
    reports = Job(tmp_path, ("one", "two"), mode="read").restore()
    assert statuses(reports) == [StoreUnavailable] * 2
    assert all("leave out --group" in str(report) for report in reports)
    assert not (tmp_path / "store/groups").exists()


def test_gc_removes_old_notes(tmp_path: Path) -> None:
    publish(tmp_path, "one")
    job = Job(tmp_path, ("one", "two"))
    job.restore()
    notes = tmp_path / "store/groups"
    job.ranks[0].store.gc(Policy())
    assert len(list(notes.iterdir())) == 4  # offer, two votes, verdict
    pass_time(job.ranks[0])
    job.ranks[0].store.gc(Policy(), dry_run=True)
    assert len(list(notes.iterdir())) == 4
    job.ranks[0].store.gc(Policy())
    assert list(notes.iterdir()) == []


def test_ranks_of_one_node_commit_their_root_once(tmp_path: Path) -> None:
    job = Job(tmp_path, NODES)
    job.restore()
    for name in ("one", "two"):
        Node(tmp_path, name).tree.kernel(name)
    reports = at_once([rank.commit for rank in job.ranks])
    assert [sorted(report.status for report in node) for node in (reports[:2], reports[2:])] == [
        ["committed", "unchanged"]
    ] * 2
    assert job.ranks[0].newest().generation == 2
    assert len({path.split("/")[1] for path in job.ranks[0].published()}) == 2


def test_local_ranks_share_a_numbered_root(tmp_path: Path) -> None:
    publish(tmp_path, "one")
    stores = [kstore.Store(tmp_path / "store", gpu=GPU, environment=ENVIRONMENT, environ={}) for _ in range(8)]
    reports = at_once([lambda store=store: store.restore(KEY) for store in stores])
    assert len({report.cache_root for report in reports}) == 1
    assert sorted(report.placed > 0 for report in reports) == [False] * 7 + [True]


def test_trouble_of_another_rank_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    publish(tmp_path, "one")
    spoil(tmp_path / "two")
    environs = [rank.environ for rank in Job(tmp_path, ("one", "two")).ranks]
    settings: dict[str, Any] = {"store": tmp_path / "store", "gpu": GPU, "environment": ENVIRONMENT}
    roots = (tmp_path / "one", tmp_path / "two")

    def restore(number: int) -> RestoreReport:
        return kstore.restore(KEY, group=True, cache_root=roots[number], environ=environs[number], **settings)

    with caplog.at_level(logging.WARNING, "kstore"):
        reports = at_once([lambda: restore(0), lambda: restore(1)])
    assert [report.status for report in reports] == [RestoreStatus.MISS, RestoreStatus.FAILED]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert any(message.startswith(f"kstore: no rank restores {KEY}: rank 1: the cache root") for message in messages)
    with pytest.raises(KstoreError):
        kstore.restore(KEY, group=True, strict=True, environ={"WORLD_SIZE": "2"}, **settings)
