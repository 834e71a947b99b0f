"""Commit: scan → merge → upload → publish. See `merge` for what "merge" means.

Correct without locks: blobs are written first, then the manifest that names them, then the ref that names the
manifest, and a ref is created only if its generation does not exist. Whoever loses that race merges again with
what the winner published. A commit that is killed at any point leaves bytes that nothing refers to.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from kstore.backends import StagingLost, Upload
from kstore.damaged import damage_mark, damaged_blobs
from kstore.errors import IntegrityError
from kstore.intake import Intake
from kstore.local.found import Scan
from kstore.local.line import Line
from kstore.local.state import State, StillRoot
from kstore.merge import count_declined
from kstore.operations.foreign import foreign_at_commit, mark_machine
from kstore.operations.memory import Memory, relied_upon
from kstore.operations.merging import Merging
from kstore.operations.ours import Ours
from kstore.operations.proposal import Proposal, meta_by
from kstore.operations.reason import is_reason
from kstore.operations.slips import warn_of_published
from kstore.operations.sources import Sources
from kstore.operations.theirs import Newest, Theirs, is_kept, is_passed_over, kept_in_place
from kstore.operations.unchanged import commit_report, confirm, remember_still, unchanged_since
from kstore.published.leaning import noted, supports
from kstore.published.lost import lost_of
from kstore.published.manifest import HOST, MERGE, Manifest, blobs_of, with_flags
from kstore.published.races import outraced, races
from kstore.published.ref import Effort, Ref
from kstore.published.snapshot import Snapshot
from kstore.report import CommitReport, CommitStatus, count_components
from kstore.upload.named import packs_to_name
from kstore.upload.plan import UploadPlan, plan_upload
from kstore.upload.shortened import shortened
from kstore.upload.uploader import Uploader
from kstore.worker import Worker

log = logging.getLogger(__name__)


def commit(worker: Worker) -> CommitReport:
    """Publish what the worker's cache root has and the store lacks.

    Raises:
        KstoreError, OSError: the store or the cache root cannot be used.
    """
    started, began = time.perf_counter(), time.time()
    _expect_store(worker)
    known = None if worker.state.is_old() else worker.state.still()
    report = unchanged_since(worker, known)  # a commit that only looks need not wait for others
    if report is None:
        with worker.state.locked():
            report = _commit(worker, known, began)
    return replace(report, seconds=time.perf_counter() - started)


def _commit(worker: Worker, known: StillRoot | None, began: float) -> CommitReport:
    """The same for a worker that holds the root and has found it changed since `known` was remembered."""
    was_old, now = worker.state.is_old(), worker.state.still()
    report = unchanged_since(worker, now) if now != known else None
    if report is None:
        mark = damage_mark(worker.storage.backend)  # before looking for what is lost
        state = worker.state.load()
        if not state.synced:
            worker.host.ask()
        with Intake(worker, state) as intake:
            found = worker.scan(state, intake.offer)
            intake.end()
            attempt = _Commit(worker, state, found, intake, began)
            report = attempt.run()
        if report.status is CommitStatus.COMMITTED:
            warn_of_published(worker, state.base)
        if attempt.memory.is_kept:
            remember_still(worker, report, found, mark)
    if was_old and report.status is CommitStatus.UNCHANGED:
        confirm(worker)
    return report


def upload_ahead(worker: Worker) -> tuple[str, ...]:
    """Upload what a commit would add now, and publish nothing. Returns the packs that hold it.

    What is uploaded is likely, but not certain, to be there when it is published: see `Reliance`. Nothing is
    remembered about the cache root.

    Raises:
        KstoreError, OSError: the store or the cache root cannot be used.
    """
    with worker.state.locked():
        _expect_store(worker)
        state = worker.state.load()
        with Intake(worker) as intake:
            return _Commit(worker, state, worker.scan(state, intake.offer), intake).upload_ahead()


def _expect_store(worker: Worker) -> None:
    """A store that was there at the root's last restore and is not there now is gone. Another one, made in the folder
    that it was mounted on, would hide what is committed from everybody.
    """
    storage = worker.storage
    if worker.state.last_restore.found_store(storage.location) and not storage.settings:
        storage.must_exist = True


class _Commit:
    """One commit."""

    def __init__(self, worker: Worker, state: State, found: Scan, intake: Intake, began: float = 0.0) -> None:
        self._began = began
        self._worker = worker
        self._storage = worker.storage
        self._state = state
        base = worker.base(state)
        self._base = relied_upon(base, state)
        self._newest = Newest(worker.storage, worker.scope, self._base)
        self.memory = Memory(worker, state, self._base, found)
        self._merging = Merging(worker, state, base, intake.kept)
        self._waiting = state.waiting
        self._ours = Ours(found.files)
        self._found = found
        index = found.index_beside_base
        self._unsaved = index if index != state.index else None
        """What is to be remembered about the root and is not saved yet."""
        self._intake = intake
        self._uploader = Uploader(worker, intake, state.missed)
        self._published: Proposal | None = None
        is_supported = not state.supports or state.supports == supports(self._storage)
        self._is_synced = state.synced and self._unsaved is None and not found.unsettled and is_supported

    def run(self) -> CommitReport:
        if self._base and self._is_current(self._base):
            return self._report(CommitStatus.UNCHANGED, self._base.ref)
        self._leave_out_foreign()
        if self._unsaved:  # From now on, what is new in the root looks as if it had been there for long.
            self.memory.save_host(self._ours)
            self.memory.save_index(self._unsaved)
            self._unsaved = None
        for _ in races(Line(f"{self._storage.location} {self._worker.scope}")):
            theirs = self._newest.theirs()
            proposal = self._propose(theirs)
            lost = self._lost(theirs.snapshot)
            if not (lost or self._is_reason(theirs, proposal)):
                return self._unchanged(theirs, proposal)
            report = self._try_publish(theirs, proposal, lost)
            if report:
                return report
        raise outraced(self._worker.scope)

    def upload_ahead(self) -> tuple[str, ...]:
        """Upload what is new, except files that are merged by meaning: what they become is not known yet."""
        self._leave_out_foreign()
        theirs = self._newest.theirs()
        proposal = self._propose(theirs)
        news = proposal.taken if self._is_reason(theirs, proposal) else ()
        ours = self._ours.files
        paths = [path for path in news if not ours[path].flags & MERGE]
        uploader = self._uploader
        reliance = uploader.begin(
            theirs.snapshot, self._base, lambda: {ours[p].digest for p in paths}, is_first=not theirs.generation
        )
        sources = Sources(self._worker, ours, paths, {}, self._intake.kept)
        uploader.upload(plan_upload(reliance, sources.sizes), sources.read)
        return uploader.packs

    def _is_current(self, base: Snapshot) -> bool:
        """Whether neither the root nor the store has changed since the root was last committed."""
        if not self._is_synced:
            return False
        with suppress(IntegrityError):
            if base.is_generation_of(self._newest.ref()) and not self._newest.lacks_pack(base.ref):
                return not (damaged_blobs(self._storage.backend) and self._lost(base))
        return False

    def _leave_out_foreign(self) -> None:
        bound = with_flags(self._ours.files, HOST)
        if bound and not self._worker.host.fingerprint:
            self._ours.leave_out_bound(self._state.foreign)
            return
        foreign = foreign_at_commit(self._worker, self._state, self._found)
        if foreign:
            self._ours.leave_out_foreign(foreign)
        else:
            mark_machine(self._worker, {path.partition("/")[0] for path in bound})

    def _propose(self, theirs: Theirs) -> Proposal:
        proposal = self._merging.propose(theirs, self._ours.files)
        self._ours.skipped += proposal.skipped
        return proposal

    def _is_reason(self, theirs: Theirs, proposal: Proposal) -> bool:
        if self._worker.is_temporary:
            return bool(proposal.taken)
        return is_reason(self._worker.table, proposal.taken, self._ours.files, (theirs.snapshot, self._base))

    def _try_publish(self, theirs: Theirs, proposal: Proposal, lost: set[bytes]) -> CommitReport | None:
        """Upload and publish. Returns None if it must merge again: a file changed, or another worker was faster."""
        self._storage.create()
        try:
            with self._intake.reservation() as reserved:
                return self._upload_and_publish(theirs, proposal, lost, reserved)
        except StagingLost as error:
            log.debug("%s is merged again: %s", self._worker.scope, error)
            # It may be a blob that was to be stored while the root was read; the place reserved for all is gone then.
            self._intake.discard()
            return None

    def _upload_and_publish(
        self, theirs: Theirs, proposal: Proposal, lost: set[bytes], reserved: Upload
    ) -> CommitReport | None:
        uploader = self._uploader
        reliance = uploader.begin(
            theirs.snapshot, self._base, partial(self._concerned, theirs, proposal), is_first=not theirs.generation
        )
        if not is_kept(reliance, theirs):
            return None
        sources = self._sources(proposal, lost)
        plan = plan_upload(reliance, sources.sizes, lost)
        manifest = Manifest(proposal.files, proposal.hosts, meta_by(self._worker, theirs, proposal))
        manifest = noted(self._storage, manifest, theirs.snapshot, sources.sizes.keys(), plan.below)
        data = manifest.dump_aside(self._worker.root.state)
        to_store, delta = shortened(data, reliance)
        if self._is_in_vain(plan, theirs):
            self._lose_race(theirs.generation + 1)
            return None
        refused = uploader.upload(plan, sources.read, to_store)
        if refused:
            self._ours.leave_out_changed(refused)
            return None
        effort = Effort(max(0.0, round(time.time() - self._began, 3)), uploader.bytes, len(proposal.taken))
        packs = packs_to_name(plan, uploader.stored, manifest, delta)
        ref = theirs.successor(self._worker.scope, manifest, data, delta, packs, effort, self._worker.lease)
        if not is_passed_over(self._storage, self._worker.scope, theirs):
            return None
        if not self._storage.refs.publish(ref, reserved):
            self._lose_race(ref.generation)
            return None
        self._published, self._waiting = proposal, 0
        if not self._storage.refs.is_newest(ref):
            # Most likely another worker went on from it. But a worker that was held up for hours may have taken a
            # number that others had used, and gc removed, meanwhile: then the newest generation lacks what is ours.
            self._newest.taken = ref.generation
            return None
        self.memory.save_base(Snapshot(ref, data), manifest, proposal, self._ours, self._waiting)
        return self._report(CommitStatus.COMMITTED, ref, manifest, proposal)

    def _is_in_vain(self, plan: UploadPlan, theirs: Theirs) -> bool:
        """Whether nothing but a manifest is left to store, and another worker has published since."""
        if plan.wanted or self._uploader.written:
            return False
        return self._storage.refs.exists(self._worker.scope, theirs.generation + 1)

    def _lose_race(self, generation: int) -> None:
        log.debug("generation %d of %s was published by another worker", generation, self._worker.scope)
        self._newest.taken = generation

    def _concerned(self, theirs: Theirs, proposal: Proposal) -> set[bytes]:
        """Digests of what this commit may bring or rely on."""
        manifests = (digest for known in (theirs.snapshot, self._base) if known for digest in known.ref.stored)
        ours = (digest for digest, _ in blobs_of(self._ours.files))
        return kept_in_place(theirs).union(ours, proposal.contents, manifests)

    def _sources(self, proposal: Proposal, lost: set[bytes]) -> Sources:
        """What this commit brings, except what was written while the root was read."""
        ours, written = self._ours.files, self._uploader.written
        again = (path for path, entry in ours.items() if entry.digest in lost)
        news = {*proposal.taken, *again} if lost else proposal.taken
        paths: Iterable[str] = news
        if written:  # Then that is nearly all: what is not is looked for in one pass through ours.
            has_each = written.has_each(digest for digest, _ in blobs_of(ours))
            paths = (path for path, is_written in zip(ours, has_each, strict=True) if not is_written and path in news)
        return Sources(self._worker, ours, paths, proposal.contents, self._intake.kept)

    def _lost(self, newest: Snapshot | None) -> set[bytes]:
        """Digests of blobs in ours that the newest generation needs and the store has lost."""
        if newest is None:
            return set()
        ours = dict(blobs_of(self._ours.files))
        return lost_of(self._storage, newest, ours, self._state.missed, lacks=self._newest.lacks_pack(newest.ref))

    def _unchanged(self, theirs: Theirs, proposal: Proposal) -> CommitReport:
        self._waiting = len(proposal.taken)
        self._remember(theirs, proposal)
        ref = theirs.snapshot.ref if theirs.snapshot else None
        if self._published:
            return self._report(CommitStatus.COMMITTED, ref, theirs.manifest, self._published)
        return self._report(CommitStatus.UNCHANGED, ref, theirs.manifest, proposal)

    def _remember(self, theirs: Theirs, proposal: Proposal) -> None:
        """All of ours is in theirs, or declined: from now on, theirs is what the root grew from."""
        news = theirs.snapshot is not self._base or proposal.declined != self._merging.declined or not self._is_synced
        if theirs.snapshot and news:
            self.memory.save_base(theirs.snapshot, theirs.manifest, proposal, self._ours, self._waiting)

    def _report(
        self, status: CommitStatus, ref: Ref | None, manifest: Manifest | None = None, proposal: Proposal | None = None
    ) -> CommitReport:
        return commit_report(
            self._worker,
            status,
            ref,
            new_files=len(proposal.taken) if proposal and status is CommitStatus.COMMITTED else 0,
            new_blobs=self._uploader.blobs,
            uploaded=self._uploader.bytes,
            declined=count_declined(proposal.declined if proposal else self._merging.declined),
            waiting=self._waiting,
            layout=self._uploader.layout or "",
            components=count_components(*manifest.sets) if manifest else None,
            skipped=(*self._found.skipped, *self._ours.skipped),
            found=len(self._found.known),
        )
