"""When a cache root is uploaded from and published, by a clock of the test's own."""

from __future__ import annotations

from kstore.live.schedule import BATCH, IDLE, Plan, Schedule, Step

SETTLE, EVERY = 5.0, 60.0


def schedule() -> Schedule:
    return Schedule(SETTLE, EVERY, now=0.0)


def test_while_nothing_changes_there_is_nothing_to_do() -> None:
    assert schedule().plan(0, 0.0, 100.0) is None


def test_what_has_settled_is_published() -> None:
    assert schedule().plan(1, last=100.0, now=101.0) == Plan(Step.CHECKPOINT, 105.0)


def test_each_change_puts_it_off() -> None:
    made = schedule()
    made.plan(1, last=100.0, now=100.0)
    assert made.plan(2, last=104.0, now=104.0) == Plan(Step.CHECKPOINT, 109.0)


def test_changes_put_it_off_for_no_longer_than_a_while() -> None:
    made = schedule()
    made.plan(1, last=100.0, now=100.0)
    assert made.plan(30, last=159.0, now=159.0) == Plan(Step.CHECKPOINT, 160.0)


def test_after_a_checkpoint_there_is_nothing_to_do_until_something_changes() -> None:
    made = schedule()
    made.plan(3, last=100.0, now=100.0)
    made.done(Step.CHECKPOINT, 3, now=106.0, cost=0.0, is_watched=True)
    assert made.plan(3, last=100.0, now=200.0) is None
    assert made.plan(4, last=200.0, now=200.0) == Plan(Step.CHECKPOINT, 205.0)


def test_what_changed_while_a_checkpoint_was_made_is_for_the_next() -> None:
    made = schedule()
    made.plan(3, last=100.0, now=100.0)
    made.done(Step.CHECKPOINT, 3, now=107.0, cost=0.0, is_watched=True)
    assert made.plan(4, last=106.0, now=107.0) == Plan(Step.CHECKPOINT, 111.0)


def test_a_batch_is_uploaded_ahead_at_once() -> None:
    assert schedule().plan(BATCH, last=100.0, now=100.0) == Plan(Step.AHEAD, 100.0)


def test_each_batch_is_uploaded_once() -> None:
    made = schedule()
    made.plan(BATCH, last=100.0, now=100.0)
    made.done(Step.AHEAD, BATCH, now=101.0, cost=0.0, is_watched=True)
    assert made.plan(BATCH + 1, last=101.0, now=101.0) == Plan(Step.CHECKPOINT, 106.0)
    assert made.plan(2 * BATCH, last=102.0, now=102.0) == Plan(Step.AHEAD, 102.0)


def test_what_is_uploaded_ahead_is_still_to_be_published() -> None:
    made = schedule()
    made.plan(BATCH, last=100.0, now=100.0)
    made.done(Step.AHEAD, BATCH, now=101.0, cost=0.0, is_watched=True)
    assert made.plan(BATCH, last=100.0, now=102.0) == Plan(Step.CHECKPOINT, 105.0)


def test_an_upload_does_not_put_off_the_checkpoint() -> None:
    made = schedule()
    made.plan(BATCH, last=100.0, now=100.0)
    made.done(Step.AHEAD, BATCH, now=159.0, cost=0.0, is_watched=True)
    assert made.plan(2 * BATCH, last=160.0, now=160.0) == Plan(Step.CHECKPOINT, 160.0)


def test_where_a_checkpoint_is_due_nothing_is_uploaded_ahead_of_it() -> None:
    made = schedule()
    assert made.plan(BATCH, last=100.0, now=105.0) == Plan(Step.CHECKPOINT, 105.0)


def test_what_a_round_cost_is_little_of_the_time_until_the_next() -> None:
    made = schedule()
    made.done(Step.CHECKPOINT, 1, now=100.0, cost=0.5, is_watched=True)
    assert made.plan(BATCH + 1, last=101.0, now=101.0) == Plan(Step.CHECKPOINT, 150.0)


def test_what_may_have_been_written_in_place_during_a_round_is_looked_for_once_more() -> None:
    made = schedule()
    assert made.once_more(now=100.0) is None
    made.done(Step.CHECKPOINT, 1, now=100.0, cost=0.5, is_watched=False)
    assert made.once_more(now=101.0) == Plan(Step.CHECKPOINT, 150.0)
    made.done(Step.CHECKPOINT, 1, now=150.0, cost=0.0, is_watched=True)
    assert made.once_more(now=151.0) is None


def test_though_nothing_changes_there_is_a_round_now_and_then() -> None:
    made = schedule()
    assert not made.is_overdue(IDLE - 1.0, is_uneasy=False)
    made.begun(now=100.0)
    assert not made.is_overdue(99.0 + IDLE, is_uneasy=False)
    assert made.is_overdue(100.0 + IDLE, is_uneasy=False)


def test_where_a_change_may_be_missed_that_is_every_so_often_unless_it_costs_too_much() -> None:
    made = schedule()
    made.begun(now=100.0)
    assert not made.is_overdue(159.0, is_uneasy=True)
    assert made.is_overdue(160.0, is_uneasy=True)
    made.done(Step.CHECKPOINT, 1, now=101.0, cost=2.0, is_watched=False)
    assert not made.is_overdue(299.0, is_uneasy=True)
    assert made.is_overdue(300.0, is_uneasy=True)


def test_what_failed_is_tried_again_later_each_time_and_at_least_as_often_as_checkpoints() -> None:
    made, at = schedule(), []
    for _ in range(9):
        made.failed(now=1000.0)
        plan = made.plan(1, last=1000.0, now=1000.0)
        assert plan is not None
        at.append(plan.at - 1000.0)
    assert at == [5, 5, 5, 8, 16, 32, 60, 60, 60]


def test_what_failed_is_not_tried_again_at_once_however_often_checkpoints_are() -> None:
    made = Schedule(0.0, 0.0, now=0.0)
    made.failed(now=1000.0)
    assert made.plan(1, last=990.0, now=1000.0) == Plan(Step.CHECKPOINT, 1001.0)


def test_after_success_trouble_begins_anew() -> None:
    made = schedule()
    for _ in range(9):
        made.failed(now=1000.0)
    made.done(Step.CHECKPOINT, 1, now=1000.0, cost=0.0, is_watched=True)
    made.failed(now=1000.0)
    assert made.plan(2, last=990.0, now=1000.0) == Plan(Step.CHECKPOINT, 1001.0)


def test_after_success_that_was_asked_for_nothing_waits_for_what_had_failed_before() -> None:
    made = schedule()
    for _ in range(9):
        made.failed(now=1000.0)
    made.done(Step.CHECKPOINT, 1, now=1001.0, cost=0.0, is_watched=True)
    assert made.plan(2, last=1002.0, now=1002.0) == Plan(Step.CHECKPOINT, 1007.0)


def test_what_else_used_up_time_counts_too() -> None:
    made = schedule()
    made.spent(now=100.0, cost=0.5)
    assert made.plan(1, last=101.0, now=101.0) == Plan(Step.CHECKPOINT, 150.0)
    made.spent(now=102.0, cost=0.01)  # That is over sooner, and what came before is not.
    assert made.plan(1, last=101.0, now=103.0) == Plan(Step.CHECKPOINT, 150.0)


def test_a_store_that_is_away_for_days_is_tried_again_and_again() -> None:
    made, now = schedule(), 100.0
    for _ in range(3000):
        made.failed(now)
        plan = made.plan(1, last=100.0, now=now)
        assert plan and now < plan.at <= now + EVERY
        now = plan.at
