"""One generation on its way into a cache root: what is there already, what is wanted, fetched, moved and remembered."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from kstore.errors import KstoreError
from kstore.local.found import Scan, Skipped
from kstore.local.headstart import Begun, HeadStart
from kstore.local.index import Index
from kstore.local.link import Linker, LinkMode
from kstore.local.place import Placer
from kstore.local.placed import Placed
from kstore.local.state import Base, State
from kstore.local.untouched import UNMARKED, Mark
from kstore.merge import NOT_TAKEN, Merged, merge, still_declined
from kstore.operations.displaced import put_right
from kstore.operations.foreign import mark_machine
from kstore.operations.request import if_there, restore_report
from kstore.operations.selection import Selection, select
from kstore.operations.takeover import drop_foreign
from kstore.operations.unchanged import remember_placed
from kstore.operations.wanted import choose_wanted, hindered
from kstore.published.layers import attempt, remembers
from kstore.published.leaning import supports_of
from kstore.published.manifest import Files, compact, compacted
from kstore.published.snapshot import Snapshot
from kstore.report import RestoreReport, RestoreStatus, count_components
from kstore.worker import Worker

log = logging.getLogger(__name__)


class Restoration:
    """One restore of one generation."""

    def __init__(self, worker: Worker, snapshot: Snapshot, state: State, head_start: HeadStart | None) -> None:
        self._worker = worker
        self._begun = head_start.begun_with(snapshot) if head_start else None
        self._snapshot = snapshot
        self._ref = snapshot.ref
        self._state = state
        self._host = state.host
        """What is remembered of the host as long as the compiler cannot be asked."""
        self._base = worker.base(state)
        self._found = Scan()
        self._selected = Selection({}, {}, has_all=False, skipped=[])
        self._hindered: dict[str, Skipped] = {}
        """What is not in its place and cannot be put there, and why."""
        self._left: dict[str, bytes] = {}
        """What another host has left and cannot be removed, with its digests."""
        self._skipped: list[Skipped] = []
        self._seen = self._newest_of_own() if snapshot.ref.scope != worker.scope else 0

    def _newest_of_own(self) -> int:
        refs, scope = self._worker.storage.refs, self._worker.scope
        return attempt(self._worker.storage, lambda: max(refs.generations(scope), default=0), 0)

    def run(self, status: RestoreStatus, before_move: Callable[[], None]) -> RestoreReport:
        """Restore; `status` names what was to be done. See `Placer.place` for `before_move`, and what it raises."""
        self._look()
        self._snapshot.put_aside(self._worker.root.state)
        merged = self._compare()
        merged.files = compact()  # Nothing is published: `files` has what is to be here.
        files = self._selected.files
        wanted = choose_wanted(files, self._found, merged)
        self._hindered = hindered(files, self._found, wanted)
        is_fresh = self._selected.has_all and len(wanted) == len(files)
        placer = self._placer(self._begun_of(wanted))
        there = self._found.folders
        since = max(self._found.began, self._worker.state.own_until)
        placed = placer.place(wanted, self._ref.packs, there, before_move, since=since, marks=is_fresh)
        try:
            self._remember(merged, placed)
        except (KstoreError, OSError) as error:
            log.warning("what was restored is in place, but cannot be remembered, and will be read again: %s", error)
        return self._report(status, wanted, placer, placed)

    def _look(self) -> None:
        """Find out what is in the root, and what is to be there."""
        worker, manifest = self._worker, self._snapshot.checked
        self._found = worker.scan(self._state)
        self._left = drop_foreign(worker, self._state, self._found)
        if not self._left:
            mark_machine(worker)
        self._skipped += (Skipped(p, "it was built on another host, and cannot be removed") for p in sorted(self._left))
        if self._state.host and worker.state.last_restore.host_hint() != worker.host.hint:
            worker.host.ask()  # What is built from now on is from this one.
            self._host = ""
        put_right(worker, self._found)
        if manifest.hosts:
            worker.host.ask()
        self._selected = select(worker, self._snapshot, self._found)
        self._skipped += self._selected.skipped

    def _begun_of(self, wanted: Files) -> Begun | None:
        """What was begun, if what is wanted is all that the manifest has, and nothing for this host takes the place of
        what is for any host. Otherwise it is dropped.
        """
        begun, manifest, bound = self._begun, self._snapshot.manifest, self._worker.bound_of(self._snapshot.manifest)
        is_whole = self._selected.has_all and len(wanted) == len(manifest.files) + len(bound)
        if begun and not is_whole:
            begun.drop()
            return None
        if begun:
            begun.unseen = bound
        return begun

    def _placer(self, begun: Begun | None) -> Placer:
        worker, storage = self._worker, self._worker.storage
        blobs, below = storage.holder(self._ref).blobs, partial(storage.below.blobs, self._ref.depth)
        linker = begun.linker if begun else Linker()
        return Placer(
            worker.root, worker.state, blobs, linker, worker.progress, worker.waiting, worker.lists, below, begun
        )

    def _report(self, status: RestoreStatus, wanted: Files, placer: Placer, placed: Placed) -> RestoreReport:
        files, away = self._selected.files, self._selected.away
        self._skipped += sorted(set(self._hindered.values()))
        there = {path for path in placed.occupied if os.path.isfile(self._worker.root.local_path(path))}
        left_out = placed.lacking - there | self._hindered.keys()
        modes = placed.modes if placed.count else Counter()
        linked = modes[LinkMode.REFLINK] + modes[LinkMode.HARDLINK]
        whole = count_components(files)
        return restore_report(
            self._worker,
            status if wanted else if_there(status),
            self._ref,
            files=len(files) + len(away),
            bytes=sum(count.bytes for count in (*whole.values(), *count_components(away).values())),
            placed=placed.count,
            left_out=len(left_out) + len(away),
            link_mode=next((mode for mode in LinkMode if modes[mode]), None),
            link_why=placer.link_why or (self._why_copied() if placed.count and not linked else ""),
            used_modes={str(mode): modes[mode] for mode in LinkMode if modes[mode]},
            components=count_components(compacted(files).without(left_out)) if left_out else whole,
            skipped=(*self._skipped, *placed.skipped),
        )

    def _why_copied(self) -> str:
        if self._ref.packs:
            return "the blobs are packed"
        return "none of them may be linked: they change, or are executable"

    def _compare(self) -> Merged:
        """What the root has that is not the store's: leftovers of an earlier run stay, and stay local."""
        base, theirs, ours = self._base, self._selected.files, self._found.files
        if base is None or base.ref.scope != self._ref.scope:
            return merge({}, theirs, ours, {})
        declined, files_of, outdated = self._state.declined, self._worker.files_of, self._state.outdated
        if not remembers(self._snapshot, base) or self._has_lost(base):
            kept = still_declined(declined, files_of(base.manifest), theirs, ours) if declined else {}
            return merge({}, theirs, ours, kept, outdated=outdated)
        return merge(files_of(base.manifest), theirs, ours, declined, outdated=outdated)

    def _has_lost(self, base: Snapshot) -> bool:
        """Whether the store can give neither `base`, which came after what is restored, nor anything newer: then nobody
        took out what `base` had.
        """
        if base.ref.generation <= self._ref.generation or base.ref.depth != self._ref.depth:
            return False
        with suppress(KstoreError, OSError):
            newest = self._worker.storage.holder(self._ref).newest_whole(self._ref.scope)[1]
            return newest is None or newest.ref.generation < base.ref.generation
        return False

    def _remember(self, merged: Merged, placed: Placed) -> None:
        old = self._base
        keeps_base = old is not None and old.is_generation_of(self._ref) and not placed.marked_ns
        index = self._found.index_beside_base if keeps_base else self._found.index
        untouched = self._worker.untouched(self._state, old) if keeps_base else UNMARKED
        if index != self._state.index or placed.count:
            files = index.files.copy()
            files.put(placed.settled().items())
            saved_ns = self._worker.state.save_index(Index(files, index.folders))
            untouched = Mark(placed.marked_ns, saved_ns) if placed.marked_ns else untouched
        base = Base(self._worker.storage.holder(self._ref).identity, self._snapshot)
        # What stays in the place of base's files is no change to them: the next commit must not take it for one.
        joined = set(merged.to_merge) - merged.prevailing
        stayed = dict.fromkeys((*joined, *placed.occupied, *self._hindered), NOT_TAKEN)
        self._worker.state.save_base(
            base,
            merged.declined | stayed,
            host=self._worker.host.fingerprint_or(self._host),
            synced=False,
            untouched=untouched,
            foreign=self._left,
            missed=self._missed(placed),
            seen=self._seen,
            supports=supports_of(self._worker.storage, self._snapshot.manifest),
            outdated=merged.outdated,
        )
        if placed.marked_ns:
            remember_placed(self._worker, self._snapshot.manifest, self._selected.files, placed, untouched)

    def _missed(self, placed: Placed) -> set[bytes]:
        """What this restore, or an earlier one, could not read, and nobody has read since."""
        if not (placed.missed or self._state.missed):
            return set()
        files = self._selected.files
        read = {files[path].digest for path in placed.paths}
        needed = {entry.digest for entry in files.values()}
        return placed.missed | (self._state.missed & needed) - read
