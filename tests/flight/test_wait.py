"""On a miss one worker compiles, and the others wait for what it commits."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import flight
from kstore.backends import StagingLost
from kstore.blobs.loose import blob_name
from kstore.deadline import Abandoned
from kstore.environment import Environment
from kstore.errors import IntegrityError, MissError, StoreUnavailable, UsageError
from kstore.lease import Lease
from kstore.progress import Awaited
from kstore.report import CommitStatus, RestoreReport, RestoreStatus
from kstore.store import Store
from tests.faults.injection import GONE, LOST, LOST_TO_EXISTS, REFUSALS, Fault, backend_fault
from tests.gc.stores import pass_time
from tests.leases import claim, is_held
from tests.trees import ENVIRONMENT, GPU, KEY, Node, Tree, contents, in_processes, listing, unmounted
from tests.waiting import until

LONG = 120.0
"""Nobody in these tests waits for so long unless something is wrong."""
SHORT = 0.3
TTL = 0.6
SCOPE = {"gpu": GPU, "environment": ENVIRONMENT}

pytestmark = pytest.mark.usefixtures("host", "landed")


@pytest.fixture
def landed() -> Iterator[None]:
    """No test leaves a waiting worker or a lease that is still renewed."""
    yield
    waiters = [thread for thread in threading.enumerate() if thread.name == Waiter.NAME]
    for thread in waiters:
        thread.join(60)
    assert not any(thread.is_alive() for thread in waiters)
    flight.end_all()
    flight._flights.clear()


class Waiter:
    """A worker that restores in a thread of its own."""

    NAME = "waiter"

    def __init__(self, node: Node, wait: float = LONG, **choice: Any) -> None:
        self.node = node
        self.told: list[Awaited] = []
        self._waits = threading.Event()
        node.store.progress.on_wait = self._tell
        self._answer: Future[RestoreReport] = Future()
        kwargs = {"wait": wait, **choice}
        self._thread = threading.Thread(target=self._run, name=self.NAME, kwargs=kwargs, daemon=True)
        self._thread.start()

    def until_it_waits(self) -> Waiter:
        assert self._waits.wait(60)
        return self

    def result(self) -> RestoreReport:
        return self._answer.result(60)

    def _tell(self, awaited: Awaited) -> None:
        self.told.append(awaited)
        self._waits.set()

    def _run(self, **choice: Any) -> None:
        try:
            self._answer.set_result(self.node.restore(**choice))
        except BaseException as error:
            self._answer.set_exception(error)


def leader(folder: Path, name: str = "leader", **settings: Any) -> Node:
    node = Node(folder, name, **settings)
    report = node.restore(wait=LONG)
    assert (report.status, report.leads, report.waited) == (RestoreStatus.MISS, True, 0.0)
    return node


# ---- One leads


def test_the_first_goes_on_at_once_and_the_others_wait_for_what_it_commits(tmp_path: Path) -> None:
    first = leader(tmp_path)
    waiters = [Waiter(Node(tmp_path, f"waiter-{number}")) for number in range(3)]
    for waiter in waiters:
        waiter.until_it_waits()
    first.tree.kernel("one")
    first.commit()

    for waiter in waiters:
        report = waiter.result()
        assert (report.status, report.generation, report.leads) == (RestoreStatus.RESTORED, 1, False)
        assert report.waited > 0
        assert report.waited_for == first.newest().creator
        assert contents(waiter.node.tree.root).keys() == contents(first.tree.root).keys()


def test_a_worker_that_does_not_wait_neither_leads_nor_looks(tmp_path: Path) -> None:
    first = leader(tmp_path)
    assert Node(tmp_path, "hasty").restore().status is RestoreStatus.MISS
    assert is_held(first)
    other = Node(tmp_path, "other")
    assert not other.restore("model/v2").leads
    assert claim(other, "model/v2") is None


def test_a_hit_takes_no_lease(tmp_path: Path) -> None:
    first = Node(tmp_path, "first")
    first.tree.kernel("one")
    first.commit()
    report = Node(tmp_path, "second").restore(wait=LONG)
    assert (report.status, report.leads, report.waited) == (RestoreStatus.RESTORED, False, 0.0)
    assert claim(first) is None


def test_a_hit_does_not_even_look_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Node(tmp_path, "first")
    first.tree.kernel("one")
    first.commit()
    monkeypatch.setattr(Lease, "newest", lambda *_: pytest.fail("looked for a lease"))
    assert Node(tmp_path, "second").restore(wait=LONG).ok


def test_a_key_that_was_forgotten_is_compiled_anew(tmp_path: Path) -> None:
    first = Node(tmp_path, "first")
    first.tree.kernel("one")
    first.commit()
    first.store.forget(KEY)
    second = leader(tmp_path, "second")
    waiter = Waiter(Node(tmp_path, "third")).until_it_waits()
    second.tree.kernel("two")
    second.commit()
    assert waiter.result().generation == 3


@pytest.fixture(params=["ref", "manifest"])
def unreadable(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The only generation cannot be read. Returns the store's folder."""
    node = Node(tmp_path, "before", layout="loose")
    node.tree.kernel("before")
    node.commit()
    ref = node.newest()
    path = node.location / (ref.name if request.param == "ref" else blob_name(ref.manifest))
    path.chmod(0o644)
    path.write_bytes(b"garbage")
    return tmp_path


