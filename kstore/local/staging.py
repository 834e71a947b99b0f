"""Artifacts on their way into a cache root, in folders that nobody else looks into: linked, or copied.

However an artifact came here, it gets its blob's stamp as the fraction of its modification time, and no change leaves
that time. Exceptions are artifacts whose time matters or that are written with other paths. By its time, the next scan
knows an artifact that is never changed in place, without a hash and without an entry in the index.
"""

from __future__ import annotations

import logging
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import chain, islice
from queue import SimpleQueue
from typing import NamedTuple

from kstore.blobs import BlobStore, Part
from kstore.blobs.loose import blob_path
from kstore.blobs.packindex import MAX_SHARED_FRAME
from kstore.blobs.packreader import Blob
from kstore.folders import make_folders
from kstore.local.cacheroot import CacheRoot
from kstore.local.found import Skipped
from kstore.local.headstart import Begun
from kstore.local.link import Link, Linker, LinkMode
from kstore.local.pathsof import PathsOf
from kstore.local.placed import Placed
from kstore.local.stages import clock_of
from kstore.local.untouched import mark_folders
from kstore.local.write import Writer
from kstore.progress import Progress
from kstore.published.manifest import Files, Flag, folders_of, parents_of, unit_of
from kstore.threads import Pool, submit

log = logging.getLogger(__name__)

_THREADS = 2
"""More threads only wait for each other, in the filesystem and for the interpreter."""
_LINK_COUNT = 512
"""Files that a thread links in one go."""
_FOLDER_COUNT = 128
"""Folders that are made before the threads that wait for them are told."""
_WAITING = 2 * _THREADS
"""Parts that are being copied or wait for a thread: what is known about each is in memory."""
_SECOND = 1_000_000_000
_TICK_NS = 10_000_000
"""A file's time may be finer than the clock, and so later than now by up to one tick."""
_GROUP, _LINK, _BELOW = int(Flag.GROUP), int(Flag.LINK), int(Flag.BELOW)


class Source(NamedTuple):
    """A store that blobs come from, and how they can be linked from it."""

    blobs: BlobStore
    linker: Linker


