"""A key that was lost above hides nothing that the image below has."""

from __future__ import annotations

import pytest

from kstore.published.ref import RefState
from kstore.report import CommitStatus, RestoreStatus
from kstore.store import Store
from tests.gc.stores import HOUR, collect, pass_time
from tests.layers.images import Fleet, Worker, fill, has
from tests.trees import ENVIRONMENT, GPU, KEY


def lose_all(worker: Worker) -> None:
    """Lose everything of the only generation above, as a repair finds it when it is run without the image."""
    ref = worker.location / worker.newest().name
    ref.chmod(0o644)
    ref.write_bytes(b"garbage")
    operator = Store(worker.location, gpu=GPU, environment=ENVIRONMENT, environ={})
    assert operator.verify(repair=True).repaired
    assert worker.newest().state is RefState.LOST


def lose_above(fleet: Fleet) -> Worker:
    """The image has "one". What a worker has committed above, including "two", is lost. Returns that worker."""
    fleet.bake("one")
    worker = fleet.worker("worker")
    worker.restore()
    fill(worker, "two")
    worker.commit()
    lose_all(worker)
    return worker


def test_a_loss_above_hides_nothing_below(fleet: Fleet) -> None:
    worker = lose_above(fleet)
    fresh = fleet.worker("fresh")
    report = fresh.restore(wait=10)
    assert (report.status, report.leads, has(fresh)) == (RestoreStatus.RESTORED, False, {"one"})
    fill(fresh, "three")
    assert fresh.commit().generation == 3
    worker.commit()
    again = fleet.worker("again")
    again.restore()
    assert has(again) == {"one", "two", "three"}


def test_a_loss_in_a_store_between_hides_nothing_further_below(fleet: Fleet) -> None:
    fleet.bake("one")
    between = fleet.worker("between")
    fill(between, "two")
    between.commit()
    lose_all(between)
    worker = Worker(fleet.folder, "worker", fleet.folder / "first", fleet.shared, fleet.base, layout=fleet.layout)
    assert (worker.restore().status, has(worker)) == (RestoreStatus.RESTORED, {"one"})


@pytest.fixture
def lost(fleet: Fleet) -> Fleet:
    """Everything that was committed above the image is lost."""
    lose_above(fleet)
    return fleet


def test_a_cold_commit_after_a_loss_above_publishes_what_is_below_too(lost: Fleet) -> None:
    cold = lost.worker("cold")
    fill(cold, "three")
    assert cold.commit().generation == 3
    again = lost.worker("again")
    again.restore()
    assert has(again) == {"one", "three"}


def test_a_worker_with_nothing_new_after_a_loss_above_publishes_nothing(lost: Fleet) -> None:
    worker = lost.worker("of the image")
    worker.restore()
    for _ in range(2):
        assert worker.commit().status is CommitStatus.UNCHANGED
    assert worker.newest().generation == 2


def test_where_nothing_is_left_above_generations_and_their_numbers_are_of_what_restores_take(lost: Fleet) -> None:
    worker = lost.worker("of the image")
    newest = worker.restore()
    store = worker.store
    (ref,) = store.generations(store.scope(KEY))
    assert (ref.depth, ref.generation, ref.files) == (1, newest.generation, newest.files)
    again = lost.worker("again")
    report = again.restore(generation=newest.generation)
    assert (report.store, has(again)) == (str(lost.base), {"one"})
    assert store.rollback(KEY, newest.generation).generation == 3
    assert [(one.depth, one.state) for one in store.generations(store.scope(KEY))] == [
        (0, RefState.LOST),
        (0, RefState.LIVE),
    ]


def test_if_nothing_is_left_above_and_nothing_is_below_generations_are_those_above(fleet: Fleet) -> None:
    fleet.bake()
    worker = fleet.worker("worker")
    fill(worker, "one")
    worker.commit()
    lose_all(worker)
    (ref,) = worker.store.generations(worker.store.scope(KEY))
    assert (ref.depth, ref.state) == (0, RefState.LOST)


def test_gc_that_forgets_what_is_unused_hides_nothing_below(lost: Fleet) -> None:
    worker = lost.worker("of the image")
    pass_time(worker)
    assert collect(worker, unused=HOUR, max_size=1, allow_live=True).forgotten == []
    assert (worker.restore().status, has(worker)) == (RestoreStatus.RESTORED, {"one"})
