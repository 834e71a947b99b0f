"""What a commit leaves in the cache root's state folder, for the next one.

Losing it costs time, never an artifact: if the root's disk is full, what was compiled is published all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from kstore.errors import CacheRootError
from kstore.local.found import Scan
from kstore.local.index import Index
from kstore.local.state import Base, State
from kstore.local.untouched import UNMARKED
from kstore.operations.ours import Ours
from kstore.operations.proposal import Proposal
from kstore.published.leaning import supports_of
from kstore.published.manifest import HOST, Manifest, with_flags
from kstore.published.snapshot import Snapshot
from kstore.told import warn_once
from kstore.worker import Worker

log = logging.getLogger(__name__)


class Memory:
    """What one commit leaves for the next."""

    def __init__(self, worker: Worker, state: State, base: Snapshot | None, found: Scan) -> None:
        """`base` is what the root grew from until now."""
        self._worker = worker
        self._state = state
        self._base = base
        self._found = found
        self.is_kept = True
        """Whether everything could be written."""

    def save_host(self, ours: Ours) -> None:
        """Remember that the root is on another host now, if `ours` was built there, and what is from the one before."""
        if not self._state.host or not with_flags(ours.files, HOST):
            return  # otherwise a commit would wait for the compiler's answer
        host = self._worker.host.fingerprint
        if host != self._state.host:
            self._worker.state.save_host(host, ours.foreign)

    def save_index(self, index: Index) -> None:
        """Remember what was found in the root."""
        with self._writing():
            self._worker.state.save_index(index)

    def save_base(self, snapshot: Snapshot, manifest: Manifest, proposal: Proposal, ours: Ours, waiting: int) -> None:
        """Remember that the root grew from `snapshot`, which has this manifest: everything in `ours`, except what it
        has skipped, is also in there, declined by the `proposal` or `waiting`.
        """
        worker = self._worker
        missed = self._state.missed.difference([snapshot.ref.manifest], (e.digest for e in ours.files.values()))
        supports = supports_of(worker.storage, manifest)
        keeps_base = self._base is not None and self._base.is_generation_of(snapshot.ref)
        with self._writing():
            if not keeps_base and self._found.untouched:
                worker.state.save_index(self._found.index)
            worker.state.save_base(
                Base(worker.storage.holder(snapshot.ref).identity, snapshot),
                proposal.declined,
                host=worker.host.fingerprint_or(self._state.host),
                synced=not ours.skipped and self.is_kept,
                waiting=waiting,
                untouched=worker.untouched(self._state, self._base) if keeps_base else UNMARKED,
                foreign=ours.foreign,
                missed=missed,
                supports=supports,
                outdated=proposal.outdated,
            )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (CacheRootError, OSError) as error:
            if self.is_kept:
                warn_once(log, f"{error}; the next commit may read all of {self._worker.root.path} again")
            self.is_kept = False


def relied_upon(base: Snapshot | None, state: State) -> Snapshot | None:
    """What the root grew from, unless a restore could not read it in the store: then nothing of it is relied upon."""
    return None if base and base.ref.manifest in state.missed else base
