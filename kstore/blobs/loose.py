"""Loose blobs: one read-only file each, which a cache root on the same filesystem can link or clone."""

from __future__ import annotations

import logging
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from kstore.aside import Aside, whole
from kstore.backends import Backend, LocalPaths, NewObject, Stat
from kstore.batches import MAX_COUNT, batches
from kstore.calls import open_unnoticed
from kstore.digest import DIGEST_SIZE, HEXADECIMAL, digest_of, digests_of
from kstore.files import NO_FILE, READ, read_all

log = logging.getLogger(__name__)

_HEAD = struct.Struct(f"<I{DIGEST_SIZE - 4}x")
"""The part of a digest that its stamp is made from."""
FOLDER = "blobs"
_BATCH = 1 << 20
"""Bytes of blobs that are read in one go."""
ASIDE = "gc/aside"
"""Where gc puts a blob for the moment in which it decides about it: `<digest>.<nonce>`."""


def blob_name(digest: bytes) -> str:
    """Where a loose blob is stored."""
    return blob_path(FOLDER, digest)


def blob_path(folder: str, digest: bytes) -> str:
    """The path of a blob's file, in the folder of the loose blobs."""
    text = digest.hex()
    return f"{folder}/{text[:2]}/{text}"


def blob_paths(folder: str, digests: Iterable[bytes]) -> list[str]:
    """The same for many blobs."""
    return [f"{folder}/{text[:2]}/{text}" for text in map(bytes.hex, digests)]


def stamp(digest: bytes) -> int:
    """The fraction of a second, in nanoseconds, in the modification time of this blob's file.

    A file that is changed in place gets another one, so one `stat` tells an untouched blob from an altered one.
    """
    return int.from_bytes(digest[:4], "little") % 999_999_999 + 1


def stamps(digests: Iterable[bytes]) -> Iterator[int]:
    """The stamps of many blobs."""
    return (number % 999_999_999 + 1 for (number,) in _HEAD.iter_unpack(b"".join(digests)))


def bears_stamp(mtime_ns: int, digest: bytes) -> bool:
    """Whether a modification time is that of an untouched file of this blob."""
    # `stamp`, written out: a commit asks this of every file.
    return mtime_ns % 1_000_000_000 == int.from_bytes(digest[:4], "little") % 999_999_999 + 1


def is_published(path: str, digest: bytes, size: int) -> bool:
    """Whether a file is this blob of `size` bytes, as it was published.

    It is read, because no stamp can be trusted on a filesystem with coarse times.
    """
    try:
        fd = open_unnoticed(path, READ)
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        return stat.S_ISREG(found.st_mode) and found.st_size == size and digest_of(read_all(fd, size)) == digest
    except (OSError, MemoryError):
        return False
    finally:
        os.close(fd)


