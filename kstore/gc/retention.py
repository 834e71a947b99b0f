"""Retention: find out what generations there are, decide which of them stay, and remove the refs of the others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

from kstore.errors import IntegrityError, MissError, StoreFormatError
from kstore.far import ask_each
from kstore.gc.cost import Costs
from kstore.gc.mark import is_whole
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
    unused,
)
from kstore.gc.report import GcReport
from kstore.gc.room import Room
from kstore.published.generations import publish_empty
from kstore.published.ref import RefState, ref_name
from kstore.scope import Scope
from kstore.stats.pages import sweep_stats
from kstore.storage import Storage
from kstore.used import last_used, sweep_marks


class Retention:
    """What one gc does about the generations of a store. It writes into the report of that gc."""

    def __init__(self, storage: Storage, policy: Policy, report: GcReport, room: Room, now: int) -> None:
        """`now` is the time by the store's clock, in nanoseconds."""
        self._storage = storage
        self._policy = policy
        self._report = report
        self._room = room
        self._now = now

    def run(self) -> set[str]:
        """Remove the refs of the generations that go; returns their names."""
        histories = {history.scope: history for history in self._histories()}
        if not self._report.dry_run:
            there = {scope for scope, history in histories.items() if history.newest.state is not RefState.FORGOTTEN}
            sweep_stats(self._storage.backend, there.__contains__)
            sweep_marks(self._storage.backend, there, self._report.grace_before(self._now))
        for history in unused(histories.values(), self._policy, self._now):
            self._forget(history)
        decisions = [decision for history in histories.values() for decision in self._decide(history)]
        decisions = self._fit(histories, decisions)
        gone = {_name(decision) for decision in decisions if not decision.stays and self._drop(decision)}
        self._report.decisions = decisions
        return gone

    def _decide(self, history: History) -> list[Decision]:
        """Decide about the generations of one scope. Whether they can be read is asked only if one of them may go."""
        judge = partial(decide, history, self._policy.keep, self._report.grace, self._now)
        decisions = judge()
        if self._policy.max_size is None and all(decision.stays for decision in decisions):
            return decisions
        return judge(cache(lambda generation: is_whole(self._storage, history.scope, generation.number)))

    def _histories(self) -> Iterator[History]:
        for _, look in ask_each(self._history, self._storage.refs.all_scopes()):
            try:
                history = look()
            except StoreFormatError as error:
                raise StoreFormatError(f"gc removes nothing, as it cannot know what this needs: {error}") from error
            if history:
                yield history

    def _history(self, scope: Scope) -> History | None:
        """One scope as it is now; None if it has no generation."""
        if not self._report.dry_run:
            self._storage.refs.finish_drops(scope)
        pins = self._storage.refs.pins(scope)
        found = [self._generation(scope, number, pins) for number in self._storage.refs.all_generations(scope)]
        generations = tuple(generation for generation in found if generation)
        if not generations:
            return None
        newest = generations[-1]
        used_at = max(last_used(self._storage.backend, scope), newest.since or newest.published_at)
        return History(scope, generations, used_at)

    def _generation(self, scope: Scope, number: int, pins: set[int]) -> Generation | None:
        try:
            published_at = self._storage.refs.published_at(scope, number)
            ref = self._storage.refs.get(scope, number)
        except IntegrityError:
            return Generation(number, published_at, number in pins)
        except (MissError, FileNotFoundError):
            return None
        return Generation(number, published_at, number in pins, ref.manifest, ref.state, ref.since)

    def _fit(self, histories: dict[Scope, History], decisions: list[Decision]) -> list[Decision]:
        """Give up what is over the size limit."""
        if self._policy.max_size is None:
            return decisions
        forgotten = {*self._report.forgotten}
        with Costs(self._storage) as costs:
            worth = by_worth(histories, (d for d in decisions if d.scope not in forgotten))
            counted = (d for d in worth if not is_passing(d, histories[d.scope]))
            priced = ((d, costs.of(d.scope, d.generation.number)) for d in counted)
            limit, allow_live = self._policy.max_size, self._policy.allow_live
            taken, self._report.excess = over_budget(priced, histories, limit, allow_live, costs.keep)
        for decision in taken:
            if decision.why is Why.NEWEST:
                self._forget(histories[decision.scope])
        over = {_name(decision) for decision in taken if decision.why is not Why.NEWEST}
        return [Decision(d.scope, d.generation, Why.SIZE, False) if _name(d) in over else d for d in decisions]

    def _forget(self, history: History) -> None:
        """Forget a key, unless it was restored, pinned or committed since it was looked at, or its newest generation
        cannot be read: then a store below may have what is in use, and that would be hidden.
        """
        scope, upon = history.scope, history.newest.number
        pins = self._storage.refs.pins(scope)  # One may be left of a generation that is gone.
        is_pinned = any(generation.number in pins for generation in history.generations)
        if is_pinned or last_used(self._storage.backend, scope) > history.used_at:
            return
        if not is_whole(self._storage, scope, upon):
            return
        with self._room.needed():
            if not (self._report.dry_run or publish_empty(self._storage, scope, RefState.FORGOTTEN, upon=upon)):
                return
            if scope not in self._report.forgotten:
                self._report.forgotten.append(scope)

    def _drop(self, decision: Decision) -> bool:
        return self._report.dry_run or self._storage.refs.drop(decision.scope, decision.generation.number)


def _name(decision: Decision) -> str:
    return ref_name(decision.scope, decision.generation.number)
