"""The exploration itself, with toy actors: what it prunes must not matter, and what goes wrong must be found."""

from __future__ import annotations

import itertools
import math
import secrets
import time
from collections.abc import Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstore.backends import Stat
from kstore.threads import submit
from tests.interleavings.conversation import Actor
from tests.interleavings.exploration import KILLED, Broken, Violation, explore
from tests.interleavings.memory import WRITES, Contents, Failure, Kind, MemoryBackend, Object, Step, perform

Ends = set[tuple[Hashable, tuple[tuple[str, Hashable], ...]]]
START = Contents({"a": Object(b"first", 0, 0)}, frozenset({"", "f"}))


def nothing(contents: Contents, outcomes: Mapping[str, Hashable]) -> None:
    """Check nothing."""


class Collected:
    """A check that remembers the ends it saw."""

    def __init__(self, actors: int) -> None:
        """Schedules of fewer actors are not counted."""
        self.ends: Ends = set()
        self._actors = actors

    def __call__(self, contents: Contents, outcomes: Mapping[str, Hashable]) -> None:
        if len(outcomes) == self._actors:
            self.ends.add((anonymous(contents), tuple(outcomes.items())))


def anonymous(contents: Contents) -> Hashable:
    """The contents, without the identities of objects."""
    objects = frozenset((name, found.data, found.mtime_ns) for name, found in contents.objects.items())
    return objects, contents.folders, contents.now_ns


def anonymous_answer(answer: Hashable) -> Hashable:
    return answer._replace(inode=0) if isinstance(answer, Stat) else answer


# ---- Compared with a plain enumeration of all schedules

NAMES = st.sampled_from(["a", "f/b", "g/c"])
STEPS = st.one_of(
    st.tuples(st.sampled_from([Kind.GET, Kind.STAT, Kind.DELETE]), NAMES).map(lambda a: Step(*a)),
    st.tuples(st.sampled_from([Kind.CREATE, Kind.REPLACE]), NAMES, st.sampled_from([b"x", b"y"])).map(
        lambda a: Step(a[0], a[1], data=a[2])
    ),
    st.sampled_from(["", "f", "g"]).map(lambda folder: Step(Kind.LIST, folder)),
    st.tuples(NAMES, NAMES).map(lambda names: Step(Kind.MOVE, names[0], to=names[1])),
    st.sampled_from([Step(Kind.LOOK_AT_CLOCK), Step(Kind.WAIT, seconds=10.0)]),
)
UNLIMITED = 99
PROGRAMS = st.lists(st.lists(STEPS, min_size=1, max_size=3), min_size=2, max_size=3)


def skips_next(answer: Hashable) -> bool:
    """What a toy does next depends on the answer it got."""
    return isinstance(answer, Failure) or answer is False or answer == frozenset()


def toy(name: str, program: list[Step]) -> Actor:
    def act(backend: MemoryBackend) -> Hashable:
        answers, number = [], 0
        while number < len(program):
            answers.append(anonymous_answer(backend._performer(program[number])))
            number += 2 if skips_next(answers[-1]) else 1
        return tuple(answers)

    return Actor(name, act)


def every_end(programs: list[list[Step]], switches: int = UNLIMITED) -> Ends:
    """The ends of all schedules in which an actor is interrupted, or killed, at most so many times."""
    found: Ends = set()

    def go_on(
        contents: Contents,
        places: tuple[int, ...],
        answers: tuple[tuple[Hashable, ...] | str, ...],
        last: int,
        left: int,
    ) -> None:
        alive = [n for n, place in enumerate(places) if place < len(programs[n]) and answers[n] != KILLED]
        if not alive:
            outcomes = tuple((str(n), answer) for n, answer in enumerate(answers))
            found.add((anonymous(contents), outcomes))
        for n in alive:
            still = left - (last in alive and last != n)
            if still < 0:
                continue
            step, before = programs[n][places[n]], answers[n]
            assert isinstance(before, tuple)
            after, full = perform(contents, step)
            answer = anonymous_answer(full)
            place = places[n] + (2 if skips_next(answer) else 1)
            go_on(after, replaced(places, n, place), replaced(answers, n, (*before, answer)), n, still)
            if step.kind in WRITES and still:
                go_on(contents, places, replaced(answers, n, KILLED), n, still - 1)

    go_on(START, (0,) * len(programs), ((),) * len(programs), -1, switches)
    return found


def replaced(values: tuple, number: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:number], value, *values[number + 1 :])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(PROGRAMS)
def test_what_is_pruned_makes_no_difference_to_how_it_can_end(programs: list[list[Step]]) -> None:
    actors = [toy(str(number), program) for number, program in enumerate(programs)]
    pruned, all_states = Collected(len(actors)), Collected(len(actors))
    explore(actors, START, pruned)
    explore(actors, START, all_states, prune=False)
    assert pruned.ends == all_states.ends == every_end(programs)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(PROGRAMS, st.sampled_from([0, 1, 2, UNLIMITED]))