def test_where_nothing_can_be_read_one_leads_and_the_others_get_what_it_commits(unreadable: Path) -> None:
    first = Node(unreadable, "first")
    with pytest.raises(IntegrityError):
        first.restore(wait=LONG)
    waiters = [Waiter(Node(unreadable, f"waiter-{number}")).until_it_waits() for number in range(3)]
    first.tree.kernel("one")
    first.commit()
    for waiter in waiters:
        assert waiter.result().status is RestoreStatus.RESTORED
        assert not waiter.result().leads


def test_where_nothing_can_be_read_at_the_end_of_the_wait_that_is_reported(unreadable: Path) -> None:
    with pytest.raises(IntegrityError):
        Node(unreadable, "first").restore(wait=LONG)
    with pytest.raises(IntegrityError, match="kstore verify"):
        Node(unreadable, "waiter").restore(wait=SHORT)


def test_keys_gpus_and_environments_have_leases_of_their_own(tmp_path: Path) -> None:
    leader(tmp_path)
    assert leader(tmp_path, "other gpu", gpu="other-gpu")
    assert leader(tmp_path, "other software", environment="other")
    assert Node(tmp_path, "other key").restore("model/v2", wait=LONG).leads


def test_a_lease_makes_the_store(tmp_path: Path) -> None:
    leader(tmp_path)
    assert (tmp_path / "store/kstore.json").exists()


# ---- It ends with the commit


def test_a_commit_releases_the_lease(tmp_path: Path) -> None:
    first = leader(tmp_path)
    first.tree.kernel("one")
    assert is_held(first)
    first.commit()
    assert not is_held(first)
    assert flight._flights == {}


def test_a_commit_with_nothing_to_publish_releases_the_lease_and_the_next_leads(tmp_path: Path) -> None:
    first = leader(tmp_path)
    waiter = Waiter(Node(tmp_path, "waiter")).until_it_waits()
    assert first.commit().status is CommitStatus.UNCHANGED
    report = waiter.result()
    assert (report.status, report.leads) == (RestoreStatus.MISS, True)


def test_a_commit_that_fails_releases_the_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    first = leader(tmp_path)
    monkeypatch.setattr("kstore.operations.commit.commit", fail)
    with pytest.raises(StoreUnavailable):
        first.commit()
    assert not is_held(first)


def test_a_store_can_release_without_a_commit(tmp_path: Path) -> None:
    first = leader(tmp_path)
    first.store.release(KEY)
    assert not is_held(first)
    assert leader(tmp_path, "second")


def test_a_commit_of_another_worker_leaves_it_alone(tmp_path: Path) -> None:
    first, other = leader(tmp_path), Node(tmp_path, "other")
    other.tree.kernel("one")
    other.commit()
    assert is_held(first)


