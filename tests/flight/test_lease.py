"""A lease has one holder at a time, however many workers want it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstore.backends import Child, PosixBackend
from kstore.lease import Claim, Lease
from kstore.storage import Storage
from tests.gc.stores import pass_time
from tests.trees import Node, in_processes, unmounted

TTL = 60.0


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    made = Storage(tmp_path / "store")
    made.create()
    return made


def lease(storage: Storage, ttl: float = TTL) -> Lease:
    return Lease(storage, "some/thing", ttl)


def files(storage: Storage) -> list[int]:
    return sorted(int(child.name) for child in storage.backend.list("leases/some/thing"))


def test_nobody_holds_a_lease_at_first(storage: Storage) -> None:
    assert lease(storage).newest() is None


def test_a_lease_is_held_by_whoever_took_it_first(storage: Storage) -> None:
    first, second = lease(storage), lease(storage)
    assert (first.take(None), second.take(None)) == (True, False)
    newest = second.newest()
    assert newest
    assert (newest.nonce, newest.ttl, newest.is_released) == (first.nonce, TTL, False)
    assert "@" in newest.holder


def test_a_renewal_is_a_new_claim_and_shows_how_long_it_was_held(storage: Storage) -> None:
    held = lease(storage)
    held.take(None)
    first = held.newest()
    assert held.renew()
    second = held.newest()
    assert first and second
    assert (second.number, second.nonce) == (first.number + 1, first.nonce)
    assert second.held > first.held


def test_how_long_it_was_held_counts_from_when_it_was_taken(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not from when its holder began to wait for it."""
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr("kstore.lease.time", clock)
    held = lease(storage)
    clock.monotonic = lambda: 1300.0
    held.take(None)
    clock.monotonic = lambda: 1320.0
    held.renew()
    newest = held.newest()
    assert newest and newest.held == 20.0


def test_another_process_can_hold_what_was_taken_for_it(storage: Storage) -> None:
    first = lease(storage)
    first.take(None)
    assert Lease(storage, "some/thing", TTL, first.nonce).renew()
    assert not lease(storage).renew()


def test_what_is_released_can_be_taken(storage: Storage) -> None:
    first, second = lease(storage), lease(storage)
    first.take(None)
    first.release()
    newest = second.newest()
    assert newest and newest.is_released
    assert not first.renew()
    assert second.acquire()
    assert not first.renew()


