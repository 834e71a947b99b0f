"""Where a commit reads the blobs that it brings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from kstore.local.reading import read_in_batches
from kstore.published.manifest import RELOCATE, Files
from kstore.similarity import sorted_by_similarity
from kstore.worker import Worker


class Sources:
    """Each blob once, with similar blobs next to each other."""

    def __init__(
        self,
        worker: Worker,
        ours: Files,
        paths: Iterable[str],
        contents: Mapping[bytes, bytes],
        kept: Mapping[bytes, bytes],
    ) -> None:
        """What is at these `paths` of `ours` is brought, and what `contents` holds. What `kept` holds need not be read
        again.
        """
        self._worker = worker
        self._ours = ours
        self._held = {**kept, **contents}
        self._paths: dict[bytes, str] = {}
        self.sizes = {digest: len(data) for digest, data in contents.items()}
        """The sizes of all of them, in bytes."""
        for path in sorted_by_similarity(paths, ours):
            entry = ours[path]
            self._paths.setdefault(entry.digest, path)
            self.sizes.setdefault(entry.digest, entry.size)

    def read(self, digests: Iterable[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield each blob with its digest; None if it can no longer be read, or is no longer what was hashed."""
        for is_stored, group in groupby(digests, self._is_stored):
            if is_stored:
                yield from self._read_as_it_is(group)
            else:
                for digest in group:
                    held = self._held.get(digest)
                    yield digest, self._read(digest) if held is None else held

    def _is_stored(self, digest: bytes) -> bool:
        """Whether a file holds exactly what is stored."""
        return digest not in self._held and not self._ours[self._paths[digest]].flags & RELOCATE

    def _read_as_it_is(self, digests: Iterable[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
        files = ((digest, self.sizes[digest]) for digest in digests)
        for batch in read_in_batches(files, self._local_paths):
            for digest, data, status, found in zip(*batch, strict=True):
                if status.error:
                    yield digest, self._read(digest)
                else:
                    yield digest, data if found == digest else None

    def _local_paths(self, digests: Sequence[bytes]) -> list[str]:
        return [self._worker.root.local_path(self._paths[digest]) for digest in digests]

    def _read(self, digest: bytes) -> bytes | None:
        path = self._paths[digest]
        return self._worker.read_stored(path, self._ours[path])