class LooseBlobs:
    """The loose blobs of one store."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.folder = backend.path(FOLDER) if isinstance(backend, LocalPaths) else None
        """Where this machine has them as files that can be linked; None if it does not."""

    def has(self, digest: bytes, size: int) -> bool:
        """Whether it is here with this size, in bytes."""
        return not self.lacking({digest: size})

    def lacking(self, sizes: Mapping[bytes, int]) -> dict[bytes, int]:
        """Those of these blobs, given with their sizes in bytes, that are not here."""
        return dict(blob for blob, status in self._look_for(sizes) if status is None or status.size != blob[1])

    def unreliable(self, sizes: Mapping[bytes, int]) -> tuple[dict[bytes, int], set[bytes]]:
        """Of these blobs, given with their sizes in bytes, those that are not here, and the digests of altered ones.

        An altered blob is here, but was changed since: a compiler may write into a file that is linked to a blob.
        """
        away, altered = dict[bytes, int](), set[bytes]()
        for (digest, size), status in self._look_for(sizes):
            if status is None or status.size != size:
                away[digest] = size
            elif not bears_stamp(status.mtime_ns, digest) and self._is_damaged(digest, size):
                altered.add(digest)
        return away, altered

    def _look_for(self, sizes: Mapping[bytes, int]) -> Iterator[tuple[tuple[bytes, int], Stat | None]]:
        for batch in batches(sizes.items(), sys.maxsize, MAX_COUNT):
            names = blob_paths(FOLDER, [digest for digest, _ in batch])
            yield from zip(batch, self._backend.stat_many(names), strict=True)

    def _is_damaged(self, digest: bytes, size: int) -> bool:
        """Whether a blob is damaged. It is read in full: on a filesystem with coarse times, no stamp can be trusted."""
        try:
            return self.read(digest, size) is None
        except (OSError, MemoryError):
            return True

    def folders(self, pass_over: Callable[[str, OSError], None] | None = None) -> Iterator[list[bytes]]:
        """The digests of all blobs that are here, folder by folder, first those that gc has put aside for a moment.

        A folder that cannot be listed is an error, unless somebody passes over it.
        """
        for folder in (ASIDE, *(f"{FOLDER}/{shard.name}" for shard in self._backend.list(FOLDER))):
            try:
                names = [child.name.partition(".")[0] for child in self._backend.list(folder)]
            except OSError as error:
                if pass_over is None:
                    raise
                pass_over(folder, error)
                continue
            yield [bytes.fromhex(name) for name in names if HEXADECIMAL.fullmatch(name)]

    def put_many(self, blobs: Sequence[tuple[bytes, bytes | memoryview]]) -> list[bool]:
        """Store each blob, (digest, bytes); False for those that were here. One that a crash cut short is replaced."""
        digests, contents = [digest for digest, _ in blobs], [data for _, data in blobs]
        objects = [*map(NewObject, blob_paths(FOLDER, digests), contents, stamps(digests))]
        created = self._backend.put_many(objects)
        taken = {digest: len(data) for (digest, data), was_free in zip(blobs, created, strict=True) if not was_free}
        short = self.lacking(taken)
        for number, (digest, data) in enumerate(blobs):
            if digest in short:
                self._backend.put(blob_name(digest), bytes(data), stamp(digest))
                created[number] = True
        return created

    def put_aside(self, digest: bytes, data: Aside) -> bool:
        """Store a large blob, which is never in memory as a whole; False if it was here."""
        with self._backend.upload() as upload:
            for piece in data.pieces():
                upload.write(piece)
            is_new = upload.publish(blob_name(digest), stamp(digest))
        return is_new or any(self.put_many([(digest, whole(data))]))  # A crash may have cut it short.

    def fetch(
        self, wanted: Mapping[bytes, int], troubles: list[Exception] | None = None
    ) -> Iterator[tuple[bytes, memoryview]]:
        """Yield (digest, bytes) of the wanted blobs that are here and undamaged; `wanted` says how large they are.

        Errors that keep others from being read just now are added to `troubles`.
        """
        for batch in batches(wanted.items(), _BATCH, MAX_COUNT):
            read = self._get_many(batch)
            found = digests_of([data or b"" for data in read])
            for (digest, size), data, name in zip(batch, read, found, strict=True):
                if data is None or name != digest:
                    data = self._read(digest, size, troubles)
                if data is not None:
                    yield digest, memoryview(data)
                del data

    def _get_many(self, blobs: list[tuple[bytes, int]]) -> list[bytes | None]:
        """The bytes of each, unverified. None if they cannot be read at once; all are None if the sizes are large."""
        if sum(size for _, size in blobs) > _BATCH:
            return [None] * len(blobs)
        try:
            return self._backend.get_many([(blob_name(digest), size) for digest, size in blobs])
        except (OSError, MemoryError):
            return [None] * len(blobs)

    def _read(self, digest: bytes, size: int, troubles: list[Exception] | None) -> bytes | None:
        try:
            return self.read(digest, size)
        except (OSError, MemoryError) as error:
            log.warning("blob %s cannot be read: %r", digest.hex(), error)
            if troubles is not None:
                troubles.append(error)
            return None

    def read(self, digest: bytes, size: int) -> bytes | None:
        """One blob of `size` bytes; None if it is gone or damaged.

        Raises:
            OSError, MemoryError: it cannot be read just now, which is no damage.
        """
        try:
            data = self._get(digest, size)
        except OSError as error:
            if error.errno in NO_FILE:
                return None
            raise
        return data if len(data) == size and digest_of(data) == digest else None

    def _get(self, digest: bytes, size: int) -> bytes:
        """The bytes of a blob, and one more if it is too long."""
        try:
            return self._backend.get(blob_name(digest), 0, size + 1)
        except FileNotFoundError:
            for child in self._backend.list(ASIDE):
                if child.name.startswith(digest.hex()):
                    return self._backend.get(f"{ASIDE}/{child.name}", 0, size + 1)
            return self._backend.get(blob_name(digest), 0, size + 1)  # or gc has put it back in between
