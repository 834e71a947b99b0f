"""Which lines two texts have in common, and their unified diff.

difflib takes minutes for long texts with many differences. So those are cut first, at lines that each of them has once,
or else at those that are there as often up to that point; difflib compares what lies between.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from difflib import Match, SequenceMatcher
from itertools import takewhile
from operator import attrgetter, eq

_FEW = 250_000
"""The most pairs of lines that difflib compares; more between two cuts are told as removed and added."""

Pair = tuple[int, int]
Chain = tuple[Pair, "Chain | None"]
"""A pair, and those before it."""


def unified_diff(left: tuple[str, str], right: tuple[str, str]) -> Iterator[str]:
    """The lines of a unified diff of two (name, text); none if the texts are equal."""
    (one, before), (other, after) = ((name, text.split("\n")) for name, text in (left, right))
    yield from (f"--- {one}", f"+++ {other}") if before != after else ()
    for group in _Lines(before, after).get_grouped_opcodes():
        (_, first, _, start, _), (_, _, last, _, end) = group[0], group[-1]
        yield f"@@ -{_extent(first, last)} +{_extent(start, end)} @@"
        for change, first, last, start, end in group:
            yield from (f"{' ' if change == 'equal' else '-'}{line}" for line in before[first:last])
            yield from (f"+{line}" for line in after[start:end] if change != "equal")


def common_lines(before: Sequence[str], after: Sequence[str]) -> Iterator[Match]:
    """Where both have the same lines, in order. Takes little time even if they are long."""
    return _compared(before, after, (_single, _counted))


class _Lines(SequenceMatcher[str]):
    """difflib's grouping of what `common_lines` finds."""

    def __init__(self, before: Sequence[str], after: Sequence[str]) -> None:
        super().__init__(None, before, after)
        self._both = before, after

    def get_matching_blocks(self) -> list[Match]:
        before, after = self._both
        return [*_joined(common_lines(before, after)), Match(len(before), len(after), 0)]


def _extent(first: int, last: int) -> str:
    """A range of lines as unified diffs name it; none is empty, since a text has at least one line."""
    return f"{first + 1}" if last - first == 1 else f"{first + 1},{last - first}"


Positions = dict[Hashable, int]
Cut = Callable[[Sequence[str]], Positions]


def _single(lines: Sequence[str]) -> Positions:
    """Where the lines are that are there once."""
    counts = Counter(lines)
    return {line: position for position, line in enumerate(lines) if counts[line] == 1}


def _counted(lines: Sequence[str]) -> Positions:
    """Where each line is for the first time, for the second time, …"""
    counts = Counter[str]()
    positions: Positions = {}
    for position, line in enumerate(lines):
        counts[line] += 1
        positions[line, counts[line]] = position
    return positions


def _compared(before: Sequence[str], after: Sequence[str], cuts: Sequence[Cut]) -> Iterator[Match]:
    if len(before) * len(after) <= _FEW:
        yield from SequenceMatcher(None, before, after).get_matching_blocks() if before and after else ()
        return
    head = _equal(before, after)
    rest, others = before[head:], after[head:]
    tail = _equal(rest[::-1], others[::-1])
    last, end = len(rest) - tail, len(others) - tail
    yield Match(0, 0, head)
    yield from _shifted(_cut(rest[:last], others[:end], cuts), head, head)
    yield Match(head + last, head + end, tail)


def _cut(before: Sequence[str], after: Sequence[str], cuts: Sequence[Cut]) -> Iterator[Match]:
    """Compare what lies between the lines that the first of `cuts` finds, with the help of the others."""
    first, start = 0, 0
    for last, end in _anchors(before, after, cuts[0]) if cuts else ():
        yield from _shifted(_compared(before[first:last], after[start:end], cuts[1:]), first, start)
        yield Match(last, end, int(last < len(before)))
        first, start = last + 1, end + 1


def _anchors(before: Sequence[str], after: Sequence[str], find: Cut) -> Iterator[Pair]:
    """Where equal lines are in both, in order; at last, where both end."""
    ours, theirs = find(before), find(after)
    yield from _rising((position, theirs[line]) for line, position in ours.items() if line in theirs)
    yield len(before), len(after)


def _rising(pairs: Iterable[Pair]) -> list[Pair]:
    """The most pairs whose second numbers rise like the first ones, by which they are given in order."""
    ends: list[int] = []
    chains: list[Chain] = []
    for pair in pairs:
        length = bisect_left(ends, pair[1])
        ends[length : length + 1] = [pair[1]]
        chains[length : length + 1] = [(pair, chains[length - 1] if length else None)]
    found, chain = [], chains[-1] if chains else None
    while chain:
        pair, chain = chain
        found.append(pair)
    return found[::-1]


def _equal(one: Iterable[str], other: Iterable[str]) -> int:
    """How many of the first lines are equal."""
    return sum(1 for _ in takewhile(bool, map(eq, one, other)))


def _shifted(matches: Iterable[Match], lines: int, others: int) -> Iterator[Match]:
    return (Match(match.a + lines, match.b + others, match.size) for match in matches)


def _joined(matches: Iterable[Match]) -> Iterator[Match]:
    """The same, those that adjoin as one."""
    whole = Match(0, 0, 0)
    for match in filter(attrgetter("size"), matches):
        if (whole.a + whole.size, whole.b + whole.size) == (match.a, match.b):
            whole = whole._replace(size=whole.size + match.size)
        else:
            yield whole
            whole = match
    yield whole
