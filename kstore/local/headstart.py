"""What a restore into an empty root begins while a large manifest is still being parsed: folders, and links in them.

Everything is in a staging folder, so nothing is lost if the manifest turns out to be damaged, or not to be the one that
is restored. If it is restored, and all of it is wanted, staging continues from there.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from itertools import chain, compress, islice
from typing import Self

from kstore.blobs import BlobStore
from kstore.blobs.loose import blob_path
from kstore.calls import link_rows
from kstore.errors import CacheRootError
from kstore.folders import make_folders
from kstore.local.cacheroot import CacheRoot
from kstore.local.link import Link, Linker, LinkMode
from kstore.local.placed import Brought
from kstore.local.stages import find_elsewhere
from kstore.local.state import StateFolder
from kstore.published.byfolder import Run
from kstore.published.manifest import BELOW, ENTRY_SIZE, FLAGS_AT, LINK, Files, Seen, unpack_entries, with_parents
from kstore.published.ref import Ref
from kstore.published.snapshot import Snapshot
from kstore.published.untrusted import are_shallow, stay_below
from kstore.threads import Pool, submit

log = logging.getLogger(__name__)

_PROBE = "probe"
"""No component has that name. It goes with the staging folder."""
_WORTHWHILE = 500
"""Artifacts: with fewer, the threads take longer to start than they save."""
_MOST_TRIED = 8
"""Blobs that are tried: some may be gone or altered."""


class Begun:
    """What was begun with one generation. Once dropped, all of it is gone."""

    def __init__(self, state: StateFolder, folder: str | None) -> None:
        """Loose blobs are linked from `folder`, if there are any.

        Raises:
            OSError, CacheRootError: no staging folder can be made.
        """
        self._folder = folder
        self._stack = ExitStack()
        self._is_dropped = False
        self._way: Future[LinkMode] | None = None
        self.linker = Linker()
        """Which way links are made."""
        self.folders = set[str]()
        """Those that are being made, as artifact paths."""
        self.making: list[Future[None]] = []
        """Each is done when some of them exist."""
        self.linking: list[Future[Brought]] = []
        """The results of linking."""
        self.unseen: Files = {}
        """What is wanted and was not in the rows that were seen: what is bound to this host."""
        self.stage = self._stack.enter_context(state.staging())
        """The staging folder."""
        self._folder_pool, self._link_pool = self._pool(1), self._pool(2)

    def _pool(self, size: int) -> Pool:
        pool = Pool(size)
        self._stack.callback(pool.shutdown, cancel_futures=True)
        return pool

    def drop(self) -> None:
        """Give it up, and free its memory: a snapshot that lives on may still refer to this."""
        self._is_dropped = True
        self._stack.close()
        self.folders, self.making, self.linking, self.unseen = set(), [], [], {}

    def see(self, runs: Sequence[Run]) -> None:
        """Make the folders of these rows of its manifest, and link their blobs."""
        nearest = {run.folder or "" for run in runs}
        if self._is_dropped or not (stay_below(runs) and are_shallow(nearest)):
            return  # If a path leads elsewhere or far too deep, the manifest will be refused.
        new = with_parents(nearest) - self.folders
        self.folders |= new
        self.making.append(submit(self._folder_pool, self._make, sorted(new)))
        if self._folder:
            if self._way is None:
                self._way = submit(self._link_pool, self._find_way, self._folder, runs)
            made = self._way, self.making[-1]
            self.linking.append(submit(self._link_pool, self._link, self._folder, runs, *made))

    def missing(self, folders: Sequence[str]) -> list[str]:
        """Those of these folders that are not being made. Nobody asks again: the others are let go of."""
        made, self.folders = self.folders, set()
        return [folder for folder in folders if folder not in made]

    def _make(self, folders: Sequence[str]) -> None:
        make_folders([f"{self.stage}/{path}" for path in folders])

    def _link(self, folder: str, runs: Sequence[Run], finding: Future[LinkMode], making: Future[None]) -> Brought:
        """Link what is never changed in place, and not known to be in a store below."""
        paths = [f"{run.folder}/{name}" for run in runs for name in run.names]  # Many runs wait, but not their paths.
        records = b"".join(run.records for run in runs)
        making.result()
        way = finding.result()
        flags = records[FLAGS_AT::ENTRY_SIZE]
        if way is LinkMode.COPY:
            return Brought({}, [path for path, its in zip(paths, flags, strict=True) if its & LINK])
        errors = link_rows(
            paths, records, folder, self.stage, needed=LINK, refused=BELOW, clones=way is LinkMode.REFLINK
        )
        lacking = [path for path, its in compress(zip(paths, flags, strict=True), errors) if its & LINK]
        return Brought({way: errors.tolist().count(0)}, lacking)

    def _find_way(self, folder: str, runs: Sequence[Run]) -> LinkMode:
        """Which way works, tried with the first blobs that may be linked; `COPY` if none of these can be."""
        entries = chain.from_iterable(unpack_entries(run.records) for run in runs)
        linkable = (entry for entry in entries if entry.flags & (LINK | BELOW) == LINK)
        target = f"{self.stage}/{_PROBE}"
        for entry in islice(linkable, _MOST_TRIED):
            (way,) = self.linker.link_many([Link(blob_path(folder, entry.digest), target, entry)])
            if way is not LinkMode.COPY:
                return way
        return LinkMode.COPY


class HeadStart:
    """The head start of one restore. After its context, only what was moved to its place is left."""

    def __init__(self, root: CacheRoot, state: StateFolder) -> None:
        self._root = root
        self._state = state
        self._begun: Begun | None = None
        self._is_over = False
        self._lock = threading.Lock()
        """A thread that looks at a hanging store may come back to `follow` when the restore is over."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
            self._drop()

    def _drop(self) -> None:
        begun, self._begun = self._begun, None
        if begun:
            begun.drop()

    def follow(self, blobs: BlobStore, ref: Ref) -> Seen | None:
        """Begin with a generation whose artifacts are in `blobs`. What was begun with an earlier one is dropped.

        Returns what to call with the rows of its manifest, if anything can be begun.
        """
        with self._lock:
            self._drop()
            is_small = ref.files < _WORTHWHILE
            if not (self._is_over or is_small or ref.depth or any(map(_holds_anything, self._root.folders.values()))):
                self._begun = self._begin(None if ref.packs else blobs.loose.folder)
            return self._begun.see if self._begun else None

    def _begin(self, folder: str | None) -> Begun | None:
        try:
            return None if find_elsewhere(self._root, self._root.folders) else Begun(self._state, folder)
        except (OSError, CacheRootError) as error:
            log.debug("no part of a restore is begun early: %s", error)
            return None

    def begun_with(self, snapshot: Snapshot) -> Begun | None:
        """What was begun with that generation, if it was the last."""
        return self._begun if self._begun and snapshot.see == self._begun.see else None


def _holds_anything(folder: str) -> bool:
    """Whether a folder holds anything. One that cannot be read counts as if it did."""
    try:
        with os.scandir(folder) as entries:
            return any(True for _ in entries)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
