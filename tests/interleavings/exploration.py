"""All schedules of some actors on one store, except those that nobody could tell from one that was explored.

**Persistent sets.** In each state only some actors are let go on: a set of actors such that nothing that any other
actor may ever do conflicts with their next steps. Every schedule can be reordered, by steps that commute, into one
that was explored (Godefroid, "Partial-Order Methods for the Verification of Concurrent Systems", 1996). What an actor
may ever do is what its behaviour tree knows below the point where it is. Where an exploration finds something new,
everything is explored again. An actor's step is the same whatever others do that does not conflict. So a step that is
not yet known shows up as somebody's next step before any set that was chosen without it can have hidden it.

**States.** Two schedules that lead to the same contents, with every actor at the same point, go on as one: an actor
is where all the answers it got have led it. Points are as good as the same if an actor does the same from both on,
as far as its tree is known: if nothing new is found, neither would have been found from the other.

**Kills.** Before any step that changes the store an actor may stop for ever, and any number of actors may stop in one
schedule. An actor that is stopped before a step that only reads is like one stopped before the next write. So every
state of the store that can be reached at all is also the last one of some schedule, and it is enough to check the last
ones. To the others, an actor that was killed looks like one that is slow: what anybody may do is first found out
without kills.

**Switches.** Where there are too many states, a limit can be set on how often an actor is interrupted: by
another one that is let go on in its place, or for ever. Whom to let go on when one has ended is free, and so is
everything else. An interruption before a step that commutes with everything that others may do counts as one after
that step, and is not tried.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.interleavings.behaviour import Behaviour, Point
from tests.interleavings.conversation import Actor, deterministic
from tests.interleavings.footprint import Footprints
from tests.interleavings.memory import Contents, perform

KILLED = "killed"

Points = tuple[Point, ...]
Check = Callable[[Contents, Mapping[str, Hashable]], None]
"""Gets what is left in the store, and of each actor that took part its outcome or `KILLED`. Raises `Broken`."""


class Broken(Exception):
    """What a check found."""


class Violation(AssertionError):
    """What a check found, and the schedule that led there."""


@dataclass(frozen=True, slots=True)
class Explored:
    """What was explored."""

    schedules: int
    """Different schedules, without those that were pruned."""
    states: int
    ends: int
    """States in which every actor has ended or was killed: this many were checked."""
    points: int
    """Sequences of answers that some actor got."""
    runs: int
    """How often real code was run for that."""
    passes: int
    """How often everything that all actors, or some of them, can do was explored, as far as it was known."""
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.schedules:,} schedules, {self.states:,} states, {self.ends:,} ends checked; "
            f"{self.runs:,} runs of real code with {self.points:,} different histories; "
            f"{self.passes} passes, {self.seconds:.1f} s"
        )


class _Turn(NamedTuple):
    """Whose turn it is."""

    actor: int | None = None
    """None if anybody may be next."""
    switches: int | None = None
    """How often it, and those after it, may still be interrupted; None if that is not limited."""

    def interrupted(self, by: int | None = None) -> _Turn:
        return self if self.switches is None else _Turn(by, self.switches - 1)


def explore(
    actors: Sequence[Actor], start: Contents, check: Check, *, prune: bool = True, switches: int | None = None
) -> Explored:
    """Explore everything that `actors` can do together, with at most `switches` interruptions if that is given.

    Raises:
        Violation: a check failed.
    """
    with deterministic():
        exploration = _Exploration(actors, start, check, prune, _Turn(switches=switches))
        try:
            return exploration.run()
        finally:
            exploration.close()


class _Exploration:
    def __init__(self, actors: Sequence[Actor], start: Contents, check: Check, prune: bool, turn: _Turn) -> None:
        footprints = Footprints(start.folders)
        self._behaviours = [Behaviour(actor, footprints) for actor in actors]
        self._check = check
        self._prune = prune
        self._turn = turn
        self._kills = False
        self._passes = 0
        self._contents: list[Contents] = []
        self._numbers: dict[Hashable, int] = {}
        self._start = self._number(start)
        self._moves: dict[tuple[int, Point], tuple[int, Point]] = {}
        self._schedules: dict[tuple[int | None, ...], int] = {}
        """How many schedules there are from each state."""
        self._checked: set[tuple[int, Points]] = set()
        self._path: list[tuple[int, Point | None]] = []

    def run(self) -> Explored:
        started = time.perf_counter()
        for present in self._groups():
            self._pass(present)
        self._kills = True
        schedules = self._explore()
        return Explored(
            schedules=schedules,
            states=len(self._schedules),
            ends=len(self._checked),
            points=self._points(),
            runs=sum(behaviour.runs for behaviour in self._behaviours),
            passes=self._passes,
            seconds=time.perf_counter() - started,
        )

    def _groups(self) -> Iterator[tuple[Behaviour, ...]]:
        """Combinations of actors, small ones first: what they do is then known, and violations have short schedules."""
        everybody = self._behaviours
        for count in range(1, len(everybody) + 1):
            yield from itertools.combinations(everybody, count)

    def _explore(self) -> int:
        """Explore everything that all actors can do until nothing is new; returns the number of schedules."""
        before = -1
        while before < (before := self._points()):
            schedules = self._pass(self._behaviours)
        return schedules

    def _pass(self, present: Sequence[Behaviour]) -> int:
        """Explore everything that these actors can do, as far as is known; returns the number of schedules."""
        start = tuple(actor.start if actor in present else actor.absent for actor in self._behaviours)
        self._passes += 1
        self._schedules.clear()
        for behaviour in self._behaviours:
            behaviour.settle()
        return self._visit(self._start, start, self._turn)

    def close(self) -> None:
        for behaviour in self._behaviours:
            behaviour.close()

    def _points(self) -> int:
        return sum(map(len, self._behaviours))

    def _visit(self, store: int, points: Points, turn: _Turn) -> int:
        """Explore what comes after a state; returns the number of schedules."""
        state = store, *turn, *[point.likeness for point in points]
        known = self._schedules.get(state)
        if known is not None:
            return known
        chosen = self._choose(points, turn)
        if not chosen:
            self._end(store, points)
        schedules = sum(self._let_go_on(store, points, actor, turn) for actor, turn in chosen) or 1
        self._schedules[state] = schedules
        return schedules

    def _let_go_on(self, store: int, points: Points, actor: int, turn: _Turn) -> int:
        point, behaviour = points[actor], self._behaviours[actor]
        self._path.append((actor, point))
        later, after = self._move(store, point, behaviour)
        schedules = self._visit(later, _with(points, actor, after), turn)
        if self._kills and point.writes and behaviour.actor.can_be_killed and turn.switches != 0:
            self._path[-1] = actor, None
            schedules += self._visit(store, _with(points, actor, behaviour.killed), turn.interrupted())
        self._path.pop()
        return schedules

    def _choose(self, points: Points, turn: _Turn) -> list[tuple[int, _Turn]]:
        """The actors to let go on, and whose turn it then is."""
        alive = [actor for actor, point in enumerate(points) if point.step]
        if turn.switches is None:
            return [(actor, turn) for actor in self._smallest(points, alive)]
        if turn.actor not in alive:
            return [(actor, turn._replace(actor=actor)) for actor in alive]
        if not turn.switches or len(_closed(turn.actor, points, alive)) == 1:
            return [(turn.actor, turn)]
        others = [actor for actor in alive if actor != turn.actor]
        return [(turn.actor, turn), *((actor, turn.interrupted(by=actor)) for actor in others)]

    def _smallest(self, points: Points, alive: list[int]) -> list[int]:
        """The smallest set, closed under conflicts, that contains one of these actors."""
        best = alive
        if self._prune:
            for first in alive:
                found = _closed(first, points, alive)
                if len(found) < len(best):
                    best = found
                if len(best) == 1:
                    break
        return best

    def _move(self, store: int, point: Point, behaviour: Behaviour) -> tuple[int, Point]:
        known = self._moves.get((store, point))
        if known is None:
            assert point.step
            contents, answer = perform(self._contents[store], point.step)
            known = self._moves[store, point] = self._number(contents), behaviour.follow(point, answer)
        return known

    def _number(self, contents: Contents) -> int:
        number = self._numbers.setdefault(contents.key, len(self._contents))
        if number == len(self._contents):
            self._contents.append(contents)
        return number

    def _end(self, store: int, points: Points) -> None:
        if (store, points) in self._checked:
            return
        self._checked.add((store, points))
        outcomes = {
            behaviour.actor.name: KILLED if point is behaviour.killed else point.outcome
            for behaviour, point in zip(self._behaviours, points, strict=True)
            if point is not behaviour.absent
        }
        try:
            self._check(self._contents[store], outcomes)
        except Broken as problem:
            raise Violation(f"{problem}\nafter:\n{self._schedule()}\noutcomes: {outcomes}") from problem

    def _schedule(self) -> str:
        """The steps that led to where the exploration is, one a line."""
        return "\n".join(
            f"  {self._behaviours[actor].actor.name}: {point.step if point else KILLED}" for actor, point in self._path
        )


def _closed(first: int, points: Points, alive: list[int]) -> list[int]:
    found = [first]
    for actor in found:
        minds = points[actor].footprint.minds
        found += (other for other in alive if other not in found and minds & points[other].future.shows)
    return found


def _with(points: Points, actor: int, point: Point) -> Points:
    return (*points[:actor], point, *points[actor + 1 :])
