"""An overview in the text format of Prometheus, for its node exporter's textfile collector or a push gateway.

The format is one line per figure, and ours have two labels: that is not worth a dependency for every installation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kstore.report import RestoreStatus
from kstore.stats.overview import Overview, Row

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class _Metric(NamedTuple):
    """One figure, and where it comes from."""

    name: str
    kind: str
    text: str
    values: Callable[[Row], dict[str, float]]
    """Suffix of the name, with what follows the labels of GPU and key, → value."""


def _results(row: Row) -> dict[str, float]:
    results = {"hit": row.restores.hits, "miss": row.restores.misses, "seeded": row.restores.seeded}
    return {f'result="{name}"': count for name, count in results.items()}


def _times(row: Row) -> dict[str, float]:
    timing = row.restores.timing(RestoreStatus.RESTORED)
    return {"_sum": timing.seconds, "_count": timing.count}


_METRICS = (
    _Metric("kstore_restores_total", "counter", "Restores by result.", _results),
    _Metric("kstore_restore_seconds", "summary", "Time of the restores that put files in their place.", _times),
    _Metric("kstore_restored_files_total", "counter", "Files that restores put in their place.",
            lambda row: {"": row.restores.placed}),
    _Metric("kstore_left_out_files_total", "counter", "Files that restores could not put in their place.",
            lambda row: {"": row.restores.left_out}),
    _Metric("kstore_waited_seconds_total", "counter", "Time that restores waited for another worker's commit.",
            lambda row: {"": row.restores.waited}),
    _Metric("kstore_published_generations_total", "counter", "Generations ever published.",
            lambda row: {"": row.commits.published}),
    _Metric("kstore_commit_seconds", "summary", "Time of the commits of the generations that are kept.",
            lambda row: {"_sum": row.commits.seconds, "_count": row.commits.timed}),
    _Metric("kstore_uploaded_bytes", "gauge", "Bytes that these commits wrote to the store.",
            lambda row: {"": row.commits.uploaded}),
    _Metric("kstore_generations", "gauge", "Generations that are kept.", lambda row: {"": row.held.generations}),
    _Metric("kstore_artifact_bytes", "gauge", "Bytes of the artifacts of all generations, each counted by itself.",
            lambda row: {"": row.held.artifacts}),
    _Metric("kstore_unique_bytes", "gauge", "The same, equal files counted once.", lambda row: {"": row.held.unique}),
    _Metric("kstore_stored_bytes", "gauge", "Bytes of the packs and blobs that a key needs; keys may share them.",
            lambda row: {"": row.held.stored}),
)  # fmt: skip
_WHOLE = (
    _Metric("kstore_store_artifact_bytes", "gauge", "Bytes of the artifacts of all generations of the store.",
            lambda row: {"": row.held.artifacts}),
    _Metric("kstore_store_unique_bytes", "gauge", "The same, equal files counted once.",
            lambda row: {"": row.held.unique}),
    _Metric("kstore_store_stored_bytes", "gauge", "Bytes of all packs and blobs that are needed.",
            lambda row: {"": row.held.stored}),
)  # fmt: skip


def as_prometheus(found: Overview) -> str:
    """The figures of an overview; those of the whole store too, unless the overview is of one key."""
    return "".join(f"{line}\n" for line in _lines(found))


def _lines(found: Overview) -> Iterator[str]:
    for metric in _METRICS:
        yield from _head(metric)
        for shelf, row in found.rows.items():
            labels = f'gpu="{_escape(shelf.gpu)}",key="{_escape(shelf.key)}"'
            yield from _samples(metric, labels, row)
    for metric in _WHOLE if found.key is None else ():
        yield from _head(metric)
        yield from _samples(metric, "", found.whole)


def _head(metric: _Metric) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.text}"
    yield f"# TYPE {metric.name} {metric.kind}"


def _samples(metric: _Metric, labels: str, row: Row) -> Iterator[str]:
    for tail, value in metric.values(row).items():
        suffix, more = (tail, "") if tail.startswith("_") else ("", tail)
        every = ",".join(filter(None, (labels, more)))
        yield f"{metric.name}{suffix}{f'{{{every}}}' if every else ''} {value!r}"


def _escape(text: str) -> str:
    return text.translate(_ESCAPES)
