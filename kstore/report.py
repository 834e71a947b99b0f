"""What a restore or a commit did. Reports are values: they can be compared, logged, and written as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from kstore.local.found import Skipped
from kstore.local.link import LinkMode
from kstore.published.manifest import Files, blobs_in, compacted
from kstore.words import amount

SCHEMA = 1
"""Version of the JSON form; fields are added, never changed."""


class RestoreStatus(StrEnum):
    """How a restore ended."""

    RESTORED = "restored"
    CURRENT = "current"
    """Everything was there already."""
    SEEDED = "seeded"
    """Nothing is published for the key; what the seed key has was restored."""
    MISS = "miss"
    """Nothing is published for the key, GPU and environment; or another rank could not restore it: `error` says why."""
    FAILED = "failed"
    """The store or the cache root could not be used: `error` says why. The job goes on cold."""
    TIMEOUT = "timeout"
    """It took too long, as when a mount hangs. The job goes on cold, and nothing is placed behind its back."""


class CommitStatus(StrEnum):
    """How a commit ended."""

    COMMITTED = "committed"
    UNCHANGED = "unchanged"
    """There was nothing new to publish; nothing was written."""
    READ_ONLY = "read-only"
    """This worker is configured to restore only."""
    DISCARDED = "discarded"
    """The job failed, and was to publish nothing in that case."""
    FAILED = "failed"
    """The store or the cache root could not be used: `error` says why. What was compiled stays local."""
    TIMEOUT = "timeout"
    """It took too long. It may still succeed while the job goes on."""


@dataclass(frozen=True, slots=True)
class Count:
    """How many artifacts, and their bytes."""

    files: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, sizes: Collection[int]) -> Count:
        """As many as there are `sizes`, which are in bytes."""
        return cls(len(sizes), sum(sizes))

    def __add__(self, other: Count) -> Count:
        return Count(self.files + other.files, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Artifacts that another format cannot hold."""

    what: str
    """Such as "C++ kernels"."""
    component: str
    files: int
    bytes: int
    why: str
    """And what becomes of them."""

    def __str__(self) -> str:
        of = f" of {self.component}" if self.component else ""
        return f"{self.what}{of} ({amount(self.files, self.bytes)}): {self.why}"


@dataclass(frozen=True, slots=True)
class Written:
    """What another format got from a generation."""

    held: Count
    left_out: tuple[LeftOut, ...] = ()
    """What the format cannot hold."""
    other_hosts: tuple[str, ...] = ()
    """The paths of what was left out because it runs on other hosts only."""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore did."""

    status: RestoreStatus
    key: str
    gpu: str = ""
    environment: str = ""
    store: str = ""
    cache_root: str = ""
    generation: int = 0
    """The generation restored; 0 for none."""
    files: int = 0
    """Artifacts that the generation has for this worker."""
    bytes: int = 0
    placed: int = 0
    """Artifacts that were not there before."""
    left_out: int = 0
    """Artifacts that could not be placed: damaged ones, and those of the same group."""
    link_mode: LinkMode | None = None
    """The best way that worked; None if nothing was placed."""
    link_why: str = ""
    """Why no better way worked."""
    used_modes: Mapping[str, int] | None = None
    """How many artifacts came in which way."""
    components: Mapping[str, Count] | None = None
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    """Without the waiting."""
    waited: float = 0.0
    """Seconds that it waited for another worker's generation."""
    waited_for: str = ""
    """`user@host` of that worker; empty if none said that it compiles."""
    leads: bool = False
    """Whether this worker compiles for others: they wait for what it commits."""
    withdrawn: str = ""
    """Of a miss: `forgotten` or `quarantined`, if that is why."""
    error: str = ""

    @classmethod
    def of_failure(cls, key: str, error: str, is_late: bool) -> RestoreReport:
        """Of a restore that failed, or took too long."""
        return cls(RestoreStatus.TIMEOUT if is_late else RestoreStatus.FAILED, key, error=error)

    @property
    def ok(self) -> bool:
        """Whether there are artifacts to start from."""
        has_generation = self.status in (RestoreStatus.RESTORED, RestoreStatus.CURRENT, RestoreStatus.SEEDED)
        return has_generation and self.left_out < self.files

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        content = _describe(self) | {"used_modes": dict(self.used_modes or {})}
        return {"schema": SCHEMA, "ok": self.ok, **content}


@dataclass(frozen=True, slots=True)
class CommitReport:
    """What a commit did."""

    status: CommitStatus
    key: str
    gpu: str = ""
    environment: str = ""
    store: str = ""
    cache_root: str = ""
    generation: int = 0
    """The newest generation now; 0 for none."""
    files: int = 0
    """Artifacts in that generation, those of other hosts included."""
    bytes: int = 0
    found: int | None = None
    """Finished artifacts in the cache root; None if it has not changed since the last commit, or was not looked at."""
    new_files: int = 0
    """Artifacts that this commit added or changed."""
    new_blobs: int = 0
    """Blobs that the store did not have, the manifest among them."""
    uploaded: int = 0
    """Bytes written to the store."""
    waiting: int = 0
    """New artifacts that wait for others to be published with: see `waits` in the component table."""
    declined: int = 0
    """Local artifacts that differ from published ones, which stay."""
    layout: str = ""
    """How new blobs were stored."""
    components: Mapping[str, Count] | None = None
    """None if the cache root has not changed since the last commit, so that nothing was counted."""
    skipped: tuple[Skipped, ...] = ()
    seconds: float = 0.0
    error: str = ""

    @classmethod
    def of_failure(cls, key: str, error: str, is_late: bool) -> CommitReport:
        """Of a commit that failed, or took too long."""
        return cls(CommitStatus.TIMEOUT if is_late else CommitStatus.FAILED, key, error=error)

    @property
    def ok(self) -> bool:
        """Whether everything that was compiled and finished is in the store."""
        return self.status in (CommitStatus.COMMITTED, CommitStatus.UNCHANGED)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {"schema": SCHEMA, "ok": self.ok, **_describe(self)}


def summed(checkpoints: Sequence[CommitReport], last: CommitReport) -> CommitReport:
    """What a job has published in all: `checkpoints`, where there are any, up to its last commit."""
    if not checkpoints or last is checkpoints[0]:
        return last
    return replace(
        last,
        status=CommitStatus.COMMITTED,
        new_files=sum(report.new_files for report in checkpoints),
        new_blobs=sum(report.new_blobs for report in checkpoints),
        uploaded=sum(report.uploaded for report in checkpoints),
        seconds=sum(report.seconds for report in checkpoints),
        layout=checkpoints[-1].layout,
        components=last.components or checkpoints[-1].components,
    )


def count_components(*sets: Files) -> dict[str, Count]:
    """Artifacts of all these sets by component; "" for what is in none."""
    counts, bytes_of = Counter[str](), Counter[str]()
    for files in map(compacted, sets):
        for folder, names, records in files.by_folder():
            component = (folder or "").partition("/")[0]
            counts[component] += len(names)
            bytes_of[component] += sum(size for _, size in blobs_in(records, files.form))
    return {name: Count(counts[name], bytes_of[name]) for name in sorted(counts)}


def _describe(report: RestoreReport | CommitReport) -> dict[str, Any]:
    """Every field; an object stays one where there is nothing to tell."""
    content = asdict(report)
    return content | {
        "components": content["components"] or {},
        "skipped": [skip._asdict() for skip in report.skipped],
    }
