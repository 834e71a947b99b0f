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

_FEW = 2500
"""The most pairs of variants of one kernel for which each variant is compared with each."""


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
    for left, right in sorted(product(lefts, rights), key=lambda pair: _distance(*pair)):
        if left in lefts and right in rights:
            lefts.remove(left)
            rights.remove(right)
            yield left, right
    yield from ((left, None) for left in lefts)
    yield from ((None, right) for right in rights)


def _distance(left: Named, right: Named) -> tuple[int, str, str]:
    one, other = left.content.configuration, right.content.configuration
    differing = sum(one.get(name) != other.get(name) for name in {*one, *other})
    return differing, left.item.unit, right.item.unit


def _grouped(every: list[Named], key: Callable[[Named], Hashable]) -> dict[Hashable, list[Named]]:
    groups: dict[Hashable, list[Named]] = defaultdict(list)
    for named in every:
        groups[key(named)].append(named)
    return groups