def test_no_way_to_end_with_so_many_switches_is_missed(programs: list[list[Step]], switches: int) -> None:
    actors = [toy(str(number), program) for number, program in enumerate(programs)]
    explore(actors, START, found := Collected(len(actors)), switches=switches)
    assert every_end(programs, switches) <= found.ends <= every_end(programs)


def test_actors_that_do_not_meet_have_one_schedule_and_one_for_each_kill() -> None:
    def writer(name: str) -> Actor:
        def act(backend: MemoryBackend) -> None:
            for number in range(5):
                backend.put(f"f/{name}{number}", b"")

        return Actor(name, act)

    explored = explore([writer(name) for name in "abcd"], START, nothing)
    assert explored.schedules == 6**4
    full = explore([writer(name) for name in "abc"], START, nothing, prune=False)
    assert full.schedules > math.factorial(15) / math.factorial(5) ** 3


def test_steps_that_conflict_are_done_in_every_order() -> None:
    def writer(name: str) -> Actor:
        return Actor(name, lambda backend: backend.put("a", name.encode()), can_be_killed=False)

    explored = explore([writer(name) for name in "abcd"], START, ends := Collected(4))
    assert explored.schedules == math.factorial(4)
    assert {dict(data)["a"] for data in ({(n, d) for n, d, _ in end[0][0]} for end in ends.ends)} == {  # type: ignore[index]
        b"a", b"b", b"c", b"d",
    }  # fmt: skip


# ---- What goes wrong is found


def counter(name: str) -> Actor:
    def act(backend: MemoryBackend) -> int:
        value = int(backend.get("counter")) + 1
        backend.put("counter", b"%d" % value)
        return value

    return Actor(name, act)


COUNTER = Contents({"counter": Object(b"0", 0, 0)})


def counts_all(contents: Contents, outcomes: Mapping[str, Hashable]) -> None:
    done = sum(outcome != KILLED for outcome in outcomes.values())
    if int(contents.objects["counter"].data) != done:
        raise Broken(f"{done} counted to {contents.objects['counter'].data!r}")


def test_a_lost_update_is_found_with_its_schedule() -> None:
    explore([counter("one")], COUNTER, counts_all)
    with pytest.raises(Violation, match="2 counted to b'1'") as found:
        explore([counter("one"), counter("two")], COUNTER, counts_all)
    assert "one: get counter\n  two: get counter\n" in str(found.value)


def test_a_kill_between_two_steps_is_found() -> None:
    def act(backend: MemoryBackend) -> None:
        backend.put("ref", b"")
        backend.put("blob", b"")

    def both(contents: Contents, _: Mapping[str, Hashable]) -> None:
        if "ref" in contents.objects and "blob" not in contents.objects:
            raise Broken("half")

    with pytest.raises(Violation, match="half"):
        explore([Actor("one", act)], Contents(), both)


def test_an_actor_that_is_suspended_while_time_passes_is_found() -> None:
    def act(backend: MemoryBackend) -> float:
        before = time.monotonic()
        backend.put("mark", b"")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - before

    def wait(backend: MemoryBackend) -> None:
        backend.wait(3600.0)

    explore([Actor("one", act), Actor("time", wait)], Contents(), ends := Collected(2))
    assert {dict(outcomes)["one"] for _, outcomes in ends.ends} == {0.0, 3600.0, KILLED}


def test_an_actor_that_raises_has_that_as_its_outcome() -> None:
    explore([Actor("one", lambda backend: backend.get("missing"))], START, ends := Collected(1))
    ((_, ((_, outcome),)),) = ends.ends
    assert "No such file" in str(outcome)


# ---- Actors are functions of the answers they get


def test_random_bytes_and_threads_are_the_same_in_every_run() -> None:
    def act(backend: MemoryBackend) -> str:
        nonce = secrets.token_hex(8)
        with ThreadPoolExecutor(2) as pool:
            for part in range(3):
                submit(pool, backend.put, f"f/{nonce}{part}", b"").result()
        backend.get("a")
        return nonce

    other = Actor("other", lambda backend: backend.put("a", b"second"))
    explored = explore([Actor("one", act), other, counter("bystander")], START, ends := Collected(3))
    assert explored.runs > 3, "a run was repeated, and said the same"
    assert len({dict(outcomes)["one"] for _, outcomes in ends.ends} - {KILLED}) == 1


def test_an_actor_that_is_not_a_function_is_refused() -> None:
    numbers = itertools.count()

    def act(backend: MemoryBackend) -> None:
        backend.get("a")
        backend.put(f"f/{next(numbers)}", b"")
        backend.get("a")

    other = Actor("other", lambda backend: backend.put("a", b"second"))
    with pytest.raises(AssertionError, match="not deterministic"):
        explore([Actor("one", act), other], START, nothing)


def test_another_thread_is_left_alone() -> None:
    seen: list[float] = []

    def check(contents: Contents, _: Mapping[str, Hashable]) -> None:
        seen.append(time.monotonic())

    before = time.monotonic()
    explore([Actor("one", lambda backend: backend.get("a"))], START, check)
    assert before < seen[0] < time.monotonic()
