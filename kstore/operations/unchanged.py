"""A commit with nothing to do: it asks for times, and reads neither artifacts nor a manifest."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kstore.damaged import NO_DAMAGE, damage_mark
from kstore.errors import CacheRootError, IntegrityError
from kstore.local.found import Scan
from kstore.local.placed import Placed
from kstore.local.state import StillRoot
from kstore.local.still import still_since, still_since_placed
from kstore.local.untouched import Mark
from kstore.published.layers import base_of, newest_ref
from kstore.published.leaning import leans_on, supports
from kstore.published.lost import lacks_pack
from kstore.published.manifest import Files, Manifest, changed_in_place
from kstore.published.ref import Ref
from kstore.report import CommitReport, CommitStatus
from kstore.used import mark_used, mark_used_again
from kstore.worker import Worker


def unchanged_since(worker: Worker, known: StillRoot | None) -> CommitReport | None:
    """The report of a commit that has nothing to do; else None.

    There is nothing to do if neither the root nor the store has changed since `known` was remembered, by a commit that
    found nothing new or by a restore that filled an empty root. That needs no lock: what is remembered is whole and
    stays true, and whoever changes the root moves its times.
    """
    base = base_of(worker.storage, known.base) if known else None
    if known is None or base is None or not known.still.holds(worker.root, worker.ignores):
        return None
    storage = worker.storage
    if damage_mark(storage.backend) != known.damage:
        return None
    if known.supports and known.supports != supports(storage):
        return None
    with suppress(IntegrityError):
        if base.is_generation_of(newest_ref(storage, worker.scope)) and not lacks_pack(storage, base.ref):
            passed = {"declined": known.declined, "waiting": known.waiting}
            return commit_report(worker, CommitStatus.UNCHANGED, base.ref, **passed)
    return None


def confirm(worker: Worker) -> None:
    """Mark the scope as used: gc forgets what nobody uses, and a commit that publishes nothing is a use."""
    backend, scope = worker.storage.backend, worker.scope
    if worker.storage.settings:
        if not mark_used_again(backend, scope):
            mark_used(backend, scope)
        worker.state.confirm()


def remember_still(worker: Worker, report: CommitReport, found: Scan, mark: str) -> None:
    """Remember the root for the next commit, if all that the scan `found` is published, declined or waiting.

    `mark` is that of what was in quarantine before the commit looked for what the store has lost. Nothing is remembered
    of an empty root, which is likely to be the wrong one: every commit is to say so.
    """
    if report.found and not report.skipped and (still := still_since(worker.root, found)):
        with suppress(CacheRootError, OSError):
            worker.state.save_still(still, mark)


def remember_placed(worker: Worker, manifest: Manifest, files: Files, placed: Placed, mark: Mark) -> None:
    """Remember the root for the next commit, after a restore has put `files`, all that a manifest has, in their place.

    Whatever else is in the root is in folders that were not placed, or has changed the time of one that was. What is
    remembered holds as long as no damage is found. Nothing is remembered of a generation that leans on a store below:
    the next commit must see what it can put back.
    """
    settled = placed.settled()
    is_told = changed_in_place(files).keys() <= settled.keys()
    if is_told and not leans_on(manifest):
        in_place = {path: known.entry.mtime_ns for path, known in settled.items()}
        still = still_since_placed(worker.root, placed, in_place, mark)
        with suppress(CacheRootError, OSError):
            worker.state.save_still(still, NO_DAMAGE)


def commit_report(worker: Worker, status: CommitStatus, ref: Ref | None, **fields: Any) -> CommitReport:
    """The report of a commit after which `ref` is the newest generation, with what is known about the worker."""
    return CommitReport(
        status=status,
        key=worker.scope.key,
        gpu=worker.scope.gpu,
        environment=worker.scope.environment,
        store=worker.storage.location,
        cache_root=worker.root.path,
        generation=ref.generation if ref else 0,
        files=ref.files if ref else 0,
        bytes=ref.size if ref else 0,
        **fields,
    )
