"""Finds, for each graph that was compiled anew, the one that should have hit, and what keeps them apart. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from itertools import count
from typing import NamedTuple

from kstore.inspect.lines import unified_diff
from kstore.why.graphs import CODE, Graph

_CODE_LINES = 12
"""Lines of a graph's code that are shown for a difference."""
_COMPARED_LINES = 50_000
"""Lines of code that are compared; for longer code, finding what two graphs share takes seconds."""


class Reason(StrEnum):
    """Why a graph was compiled anew."""

    DIFFERS = "differs"
    """A stored graph has the same code, but was compiled under other circumstances."""
    NEW_CODE = "new-code"
    """No stored graph has its code; the differences are those from the graph most like it."""
    GUARDS = "guards"
    """A stored graph has the same key, but its guards did not hold, for example because of other shapes."""
    MISSING = "missing"
    """It is stored, but the entry under its key was not there: left out of the restore, or removed."""
    AUTOGRAD = "autograd"
    """The graphs of an AOT entry are stored, but the entry has another key: AOTAutograd's own settings differ."""
    NOTHING = "nothing"
    """There was no graph to compare it with."""
    UNREADABLE = "unreadable"
    """Its entry does not say what its key was made from."""


class Difference(NamedTuple):
    """One attribute that two graphs do not share."""

    name: str
    stored: str | None
    """None if the stored graph has no such attribute."""
    fresh: str | None


class Explanation(NamedTuple):
    """Why one graph was compiled anew, or, if its entry says nothing about graphs, why that entry was."""

    path: str
    """An entry that the graph is in."""
    reason: Reason
    closest: str = ""
    """The stored artifact that it was compared with."""
    differences: tuple[Difference, ...] = ()


def explain(
    fresh: Iterable[tuple[str, Sequence[Graph]]], stored: Collection[Graph], lost: Collection[str] = ()
) -> list[Explanation]:
    """Explain each entry of `fresh`, paths with what was read from them: FX entries first, then AOT entries.

    `lost` are the folders, each named by a key, of which entries are stored but none was there. If an earlier FX entry
    also has a graph of an AOT entry, the graph is explained there.
    """
    known = {graph.digests for graph in stored}
    folders = {(folder_of(graph.path), graph.digests) for graph in stored}
    index = _Index(stored)
    explained: set[frozenset[tuple[str, str]]] = set()
    found = []
    for path, graphs in fresh:
        news = [graph for graph in graphs if graph.digests not in explained]
        if folder_of(path) in lost:
            found += [Explanation(path, Reason.MISSING)] if news or not graphs else []
        elif not graphs:
            found.append(Explanation(path, Reason.UNREADABLE))
        elif news and all(graph.digests in known for graph in news):
            has_entry = any((folder_of(path), graph.digests) in folders for graph in news)
            of_graph = Reason.GUARDS if has_entry else Reason.MISSING
            found.append(Explanation(path, of_graph if _is_fx(path) else Reason.AUTOGRAD))
        else:
            found += [index.explain(graph) for graph in news if graph.digests not in known]
        explained.update(graph.digests for graph in graphs)
    return found


def folder_of(path: str) -> str:
    """The folder of an entry, which is named by its key."""
    return path.rpartition("/")[0]


def _is_fx(path: str) -> bool:
    return "/fxgraph/" in path


class _Numbered(NamedTuple):
    """A graph, and its attributes as numbers."""

    graph: Graph
    numbers: frozenset[int]


class _Index:
    """Stored graphs, indexed by what they share with others."""

    def __init__(self, stored: Collection[Graph]) -> None:
        self._numbers: dict[tuple[str, str], int] = defaultdict(count().__next__)
        """A number for each attribute and digest: sets of numbers are fast to compare."""
        self._stored = [_Numbered(graph, self._numbered(graph)) for graph in stored]
        self._by_code: dict[str, list[_Numbered]] = defaultdict(list)
        for numbered in self._stored:
            self._by_code[numbered.graph.attributes[CODE].digest].append(numbered)

    def _numbered(self, graph: Graph) -> frozenset[int]:
        return frozenset(map(self._numbers.__getitem__, graph.digests))

    def explain(self, graph: Graph) -> Explanation:
        """Compare a graph with the stored one that has its code, or else shares most with it."""
        closest = self._closest(graph)
        if closest is None:
            return Explanation(graph.path, Reason.NOTHING)
        differences = tuple(_differences(closest, graph))
        has_its_code = closest.attributes[CODE].digest == graph.attributes[CODE].digest
        return Explanation(graph.path, Reason.DIFFERS if has_its_code else Reason.NEW_CODE, closest.path, differences)

    def _closest(self, graph: Graph) -> Graph | None:
        numbers = self._numbered(graph)
        candidates = self._by_code.get(graph.attributes[CODE].digest) or self._stored
        best = max(candidates, key=lambda candidate: len(candidate.numbers & numbers), default=None)
        return best.graph if best else None


def _differences(stored: Graph, fresh: Graph) -> Iterable[Difference]:
    for name in [*fresh.attributes, *(name for name in stored.attributes if name not in fresh.attributes)]:
        old, new = stored.attributes.get(name), fresh.attributes.get(name)
        if old is None or new is None or old.digest != new.digest:
            yield Difference(name, old and old.text, new and new.text)


def code_difference(difference: Difference) -> list[str]:
    """The first few lines of code that differ, as diff(1) shows them."""
    lines = (text.splitlines()[:_COMPARED_LINES] for text in (difference.stored or "", difference.fresh or ""))
    old, new = ("".join(f"{line}\n" for line in each) for each in lines)
    changed = [line for line in unified_diff(("", old), ("", new)) if line[:1] in "+-"][2:]
    return changed[:_CODE_LINES]
