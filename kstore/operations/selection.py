"""What of a generation is to be in one worker's cache root."""

from __future__ import annotations

import logging
from itertools import chain
from typing import NamedTuple

from kstore.errors import IntegrityError
from kstore.local.found import Scan, Skipped
from kstore.operations.ours import HOST_UNKNOWN
from kstore.published.leaning import leans_on, substitutes, unavailable
from kstore.published.manifest import Files, Manifest, compacted, in_components, nearest_folders
from kstore.published.ref import Ref
from kstore.published.snapshot import Snapshot
from kstore.published.untrusted import check_paths
from kstore.words import files
from kstore.worker import Worker

log = logging.getLogger(__name__)


class Selection(NamedTuple):
    """What a generation has for one worker."""

    files: Files
    """What is to be in the root."""
    away: Files
    """What cannot be, because no store here has its blobs."""
    has_all: bool
    """Whether `files` are all that the generation has in the components that the worker manages."""
    skipped: list[Skipped]
    """What is left out, and why."""


def select(worker: Worker, snapshot: Snapshot, found: Scan) -> Selection:
    """Choose what of a generation, whose manifest has been checked, is to be in the root, in which `found` is."""
    manifest, known = snapshot.manifest, worker.root.folders
    published = worker.files_of(manifest)
    unsure = _left_to_others(worker, manifest, published, snapshot.ref)
    unmanaged = sorted({folder.partition("/")[0] for folder in nearest_folders(published)}.difference(known))
    skipped = [Skipped(component, "this worker does not manage the component") for component in unmanaged] + unsure
    if unmanaged:
        published = in_components(published, known)
    away = unavailable(worker.storage, snapshot, published, found.files)
    if not away:
        return Selection(published, {}, has_all=True, skipped=skipped)
    chosen = compacted(published).without(away)
    chosen.put(_substitutes(worker, snapshot, chosen).items())
    away = {path: entry for path, entry in away.items() if path not in chosen}
    where = ", ".join(leans_on(manifest))
    if away:
        log.warning("%d files of generation %d of %s are in no store here; they were in %s", len(away),
                    snapshot.ref.generation, snapshot.ref.scope, where)  # fmt: skip
    skipped += [Skipped(path, f"its blob is in no store here; it was in {where}") for path in sorted(away)]
    return Selection(chosen, away, has_all=False, skipped=skipped)


def _left_to_others(worker: Worker, manifest: Manifest, published: Files, ref: Ref) -> list[Skipped]:
    """Warn about what is only for other hosts: this one compiles its own, and a commit adds that. Returns what may be
    for this one, if that is not known: the next restore looks again.
    """
    others = {path for path in chain.from_iterable(manifest.hosts.values()) if path not in published}
    if others and not worker.host.fingerprint:
        return [Skipped(path, HOST_UNKNOWN) for path in sorted(others)]
    if others:
        what = f"{files(len(others))} of generation {ref.generation} of {ref.scope}"
        log.warning("left out: %s, built for hosts other than this one", what)
    return []


def _substitutes(worker: Worker, snapshot: Snapshot, chosen: Files) -> Files:
    """What the stores below have in the place of what is not `chosen`: each by itself has been checked."""
    found = in_components(substitutes(worker.storage, snapshot, chosen, worker.files_of), worker.root.folders)
    try:
        check_paths(chosen, found)
    except IntegrityError as error:
        log.warning("missing files are not replaced by those of the stores below: %s", error)
        return {}
    return found
