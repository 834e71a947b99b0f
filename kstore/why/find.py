"""Explains what the run in a cache root compiled anew, from the files there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kstore.errors import MissError
from kstore.hits.evidence import NOTHING_RESTORED, LastRun, last_run
from kstore.inspect.kinds import Kind, kind_of
from kstore.store import Store
from kstore.why.differences import Explanation, explain
from kstore.why.graphs import Graph, read_graphs
from kstore.worker import Worker

_ENTRIES = (Kind.FX_GRAPH, Kind.AOT_ENTRY)
_MAX_ENTRY = 256 << 20
"""Bytes. Torch keeps constants in entries; one with more is not read, for it would be in memory as a whole."""


@dataclass(frozen=True, slots=True)
class WhyReport:
    """Why a run compiled although something was restored."""

    key: str
    generation: int
    """What was restored; 0 for nothing."""
    graphs: tuple[Explanation, ...] = ()
    """For each graph that was compiled anew."""
    others: int = 0
    """Other artifacts that were not there before."""
    compared: int = 0
    """Graphs that were restored."""

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        graphs = [{**graph._asdict(), "differences": [d._asdict() for d in graph.differences]} for graph in self.graphs]
        return {
            "key": self.key,
            "generation": self.generation,
            "graphs": graphs,
            "others": self.others,
            "compared": self.compared,
        }


def find_reasons(store: Store, key: str) -> WhyReport:
    """Compare what the last run of `key` on this node compiled with what was restored before it.

    Raises:
        MissError: nobody has restored into its cache root, or nothing.
        KstoreError, OSError: the cache root cannot be used.
    """
    worker = store.worker(key, before_import=False)
    run = last_run(worker)
    if run is None:
        raise MissError(
            f"{NOTHING_RESTORED}, {worker.root.path}; run `kstore exec {key} -- …` or restore, then compile"
        )
    if not run.generation:
        raise MissError(f"all was compiled because there was nothing to restore for {key}; `kstore doctor {key}`")
    fresh = list(_read(worker, _entries(run.new)))
    stored = [graph for _, graphs in _read(worker, _entries(run.old)) for graph in graphs] if fresh else []
    return WhyReport(
        key, run.generation, tuple(explain(fresh, stored)), _count_others(run), len({graph.path for graph in stored})
    )


def _entries(paths: Iterable[str]) -> list[str]:
    """FX entries, then AOT entries."""
    return [path for kind in _ENTRIES for path in paths if kind_of(path) is kind]


def _count_others(run: LastRun) -> int:
    return sum(kind_of(path) not in _ENTRIES for path in run.new)


def _read(worker: Worker, paths: Iterable[str]) -> Iterator[tuple[str, list[Graph]]]:
    for path in paths:
        local = worker.root.local_path(path)
        try:
            if os.path.getsize(local) <= _MAX_ENTRY:
                with open(local, "rb") as file:
                    yield path, read_graphs(path, file.read())
        except OSError:
            continue  # it has gone since it was listed
