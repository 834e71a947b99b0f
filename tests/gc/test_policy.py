from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

import pytest

from kstore.errors import UsageError
from kstore.gc.policy import (
    Decision,
    Generation,
    History,
    Policy,
    Why,
    by_worth,
    decide,
    is_passing,
    over_budget,
    stay_for_now,
    unused,
)
from kstore.published.ref import RefState
from kstore.scope import Scope

HOUR = 3600
SCOPE = Scope("gpu", "model/v1", "env")
NOW = 1_000_000 * 10**9


def generation(number: int, hours_ago: float, **fields: object) -> Generation:
    content = {"manifest": bytes([number]) * 32, **fields}
    return Generation(number, NOW - int(hours_ago * HOUR * 1e9), **content)  # type: ignore[arg-type]


def history(*generations: Generation, used: float = 0, scope: Scope = SCOPE) -> History:
    return History(scope, generations, NOW - int(used * HOUR * 1e9))


def judged(*generations: Generation, keep: int = 2, damaged: Container[int] = ()) -> list[tuple[int, Why]]:
    decisions = decide(history(*generations), keep, HOUR, NOW, lambda generation: generation.number not in damaged)
    assert [d.generation.number for d in decisions] == [g.number for g in generations]
    return [(d.generation.number, d.why) for d in decisions]


def test_the_newest_are_kept_and_older_ones_are_removed() -> None:
    assert judged(*(generation(n, 10 - n) for n in (1, 2, 3, 4))) == [
        (1, Why.OLD),
        (2, Why.OLD),
        (3, Why.KEPT),
        (4, Why.NEWEST),
    ]


def test_the_newest_stays_whatever_keep_says() -> None:
    assert judged(generation(1, 5), generation(2, 4), keep=0) == [(1, Why.OLD), (2, Why.NEWEST)]


def test_what_was_superseded_within_the_grace_stays() -> None:
    assert judged(generation(1, 9), generation(2, 8), generation(3, 0.9), keep=1) == [
        (1, Why.OLD),
        (2, Why.RECENT),
        (3, Why.NEWEST),
    ]


def test_only_what_would_otherwise_go_stays_for_now() -> None:
    pinned = [generation(1, 0.5, is_pinned=True), *(generation(n, 0.5) for n in (2, 3, 4))]
    other = replace(SCOPE, key="model/v2")
    forgotten = [generation(1, 0.5), generation(2, 0.5, state=RefState.FORGOTTEN)]
    old = history(*(generation(n, 9 - n) for n in (1, 2, 3)), scope=replace(SCOPE, key="model/v3"))
    histories = [history(*pinned), history(*forgotten, scope=other), old]
    decisions = [decision for one in histories for decision in decide(one, 2, HOUR, NOW)]

    assert [(d.scope, d.generation.number) for d in stay_for_now(decisions, 2)] == [(SCOPE, 2), (other, 1)]


def test_a_pinned_generation_stays() -> None:
    assert judged(generation(1, 9, is_pinned=True), generation(2, 8), generation(3, 7), keep=1)[0] == (1, Why.PINNED)


def test_a_pinned_generation_does_not_take_the_place_of_another() -> None:
    found = judged(generation(1, 9), generation(2, 8, is_pinned=True), generation(3, 7))
    assert found == [(1, Why.KEPT), (2, Why.PINNED), (3, Why.NEWEST)]


def test_a_forgotten_key_keeps_nothing() -> None:
    found = judged(generation(1, 9), generation(2, 8), generation(3, 7, state=RefState.FORGOTTEN), keep=9)
    assert found == [(1, Why.FORGOTTEN), (2, Why.FORGOTTEN), (3, Why.NEWEST)]


def test_a_quarantined_key_keeps_what_can_be_rolled_back_to() -> None:
    found = judged(*(generation(n, 9 - n) for n in (1, 2, 3)), generation(4, 2, state=RefState.QUARANTINED))
    assert found == [(1, Why.OLD), (2, Why.KEPT), (3, Why.KEPT), (4, Why.NEWEST)]


def test_a_generation_that_was_published_again_is_removed() -> None:
    same = b"m" * 32
    found = judged(generation(1, 9), generation(2, 8, manifest=same), generation(3, 7, manifest=same))
    assert found == [(1, Why.KEPT), (2, Why.REPEATED), (3, Why.NEWEST)]


