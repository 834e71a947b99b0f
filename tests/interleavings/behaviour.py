"""What an actor does, as a tree: a step, and for each answer that was ever seen the step that follows.

An actor is a function of the answers it gets. So its real code runs once for each sequence of answers, and however
many schedules lead to the same sequence, the tree is looked up. Any run from the start must behave the same again.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from kstore.digest import digest_of
from tests.interleavings.conversation import Actor, Conversation, Ended
from tests.interleavings.footprint import NOTHING, Footprint, Footprints
from tests.interleavings.memory import MAKES, WRITES, Answer, Step


@dataclass(eq=False, slots=True)
class Point:
    """Where an actor is: before a step, or at its end."""

    step: Step | None
    """None at the end."""
    outcome: Hashable = None
    history: tuple[Answer, ...] = ()
    footprint: Footprint = NOTHING
    """The footprint of the step."""
    future: Footprint = NOTHING
    """That of the step and everything that is known to come after it; complete once nothing new is found."""
    likeness: int = 0
    """Equal for those points of an actor that have the same step and the same continuation whatever the answers are."""
    after: dict[Answer, Point] = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        """Whether the step may change the store."""
        return self.step is not None and self.step.kind in WRITES


class Behaviour:
    """The tree of one actor."""

    def __init__(self, actor: Actor, footprints: Footprints) -> None:
        self.actor = actor
        self.runs = 0
        """How often the real code was started."""
        self.killed, self.absent = Point(None), Point(None)
        """Where it is when it was killed, and when it never takes part."""
        self._footprints = footprints
        self._points: list[Point] = []
        self._ends: dict[Hashable, Point] = {}
        self._fresh = itertools.count()
        self._kinds: dict[Point, int] = {}
        """Which points were alike when that was last found out."""
        self._conversation: Conversation | None = None
        self._at: Point | None = None
        self.start = self._begin()

    def __len__(self) -> int:
        """How many points are known."""
        return len(self._points) + len(self._ends)

    def follow(self, point: Point, answer: Answer) -> Point:
        """Where the actor is after `answer`."""
        found = point.after.get(answer)
        if found is None:
            found = point.after[answer] = self._discover(point, answer)
            self._announce(point, found.future)
        return found

    def settle(self) -> None:
        """Find out which points are alike, as far as is known now.

        If more is known by now about some of those that were alike, each is told from the others for once: what is new
        about one may be new about all, and would be found out about one of them each time.
        """
        kinds = self._kinds_of_points()
        parted = _parted(self._kinds, kinds)
        self._kinds = kinds
        for point, number in (self._kinds_of_points(parted) if parted else kinds).items():
            point.likeness = number
        self._fresh = itertools.count(len(kinds))

    def _kinds_of_points(self, alone: Set[Point] = frozenset()) -> dict[Point, int]:
        """A number for each point: equal for those that are alike. Each of `alone` is like no other."""
        numbers: dict[Hashable, int] = {}
        found: dict[Point, int] = {}
        for point in (self.killed, self.absent, *self._ends.values(), *reversed(self._points)):
            after = frozenset((answer, found[later]) for answer, later in point.after.items())
            kind = (point.step, after) if point.step and point not in alone else id(point)
            found[point] = numbers.setdefault(kind, len(numbers))
        return found

    def close(self) -> None:
        """End the run that is open."""
        if self._conversation:
            self._conversation.abandon()
        self._conversation = self._at = None

    def _begin(self) -> Point:
        self.close()
        self.runs += 1
        self._conversation = Conversation(self.actor)
        said = self._conversation.begin()
        if not self._points:
            return self._point(said, ())
        self._at = self._points[0]
        self._check(said, self._at)
        return self._at

    def _discover(self, point: Point, answer: Answer) -> Point:
        if self._at is not point:
            self._lead_to(point)
        assert self._conversation
        return self._point(self._conversation.answer(answer), (*point.history, answer))

    def _announce(self, point: Point, coming: Footprint) -> None:
        """Tell a point, and those before it, what can come after them: they are no longer like others."""
        at = self._points[0]
        for answer in (*point.history, None):
            at.future, at.likeness = at.future.joined(coming), next(self._fresh)
            if at is not point:
                at = at.after[answer]

    def _lead_to(self, point: Point) -> None:
        at = self._begin()
        assert self._conversation
        for answer in point.history:
            said = self._conversation.answer(answer)
            at = at.after[answer]
            self._check(said, at)
        self._at = at

    def _check(self, said: Step | Ended, at: Point) -> None:
        same = isinstance(said, Step) and at.step and said == at.step._replace(identity=0)
        if not same:
            raise AssertionError(f"{self.actor.name} is not deterministic: {said} now, {at.step} before")

    def _point(self, said: Step | Ended, history: tuple[Answer, ...]) -> Point:
        if isinstance(said, Ended):
            self._conversation = self._at = None
            return self._ends.setdefault(said.outcome, Point(None, said.outcome, likeness=next(self._fresh)))
        step = self._identified(said, history) if said.kind in MAKES else said
        footprint = self._footprints.of(step)
        self._at = Point(step, None, history, footprint, footprint, next(self._fresh))
        self._points.append(self._at)
        return self._at

    def _identified(self, step: Step, history: tuple[Answer, ...]) -> Step:
        """What the step makes differs from what others make, and from what this actor made before under that name."""
        earlier = sum(before.kind in MAKES and before.name == step.name for before in self._steps(history))
        maker = f"{self.actor.name} {earlier} {step.name}"
        return step._replace(identity=int.from_bytes(digest_of(maker.encode())[:8], "little"))

    def _steps(self, history: tuple[Answer, ...]) -> Iterator[Step]:
        """The steps that got these answers."""
        at = self._points[0] if history else None
        for number, answer in enumerate(history, 1):
            assert at
            assert at.step
            yield at.step
            at = at.after[answer] if number < len(history) else None


def _parted(before: Mapping[Point, int], now: Mapping[Point, int]) -> set[Point]:
    """The points that were like others, of which some no longer are."""
    kinds: dict[int, set[int]] = {}
    for point, number in before.items():
        kinds.setdefault(number, set()).add(now[point])
    return {point for point, number in before.items() if len(kinds[number]) > 1}
