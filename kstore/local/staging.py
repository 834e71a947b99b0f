"""The folders that artifacts are built in before they are moved into a cache root. Nobody else looks into them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress

from kstore.local.cacheroot import CacheRoot
from kstore.local.fill import THREADS, Filler, FoldersBeingMade, Source
from kstore.local.found import Skipped
from kstore.local.headstart import Begun
from kstore.local.placed import Placed
from kstore.local.stages import clock_of
from kstore.local.untouched import mark_folders
from kstore.local.write import Writer
from kstore.progress import Progress
from kstore.published.manifest import BELOW, Files, folders_of, groups_in, parents_of, unit_of, with_flags
from kstore.threads import Pool

_SECOND = 1_000_000_000
_TICK_NS = 10_000_000
"""A file's time may be finer than the clock, and so later than now by up to one tick."""


class Staging:
    """The artifacts on their way, in folders that nobody else looks into."""

    def __init__(
        self,
        root: CacheRoot,
        stages: dict[str, str],
        wanted: Files,
        folders: Sequence[str],
        begun: Begun | None,
        since: float,
    ) -> None:
        """`folders` are all that `wanted` is in, each after those above it; `since` is when the root was looked at, by
        `time.monotonic`.
        """
        self._stages = stages
        self._writer = Writer(root, stages, self.staged, wanted)
        ago_ns = int((time.monotonic() - since) * _SECOND)
        self._since_ns = {stage: clock_of(stage) - ago_ns for stage in set(stages.values())}
        self._wanted = wanted
        self._folders = folders
        self._begun = begun
        self._making: Sequence[Future[None]] = begun.making if begun else ()
        """Done when the folders exist that somebody has begun to make."""
        self._missing = begun.missing(folders) if begun else folders
        """The other folders."""

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
        # One maker: folders are nested, and two threads would wait for each other.
        with Pool(1) as maker, Pool(THREADS) as pool:
            folders = FoldersBeingMade(self._missing, self.staged, self._making, maker)
            filler = Filler(self._wanted, self.staged, self._writer, folders, pool, progress)
            for source in others() if with_flags(self._wanted, BELOW) else ():
                filler.take(source, source.blobs.packs_listed(), BELOW)
            if self._begun and self._begun.linking and filler.left:
                filler.take_begun(self._begun, main, packs)
            if filler.left:
                filler.take(main, packs)
            for source in others() if filler.left else ():
                filler.take(source, source.blobs.packs_listed())
            folders.wait()  # or an exception from a signal handler might stay in it
            placed = Placed(self._wanted, {*filler.left}, filler.known, modes=filler.modes)
            if marks and not placed.lacking:
                placed.marked_ns, placed.folders = mark_folders(self._folders, self.staged, pool), self._folders
        return placed

    def drop_incomplete(self, placed: Placed, lists: Callable[[str], bool], refused: Collection[str]) -> None:
        """Drop every group with a missing file, and every list of files one of which is missing, or was `refused`."""
        missing = {*placed.lacking}
        if not refused and not missing:
            return
        placed.missed = {self._wanted[path].digest for path in missing}
        groups = groups_in((path, self._wanted[path]) for path in missing)
        folders = {parent for path in (*missing, *refused) for parent in parents_of(path)}
        for path in sorted(missing):
            placed.skipped.append(Skipped(path, f"blob {self._wanted[path].digest.hex()} is missing or damaged"))
        # vLLM's list is beside what it lists, and one folder beside Inductor's cache, which older versions listed.
        useless = [path for path in placed.paths if path.rsplit("/", 2)[0] in folders and lists(path)]
        placed.skipped += (Skipped(path, "it lists a file that is left out") for path in sorted(useless))
        torn = (path for path in placed.paths if unit_of(path, self._wanted[path]) in groups) if groups else ()
        for path in dict.fromkeys([*useless, *torn]):
            placed.lacking.add(path)
            os.unlink(self.staged(path))
        self._drop_empty(placed)

    def _drop_empty(self, placed: Placed) -> None:
        needed = {self.staged(folder) for folder in folders_of(placed.paths)}
        for folder in map(self.staged, reversed(self._folders)):
            if folder not in needed:
                with suppress(OSError):
                    os.rmdir(folder)
