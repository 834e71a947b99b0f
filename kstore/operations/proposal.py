"""What a commit makes of theirs and ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kstore.local.found import Skipped
from kstore.operations.theirs import Theirs
from kstore.published.manifest import Files, meta_of
from kstore.published.paths import Paths

if TYPE_CHECKING:
    from kstore.worker import Worker


@dataclass(slots=True)
class Proposal:
    """What the next generation would hold."""

    files: Files
    hosts: dict[str, Files]
    taken: Paths = field(default_factory=Paths)
    """Paths that are news."""
    declined: dict[str, bytes] = field(default_factory=dict)
    outdated: set[str] = field(default_factory=set)
    """Those of `declined` that hold nothing of the worker's own that is not published."""
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
