"""Export: one key, with all GPUs and environments that were chosen, as one file.

What is written depends on the manifests alone, not on how a store holds the blobs. So a file that a killed export left
begins as the new one would: its frames are checked, and those that are whole stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO

from blake3 import blake3

from kstore.blobs.batches import fetch_in_order
from kstore.blobs.dictionary import NONE
from kstore.blobs.packindex import PackIndex
from kstore.blobs.packwriter import PackWriter, Sink
from kstore.bundles.format import Content, Header, seal
from kstore.bundles.recovery import recover
from kstore.digest import digest_of
from kstore.errors import FileError
from kstore.progress import Progress
from kstore.published.leaning import check_supported, fetch_many, standing
from kstore.published.manifest import Manifest
from kstore.published.ref import Ref
from kstore.published.snapshot import Snapshot
from kstore.similarity import by_similarity
from kstore.storage import Storage

_OF_THE_STORE = ("nonce", "parent")
"""What a manifest says about the store that it is in, and not about what it holds."""
_CHUNK = 1 << 20


@dataclass(slots=True)
class Exported:
    """What an export wrote."""

    refs: tuple[Ref, ...]
    """The generations, with the amounts that were written."""
    blobs: int = 0
    """Distinct blobs, including the manifests."""
    bytes: int = 0
    """Size of the file."""
    resumed: int = 0
    """Bytes of the file that an earlier export had written."""


class BundleWriter:
    """Writes generations of one key, each of a different scope."""

    def __init__(self, storage: Storage, snapshots: Sequence[Snapshot], progress: Progress | None = None) -> None:
        """Raises:
        IntegrityError: a manifest cannot be read, or holds what no commit makes.
        StoreBelowMissing: a generation leans on a store that was not named.
        """
        self._storage = storage
        self._refs = tuple(sorted((snapshot.ref for snapshot in snapshots), key=lambda ref: ref.scope))
        self._progress = progress or Progress()
        self._manifests: dict[bytes, bytes] = {}
        contents = []
        entries: dict[bytes, tuple[str, int, str]] = {}
        for snapshot in sorted(snapshots, key=lambda snapshot: snapshot.ref.scope):
            check_supported(storage, snapshot)
            data = portable(snapshot.checked).dump()
            self._manifests[digest_of(data)] = data
            contents.append(Content(snapshot.ref.scope, digest_of(data), len(data)))
            for item in snapshot.manifest.items():
                digest, found = item[1].digest, by_similarity(item)
                entries[digest] = min(entries.get(digest, found), found)
        self._header = Header(self._refs[0].scope.key, tuple(contents))
        order = sorted(entries.items(), key=lambda item: (item[1], item[0]))
        self._blobs = [(digest, size) for digest, (_, size, _) in order]

    def write(self, stream: Sink) -> Exported:
        """Write the whole bundle.

        Raises:
            IntegrityError: a blob is missing or damaged.
        """
        sink = _Sealed(stream)
        header = self._header.dump()
        sink.write(header)
        return self._write_from(sink, len(header), PackIndex())

    def resume(self, file: IO[bytes]) -> Exported:
        """Write what is missing in `file`, or the whole bundle if `file` holds something else.

        Raises:
            IntegrityError: as in `write`.
            FileError: what is in `file` cannot be read.
        """
        sink = _Sealed(file)
        with _reading(file):
            end, begun = self._recover(file)
            for start in range(0, end, _CHUNK):
                sink.hash(file.read(min(_CHUNK, end - start)))
        if not end:
            return self.write(file)
        resumed = end if begun.digests else 0  # What is written now is added to `begun`.
        exported = self._write_from(sink, end, begun)
        exported.resumed = resumed
        return exported

    def _recover(self, file: IO[bytes]) -> tuple[int, PackIndex]:
        """How much of the bundle is in `file`, which is then at its beginning, and what that holds."""
        manifests = [(digest, len(data)) for digest, data in self._manifests.items()]
        found = recover(file, self._header.dump(), manifests, self._blobs)
        file.seek(0)
        return found

    def _write_from(self, sink: _Sealed, start: int, begun: PackIndex) -> Exported:
        """Go on after `start` bytes that hold the blobs of `begun`."""
        progress, done = self._progress, len(begun.digests)
        progress.total, progress.done = len(self._manifests) + len(self._blobs), done
        with PackWriter(sink, begun=begun, size=start, using=NONE) as pack:
            for digest, data in self._rest(done):
                pack.add(digest, data)
                if digest in self._manifests:
                    pack.close_frame()
                progress.done += 1
                del data  # or a large blob would be held while the next one is fetched
            pack.finish(self._header.nonce)
            end = seal(sink.digest())
            sink.write(end)
            return Exported(self._refs, len(pack), pack.size + len(end))

    def _rest(self, done: int) -> Iterator[tuple[bytes, bytes | memoryview]]:
        yield from list(self._manifests.items())[done:]
        wanted = self._blobs[max(done - len(self._manifests), 0) :]
        yield from fetch_in_order(wanted, partial(fetch_many, self._storage, self._refs))


class _Sealed:
    """Writes to a stream, and adds what it writes to the digest of the whole."""

    def __init__(self, stream: Sink) -> None:
        self._stream = stream
        self._hash = blake3()

    def write(self, data: bytes | memoryview) -> None:
        self._stream.write(data)
        self._hash.update(data)

    def hash(self, data: bytes) -> None:
        """Add what is already in the stream to the digest."""
        self._hash.update(data)

    def digest(self) -> bytes:
        return self._hash.digest()


@contextmanager
def _reading(file: IO[bytes]) -> Iterator[None]:
    """Say which file cannot be read."""
    try:
        yield
    except OSError as error:
        raise FileError(
            f"cannot read {file.name}: {error.strerror or error}; remove it, and the export begins anew"
        ) from error


def portable(manifest: Manifest) -> Manifest:
    """The manifest without what it says about its store: equal contents give equal bytes."""
    manifest = standing(manifest)
    meta = {name: value for name, value in manifest.meta.items() if name not in _OF_THE_STORE}
    return Manifest(manifest.files, manifest.hosts, meta)
