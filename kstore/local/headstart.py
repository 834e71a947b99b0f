"""What a restore into an empty root begins while the manifest is still being parsed: folders, and links in them.

All of it is in a staging folder, so nothing is lost if the manifest turns out to be damaged, or not to be the one that
is restored. If it is, and all of it is wanted, staging goes on from there.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence, Set
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from itertools import compress, islice
from operator import not_
from types import TracebackType
from typing import Self

from kstore.blobs import BlobStore
from kstore.blobs.loose import blob_path
from kstore.calls import link_rows
from kstore.errors import CacheRootError
from kstore.folders import make_folders
from kstore.local.cacheroot import CacheRoot
from kstore.local.link import Link, Linker, LinkMode
from kstore.local.placed import Placed
from kstore.local.stages import find_elsewhere
from kstore.local.state import StateFolder
from kstore.published.manifest import Flag, Seen, unpack_entries, with_parents
from kstore.published.ref import Ref
from kstore.published.snapshot import Snapshot
from kstore.published.untrusted import stay_below
from kstore.threads import Pool, submit

log = logging.getLogger(__name__)

_LINK, _BELOW = int(Flag.LINK), int(Flag.BELOW)
_PROBE = "probe"
"""No component has that name."""
_MOST_TRIED = 8
"""Blobs that may have gone or been altered."""


class HeadStart:
    """Of one restore. Its staging folder is gone when its context is left."""

    def __init__(self, root: CacheRoot, state: StateFolder) -> None:
        self._root = root
        self._state = state
        self._stack = ExitStack()
        self._is_over = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._stack.close()
        self._see: Seen | None = None
        self._way: Future[LinkMode] | None = None
        self.stage = ""
        """The staging folder."""
        self.linker = Linker()
        """Which way links are made."""
        self.folders = set[str]()
        """Those that are being made, as artifact paths."""
        self.making: list[Future[None]] = []
        """Done when so many of them are there."""
        self.linking: list[Future[Placed]] = []
        """What comes of the links."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._begin_anew()  # The snapshot may live on, and knows who was told of its rows.

    def is_of(self, snapshot: Snapshot) -> bool:
        """Whether it was begun with that generation, and the last one that it was begun with."""
        return self._see is not None and snapshot.see is self._see

    def follow(self, blobs: BlobStore, ref: Ref) -> Seen | None:
        """Begin with a generation whose artifacts are in `blobs`: returns who is to be told of its rows, if there is
        anything to begin with. An earlier one is dropped.
        """
        self._begin_anew()
        if self._is_over or ref.depth or any(map(_holds_anything, self._root.folders.values())):
            return None
        try:
            if find_elsewhere(self._root, self._root.folders):
                return None
            self.stage = self._stack.enter_context(self._state.staging())
        except (OSError, CacheRootError) as error:
            log.debug("nothing of a restore is begun early: %s", error)
            return None
        self._see = partial(self._begin, self._pool(1), self._pool(2), None if ref.packs else blobs.loose.folder)
        return self._see

    def _pool(self, size: int) -> Pool:
        pool = Pool(size)
        self._stack.callback(pool.shutdown, cancel_futures=True)
        return pool

    def _begin(
        self, maker: Pool, linker: Pool, folder: str | None, paths: Sequence[str], records: bytes, nearest: Set[str]
    ) -> None:
        """Make the folders of these rows, and link their blobs from `folder`, if they are loose."""
        if not stay_below(paths):
            return  # The manifest will be refused.
        new = with_parents(nearest) - self.folders
        self.folders |= new
        self.making.append(submit(maker, make_folders, [f"{self.stage}/{path}" for path in sorted(new)]))
        if folder:
            if self._way is None:
                self._way = submit(linker, self._find_way, folder, records)
            self.linking.append(submit(linker, self._link, folder, paths, records, self._way, self.making[-1]))

    def _link(
        self, folder: str, paths: Sequence[str], records: bytes, finding: Future[LinkMode], making: Future[None]
    ) -> Placed:
        """Link what is never changed in place, and not known to be in a store below."""
        making.result()
        way = finding.result()
        if way is LinkMode.COPY:
            return Placed()
        errors = link_rows(
            paths, records, folder, self.stage, needed=_LINK, refused=_BELOW, clones=way is LinkMode.REFLINK
        )
        made = set(compress(paths, map(not_, errors)))
        return Placed(made, modes=Counter({way: len(made)}))

    def _find_way(self, folder: str, records: bytes) -> LinkMode:
        """Which way works, by trying with the first that can be linked; `COPY` if none of some can."""
        linkable = (entry for entry in unpack_entries(memoryview(records)) if entry.flags & (_LINK | _BELOW) == _LINK)
        target = f"{self.stage}/{_PROBE}"
        for entry in islice(linkable, _MOST_TRIED):
            (way,) = self.linker.link_many([Link(blob_path(folder, entry.digest), target, entry)])
            if way is not LinkMode.COPY:
                os.unlink(target)
                return way
        return LinkMode.COPY


def _holds_anything(folder: str) -> bool:
    """Whether somebody has been there, for all that can be seen."""
    try:
        with os.scandir(folder) as entries:
            return any(True for _ in entries)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