def test_the_holder_renews_it(tmp_path: Path) -> None:
    first = leader(tmp_path, lease_ttl=0.06)
    for _ in range(600):
        newest = claim(first)
        assert newest
        if newest.number > 3:
            return
        time.sleep(0.1)
    pytest.fail("it was never renewed")


def test_a_commit_in_another_process_releases_it(tmp_path: Path) -> None:
    def lead() -> None:
        leader(tmp_path)
        flight.leave_all()  # as `kstore restore` does

    in_processes(lead, [()])
    node = Node(tmp_path, "leader")
    assert is_held(node)
    node.commit()
    assert not is_held(node)


def test_every_process_of_a_cache_root_leads_and_none_waits_for_another(tmp_path: Path) -> None:
    first = leader(tmp_path)
    report = Node(tmp_path, "leader").restore(wait=LONG)
    assert (report.leads, report.waited) == (True, 0.0)
    first.commit()
    assert not is_held(first)


# ---- A holder that is gone


def compile_for_ever(folder: Path, ready: Any) -> None:
    leader(folder, "victim", lease_ttl=TTL)
    ready.set()
    time.sleep(600)


def kill_a_leader(folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    victim = context.Process(target=compile_for_ever, args=(folder, ready))
    victim.start()
    assert ready.wait(60)
    assert victim.pid
    os.kill(victim.pid, signal.SIGKILL)
    victim.join(60)


def test_one_of_those_that_wait_takes_over_from_a_dead_holder(tmp_path: Path) -> None:
    kill_a_leader(tmp_path)
    waiters = [Waiter(Node(tmp_path, f"waiter-{number}", lease_ttl=LONG)) for number in range(4)]
    leads: list[Waiter] = []
    while not leads:
        leads = [waiter for waiter in waiters if waiter._answer.done()]
        time.sleep(0.01)
    (heir,) = leads
    assert heir.result().leads
    heir.node.tree.kernel("one")
    heir.node.commit()
    others = [waiter.result() for waiter in waiters if waiter is not heir]
    assert [(report.status, report.leads) for report in others] == [(RestoreStatus.RESTORED, False)] * 3


# ---- A leader that publishes while it compiles


def checkpoint(node: Node, name: str) -> None:
    node.tree.kernel(name)
    assert node.store.checkpoint(KEY).status is CommitStatus.COMMITTED


def until_it_saw(waiter: Waiter, generation: int) -> None:
    """A poll has found that generation, and the wait went on."""
    until(lambda: (awaited := waiter.node.store.progress.awaited) and awaited.generation == generation)


def test_a_checkpoint_does_not_end_the_wait_while_its_worker_compiles_on(tmp_path: Path) -> None:
    first = leader(tmp_path)
    before = Waiter(Node(tmp_path, "before")).until_it_waits()
    checkpoint(first, "one")
    after = Waiter(Node(tmp_path, "after")).until_it_waits()
    for waiter in (before, after):
        until_it_saw(waiter, 1)
    first.tree.kernel("two")
    first.commit()

    for waiter in (before, after):
        report = waiter.result()
        assert (report.status, report.generation, report.leads) == (RestoreStatus.RESTORED, 2, False)


def test_what_a_checkpoint_has_is_restored_once_its_worker_is_done_without_more(tmp_path: Path) -> None:
    first = leader(tmp_path)
    checkpoint(first, "one")
    waiter = Waiter(Node(tmp_path, "waiter")).until_it_waits()
    first.store.release(KEY)

    assert (waiter.result().generation, waiter.result().leads) == (1, False)
    checkpoint(first, "two")
    assert Node(tmp_path, "later").restore(wait=LONG).waited == 0.0  # nobody waits for this one any more


def test_what_a_checkpoint_has_is_restored_once_its_worker_is_gone(tmp_path: Path) -> None:
    first = leader(tmp_path, lease_ttl=TTL)
    checkpoint(first, "one")
    waiter = Waiter(Node(tmp_path, "waiter")).until_it_waits()
    flight.leave_all()

    assert (waiter.result().status, waiter.result().leads) == (RestoreStatus.RESTORED, False)


def test_what_a_checkpoint_has_is_restored_at_the_end_of_the_wait(tmp_path: Path) -> None:
    checkpoint(leader(tmp_path), "one")
    report = Node(tmp_path, "waiter").restore(wait=SHORT)
    assert (report.status, report.generation, report.leads) == (RestoreStatus.RESTORED, 1, False)
    assert report.waited > 0


def test_a_commit_of_another_worker_ends_the_wait(tmp_path: Path) -> None:
    checkpoint(leader(tmp_path), "one")
    waiter = Waiter(Node(tmp_path, "waiter")).until_it_waits()
    other = Node(tmp_path, "other")
    other.tree.kernel("two")
    other.commit()

    assert waiter.result().generation == 2


def test_a_leader_that_starts_again_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    checkpoint(leader(tmp_path), "one")
    report = Node(tmp_path, "leader").restore(wait=LONG)
    assert (report.status, report.leads, report.waited) == (RestoreStatus.CURRENT, True, 0.0)


def killed_after_a_checkpoint(folder: Path) -> Node:
    """A leader that has left its lease behind for long: nobody takes over, because there is something to restore."""
    checkpoint(first := leader(folder), "one")
    flight.leave_all()
    pass_time(first)
    return first


@pytest.mark.parametrize("settings", [{}, {"mode": "read"}], ids=str)
@pytest.mark.parametrize("lead", [True, False], ids=["may lead", "may not"])
def test_a_lease_left_behind_by_a_checkpoint_delays_nobody(
    tmp_path: Path, settings: dict[str, Any], lead: bool
) -> None:
    killed_after_a_checkpoint(tmp_path)
    report = Node(tmp_path, "other", **settings).restore(wait=LONG, lead=lead)
    assert (report.status, report.leads, report.waited) == (RestoreStatus.RESTORED, False, 0.0)


def test_nor_does_it_where_the_clock_of_the_store_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    killed_after_a_checkpoint(tmp_path)
    other = Node(tmp_path, "other")

    def refuse(storage: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(type(other.store.storage), "clock", refuse)
    assert other.restore(wait=LONG).waited == 0.0
    assert "cannot" not in caplog.text


def test_nor_does_the_worker_that_left_it_behind_take_it_up_again(tmp_path: Path) -> None:
    """Others would wait for it for as long as it runs, and it may find all that it needs."""
    killed_after_a_checkpoint(tmp_path)
    report = Node(tmp_path, "leader").restore(wait=LONG)
    assert (report.status, report.leads, report.waited) == (RestoreStatus.CURRENT, False, 0.0)


@pytest.mark.parametrize("settings", [{}, {"mode": "read"}], ids=str)
def test_who_shares_the_root_of_the_leader_does_not_wait_for_the_rest(tmp_path: Path, settings: dict[str, Any]) -> None:
    checkpoint(leader(tmp_path), "one")
    report = Node(tmp_path, "leader", **settings).restore(wait=LONG, lead=False)
    assert (report.status, report.leads, report.waited) == (RestoreStatus.CURRENT, False, 0.0)


def test_a_generation_that_is_asked_for_by_its_number_may_be_a_checkpoint(tmp_path: Path) -> None:
    checkpoint(leader(tmp_path), "one")
    assert Node(tmp_path, "waiter").restore(generation=1, wait=LONG).waited == 0.0


def test_nobody_takes_over_while_the_volume_is_away(tmp_path: Path) -> None:
    """A holder that lives is only out of sight: its files are away, and nothing may be written in their place."""
    first = leader(tmp_path)
    waiter = Waiter(Node(tmp_path, "waiter")).until_it_waits()
    with unmounted(first.location):
        time.sleep(2 * SHORT)
    first.tree.kernel("one")
    first.commit()
    report = waiter.result()
    assert (report.status, report.leads) == (RestoreStatus.RESTORED, False)


def test_a_lease_that_was_left_behind_long_ago_delays_nobody(tmp_path: Path) -> None:
    """Without the store's clock its holder would have to be watched for longer than anybody waits here."""
    node = Node(tmp_path)
    node.store.create()
    left = Lease(node.store.storage, f"{GPU}/{KEY}/@{ENVIRONMENT}", 2 * LONG)
    left.take(None)
    pass_time(node, 3 * LONG)
    assert leader(tmp_path)


def test_a_claim_that_a_crash_has_emptied_is_nobodys(tmp_path: Path) -> None:
    """Roots that lead nothing have no nonce either: all of them would be leaders."""
    node = Node(tmp_path)
    node.store.storage.create()
    node.store.storage.backend.put(f"leases/{node.store.scope(KEY).path}/1", b"")
    report = node.restore(wait=SHORT)
    assert (report.status, report.leads) == (RestoreStatus.MISS, False)


def test_a_holder_that_lives_is_waited_for_beyond_its_ttl(tmp_path: Path) -> None:
    first = leader(tmp_path, lease_ttl=5 * TTL)
    waiter = Waiter(Node(tmp_path, "waiter")).until_it_waits()
    while (newest := claim(first)) and newest.number < 8:  # renewed for twice its ttl
        assert not waiter._answer.done()
        time.sleep(0.05)
    first.tree.kernel("one")
    first.commit()
    assert waiter.result().status is RestoreStatus.RESTORED


def test_at_exit_the_lease_is_released(tmp_path: Path) -> None:
    def run() -> None:
        leader(tmp_path)
        flight.end_all()  # what `atexit` calls, which a forked child of multiprocessing skips

    in_processes(run, [()])
    assert not is_held(Node(tmp_path))


def test_a_forked_child_does_not_release_what_its_parent_holds(tmp_path: Path) -> None:
    first = leader(tmp_path)
    in_processes(flight.end_all, [()])
    assert is_held(first)


def test_a_worker_that_waits_is_told_since_when_the_key_is_compiled(tmp_path: Path) -> None:
    first = leader(tmp_path, lease_ttl=LONG)
    pass_time(first, 30)
    waiter = Waiter(Node(tmp_path, "waiter")).until_it_waits()
    (awaited,) = waiter.told
    assert time.monotonic() - awaited.since >= 30
    first.store.release(KEY)
    assert waiter.result().leads


# ---- The end of waiting


def test_at_the_end_of_the_wait_it_is_a_miss(tmp_path: Path) -> None:
    leader(tmp_path)
    report = Node(tmp_path, "waiter").restore(wait=SHORT)
    assert (report.status, report.leads) == (RestoreStatus.MISS, False)
    assert report.waited > 0
    assert report.waited_for


def test_the_leader_starts_from_the_seed(tmp_path: Path) -> None:
    publish_seed(tmp_path)
    report = Node(tmp_path, "leader").restore(seed="model/v0", wait=LONG)
    assert (report.status, report.leads, report.waited) == (RestoreStatus.SEEDED, True, 0.0)


def test_workers_that_wait_get_the_real_key(tmp_path: Path) -> None:
    publish_seed(tmp_path)
    first = leader(tmp_path)
    waiter = Waiter(Node(tmp_path, "waiter"), seed="model/v0").until_it_waits()
    first.tree.kernel("one")
    first.commit()
    assert waiter.result().status is RestoreStatus.RESTORED


def test_workers_that_wait_get_the_seed_if_the_key_does_not_come(tmp_path: Path) -> None:
    publish_seed(tmp_path)
    leader(tmp_path)
    report = Node(tmp_path, "waiter").restore(seed="model/v0", wait=SHORT)
    assert (report.status, report.leads) == (RestoreStatus.SEEDED, False)


def publish_seed(folder: Path) -> None:
    node = Node(folder, "seed")
    node.tree.kernel("seed")
    node.commit("model/v0")


def test_one_generation_is_waited_for(tmp_path: Path) -> None:
    first = Node(tmp_path, "first")
    first.tree.kernel("one")
    first.commit()
    waiter = Waiter(Node(tmp_path, "waiter"), generation=2).until_it_waits()
    assert waiter.told == [Awaited(generation=1)]
    first.tree.kernel("two")
    first.commit()
    report = waiter.result()
    assert (report.generation, report.leads) == (2, False)
    assert claim(first) is None


def test_one_that_does_not_come_in_time_is_a_miss_error(tmp_path: Path) -> None:
    with pytest.raises(MissError):
        Node(tmp_path).restore(generation=1, wait=SHORT)


def test_one_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for name in ("one", "two"):
        node.tree.kernel(name)
        node.commit()
    node.store.storage.refs.drop(node.store.scope(KEY), 1)
    with pytest.raises(MissError):
        node.restore(generation=1, wait=LONG)


def test_without_lead_it_only_waits(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert not node.restore(wait=SHORT, lead=False).leads
    assert claim(node) is None


def test_a_store_that_may_not_be_written_is_only_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bool:
        raise PermissionError(13, "Permission denied")

    node = Node(tmp_path)
    node.store.create()
    monkeypatch.setattr(Lease, "take", refuse)
    report = node.restore(wait=SHORT)
    assert (report.status, report.leads) == (RestoreStatus.MISS, False)


def test_a_worker_takes_the_lease_once_a_store_that_was_read_only_can_be_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    take, refusals = Lease.take, [errno.EROFS, errno.EROFS]

    def take_later(*arguments: Any) -> bool:
        if refusals:
            raise OSError(refusals.pop(), "Read-only file system")
        return take(*arguments)

    node = Node(tmp_path, lease_ttl=SHORT / 3)
    node.store.create()
    monkeypatch.setattr(Lease, "take", take_later)
    assert node.restore(wait=LONG).leads
    assert caplog.text.count("it waits for another one to compile") == 1


def test_where_a_lease_cannot_be_written_for_want_of_space_nobody_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can lead there: all would wait until their time is over."""

    def refuse(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Lease, "take", refuse)
    report = Node(tmp_path).restore(wait=LONG)
    assert (report.status, report.leads, report.waited) == (RestoreStatus.MISS, False, 0.0)
    assert "cannot be written to the store" in caplog.text
    assert "No space left on device" in caplog.text


def test_who_holds_the_lease_is_waited_for_though_the_clock_of_the_store_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> float:
        raise OSError(errno.ENOSPC, "No space left on device")

    first = leader(tmp_path)
    monkeypatch.setattr(Lease, "age", refuse)
    waiter = Waiter(Node(tmp_path, "waiter")).until_it_waits()
    assert "kstore waits only for whoever holds it now" in caplog.text
    first.tree.kernel("one")
    first.commit()
    assert waiter.result().status is RestoreStatus.RESTORED


def test_a_store_that_refuses_a_lease_is_not_asked_again_before_one_would_lapse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[object] = []

    def refuse(*what: object) -> bool:
        asked.append(what)
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Lease, "take", refuse)
    assert not Node(tmp_path, lease_ttl=LONG).restore(wait=3 * SHORT).leads
    assert len(asked) == 1
    assert caplog.text.count("it waits for another one to compile") == 1


def test_a_worker_whose_claim_is_lost_before_it_has_its_name_takes_the_lease_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, losses = Lease.take, [StagingLost("gone")]

    def take_later(*arguments: Any) -> bool:
        if losses:
            raise losses.pop()
        return take(*arguments)

    monkeypatch.setattr(Lease, "take", take_later)
    assert Node(tmp_path).restore(wait=LONG).leads


def test_whoever_is_given_up_waits_no_longer_and_takes_no_lease(tmp_path: Path) -> None:
    first = leader(tmp_path)
    waiter = Waiter(Node(tmp_path, "waiter")).until_it_waits()
    waiter.node.store.waiting.give_up()
    with pytest.raises(Abandoned):
        waiter.result()
    first.store.release(KEY)
    assert not is_held(first)


def test_a_worker_that_is_given_up_as_it_takes_the_lease_releases_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    worker = node.store.worker(KEY, before_import=True)
    worker.waiting.give_up()
    from kstore.operations.restore import Request, restore

    with pytest.raises(Abandoned):
        restore(worker, Request(patience=LONG))
    assert claim(node) is not None
    assert not is_held(node)


@pytest.fixture
def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lease can be renewed."""

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(flight, "start", refuse)


@pytest.mark.usefixtures("without_threads")
def test_a_worker_that_cannot_renew_its_lease_gives_it_back_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path)
    report = node.restore(wait=LONG)
    assert (report.status, report.leads) == (RestoreStatus.MISS, False)
    assert claim(node) is not None
    assert not is_held(node)
    assert "cannot be renewed (can't start new thread): kstore waits only for whoever holds it now" in caplog.text


@pytest.mark.usefixtures("without_threads")
def test_a_worker_that_can_neither_renew_its_lease_nor_give_it_back_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Lease) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Lease, "release", refuse)
    report = Node(tmp_path).restore(wait=LONG)
    assert (report.status, report.leads) == (RestoreStatus.MISS, False)