def test_a_generation_whose_ref_cannot_be_read_is_judged_by_its_number() -> None:
    assert judged(generation(1, 9, manifest=None), generation(2, 8), keep=1)[0] == (1, Why.OLD)


def test_nothing_goes_whose_place_the_newest_cannot_take() -> None:
    found = judged(*(generation(n, 9 - n) for n in (1, 2, 3)), keep=1, damaged={2, 3})
    assert found == [(1, Why.NEEDED), (2, Why.NEEDED), (3, Why.NEWEST)]
    forgotten = generation(3, 6, state=RefState.FORGOTTEN)
    assert judged(generation(1, 8), forgotten, keep=1, damaged={3}) == [(1, Why.NEEDED), (3, Why.NEWEST)]


def test_what_cannot_be_read_does_not_take_the_place_of_another() -> None:
    found = judged(*(generation(n, 9 - n) for n in (1, 2, 3, 4)), damaged={1, 3})
    assert found == [(1, Why.OLD), (2, Why.KEPT), (3, Why.UNREADABLE), (4, Why.NEWEST)]


def test_a_generation_is_not_repeated_by_one_that_cannot_be_read() -> None:
    same = b"m" * 32
    generations = [generation(n, 9 - n, manifest=same) for n in (1, 2)]
    found = judged(*generations, generation(3, 6), damaged={2})
    assert found == [(1, Why.KEPT), (2, Why.UNREADABLE), (3, Why.NEWEST)]


def test_what_is_restored_in_the_place_of_the_newest_is_within_any_limit() -> None:
    damaged = history(generation(1, 9), generation(2, 8))
    decisions = decide(damaged, 2, HOUR, NOW, lambda generation: generation.number == 1)
    taken, _ = over_budget([(d, 10) for d in decisions], {SCOPE: damaged}, 5, allow_live=False)
    assert taken == []


def test_unused_keys_are_found() -> None:
    old, new = history(generation(1, 99), used=50), history(generation(1, 99), used=1)
    policy = Policy(unused=24 * HOUR)
    assert unused([old, new], policy, NOW) == [old]
    assert unused([old, new], Policy(), NOW) == []


def test_a_key_with_a_pin_or_that_is_forgotten_already_is_not_unused() -> None:
    pinned = history(generation(1, 99, is_pinned=True), generation(2, 98), used=50)
    forgotten = history(generation(1, 99), generation(2, 98, state=RefState.FORGOTTEN), used=50)
    assert unused([pinned, forgotten], Policy(unused=24 * HOUR), NOW) == []


def test_a_key_of_which_all_is_lost_is_not_forgotten() -> None:
    """A store below may have it, and be in use."""
    lost = history(generation(1, 98, state=RefState.LOST), used=50)
    assert unused([lost], Policy(unused=24 * HOUR), NOW) == []
    taken, _ = over_budget(costed((Why.NEWEST, 10)), {SCOPE: lost}, 5, allow_live=True)
    assert taken == []


def costed(*kinds: tuple[Why, int]) -> list[tuple[Decision, int]]:
    return [(Decision(SCOPE, generation(n, 1), why, True), cost) for n, (why, cost) in enumerate(kinds)]


def test_a_size_limit_takes_older_generations_and_never_the_newest() -> None:
    costs = costed((Why.PINNED, 10), (Why.NEWEST, 10), (Why.NEWEST, 10), (Why.KEPT, 10), (Why.KEPT, 5))
    taken, excess = over_budget(costs, {SCOPE: history(generation(1, 9))}, 36, allow_live=False)
    assert ([d.generation.number for d in taken], excess) == ([3], 0)
    taken, excess = over_budget(costs, {SCOPE: history(generation(1, 9))}, 15, allow_live=False)
    assert ([d.generation.number for d in taken], excess) == ([3, 4], 15)


def test_a_size_limit_takes_the_newest_only_if_allowed_and_never_a_pinned_one() -> None:
    costs = costed((Why.PINNED, 10), (Why.NEWEST, 10), (Why.NEWEST, 10))
    taken, excess = over_budget(costs, {SCOPE: history(generation(1, 9))}, 20, allow_live=True)
    assert ([d.generation.number for d in taken], excess) == ([2], 0)
    taken, excess = over_budget(costs, {SCOPE: history(generation(1, 9))}, 5, allow_live=True)
    assert ([d.generation.number for d in taken], excess) == ([1, 2], 5)