def test_it_is_released_though_another_process_of_its_holder_renews_it_meanwhile(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lease(storage)
    first.take(None)
    other = Lease(storage, "some/thing", TTL, first.nonce)
    real, renewals = PosixBackend.put_if_absent, [other.renew]

    def put_if_absent(*what: Any) -> bool:
        if renewals:
            renewals.pop()()
        return real(*what)

    monkeypatch.setattr(PosixBackend, "put_if_absent", put_if_absent)
    first.release()
    newest = first.newest()
    assert newest
    assert (newest.number, newest.is_released) == (3, True)


def test_a_holder_that_lost_it_neither_renews_nor_releases(storage: Storage) -> None:
    late, heir = lease(storage), lease(storage)
    late.take(None)
    assert heir.take(late.newest())
    assert not late.renew()
    late.release()
    newest = heir.newest()
    assert newest
    assert (newest.nonce, newest.is_released) == (heir.nonce, False)


def test_a_holder_whose_volume_is_away_for_a_moment_goes_on(storage: Storage) -> None:
    held = lease(storage)
    held.take(None)
    seen = held.newest()
    with unmounted(Path(storage.location)):
        assert held.renew()
        assert held.newest(seen) is None
        held.release()  # That cannot be said now, and is no error.
    assert held.renew()
    newest = held.newest()
    assert newest and (newest.number, newest.nonce) == (2, held.nonce)


def test_a_worker_that_saw_an_older_claim_takes_nothing(storage: Storage) -> None:
    holder, late = lease(storage), lease(storage)
    holder.take(None)
    seen = late.newest()
    for _ in range(5):
        holder.renew()
    assert seen
    assert seen.number not in files(storage)  # so the name after it may be free
    assert not late.take(seen)
    assert seen.number + 1 not in files(storage)
    newest = late.newest()
    assert newest
    assert newest.nonce == holder.nonce


def test_a_name_that_is_not_a_claim_number_holds_nobody_up(storage: Storage) -> None:
    for name in ("0009", "0", "9" * 255):
        storage.backend.put(f"leases/some/thing/{name}", b"")
    assert lease(storage).acquire()


def test_it_leaves_few_files(storage: Storage) -> None:
    held = lease(storage)
    held.take(None)
    for _ in range(20):
        held.renew()
    held.release()
    assert files(storage) == [21, 22]


def test_a_claim_that_was_seen_is_not_read_again(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    held = lease(storage)
    held.take(None)
    seen = held.newest()
    monkeypatch.setattr(PosixBackend, "get", lambda *_: pytest.fail("read again"))
    assert held.newest(seen) is seen


def test_a_claim_that_goes_while_it_is_read_is_looked_for_again(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = lease(storage)
    held.take(None)
    real = PosixBackend.list
    stale = [[Child("99", False)], [Child("99", False)]]
    monkeypatch.setattr(PosixBackend, "list", lambda *a: iter(stale.pop()) if stale else real(*a))
    newest = held.newest()
    assert newest
    assert newest.nonce == held.nonce


def test_a_claim_that_is_listed_and_never_there_is_somebodys(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PosixBackend, "list", lambda *_: iter([Child("99", False)]))
    assert lease(storage).newest() == Claim(99, ttl=TTL)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"nonce": 1}', b"[" * 100_000])
def test_a_damaged_claim_is_somebodys_for_as_long_as_ones_own(storage: Storage, content: bytes) -> None:
    storage.backend.put_if_absent("leases/some/thing/7", content)
    assert lease(storage).newest() == Claim(7, ttl=TTL)


@pytest.mark.parametrize(
    ("ttl", "held"), [("NaN", "0"), ("-1", "0"), ("Infinity", "0"), ("1e308", "0"), ("1", "NaN"), ("1", "-5")]
)
def test_a_claim_with_senseless_times_is_somebodys_for_as_long_as_ones_own(
    storage: Storage, ttl: str, held: str
) -> None:
    content = f'{{"nonce": "n", "holder": "h", "released": false, "ttl": {ttl}, "held": {held}}}'
    storage.backend.put_if_absent("leases/some/thing/7", content.encode())
    assert lease(storage).newest() == Claim(7, ttl=TTL)


# ---- By the store's own clock


def test_a_lease_that_was_left_behind_is_acquired_when_it_has_lapsed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.store.create()
    left, other = lease(node.store.storage), lease(node.store.storage)
    assert left.acquire()
    assert not other.acquire()
    pass_time(node, TTL + 1)
    assert other.acquire()
    assert not left.renew()


def test_a_lease_from_the_future_is_acquired(tmp_path: Path) -> None:
    """The server's clock was ahead when its holder was killed."""
    node = Node(tmp_path)
    node.store.create()
    left, other = lease(node.store.storage), lease(node.store.storage)
    left.acquire()
    pass_time(node, -365 * 86400)
    assert other.acquire()


def test_a_renewed_one_is_as_if_it_were_new(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.store.create()
    held, other = lease(node.store.storage), lease(node.store.storage)
    held.acquire()
    pass_time(node, TTL + 1)
    held.renew()
    assert not other.acquire()


# ---- Many at once


def take_at_once(storage: Storage, seen: Claim | None, count: int = 32) -> list[Lease]:
    """The threads, of many, that took it."""
    ready, taken = threading.Barrier(count), []

    def run() -> None:
        mine = lease(storage)
        ready.wait(60)
        if mine.take(seen):
            taken.append(mine)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return taken


def test_exactly_one_takes_over_whoever_saw_that_the_holder_is_gone(storage: Storage) -> None:
    for _ in range(20):
        seen = lease(storage).newest()
        (taken,) = take_at_once(storage, seen)
        newest = lease(storage).newest()
        assert newest
        assert newest.nonce == taken.nonce


def take_in_process(folder: Path, rounds: int) -> list[bool]:
    storage = Storage(folder)
    return [_take(storage, f"round-{number}") for number in range(rounds)]


def _take(storage: Storage, name: str) -> bool:
    mine = Lease(storage, name, TTL)
    return mine.take(Claim(3))


def test_exactly_one_of_many_processes_takes_over(storage: Storage) -> None:
    rounds, workers = 50, 8
    for number in range(rounds):
        storage.backend.put_if_absent(f"leases/round-{number}/3", b"of one that is gone")
    taken = in_processes(take_in_process, [(Path(storage.location), rounds)] * workers)
    assert [sum(column) for column in zip(*taken, strict=True)] == [1] * rounds


def test_a_holder_that_renews_late_and_an_heir_are_never_both_right(storage: Storage) -> None:
    for _ in range(50):
        held, heir = lease(storage), lease(storage)
        held.take(held.newest())
        seen = heir.newest()
        taken: list[bool] = []
        thread = threading.Thread(target=lambda heir=heir, seen=seen, taken=taken: taken.append(heir.take(seen)))
        thread.start()
        held.renew()
        thread.join(60)
        newest = lease(storage).newest()
        assert newest
        assert newest.nonce == (heir.nonce if taken == [True] else held.nonce)
