"""Explains what the run in a cache root compiled anew, from the files there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from kstore.errors import MissError
from kstore.files import read_whole
from kstore.hits.evidence import NOTHING_RESTORED, usage_in
from kstore.hits.lastrun import last_run
from kstore.inspect.kernels import MAX_SOURCE
from kstore.inspect.kinds import Kind, kind_of
from kstore.store import Store
from kstore.why.differences import Explanation, explain, folder_of
from kstore.why.graphs import Graph, read_graphs
from kstore.why.kernels import KernelExplanation, explain_kernels
from kstore.worker import Worker

_ENTRIES = (Kind.FX_GRAPH, Kind.AOT_ENTRY)
_MAX_ENTRY = 256 << 20
"""Bytes. Torch keeps constants in entries; a larger entry is not read, because it would be in memory as a whole."""


@dataclass(frozen=True, slots=True)
class WhyReport:
    """Why a run compiled although something was restored."""

    key: str
    generation: int
    """The generation that was restored; 0 for none."""
    seed: str = ""
    """The other key whose generation that was; empty if it was one of `key`."""
    graphs: tuple[Explanation, ...] = ()
    """One for each graph that was compiled anew."""
    entries: int = 0
    """FX and AOT entries that those graphs are in; these are what `kstore.hits` counts."""
    others: int = 0
    """Other artifacts that were not there before, except those of kernels."""
    compared: int = 0
    """Graphs that were restored."""
    kernels: tuple[KernelExplanation, ...] = ()
    """One for each Triton kernel that was compiled anew."""
    unused: tuple[str, ...] = ()
    """Components with restored entries of which none was read."""
    gone: tuple[str, ...] = ()
    """Components that were restored and of which nothing is there."""
    bypassed: bool = False
    """Whether Inductor's code is published, or new to the key, but no graph's entry is: torch keeps none for what it
    cannot cache.
    """

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        graphs, kernels = (
            [{**found._asdict(), "differences": [each._asdict() for each in found.differences]} for found in part]
            for part in (self.graphs, self.kernels)
        )
        return {
            "key": self.key,
            "generation": self.generation,
            "seed": self.seed,
            "graphs": graphs,
            "entries": self.entries,
            "kernels": kernels,
            "others": self.others,
            "compared": self.compared,
            "unused": self.unused,
            "gone": self.gone,
            "bypassed": self.bypassed,
        }


def find_reasons(store: Store, key: str, again: Callable[[str], str]) -> WhyReport:
    """Compare what the last run of `key` on this node compiled with what was restored before it.

    `again` gives another command's line for the same store, key and cache root, to be named in an error.

    Raises:
        MissError: nobody has restored into its cache root, or there was nothing to restore.
        StoreFormatError, StoreUnavailable: nobody can restore from this store.
        KstoreError, OSError: the cache root cannot be used.
    """
    worker = store.local_worker(store.scope(key))
    run = last_run(worker) if worker else None
    if worker is None or run is None:
        store.storage.open_existing()  # Another store has another cache root.
        raise MissError(f"{_lack(worker, key)}; run `{again('exec')} -- …` or restore, then compile")
    if not run.generation:
        raise MissError(
            f"there was nothing to restore for {key}, so a run compiles everything; `{again('doctor')}` says more"
        )
    unused = usage_in(worker, run).unused  # before they are read here
    entries = _entries(run.new)
    fresh = list(_read(worker, entries))
    there = _entries(run.old)
    stored = [graph for _, graphs in _read(worker, there) for graph in graphs] if fresh else []
    lost = {*map(folder_of, _entries(run.published))} - {*map(folder_of, there)}
    return WhyReport(
        key,
        run.generation,
        seed=run.seed_of(key),
        graphs=tuple(explain(fresh, stored, lost)),
        entries=len(entries),
        others=sum(kind_of(path) not in (*_ENTRIES, Kind.TRITON_KERNEL) for path in run.new),
        compared=len({graph.path for graph in stored}),
        kernels=tuple(explain_kernels(run.new, run.old, partial(_read_small, worker))),
        unused=unused,
        gone=tuple(sorted(_components(run.published) & worker.root.folders.keys() - _components((*run.old, *run.new)))),
        bypassed=_is_code_alone(run.published) or _is_code_alone(run.new.keys() - run.published.keys()),
    )


def _lack(worker: Worker | None, key: str) -> str:
    """Why nothing is known about a run."""
    if worker is None:
        return f"{key} has no cache root on this node, so nothing was restored into it"
    if worker.state.last_restore.scope():
        return f"what was restored into {worker.root.path} cannot be read: damaged, or from a newer kstore"
    return f"{NOTHING_RESTORED}, {worker.root.path}"


def _entries(paths: Iterable[str]) -> list[str]:
    """FX entries, then AOT entries."""
    return [path for kind in _ENTRIES for path in paths if kind_of(path) is kind]


def _components(paths: Iterable[str]) -> set[str]:
    return {path.partition("/")[0] for path in paths}


def _is_code_alone(paths: Iterable[str]) -> bool:
    kinds = {*map(kind_of, paths)}
    return Kind.GENERATED_CODE in kinds and kinds.isdisjoint(_ENTRIES)


def _read(worker: Worker, paths: Iterable[str]) -> Iterator[tuple[str, list[Graph]]]:
    for path in paths:
        local = worker.root.local_path(path)
        try:
            is_small = os.path.getsize(local) <= _MAX_ENTRY
            yield path, read_graphs(path, read_whole(local)) if is_small else []
        except OSError:
            continue  # gone since it was listed


def _read_small(worker: Worker, path: str) -> bytes | None:
    local = worker.root.local_path(path)
    with suppress(OSError):
        if os.path.getsize(local) <= MAX_SOURCE:
            return read_whole(local)
    return None