@pytest.mark.parametrize("pinned", [1, 2])
def test_a_size_limit_takes_no_key_with_a_pin(pinned: int) -> None:
    scopes = [Scope("gpu", key, "env") for key in ("pinned", "other")]
    generations = [generation(n, 9 - n, is_pinned=n == pinned) for n in (1, 2)]
    histories = {scopes[0]: history(*generations, used=9, scope=scopes[0])}
    histories[scopes[1]] = history(generation(1, 9), used=1, scope=scopes[1])
    decisions = [d for found in histories.values() for d in decide(found, 1, HOUR, NOW)]
    worth = by_worth(histories, decisions)
    assert worth[0].scope == scopes[0]
    taken, _ = over_budget([(d, 10) for d in worth], histories, 5, allow_live=True)
    assert [d.scope for d in taken] == [scopes[1]]


def test_the_last_used_key_is_worth_most_and_history_least() -> None:
    scopes = [Scope("gpu", key, "env") for key in ("a", "b")]
    histories = {s: history(generation(1, 9), used=used, scope=s) for s, used in zip(scopes, (9, 1), strict=True)}
    decisions = [
        Decision(scopes[0], generation(1, 9), Why.KEPT, True),
        Decision(scopes[0], generation(2, 8), Why.NEWEST, True),
        Decision(scopes[1], generation(1, 7), Why.KEPT, True),
        Decision(scopes[1], generation(2, 6), Why.NEWEST, True),
        Decision(scopes[1], generation(0, 6), Why.OLD, False),
    ]
    assert [(d.scope.key, d.why) for d in by_worth(histories, decisions)] == [
        ("b", Why.NEWEST),
        ("a", Why.NEWEST),
        ("b", Why.KEPT),
        ("a", Why.KEPT),
    ]


def test_later_generations_of_a_key_are_worth_more() -> None:
    found = history(*(generation(n, 9 - n) for n in (1, 2, 3, 4)))
    worth = by_worth({SCOPE: found}, decide(found, 4, HOUR, NOW))
    assert [d.generation.number for d in worth] == [4, 3, 2, 1]


def test_what_a_forgotten_key_leaves_for_a_grace_costs_no_other_key_its_place() -> None:
    forgotten = history(generation(1, 9), generation(2, 0.1, manifest=None, state=RefState.FORGOTTEN))
    first, last = decide(forgotten, 2, HOUR, NOW)
    assert (first.why, is_passing(first, forgotten), is_passing(last, forgotten)) == (Why.RECENT, True, False)


def test_what_is_pinned_of_a_forgotten_key_counts_like_any_other() -> None:
    forgotten = history(generation(1, 9, is_pinned=True), generation(2, 0.1, manifest=None, state=RefState.FORGOTTEN))
    pinned, _ = decide(forgotten, 2, HOUR, NOW)
    assert (pinned.why, is_passing(pinned, forgotten)) == (Why.PINNED, False)


def test_what_was_superseded_a_short_time_ago_stays_and_costs_only_history_its_place() -> None:
    found = history(*(generation(n, 9 - n) for n in (1, 2, 3)), generation(4, 0.1))
    worth = by_worth({SCOPE: found}, decide(found, 9, HOUR, NOW))
    assert [(d.generation.number, d.why) for d in worth[:2]] == [(4, Why.NEWEST), (3, Why.RECENT)]
    taken, excess = over_budget([(d, 10) for d in worth], {SCOPE: found}, 10, allow_live=True)
    assert ([d.generation.number for d in taken], excess) == ([2, 1], 10)


def test_an_empty_generation_takes_no_place_among_those_that_are_kept() -> None:
    quarantined = [generation(n, 9 - n, manifest=None, state=RefState.QUARANTINED) for n in (2, 3, 4)]
    assert dict(judged(generation(1, 9), *quarantined))[1] is Why.KEPT
    assert dict(judged(generation(1, 9), quarantined[0], generation(5, 2)))[1] is Why.KEPT


def test_the_grace_may_be_longer_and_shorter_only_offline() -> None:
    assert Policy().grace_of(HOUR) == HOUR
    assert Policy(grace=2 * HOUR).grace_of(HOUR) == 2 * HOUR
    assert Policy(offline=True).grace_of(HOUR) == 0
    assert Policy(offline=True, grace=60).grace_of(HOUR) == 60
    with pytest.raises(UsageError, match="--offline"):
        Policy(grace=60).grace_of(HOUR)
