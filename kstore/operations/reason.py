"""Whether what is new in a cache root is reason for a generation.

Of some components a part is new in every process, whatever was restored: each start of a worker would publish a
generation, and a key would grow for ever. So news of such a component wait for others to be published with, as long as
they are little beside what is published of it. As little is a share of that, a key grows by them alone a few times, and
then no more.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from kstore.components import Table
from kstore.published.manifest import Entry, Files, Manifest

_LITTLE = 1 / 8
"""Less than this share of what is published of the component, both in files and in bytes."""
_SIZE = attrgetter("size")


class _Amount(NamedTuple):
    files: int
    size: int


def is_reason(table: Table, taken: Iterable[str], ours: Files, theirs: Manifest) -> bool:
    """Whether to publish what was `taken` of ours: some of it waits for nothing, or it is much of what waits."""
    waiting = set[str]()
    for component in {path.partition("/")[0] for path in taken}:
        if not table[component].waits:
            return True
        waiting.add(component)
    return any(_is_much(component, taken, ours, theirs) for component in waiting)


def _is_much(component: str, taken: Iterable[str], ours: Files, theirs: Manifest) -> bool:
    lead = f"{component}/"
    new = _amount(ours[path] for path in taken if path.startswith(lead))
    old = _amount(entry for path, entry in theirs.items() if path.startswith(lead))
    return new.files >= _LITTLE * old.files or new.size >= _LITTLE * old.size


def _amount(entries: Iterable[Entry]) -> _Amount:
    sizes = [*map(_SIZE, entries)]
    return _Amount(len(sizes), sum(sizes))
