"""Where the artifacts of a blob are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from operator import attrgetter

from kstore.blobs.packreader import Blob
from kstore.published.manifest import Files

_DIGEST, _SIZE = attrgetter("digest"), attrgetter("size")


class PathsOf:
    """The paths of blobs. Most blobs have only one, which needs no list: there may be a hundred thousand blobs."""

    def __init__(self, files: Files, but: Collection[str]) -> None:
        """Hold the paths of `files`, without those in `but`."""
        self._files = {path: entry for path, entry in files.items() if path not in but} if but else files
        self._others: dict[bytes, list[str]] = defaultdict(list)
        self._first = dict(zip(map(_DIGEST, self._files.values()), self._files, strict=True))
        if len(self._first) < len(self._files):
            self._take_others()

    def _take_others(self) -> None:
        self._first.clear()
        for path, entry in self._files.items():
            if self._first.setdefault(entry.digest, path) is not path:
                self._others[entry.digest].append(path)

    def of(self, blobs: Iterable[Blob]) -> tuple[list[str], list[memoryview]]:
        """All paths of these blobs, and the content of each."""
        contents = dict(blobs)
        paths, each = [*map(self._first.__getitem__, contents)], [*contents.values()]
        for digest, data in contents.items() if self._others else ():
            others = self._others.get(digest, ())
            paths += others
            each += [data] * len(others)
        return paths, each

    def sizes(self) -> dict[bytes, int]:
        """The sizes of all blobs, in bytes."""
        return dict(zip(self._first, map(_SIZE, map(self._files.__getitem__, self._first.values())), strict=True))
