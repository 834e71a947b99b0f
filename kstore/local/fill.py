"""Brings artifacts from stores into the folders in which they are built: linked, or copied.

However an artifact came here, it gets its blob's stamp as the fraction of its modification time, and no change leaves
that time. Exceptions are artifacts whose time matters or that are written with other paths. By its time, the next scan
knows an artifact that is never changed in place, without a hash and without an entry in the index.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import chain, islice
from queue import SimpleQueue
from typing import NamedTuple

from kstore.blobs import BlobStore, Part
from kstore.blobs.loose import blob_path
from kstore.blobs.packindex import MAX_SHARED_FRAME
from kstore.blobs.packreader import Blob
from kstore.folders import make_folders
from kstore.local.headstart import Begun
from kstore.local.index import Known
from kstore.local.link import Link, Linker, LinkMode
from kstore.local.pathsof import PathsOf
from kstore.local.placed import Brought
from kstore.local.write import Writer
from kstore.progress import Progress
from kstore.published.manifest import LINK, Files, compact, with_flags, without_flags
from kstore.threads import Pool, submit

log = logging.getLogger(__name__)

THREADS = 2
"""More threads only wait for each other, in the filesystem and for the interpreter."""
_LINK_COUNT = 512
"""Files that a thread links in one go."""
_FOLDER_COUNT = 128
"""Folders that are made before the threads that wait for them are told."""
_WAITING = 2 * THREADS
"""Parts that are being copied or wait for a thread: what is known about each is in memory."""


class Source(NamedTuple):
    """A store that blobs come from, and how they can be linked from it."""

    blobs: BlobStore
    linker: Linker


class FoldersBeingMade:
    """The folders that artifacts are built in, while they are being made: what needs some of them waits for these."""

    def __init__(
        self, missing: Sequence[str], staged: Callable[[str], str], making: Sequence[Future[None]], maker: Pool
    ) -> None:
        """`maker` makes those that are `missing`, sorted as artifact paths; the others exist when `making` is done."""
        self._missing = missing
        self._making = making
        folders = [*map(staged, missing)]
        some = (folders[at : at + _FOLDER_COUNT] for at in range(0, len(folders), _FOLDER_COUNT))
        self._made = [submit(maker, make_folders, folders) for folders in some]

    def wait(self, paths: Collection[str] | None = None) -> None:
        """Wait until the folders of these artifacts exist; without any, until all do."""
        needed = len(self._made)
        if paths:
            last = max(path.rpartition("/")[0] for path in paths)
            needed = bisect_left(self._missing, last) // _FOLDER_COUNT + 1
        for made in (*self._making, *self._made[:needed]):
            made.result()


class Filler:
    """Brings artifacts to where they are being built, from one store after the other."""

    def __init__(
        self,
        wanted: Files,
        staged: Callable[[str], str],
        writer: Writer,
        folders: FoldersBeingMade,
        pool: Pool,
        progress: Progress,
    ) -> None:
        """Each of the artifacts `wanted` is built where `staged` says, in one of these folders."""
        self.left = wanted
        """What has not been brought."""
        self.known: dict[str, Known] = {}
        """What of the rest is changed in place, for the index."""
        self.modes = Counter[LinkMode]()
        """How many artifacts came which way."""
        self._staged = staged
        self._writer = writer
        self._folders = folders
        self._pool = pool
        self._progress = progress

    def take_begun(self, begun: Begun, source: Source, packs: Sequence[str]) -> None:
        """Take what is being linked already, and meanwhile copy what is never linked. No other file is brought."""
        unlinked = PathsOf(without_flags(self.left, LINK))
        unseen = [path for path, entry in begun.unseen.items() if entry.flags & LINK]
        linked = (some.result() for some in begun.linking)
        self._keep([*self._copy_while(linked, unlinked, source.blobs, packs), *unseen])

    def take(self, source: Source, packs: Sequence[str], flag: int = 0) -> None:
        """Bring what has not been brought: link what is loose, and meanwhile copy the rest. Then copy what is left.

        With a `flag`, only what has that.
        """
        among = with_flags(self.left, flag) if flag else self.left
        if not among:
            return
        others, linking = self._start_links(among, source, packs)
        lacking = self._copy_while(linking, others, source.blobs, packs)
        if lacking:  # What cannot be linked, is damaged, or is not where the ref says.
            lacking = self._copy_alone(lacking, source.blobs, packs)
        not_asked = without_flags(self.left, flag) if flag else ()
        self._keep([*lacking, *not_asked])

    def _keep(self, lacking: Collection[str]) -> None:
        self.left = compact((path, self.left[path]) for path in lacking if path in self.left)

    def _note(self, brought: Brought) -> None:
        self.modes += Counter(brought.modes)  # Unlike `update`, this keeps no way by which nothing came.
        self.known |= brought.known
        self._progress.done = self.modes.total()

    def _copy_while(
        self, linking: Iterable[Brought], paths: PathsOf, blobs: BlobStore, packs: Sequence[str]
    ) -> list[str]:
        """Copy these, in the order in which the store has them, while others are being linked. Returns the paths of
        what could not be brought.
        """
        parts = blobs.parts(paths.wanted, packs)
        copying = self._copy_pack(paths, parts) if len(packs) == 1 else self._copy(paths, parts)
        lacking = list[str]()
        for brought in chain(copying, linking):
            self._note(brought)
            lacking += brought.lacking
        return [*lacking, *paths.left()]

    def _copy_alone(self, lacking: Iterable[str], blobs: BlobStore, packs: Sequence[str]) -> list[str]:
        """Copy what is somewhere in a store, blob by blob. Returns the paths of what is nowhere."""
        paths = PathsOf({path: self.left[path] for path in lacking})
        for blob in _readable(blobs.fetch_many(dict(paths.wanted.items()), packs)):
            self._note(self._write([blob], paths))
            del blob  # or a large one would be held while the next one is read
        return [*paths.left()]

    def _start_links(self, among: Files, source: Source, packs: Sequence[str]) -> tuple[PathsOf, Iterable[Brought]]:
        """Link what is loose; returns the other files, and the threads' work on the links."""
        folder = source.blobs.loose.folder
        if folder is None:
            return PathsOf(among), []
        if packs:
            paths = PathsOf(among)
            if source.blobs.have_all(paths.wanted, packs):
                return paths, []
            del paths  # The others are fewer.
        packed = source.blobs.digests_in(packs)
        linkable = with_flags(among, LINK)
        loose = [path for path, entry in linkable.items() if entry.digest not in packed]
        if not loose:
            return PathsOf(among), []
        # The first one finds out which way works.
        first = self._link(source.linker, folder, loose[:1])
        if source.linker.mode is LinkMode.COPY:
            return PathsOf(among), []
        others = without_flags(among, LINK)
        others.put((path, entry) for path, entry in linkable.items() if entry.digest in packed)
        some = (loose[at : at + _LINK_COUNT] for at in range(1, len(loose), _LINK_COUNT))
        linking = [submit(self._pool, self._link, source.linker, folder, paths) for paths in some]
        return PathsOf(others), chain([first], (part.result() for part in linking))

    def _link(self, linker: Linker, folder: str, paths: Sequence[str]) -> Brought:
        """Link the artifacts whose blobs exist and have not been touched since they were published."""
        entries = [self.left[path] for path in paths]
        links = [
            Link(blob_path(folder, e.digest), self._staged(path), e) for path, e in zip(paths, entries, strict=True)
        ]
        self._folders.wait(paths)
        modes = linker.link_many(links)
        lacking = [path for path, mode in zip(paths, modes, strict=True) if mode is LinkMode.COPY]
        return Brought(Counter(mode for mode in modes if mode is not LinkMode.COPY), lacking)

    def _copy_pack(self, paths: PathsOf, parts: Iterator[Part]) -> Iterator[Brought]:
        """Copy one pack. A model of the usual size is a single part: two threads write that as well."""
        first = [*islice(parts, 2)]
        if len(first) != 1 or first[0].size > MAX_SHARED_FRAME:
            yield from self._copy(paths, chain(first, parts))
            return
        blobs = [*first[0].load()]
        half = len(blobs) // 2
        written = submit(self._pool, self._write, blobs[:half], paths)
        yield self._write(blobs[half:], paths)
        yield written.result()

    def _copy(self, paths: PathsOf, parts: Iterable[Part]) -> Iterator[Brought]:
        def write(part: Part) -> Brought:
            return self._write(part.load(), paths)

        return _map_parts(self._pool, write, parts)

    def _write(self, blobs: Iterable[Blob], paths: PathsOf) -> Brought:
        contents = paths.take(blobs)
        self._folders.wait()
        return self._writer.write(contents)


def _readable(blobs: Iterator[Blob]) -> Iterator[Blob]:
    """Yield blobs until there is trouble with the store, which costs only what is still missing then."""
    try:
        yield from blobs
    except OSError as error:
        log.warning("what is missing cannot be looked for: %s", error)


def _map_parts(pool: Pool, function: Callable[[Part], Brought], parts: Iterable[Part]) -> Iterator[Brought]:
    """Like `pool.map`, in any order: a part of many small files takes long. A large blob is in memory by itself."""
    done, waiting = SimpleQueue[Future[Brought]](), 0
    for part in parts:
        is_large = part.size > MAX_SHARED_FRAME
        while waiting and (is_large or waiting >= _WAITING):
            yield done.get().result()
            waiting -= 1
        submit(pool, function, part).add_done_callback(done.put)
        waiting += 1
        if is_large:
            yield done.get().result()
            waiting -= 1
    for _ in range(waiting):
        yield done.get().result()
