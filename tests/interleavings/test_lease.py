"""Every schedule of a holder that is thought to be gone, and of workers that want to take its place: one does."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from kstore.lease import Lease
from kstore.storage import Storage
from tests.interleavings.conversation import Actor, run_alone
from tests.interleavings.exploration import KILLED, Broken, Explored, Violation, explore
from tests.interleavings.memory import Contents, Memory, MemoryBackend

HOLDER = "the holder"


class End(NamedTuple):
    """How a worker ended."""

    took: bool
    renewed: bool


def lease(backend: MemoryBackend, name: str) -> Lease:
    storage = Storage(Path("/nowhere"))
    storage.backend = backend  # type: ignore[assignment]
    return Lease(storage, "scope", 60.0, nonce=name)


def found(renewals: int, backend: MemoryBackend) -> None:
    held = lease(backend, HOLDER)
    assert held.take(None)
    for _ in range(renewals):
        assert held.renew()


def wake_up(backend: MemoryBackend) -> Hashable:
    """The holder was suspended, and goes on as if nothing had happened."""
    held = lease(backend, HOLDER)
    return [held.renew() for _ in range(3)][-1]


def end(backend: MemoryBackend) -> Hashable:
    """The holder is done."""
    lease(backend, HOLDER).release()
    return None


def take_over(name: str, renewals: int, backend: MemoryBackend) -> Hashable:
    """What looks to this worker like a holder that is gone may be renewed at any moment."""
    mine = lease(backend, name)
    newest = mine.newest()
    assert newest
    if newest.nonce != HOLDER:
        return End(False, False)
    took = mine.take(newest)
    return End(took, took and all(mine.renew() for _ in range(renewals)))


def check(contents: Contents, outcomes: Mapping[str, Hashable]) -> None:
    """However many tried, one took it; whoever took it still has it; and if nobody did, the holder has it."""
    ends = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, End)}
    taken = [name for name, outcome in ends.items() if outcome.took]
    killed = [name for name, outcome in outcomes.items() if outcome == KILLED]
    newest = max((int(name.rpartition("/")[2]), found.data) for name, found in contents.objects.items())[1]
    has = json.loads(newest)["nonce"]
    if len(taken) > 1:
        raise Broken(f"{taken} all took it")
    if any(outcome.took != outcome.renewed for outcome in ends.values()):
        raise Broken(f"somebody lost what it had taken: {ends}")
    if has not in (taken or [*killed, HOLDER]):
        raise Broken(f"{has} has it, and {taken or 'nobody'} took it")


def explored(*actors: Actor, renewals: int = 0) -> Explored:
    memory = Memory(Contents())
    assert run_alone(Actor("founder", partial(found, renewals)), memory) is None
    return explore(actors, memory.contents, check)


def waiter(name: str, renewals: int = 1) -> Actor:
    return Actor(name, partial(take_over, name, renewals))


SCENES = {
    "two": [waiter("A"), waiter("B")],
    "two, one of them slow": [waiter("A", renewals=3), waiter("B")],
    "three": [waiter("A"), waiter("B"), waiter("C")],
    "two and a holder that wakes up": [waiter("A"), waiter("B"), Actor(HOLDER, wake_up)],
    "two and a holder that ends": [waiter("A"), waiter("B"), Actor(HOLDER, end)],
}


@pytest.mark.parametrize("renewals", [0, 3])
@pytest.mark.parametrize("actors", SCENES.values(), ids=SCENES.keys())
def test_one_takes_the_place_of_a_holder_that_is_gone(
    actors: list[Actor], renewals: int, capsys: pytest.CaptureFixture[str]
) -> None:
    result = explored(*actors, renewals=renewals)
    with capsys.disabled():
        print(f"\n{[actor.name for actor in actors]}: {result}")
    assert result.schedules > 10


def test_without_a_look_at_what_came_since_two_would_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that was deleted is free again for a worker that saw the number before it."""

    def put(mine: Lease, number: int, *, is_released: bool = False) -> bool:
        content = {"nonce": mine.nonce, "holder": "", "ttl": 60, "held": 0, "released": is_released}
        if not mine._backend.put_if_absent(mine._name(number), json.dumps(content).encode()):
            return False
        for old in mine._numbers():
            if old < number - 1:
                mine._backend.delete(mine._name(old))
        return True

    monkeypatch.setattr(Lease, "_put", put)
    with pytest.raises(Violation, match="all took it"):
        explored(*SCENES["two, one of them slow"])


def test_deleting_the_claim_of_one_that_is_gone_would_let_two_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second deletes what the first has just created."""

    def take(mine: Lease, after: object) -> bool:
        mine._backend.delete(mine._name(1))
        return mine._put(1)

    monkeypatch.setattr(Lease, "take", take)
    with pytest.raises(Violation, match="all took it"):
        explored(waiter("A", renewals=0), waiter("B", renewals=0))
