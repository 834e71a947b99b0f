"""What restores add up to. Pure: reports in, totals out, and the totals of many as one.

Everything comes from a store, which may hold anything: what makes no sense is refused, and nothing grows without bound.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from kstore.creator import creator
from kstore.report import RestoreReport, RestoreStatus

HITS = (RestoreStatus.RESTORED, RestoreStatus.CURRENT)
"""Endings in which what is published for the key was restored."""
COUNTED = (*HITS, RestoreStatus.SEEDED, RestoreStatus.MISS)
"""Endings that are counted. A worker that cannot use the store cannot write to it either."""
NEWEST, SLOWEST = 8, 4
"""How many reports are kept."""
_LONGEST = 200
"""Characters of a text."""
_LARGEST = 1 << 53


@dataclass(frozen=True, slots=True)
class Sample:
    """One restore."""

    at: float
    """Seconds since 1970 by the worker's clock, for people only."""
    status: RestoreStatus
    generation: int
    seconds: float
    """What it took, without waiting."""
    waited: float
    files: int
    """Artifacts that the generation has for the worker."""
    bytes: int
    placed: int
    """Artifacts that were not there before."""
    left_out: int
    link_mode: str
    worker: str
    """`user@host`."""

    @classmethod
    def of(cls, report: RestoreReport) -> Sample:
        """What is kept of a report that was made just now. If nothing that was restored is whole, it is a miss."""
        status = report.status if report.ok else RestoreStatus.MISS
        return cls(
            time.time(), status, report.generation, round(report.seconds, 4), round(report.waited, 1),
            report.files, report.bytes, report.placed, report.left_out, str(report.link_mode or ""),
            creator()[:_LONGEST],
        )  # fmt: skip


@dataclass(slots=True)
class Timing:
    """How many restores ended in one way, and how long they took, in seconds."""

    count: int = 0
    seconds: float = 0.0
    """Altogether."""
    least: float = 0.0
    most: float = 0.0

    @property
    def mean(self) -> float:
        """Average seconds per restore; 0 if there was none."""
        return self.seconds / self.count if self.count else 0.0

    def add(self, other: Timing) -> None:
        """Count others as well."""
        if other.count:
            self.least = min(self.least, other.least) if self.count else other.least
            self.most = max(self.most, other.most)
            self.count += other.count
            self.seconds += other.seconds


@dataclass(slots=True)
class Totals:
    """What the restores of one scope, or of many, add up to."""

    since: float = 0.0
    """When the first one was, by the workers' clocks; 0 for never."""
    last: float = 0.0
    timings: dict[RestoreStatus, Timing] = field(default_factory=dict)
    placed: int = 0
    left_out: int = 0
    waited: float = 0.0
    newest: list[Sample] = field(default_factory=list)
    """The last reports, newest first."""
    slowest: list[Sample] = field(default_factory=list)
    """Those that took longest, slowest first."""

    @property
    def hits(self) -> int:
        """Restores of what is published for the key itself."""
        return sum(self.timing(status).count for status in HITS)

    @property
    def misses(self) -> int:
        """Restores that found nothing to start from."""
        return self.timing(RestoreStatus.MISS).count

    @property
    def seeded(self) -> int:
        """Restores that began with another key's artifacts."""
        return self.timing(RestoreStatus.SEEDED).count

    @property
    def restores(self) -> int:
        """All restores."""
        return sum(timing.count for timing in self.timings.values())

    def timing(self, status: RestoreStatus) -> Timing:
        """The timing of restores that ended this way."""
        return self.timings.get(status, Timing())

    def add_sample(self, sample: Sample) -> None:
        """Count one restore."""
        timing = Timing(1, sample.seconds, sample.seconds, sample.seconds)
        has_restored = sample.status is not RestoreStatus.MISS
        self.add(Totals(
            sample.at, sample.at, {sample.status: timing}, sample.placed, sample.left_out, sample.waited,
            [sample], [sample] if has_restored else [],
        ))  # fmt: skip

    def add(self, other: Totals) -> None:
        """Count what others have counted."""
        self.since = min(filter(None, (self.since, other.since)), default=0.0)
        self.last = max(self.last, other.last)
        for status, timing in other.timings.items():
            self.timings.setdefault(status, Timing()).add(timing)
        self.placed += other.placed
        self.left_out += other.left_out
        self.waited += other.waited
        self.newest = sorted((*self.newest, *other.newest), key=lambda sample: -sample.at)[:NEWEST]
        self.slowest = sorted((*self.slowest, *other.slowest), key=lambda sample: -sample.seconds)[:SLOWEST]

    def as_json(self) -> dict[str, Any]:
        """The form that `load_totals` reads."""
        return asdict(self)


def sum_of(many: Iterable[Totals]) -> Totals:
    """All totals as one."""
    whole = Totals()
    for totals in many:
        whole.add(totals)
    return whole


def load_totals(content: Mapping[str, Any]) -> Totals:
    """Read what `Totals.as_json` made.

    Raises:
        ValueError, TypeError, KeyError: it is something else.
    """
    return Totals(
        since=_seconds(content["since"]),
        last=_seconds(content["last"]),
        timings={RestoreStatus(name): _timing(timing) for name, timing in content["timings"].items()},
        placed=_count(content["placed"]),
        left_out=_count(content["left_out"]),
        waited=_seconds(content["waited"]),
        newest=[_sample(sample) for sample in content["newest"][:NEWEST]],
        slowest=[_sample(sample) for sample in content["slowest"][:SLOWEST]],
    )


def _timing(content: Mapping[str, Any]) -> Timing:
    return Timing(_count(content["count"]), *(_seconds(content[name]) for name in ("seconds", "least", "most")))


def _sample(content: Mapping[str, Any]) -> Sample:
    return Sample(**{item.name: _READERS[str(item.type)](content[item.name]) for item in fields(Sample)})


def _count(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{value!r} is not a count")
    return value


def _seconds(value: Any) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{value!r} is not a number of seconds")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise ValueError(f"{value!r:.40} is not a short text")
    return value


_READERS: Mapping[str, Any] = {"float": _seconds, "int": _count, "str": _text, "RestoreStatus": RestoreStatus}
