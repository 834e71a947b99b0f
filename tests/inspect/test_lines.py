from __future__ import annotations

import difflib
import random
import re
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.inspect import lines
from kstore.inspect.lines import common_lines, unified_diff

MANY = 4000
"""Lines for which difflib takes seconds, if every other one differs."""
TEXTS = st.lists(st.sampled_from(["", "a", "b", "c", " d"]), max_size=40).map("\n".join)


def numbered(word: str, *, of: int = MANY) -> list[str]:
    return [f"{word} {number}" for number in range(of)]


def picked(*words: str, seed: int = 0) -> list[str]:
    return random.Random(seed).choices(words, k=MANY)


def mixed(some: list[str], others: list[str], every: int = 2) -> list[str]:
    return [other if number % every else line for number, (line, other) in enumerate(zip(some, others, strict=True))]


LONG = {
    "every other line": (numbered("one"), mixed(numbered("one"), numbered("other"))),
    "every line": (numbered("one"), numbered("other")),
    "few words": (picked("a", "b", "c"), mixed(picked("a", "b", "c"), picked("a", "b", "c", seed=1))),
    "empty lines": (["", "x"] * MANY, ["x", "", "y"] * MANY),
    "each line twice": (numbered("one", of=MANY // 2) * 2, mixed(numbered("one", of=MANY // 2) * 2, picked("", "x"))),
    "nothing": (numbered("one"), [""]),
}
long = pytest.mark.parametrize(("before", "after"), LONG.values(), ids=LONG.keys())


def patched(text: str, diff: list[str]) -> str:
    """What patch(1) would make of a text."""
    old, new = text.split("\n"), []
    done = 0
    for line in diff[2:]:
        if found := re.fullmatch(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@", line):
            first = int(found[1]) - 1
            new += old[done:first]
            done = first
            assert len(new) + 1 == int(found[2])
            continue
        if line[:1] in " -":
            assert old[done] == line[1:]
            done += 1
        if line[:1] in " +":
            new.append(line[1:])
    return "\n".join(new + old[done:])


def test_a_diff_has_a_line_for_each_line() -> None:
    assert list(unified_diff(("one", "a\nb\f\n"), ("other", "a\nc\n"))) == [
        "--- one", "+++ other", "@@ -1,3 +1,3 @@", " a", "-b\f", "+c", " ",
    ]  # fmt: skip


@given(TEXTS, TEXTS)
def test_the_diff_of_short_texts_is_that_of_difflib(before: str, after: str) -> None:
    expected = difflib.unified_diff(before.split("\n"), after.split("\n"), "one", "other", lineterm="")

    assert list(unified_diff(("one", before), ("other", after))) == list(expected)


@given(TEXTS, TEXTS, st.integers(0, 20))
def test_the_diff_of_long_texts_makes_one_of_the_other(before: str, after: str, few: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_FEW", few)
        diff = list(unified_diff(("one", before), ("other", after)))

    assert patched(before, diff) == after


@long
def test_so_does_that_of_texts_that_are_really_long(before: list[str], after: list[str]) -> None:
    diff = list(unified_diff(("one", "\n".join(before)), ("other", "\n".join(after))))

    assert patched("\n".join(before), diff) == "\n".join(after)


@long
def test_long_texts_are_compared_in_few_steps(
    before: list[str], after: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0

    class Line(str):
        """A line that notes when it is looked up or compared."""

        __slots__ = ()

        def __hash__(self) -> int:
            nonlocal steps
            steps += 1
            return super().__hash__()

        def __eq__(self, other: object) -> bool:
            nonlocal steps
            steps += 1
            return super().__eq__(other)

    list(common_lines([*map(Line, before)], [*map(Line, after)]))

    assert steps < 50 * (len(before) + len(after))


def told(change: Callable[[list[str]], list[str]], before: list[str]) -> list[str]:
    diff = unified_diff(("one", "\n".join(before)), ("other", "\n".join(change(before))))
    return [line for line in [*diff][2:] if line[:1] in "+-"]


@pytest.mark.parametrize("before", [numbered("one"), picked("a", "b", "c"), ["same"] * MANY])
def test_of_a_long_text_only_what_differs_is_told(before: list[str]) -> None:
    assert told(lambda text: [*text[:1000], "new", *text[1000:]], before) == ["+new"]
    assert told(lambda text: [*text[:1000], "new", *text[1001:]], before) == [f"-{before[1000]}", "+new"]
    assert len(told(lambda text: [*text[:1000], "new", *text[1000:3000], "new", *text[3001:]], before)) <= 3


@pytest.mark.parametrize(("here", "there"), [(1000, 3000), (3000, 1000)])
def test_of_lines_that_have_moved_only_these_are_told_and_three_around_them(here: int, there: int) -> None:
    before = numbered("one")
    moved, rest = before[here : here + 10], [*before[:here], *before[here + 10 :]]
    after = [*rest[:there], *moved, *rest[there:], "new"]

    diff = list(unified_diff(("one", "\n".join(before)), ("other", "\n".join(after))))
    assert Counter(line[:1] for line in diff[2:]) == {"@": 3, "-": 10, "+": 11, " ": 3 * 5}


def test_lines_that_are_often_there_are_told_apart_by_those_between_that_are_not() -> None:
    before = [line for number in range(MANY // 4) for line in ("{", f"add {number}", "}", "")]
    after = [line for number in range(MANY // 4) for line in ("{", f"add {number}", "}", "") if number % 10]

    assert told(lambda _: after, before).count("-{") == len(told(lambda _: after, before)) / 4 == MANY / 40
