"""Restore: ref → manifest → blobs → files.

`restore` waits if it is told to, locks the cache root, and chooses a generation. `place`, which ranks that restore
together call directly, brings it in: a `Restoration` scans the root, fetches what is missing, moves it into its place,
and remembers that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from kstore.errors import IntegrityError, KstoreError, StoreUnavailable
from kstore.local.headstart import HeadStart
from kstore.local.state import Base
from kstore.operations.answer import AnotherRestore, answer_of, look_again, still_stands
from kstore.operations.choice import Choice, choose
from kstore.operations.request import Request, if_there, restore_report
from kstore.operations.restoration import Restoration
from kstore.operations.slips import warn_of_another_key
from kstore.operations.takeover import take_over, take_over_unrestored
from kstore.operations.wait import Waited, wait
from kstore.published.ref import Ref
from kstore.published.snapshot import Snapshot
from kstore.report import RestoreReport, RestoreStatus, count_components
from kstore.used import Marker, mark_used
from kstore.worker import Worker


def _at_once() -> None:
    """For a restore that waits for nobody before it moves anything."""


def restore(worker: Worker, request: Request) -> RestoreReport:
    """Put the artifacts of the newest generation, or of the requested one, into the cache root.

    Raises:
        MissError: a generation was requested that does not exist.
        IntegrityError: the ref or the manifest is damaged.
        KstoreError, OSError: the store or the cache root cannot be used.
    """
    waited = wait_for(worker, request)
    started = time.perf_counter()
    another = AnotherRestore(worker, request)
    with worker.state.locked_unless(another.has_restored, ask=another.ask):
        report = another.report or _restore(worker, request)
    return replace(report, seconds=time.perf_counter() - started, **waited.as_reported())


def _restore(worker: Worker, request: Request) -> RestoreReport:
    last = worker.state.last_restore.answer()  # This one is the last from now on.
    name = worker.state.last_restore.begin(worker.store_found)
    try:
        marker = Marker(worker.storage.backend, worker.scope, is_idle=not _may_mark(worker))
        with marker, HeadStart(worker.root, worker.state) as head_start:
            warn_of_another_key(worker, request)
            if last and (report := still_stands(worker, request, *last)):
                worker.state.last_restore.was_asked()  # Whoever waits for the root finds the same.
                remember_restored(worker, last[0], name, last[1])
                return report
            worker.host.foresee()
            with worker.storage.followed(partial(head_start.follow, worker.storage.blobs)):
                choice = _choose_or_doubt(worker, request)
            if worker.storage.trouble:
                marker.leave()
            if choice.snapshot:
                marked = _at_once if choice.snapshot.ref.depth else marker.mark(choice.snapshot.ref.scope)
                return _place(worker, choice.snapshot, choice.status, name, marked, request, head_start)
        if not worker.storage.trouble and not worker.storage.settings:
            worker.storage.is_made()  # A folder that holds something else is a mistake, not a new store.
    except (KstoreError, OSError):
        take_over_unrestored(worker)
        raise
    remember_miss(worker)
    return restore_report(worker, RestoreStatus.MISS, withdrawn=choice.withdrawn)


def remember_miss(worker: Worker) -> None:
    """There is nothing to restore: what comes from another host or place is put right all the same."""
    before = worker.state.last_restore.host_hint()
    hint = worker.host.hint if take_over(worker) else before  # The next restore tries once more.
    remember_restored(worker, None, hint=hint)


def _choose_or_doubt(worker: Worker, request: Request) -> Choice:
    try:
        return choose(worker, request)
    except IntegrityError as error:
        storage = worker.storage
        if storage.was_found and not storage.trouble and not storage.is_there():
            raise StoreUnavailable(f"the store at {storage.location} is gone") from error
        worker.state.doubt_base()
        raise


def wait_for(worker: Worker, request: Request) -> Waited:
    """Wait until there is something to restore, for as long as requested."""
    if not request.patience or worker.storage.trouble:
        return Waited()
    return wait(worker, request.generation, request.patience, lead=request.lead)


def mark_restored(worker: Worker, snapshot: Snapshot) -> None:
    """Mark its key as used: gc may forget what nobody uses."""
    if _may_mark(worker) and not snapshot.ref.depth:
        mark_used(worker.storage.backend, snapshot.ref.scope)


def _may_mark(worker: Worker) -> bool:
    return worker.may_write and not worker.storage.trouble


def place(
    worker: Worker, snapshot: Snapshot, status: RestoreStatus, before_move: Callable[[], None] = _at_once
) -> RestoreReport:
    """Put the artifacts of a generation into the cache root, which the caller has locked.

    `before_move` is called once, when everything is fetched and verified and nothing is in its place yet.
    """
    return _place(worker, snapshot, status, worker.state.last_restore.begin(worker.store_found), before_move)


def _place(
    worker: Worker,
    snapshot: Snapshot,
    status: RestoreStatus,
    name: str,
    before_move: Callable[[], None],
    request: Request | None = None,
    head_start: HeadStart | None = None,
) -> RestoreReport:
    """`name` is this restore's. It began before it chose, so others that come for the same `request` may rely on it."""
    state = worker.state.load()
    base = Base(worker.storage.holder(snapshot.ref).identity, snapshot)
    if state.base == base:
        state.base = base  # One manifest is enough, and this one has been parsed.
    report = Restoration(worker, snapshot, state, head_start).run(status, before_move)
    is_whole = not report.left_out and not report.skipped
    answer = None
    if request:
        answer = answer_of(worker, request, snapshot.ref, report, worker.host.fingerprint_or(state.host))
    remember_restored(worker, snapshot.ref, name if is_whole else "", answer)
    is_awaited = is_whole and worker.state.last_restore.was_asked()
    if is_awaited and request and (again := look_again(worker, snapshot, request)):
        remember_restored(worker, snapshot.ref, again, answer)
    return report


def remember_restored(
    worker: Worker, ref: Ref | None, whole: str = "", answer: Mapping[str, object] | None = None, hint: str = ""
) -> None:
    """Note a restore for whoever asks later whether it was of use. If the note cannot be written, nobody will know.

    `hint` is that of the host that the root is on, if that is not this one.
    """
    storage = worker.storage
    with suppress(OSError, KstoreError):
        store = storage.location if not storage.trouble and storage.settings else ""
        hint = hint or worker.host.hint
        worker.state.last_restore.save(ref, whole, answer, scope=worker.scope, store=store, host_hint=hint)


def report_placed(worker: Worker, snapshot: Snapshot, status: RestoreStatus) -> RestoreReport | None:
    """The report if another process of this host is found to have just placed all of a generation; else None."""
    state = worker.state
    is_placed = state.grew_from(worker.storage.holder(snapshot.ref).identity, snapshot.ref)
    if not (is_placed and state.last_restore.is_whole() and state.last_restore.host_hint() == worker.host.hint):
        return None
    files = worker.managed_files_of(snapshot.manifest)
    components = count_components(files)
    return restore_report(
        worker,
        if_there(status),
        snapshot.ref,
        files=len(files),
        bytes=sum(count.bytes for count in components.values()),
        components=components,
    )
