"""What a commit merges with, and what it makes of that."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from kstore.creator import creator
from kstore.digest import digest_of
from kstore.local.found import Skipped
from kstore.published.manifest import Files, Manifest, meta_of
from kstore.published.ref import Delta, Effort, Ref
from kstore.published.snapshot import Snapshot
from kstore.scope import Scope

if TYPE_CHECKING:
    from kstore.worker import Worker


class Theirs(NamedTuple):
    """The newest generation of the scope, as last seen."""

    generation: int = 0
    """Its number; 0 if nothing is published in the store that is written."""
    snapshot: Snapshot | None = None
    """That generation; if it is damaged, the newest whole one before it; if there is none, what a store below has."""

    @property
    def manifest(self) -> Manifest:
        """Empty if nothing is published."""
        return self.snapshot.manifest if self.snapshot else Manifest()

    @property
    def line(self) -> int:
        """Where the line of its successor begins: with the successor, if the generation listed as newest is damaged."""
        ref = self.snapshot.ref if self.snapshot else None
        if ref and ref.depth and not self.generation:
            return 0
        return ref.line if ref and not ref.depth and ref.generation == self.generation else self.generation + 1

    @property
    def lineage(self) -> tuple[bytes, ...]:
        """The lineage of its successor."""
        ref = self.snapshot.ref if self.snapshot else None
        return ref.leads_to() if ref and not ref.depth and ref.generation == self.generation else ()

    def successor(
        self,
        scope: Scope,
        manifest: Manifest,
        data: bytes,
        delta: Delta | None,
        packs: tuple[str, ...],
        effort: Effort | None = None,
        lease: str = "",
    ) -> Ref:
        """The next generation, with a manifest of these bytes, stored whole or as a delta, and the packs to name."""
        return Ref(
            scope=scope,
            generation=self.generation + 1,
            manifest=digest_of(data),
            manifest_size=len(data),
            delta=delta,
            packs=packs,
            created=time.time(),
            creator=creator(),
            files=sum(map(len, (manifest.files, *manifest.hosts.values()))),
            size=sum(map(attrgetter("size"), manifest.entries())),
            parent=self.generation,
            line=self.line,
            lineage=self.lineage,
            effort=effort,
            lease=lease,
        )


@dataclass(slots=True)
class Proposal:
    """What the next generation would hold."""

    files: Files
    hosts: dict[str, Files]
    taken: list[str] = field(default_factory=list)
    """Paths that are news."""
    declined: dict[str, bytes] = field(default_factory=dict)
    contents: dict[bytes, bytes] = field(default_factory=dict)
    """What mergers made, by digest."""
    skipped: list[Skipped] = field(default_factory=list)
    """What could not be merged, and waits for the next commit."""


def apart(files: Files, hosts: Mapping[str, Files], host: str) -> tuple[Files, list[Files]]:
    """The set of files that a manifest has for one host, or with "" the portable set; and all its other sets."""
    sets = {"": files, **hosts}
    return sets.pop(host, {}), list(sets.values())


def meta_by(worker: Worker, theirs: Theirs, proposal: Proposal) -> dict[str, Any]:
    """What a manifest made by a worker says about its generation."""
    host = {"host": dict(worker.host.facts)} if proposal.hosts else {}
    return {
        **meta_of(worker.scope, theirs.generation),
        "environment": dict(worker.environment.facts),
        **worker.key_facts(),
        "cache_root": worker.root.path,
        "folders": dict(worker.root.folders),
        **worker.built_under,
        **host,
    }
