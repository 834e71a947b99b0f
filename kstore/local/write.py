"""Writes the contents of blobs to their artifacts, where these are being staged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from operator import not_

from kstore.blobs.loose import stamps
from kstore.calls import IS_COMPILED, stat_each
from kstore.files import NewFile, write_files, write_rows
from kstore.local.cacheroot import CacheRoot
from kstore.local.index import Known
from kstore.local.link import LinkMode, local_mode
from kstore.local.pathsof import Contents
from kstore.local.placed import Brought
from kstore.local.relocate import to_local
from kstore.published.manifest import LINK, MTIME, NEVER_IN_PLACE, RELOCATE, Entry, Files, unpack_entries

_COUNT = 512 if IS_COMPILED else 128
"""Files that are written in one go. If the calls are not compiled, all of them are open at once."""
_SECOND = 1_000_000_000

_Content = tuple[str, Entry, bytes | bytearray, memoryview]
"""An artifact's path, its entry, the same as a record, and what its blob holds."""


class Writer:
    """Any thread may write with it."""

    def __init__(self, root: CacheRoot, stages: Mapping[str, str], staged: Callable[[str], str], wanted: Files) -> None:
        """Each component is built in its folder of `stages`, and each of the artifacts `wanted` where `staged` says."""
        self._root = root
        self._stages = stages
        self._staged = staged
        self._wanted = wanted
        self._second = (time.time_ns() // _SECOND - 1) * _SECOND
        """The second of all stamps. None is ahead of now, or the next restore would take its file for a compiler's."""

    def write(self, contents: Contents) -> Brought:
        """Make these artifacts, none of which exists. Their folders do.

        Raises:
            OSError: one cannot be made (ENOSPC, EROFS, EDQUOT …).
        """
        paths, records, data = contents
        left: Sequence[_Content] = [*zip(paths, unpack_entries(b"".join(records)), records, data, strict=True)]
        for stage in set(self._stages.values()):
            left = self._write_rows(stage, left)
        for at in range(0, len(left), _COUNT):  # One blob may have any number of paths.
            write_files(self._new_files(left[at : at + _COUNT]))
        return Brought({LinkMode.COPY: len(paths)}, known=self._known(left))

    def _write_rows(self, stage: str, contents: Sequence[_Content]) -> Sequence[_Content]:
        """Write what is never changed in place: its blob's bytes. Returns the rest, and what could not be made so."""
        stages = self._stages
        chosen = [entry.flags & LINK and stages[path.partition("/")[0]] == stage for path, entry, _, _ in contents]
        rows = [*compress(contents, chosen)]
        if not rows:
            return contents
        paths, _, records, data = zip(*rows, strict=True)
        done = write_rows(paths, b"".join(records), data, stage, second_ns=self._second)
        return [*compress(contents, map(not_, chosen)), *rows[done:]]

    def _new_files(self, contents: Sequence[_Content]) -> list[NewFile]:
        """What is to be written, column by column: the interpreter takes few steps for each of ten thousand."""
        paths, entries, _, _ = zip(*contents, strict=True)
        written = (
            self._local_form(path.partition("/")[0], data) if entry.flags & RELOCATE else data
            for path, entry, _, data in contents
        )
        columns = zip(map(self._staged, paths), written, map(local_mode, entries), self._times_of(entries), strict=True)
        return [*map(partial(tuple.__new__, NewFile), columns)]

    def _local_form(self, component: str, data: memoryview) -> bytes:
        def coming(path: str) -> bytes | None:
            entry = self._wanted.get(f"{component}/{path}")
            return entry.digest if entry and not entry.flags & RELOCATE else None

        return to_local(bytes(data), self._root.folders[component], coming)

    def _times_of(self, entries: Sequence[Entry]) -> Iterator[int | None]:
        """The modification times that the files get, in nanoseconds; None for now."""
        for entry, stamp in zip(entries, stamps(entry.digest for entry in entries), strict=True):
            if entry.flags & MTIME:
                yield entry.mtime_ns
            else:
                yield None if entry.flags & RELOCATE else self._second + stamp

    def _known(self, contents: Sequence[_Content]) -> dict[str, Known]:
        """The files among these that may be changed in place, for the index."""
        changing = [(path, entry) for path, entry, _, _ in contents if entry.flags not in NEVER_IN_PLACE]
        both = zip(changing, stat_each([self._staged(path) for path, _ in changing]), strict=True)
        return {path: Known.placed(entry, found) for (path, entry), found in both if not found.error}
