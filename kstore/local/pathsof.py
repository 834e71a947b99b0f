"""Where the artifacts of a blob are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from kstore.published.manifest import Files


class PathsOf:
    """The paths of blobs. Most blobs have one, for which there is no list: there may be a hundred thousand."""

    def __init__(self, files: Files, but: Collection[str]) -> None:
        """Of the blobs of `files`, without some of these."""
        self._files = files
        self._first: dict[bytes, str] = {}
        self._others: dict[bytes, list[str]] = defaultdict(list)
        for path, entry in files.items():
            if path not in but and self._first.setdefault(entry.digest, path) is not path:
                self._others[entry.digest].append(path)

    def of(self, digest: bytes) -> Sequence[str]:
        """Those of one blob."""
        return (self._first[digest], *self._others.get(digest, ()))

    def sizes(self) -> dict[bytes, int]:
        """Of all blobs, in bytes."""
        return {digest: self._files[path].size for digest, path in self._first.items()}