def test_what_shares_the_root_of_the_leader_renews_the_lease_beside_it(tmp_path: Path) -> None:
    """Which may end first."""
    first = leader(tmp_path, lease_ttl=0.06)
    flight.leave_all()  # as in another process
    assert first.restore(wait=LONG).leads
    before = claim(first)
    assert before
    until(lambda: (newest := claim(first)) is not None and newest.number > before.number + 2)


def test_what_shares_the_root_of_the_leader_writes_nothing_to_find_that_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = leader(tmp_path)
    monkeypatch.setattr(Lease, "age", lambda *_: pytest.fail("the store's clock is asked"))
    assert first.restore(wait=LONG).leads


def test_what_shares_the_root_of_the_leader_leads_even_if_it_cannot_renew_the_lease(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    leader(tmp_path)
    flight.leave_all()  # as in another process
    request.getfixturevalue("without_threads")
    assert Node(tmp_path, "leader").restore(wait=LONG).leads


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf"), 1e300, "5"])
def test_a_senseless_wait_is_a_usage_error(tmp_path: Path, wait: Any) -> None:
    with pytest.raises(UsageError, match="wait="):
        Node(tmp_path).restore(wait=wait)
    with pytest.raises(UsageError, match="wait="):
        kstore.restore(KEY, store=tmp_path / "store", wait=wait)
    with pytest.raises(UsageError, match="wait="):
        kstore.synchronized(KEY, store=tmp_path / "store", wait=wait)


def test_where_there_is_no_torch_the_key_is_waited_for(tmp_path: Path) -> None:
    """As in an init container, which cannot know in which environment the key will appear."""
    bare = Node(tmp_path, "bare", environment=None)
    vars(bare.store)["environment"] = Environment("none", {"torch": "none"})
    waiter = Waiter(bare)
    time.sleep(SHORT)
    builder = Node(tmp_path, "builder")
    builder.tree.kernel("one")
    builder.commit()
    report = waiter.result()
    assert (report.status, report.environment) == (RestoreStatus.RESTORED, ENVIRONMENT)


def test_where_there_is_no_torch_nobody_waits_for_an_environment_that_was_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Node(tmp_path, "old", environment="torch-old")
    old.tree.kernel("one")
    old.commit()
    old.store.forget(KEY)
    bare = Node(tmp_path, "bare", environment=None)
    vars(bare.store)["environment"] = Environment("none", {"torch": "none"})
    builder = Node(tmp_path, "builder")
    builder.tree.kernel("one")

    def polls(*_: Any) -> Iterator[None]:
        yield
        builder.commit()
        yield

    monkeypatch.setattr("kstore.store.polls", polls)
    report = bare.restore(wait=LONG)
    assert (report.status, report.environment) == (RestoreStatus.RESTORED, ENVIRONMENT)


# ---- The functions


def settings(folder: Path, name: str) -> dict[str, Any]:
    return {"store": folder / "store", "cache_root": folder / name, "environ": {}, **SCOPE}


def test_restore_waits_for_longer_than_the_timeout(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    leader(tmp_path)
    with caplog.at_level(logging.INFO, "kstore"):
        report = kstore.restore(KEY, wait=6 * SHORT, timeout=5 * SHORT, **settings(tmp_path, "waiter"))
    assert report.status is RestoreStatus.MISS
    begin, end, missed = [record.getMessage() for record in caplog.records if record.name == "kstore"]
    assert f"{KEY} is compiled by {report.waited_for}, waiting for it up to 1.8 s" in begin
    assert f"for {report.waited_for} of {KEY}" in end
    assert f"nothing is published for {KEY}" in missed


def test_synchronized_leads_and_releases_at_its_end(tmp_path: Path) -> None:
    node = Node(tmp_path, "node")
    with kstore.synchronized(KEY, wait=LONG, **settings(tmp_path, "node")) as cache:
        assert cache.restored.leads
        assert is_held(node)
        Tree(tmp_path / "node").kernel("one")
    assert cache.committed.status is CommitStatus.COMMITTED
    assert not is_held(node)
    with kstore.synchronized(KEY, wait=LONG, **settings(tmp_path, "other")) as cache:
        assert cache.restored.ok


def test_it_releases_when_its_body_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), kstore.synchronized(KEY, wait=LONG, **settings(tmp_path, "node")):
        raise ZeroDivisionError
    assert not is_held(Node(tmp_path))


@pytest.mark.parametrize("choice", [{"strict_hits": True}, {"on_error": "discard"}], ids=str)
def test_it_releases_when_it_commits_nothing(tmp_path: Path, choice: dict[str, Any]) -> None:
    error = kstore.MissError if "strict_hits" in choice else ZeroDivisionError
    with pytest.raises(error), kstore.synchronized(KEY, wait=LONG, **choice, **settings(tmp_path, "node")):
        raise ZeroDivisionError
    assert not is_held(Node(tmp_path))


def test_the_report_says_it_all_in_json(tmp_path: Path) -> None:
    content = Node(tmp_path).restore(wait=LONG).as_json()
    assert {name: content[name] for name in ("leads", "waited", "waited_for")} == {
        "leads": True,
        "waited": 0.0,
        "waited_for": "",
    }


# ---- Trouble


@pytest.mark.parametrize("fault", [*REFUSALS, LOST, LOST_TO_EXISTS, *GONE], ids=str)
def test_whatever_call_fails_the_job_goes_on_and_commits(tmp_path: Path, fault: Fault) -> None:
    """Workers that the fault makes wait for themselves wait to the end of their time."""
    for number in count():
        folder = tmp_path / str(number)
        folder.mkdir()
        with backend_fault(fault, number) as striker:
            report = kstore.restore(KEY, wait=SHORT, **settings(folder, "worker"))
        assert report.status in (RestoreStatus.MISS, RestoreStatus.FAILED)
        Tree(folder / "worker").kernel("one")
        assert kstore.commit(KEY, **settings(folder, "worker")).status is CommitStatus.COMMITTED
        assert kstore.restore(KEY, wait=LONG, **settings(folder, "other")).status is RestoreStatus.RESTORED
        assert flight._flights == {}
        if not striker.struck:
            break
    assert number > 3
    assert report.leads


# ---- How often the store is asked


def test_a_poll_writes_nothing(tmp_path: Path) -> None:
    first = leader(tmp_path)
    waiter = Waiter(Node(tmp_path, "waiter")).until_it_waits()
    before = listing(tmp_path / "store")
    time.sleep(SHORT)
    assert listing(tmp_path / "store") == before
    assert not waiter._answer.done()
    first.tree.kernel("one")
    first.commit()
    waiter.result()  # otherwise its thread would go on in the tests that follow


def run_worker(folder: Path, number: int) -> tuple[bool, str]:
    """Restore, compile if necessary, commit."""
    node = Node(folder, f"worker-{number}")
    report = node.restore(wait=LONG)
    if not report.ok:
        time.sleep(SHORT)
        node.tree.kernel(f"by-{number}")
    node.commit()
    return report.leads, str(report.status)


def test_one_of_sixteen_processes_that_start_cold_compiles(tmp_path: Path) -> None:
    results = in_processes(run_worker, [(tmp_path, number) for number in range(16)])
    assert sorted(results) == [(False, "restored")] * 15 + [(True, "miss")]
    node = Node(tmp_path, "last")
    assert len(node.store.generations(node.store.scope(KEY))) == 1


def test_gc_leaves_leases_alone(tmp_path: Path) -> None:
    first = leader(tmp_path)
    Store(tmp_path / "store").gc()
    assert is_held(first)
