"""Whether what is new in a cache root is reason for a generation.

Of some kinds of files, a few are new in every process, whatever was restored: each start of a worker would publish a
generation, and a key would grow for ever. So such news waits until something else is published, as long as it is few
files, and little compared with what is published of their kind. What counts as little grows with that, so such news
alone makes a key grow a few times, and then no more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from kstore.components import Table, method_of
from kstore.published.manifest import Entry, Files
from kstore.published.snapshot import Snapshot

_LITTLE = 1 / 8
"""Little is less than this share of what is published of the kind, both in files and in bytes."""
_FEW, _SMALL = 32, 4 << 20
"""This many files or bytes are never little: a new driver makes all anew; a key may hold what several made before."""
_Kind = tuple[str, str]
"""A component, and what its rule `waits` calls it."""
_FILES, _SIZE = attrgetter("files"), attrgetter("size")


class _Amount(NamedTuple):
    files: int
    size: int


def is_reason(table: Table, taken: Collection[str], ours: Files, published: Sequence[Snapshot | None]) -> bool:
    """Whether to publish what was `taken` of ours: some of it waits for nothing, or it is much compared with each of
    `published`. So what waited does not bring back a key that was forgotten.
    """
    waiting = set[_Kind]()
    for path in taken:
        if (kind := _kind_of(table, path)) is None:
            return True
        waiting.add(kind)
    return any(_is_much(table, kind, taken, ours, published) for kind in waiting)


def _kind_of(table: Table, path: str) -> _Kind | None:
    """The kind of a file that may wait; None for any other."""
    kind = method_of(table, "waits", path)
    return (path.partition("/")[0], kind) if kind else None


def _is_much(
    table: Table, kind: _Kind, taken: Collection[str], ours: Files, published: Sequence[Snapshot | None]
) -> bool:
    new = _amount(table, kind, ((path, ours[path]) for path in taken))
    old = [_amount(table, kind, snapshot.manifest.items()) for snapshot in published if snapshot]
    files, size = (max(of_each, default=0) for of_each in (map(_FILES, old), map(_SIZE, old)))
    return new.files >= min(_FEW, _LITTLE * files) or new.size >= min(_SMALL, _LITTLE * size)


def _amount(table: Table, kind: _Kind, items: Iterable[tuple[str, Entry]]) -> _Amount:
    folder = f"{kind[0]}/"  # Few of ten thousand belong to the component: the others need no match.
    sizes = [entry.size for path, entry in items if path.startswith(folder) and _kind_of(table, path) == kind]
    return _Amount(len(sizes), sum(sizes))
