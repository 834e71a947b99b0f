"""Where a commit reads the blobs that it brings."""

from __future__ import annotations

from collections.abc import Mapping

from kstore.published.manifest import Files
from kstore.similarity import by_similarity
from kstore.worker import Worker


class Sources:
    """Each blob once, neighbours beside each other."""

    def __init__(
        self, worker: Worker, ours: Files, contents: Mapping[bytes, bytes], kept: Mapping[bytes, bytes]
    ) -> None:
        """What `contents` holds is brought as well as `ours`; what `kept` holds need not be read again."""
        self._worker = worker
        self._ours = ours
        self._held = {**kept, **contents}
        self._paths: dict[bytes, str] = {}
        self.sizes = {digest: len(data) for digest, data in contents.items()}
        """Of all of them, in bytes."""
        for path, entry in sorted(ours.items(), key=by_similarity):
            self._paths.setdefault(entry.digest, path)
            self.sizes.setdefault(entry.digest, entry.size)

    def read(self, digest: bytes) -> bytes | None:
        """One blob; None if it cannot be had any more, or is no longer what was hashed."""
        data = self._held.get(digest)
        if data is not None:
            return data
        path = self._paths[digest]
        return self._worker.read_stored(path, self._ours[path])
