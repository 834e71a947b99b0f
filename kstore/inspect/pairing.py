"""Finds, for each item of one side, the item of the other side to compare it with.

Paths alone are not enough: a compiler names a kernel's folder by a digest of everything that made it, so one more
option puts the same kernel under another path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import product, zip_longest
from typing import NamedTuple

from kstore.inspect.contents import Content
from kstore.inspect.items import Item

_FEW = 40_000
"""The most pairs of variants of one kernel for which each variant is compared with each: takes some 0.2 s."""


class Named(NamedTuple):
    """An item and what is known about it."""

    item: Item
    content: Content

    @property
    def name(self) -> str:
        """The kernel's name, the graph's key, or else the path."""
        return self.content.name or self.item.label


Pair = tuple[Named | None, Named | None]


def pair_items(lefts: Iterable[Named], rights: Iterable[Named]) -> Iterator[Pair]:
    """All items of both sides, each once: in pairs, or alone.

    They are paired by path, else by bytes, else by name and configuration, else by name: of several variants, those
    that differ least.
    """
    left, right = list(lefts), list(rights)
    for key in (_path, _bytes, _name_and_configuration):
        pairs, left, right = _paired(left, right, key)
        yield from pairs
    yield from _paired_by_name(left, right)


def _path(named: Named) -> Hashable:
    return named.item.kind, named.item.unit


def _bytes(named: Named) -> Hashable:
    return named.item.kind, named.item.substance


def _name(named: Named) -> Hashable:
    """Kind and name; modules that call the same kernels count as versions of one module."""
    return named.item.kind, named.content.calls or named.name


def _name_and_configuration(named: Named) -> Hashable:
    return _name(named), frozenset(named.content.configuration.items())


def _paired(
    lefts: list[Named], rights: list[Named], key: Callable[[Named], Hashable]
) -> tuple[list[Pair], list[Named], list[Named]]:
    """The pairs that agree in `key`, and what is left of both sides."""
    waiting = _grouped(lefts, key)
    pairs: list[Pair] = []
    alone = []
    for right in rights:
        same = waiting.get(key(right))
        if same:
            pairs.append((same.pop(), right))
        else:
            alone.append(right)
    return pairs, [left for group in waiting.values() for left in group], alone


def _paired_by_name(lefts: list[Named], rights: list[Named]) -> Iterator[Pair]:
    waiting = _grouped(lefts, _name)
    for name, variants in _grouped(rights, _name).items():
        yield from _nearest(waiting.pop(name, []), variants)
    yield from ((left, None) for group in waiting.values() for left in group)


def _nearest(lefts: list[Named], rights: list[Named]) -> Iterator[Pair]:
    """Pair the variants of one kernel: the nearest two first, then the nearest of what is left."""
    if len(lefts) * len(rights) > _FEW:
        yield from zip_longest(lefts, rights)
        return
    ours, theirs = ({named.item: named for named in side} for side in (lefts, rights))
    values = {named.item: frozenset(named.content.configuration.items()) for named in (*lefts, *rights)}

    def distance(pair: tuple[Item, Item]) -> tuple[int, str, str]:
        one, other = pair
        return len(dict(values[one] ^ values[other])), one.unit, other.unit

    for left, right in sorted(product(ours, theirs), key=distance):
        if left in ours and right in theirs:
            yield ours.pop(left), theirs.pop(right)
    yield from ((named, None) for named in ours.values())
    yield from ((None, named) for named in theirs.values())


def _grouped(every: list[Named], key: Callable[[Named], Hashable]) -> dict[Hashable, list[Named]]:
    groups: dict[Hashable, list[Named]] = defaultdict(list)
    for named in every:
        groups[key(named)].append(named)
    return groups