class Staging:
    """The artifacts on their way, in folders that nobody else looks into."""

    def __init__(
        self,
        root: CacheRoot,
        stages: dict[str, str],
        wanted: Files,
        folders: Iterable[str],
        begun: Begun | None,
        since: float,
    ) -> None:
        """`folders` are all that `wanted` is in; `since` is when the root was looked at, by `time.monotonic`."""
        self._stages = stages
        self._writer = Writer(root, stages, self.staged, wanted)
        ago_ns = int((time.monotonic() - since) * _SECOND)
        self._since_ns = {stage: clock_of(stage) - ago_ns for stage in set(stages.values())}
        self._wanted = wanted
        self._folders = sorted(folders)
        """As artifact paths, each after those above it."""
        self._staged_folders = [self.staged(folder) for folder in self._folders]
        """Where they are being built, in the same order."""
        self._linking: Sequence[Future[Placed]] = begun.linking if begun else ()
        """What is being linked already."""
        self._making: Sequence[Future[None]] = begun.making if begun else ()
        """Done when the folders exist that somebody has begun to make."""
        self._missing = [folder for folder in self._folders if folder not in begun.folders] if begun else self._folders
        """The other folders."""
        self._made: list[Future[None]]
        """Each is done when some of these exist; `fill` begins them."""

    def staged(self, path: str) -> str:
        """Where an artifact, or a folder of them, is being built."""
        return f"{self._stages[path.partition('/')[0]]}/{path}"

    def is_since(self, path: str, moment_ns: int) -> bool:
        """Whether a time is between the look at the root and now: a later one is from before a clock was set back."""
        stage = self._stages[path.partition("/")[0]]
        return self._since_ns[stage] < moment_ns <= clock_of(stage) + _TICK_NS

    def fill(
        self,
        main: Source,
        packs: Sequence[str],
        others: Callable[[], list[Source]],
        progress: Progress,
        *,
        marks: bool,
    ) -> Placed:
        """Take all from `main`. The others are asked for what they are known to have, and for what is missing then.

        With `marks`, the folders are marked once everything is there.
        """
        progress.total = len(self._wanted)
        placed = Placed()
        with Pool(1) as maker, Pool(_THREADS) as pool:
            # By one thread: they are nested, and two threads would wait for each other.
            missing = [*map(self.staged, self._missing)]
            some = (missing[at : at + _FOLDER_COUNT] for at in range(0, len(missing), _FOLDER_COUNT))
            self._made = [submit(maker, make_folders, folders) for folders in some]
            below = {path: entry for path, entry in self._wanted.items() if entry.flags & _BELOW}
            for source in others() if below else ():
                self._fill(below, source, source.blobs.packs_listed(), placed, pool, progress)
            if self._linking:
                self._fill(self._wanted, main, packs, placed, pool, progress, self._linking)
            if len(placed.paths) < len(self._wanted):
                self._fill(self._wanted, main, packs, placed, pool, progress)
            for source in others() if len(placed.paths) < len(self._wanted) else ():
                self._fill(self._wanted, source, source.blobs.packs_listed(), placed, pool, progress)
            self._wait()  # or an exception from a signal handler might stay in it
            if marks and len(placed.paths) == len(self._wanted):
                placed.marked_ns, placed.folders = mark_folders(self._staged_folders, pool), self._folders
        return placed

    def _fill(
        self,
        among: Files,
        source: Source,
        packs: Sequence[str],
        placed: Placed,
        pool: Pool,
        progress: Progress,
        begun: Sequence[Future[Placed]] = (),
    ) -> None:
        """Link what is loose, and meanwhile copy the rest in the order in which the store has it.

        If links were `begun`, what cannot be linked is left for another call.
        """
        wanted = {path: e for path, e in among.items() if path not in placed.paths} if placed.paths else among
        if not wanted:
            return
        blobs = source.blobs
        if begun:
            others, linking = _unlinked(wanted), begun
        else:
            others, linking = self._start_links(wanted, source, packs, placed, pool)
        paths = PathsOf(others, placed.paths)
        parts = blobs.parts(paths.sizes(), packs)
        copying = self._copy_pack(paths, parts, pool) if len(packs) == 1 else self._copy(paths, parts, pool)
        for part in chain(copying, (part.result() for part in linking)):
            placed.add(part)
            progress.done = len(placed.paths)
        if begun or placed.paths.issuperset(wanted):
            return
        # What cannot be linked, is damaged, or is not where the ref says.
        left = PathsOf(wanted, placed.paths)
        for blob in _readable(blobs.fetch_many(left.sizes(), packs)):
            placed.add(self._write([blob], left))
            del blob  # or a large one would be held while the next one is read

    def _start_links(
        self, among: Files, source: Source, packs: Sequence[str], placed: Placed, pool: Pool
    ) -> tuple[Files, Sequence[Future[Placed]]]:
        """Link what is loose; returns the other files, and the threads' work on the links. What is done at once goes
        into `placed`.
        """
        packed = source.blobs.digests_in(packs)
        loose = [path for path, e in among.items() if e.flags & _LINK and e.digest not in packed]
        folder = source.blobs.loose.folder
        if not loose or folder is None:
            return among, []
        others = {path: e for path, e in among.items() if not e.flags & _LINK or e.digest in packed}
        # The first one finds out which way works.
        placed.add(self._link(source.linker, folder, loose[:1]))
        if source.linker.mode is LinkMode.COPY:
            return among, []
        some = (loose[at : at + _LINK_COUNT] for at in range(1, len(loose), _LINK_COUNT))
        return others, [submit(pool, self._link, source.linker, folder, paths) for paths in some]

    def drop_incomplete(self, placed: Placed, lists: Callable[[str], bool]) -> None:
        """Drop every group with a missing file, and every list of files one of which is missing."""
        if placed.paths.issuperset(self._wanted):
            return
        missing = self._wanted.keys() - placed.paths
        placed.missed = {self._wanted[path].digest for path in missing}
        units = {unit_of(path, self._wanted[path]) for path in missing if self._wanted[path].flags & _GROUP}
        folders = {parent for path in missing for parent in parents_of(path)}
        for path in sorted(missing):
            placed.skipped.append(Skipped(path, f"blob {self._wanted[path].digest.hex()} is missing or damaged"))
        # vLLM's list is beside what it lists, and one folder beside Inductor's cache, which older versions listed.
        useless = [path for path in placed.paths if path.rsplit("/", 2)[0] in folders and lists(path)]
        placed.skipped += (Skipped(path, "it lists a file that is missing or damaged") for path in sorted(useless))
        for path in [*useless, *(p for p in placed.paths if units and unit_of(p, self._wanted[p]) in units)]:
            placed.paths.discard(path)
            placed.known.pop(path, None)
            os.unlink(self.staged(path))
        self._drop_empty(placed)

    def _drop_empty(self, placed: Placed) -> None:
        needed = {self.staged(folder) for folder in folders_of(placed.paths)}
        for folder in reversed(self._staged_folders):
            if folder not in needed:
                with suppress(OSError):
                    os.rmdir(folder)

    def _link(self, linker: Linker, folder: str, paths: Sequence[str]) -> Placed:
        """Link the artifacts whose blobs exist and have not been touched since they were published."""
        entries = [self._wanted[path] for path in paths]
        links = [
            Link(blob_path(folder, e.digest), self.staged(path), e) for path, e in zip(paths, entries, strict=True)
        ]
        self._wait(paths)
        modes = linker.link_many(links)
        placed = Placed({path for path, mode in zip(paths, modes, strict=True) if mode is not LinkMode.COPY})
        for mode in set(modes) - {LinkMode.COPY}:
            placed.modes[mode] = modes.count(mode)
        return placed

    def _wait(self, paths: Collection[str] | None = None) -> None:
        """Wait until the folders of these artifacts exist; without any, until all do."""
        needed = len(self._made)
        if paths:
            last = max(path.rpartition("/")[0] for path in paths)
            needed = bisect_left(self._missing, last) // _FOLDER_COUNT + 1
        for made in (*self._making, *self._made[:needed]):
            made.result()

    def _copy_pack(self, paths: PathsOf, parts: Iterator[Part], pool: Pool) -> Iterator[Placed]:
        """Copy one pack. A model of the usual size is a single part: two threads write that as well."""
        first = [*islice(parts, 2)]
        if len(first) != 1 or first[0].size > MAX_SHARED_FRAME:
            yield from self._copy(paths, chain(first, parts), pool)
            return
        blobs = [*first[0].load()]
        half = len(blobs) // 2
        written = submit(pool, self._write, blobs[:half], paths)
        yield self._write(blobs[half:], paths)
        yield written.result()

    def _copy(self, paths: PathsOf, parts: Iterable[Part], pool: Pool) -> Iterator[Placed]:
        def write(part: Part) -> Placed:
            return self._write(part.load(), paths)

        return _map_parts(pool, write, parts)

    def _write(self, blobs: Iterable[Blob], paths: PathsOf) -> Placed:
        contents = paths.of(blobs)
        self._wait()
        return self._writer.write(*contents)


def _unlinked(files: Files) -> Files:
    """What is never linked."""
    return {path: entry for path, entry in files.items() if not entry.flags & _LINK}


def _readable(blobs: Iterator[Blob]) -> Iterator[Blob]:
    """Yield blobs until there is trouble with the store, which costs only what is still missing then."""
    try:
        yield from blobs
    except OSError as error:
        log.warning("what is missing cannot be looked for: %s", error)


def _map_parts(pool: Pool, function: Callable[[Part], Placed], parts: Iterable[Part]) -> Iterator[Placed]:
    """Like `pool.map`, in any order: a part of many small files takes long. A large blob is in memory by itself."""
    done, waiting = SimpleQueue[Future[Placed]](), 0
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
