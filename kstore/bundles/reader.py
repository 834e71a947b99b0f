"""Reading a bundle, which anybody may have made or damaged: all of it is checked before any of it is used."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from blake3 import blake3

from kstore.blobs.packreader import PackReader
from kstore.bundles.bundlefile import BundleFile
from kstore.bundles.format import SEAL_SIZE, Content, Header, load_header, seal
from kstore.bundles.spool import STDIN, open_anywhere
from kstore.errors import FileError, IntegrityError, StoreFormatError
from kstore.progress import Progress
from kstore.published.manifest import Manifest
from kstore.published.untrusted import check_manifest

_CHUNK = 1 << 20
_MAX_MANIFEST = 1 << 30
"""Bytes: some millions of artifacts."""


class BundleReader:
    """One bundle. `check` it first."""

    def __init__(self, path: str) -> None:
        """Raises:
        KstoreError: it cannot be read, or it comes through a pipe and there is no room for it.
        """
        self.path = "stdin" if path == STDIN else path
        with self._reporting():
            self._source = open_anywhere(path)
        fd = self._source.fileno()
        size = os.fstat(fd).st_size
        self._whole = BundleFile(fd, size)
        self._file = BundleFile(fd, max(size - SEAL_SIZE, 0))
        self._pack = PackReader(self._file, os.path.basename(path))
        self.header = Header("", ())
        """What the bundle holds; known once it is checked."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    def check(self, progress: Progress | None = None) -> None:
        """Read every byte, and compare it with its digest.

        Raises:
            IntegrityError: it is damaged, cut short, or holds what no export makes.
            StoreFormatError: a newer kstore made it.
        """
        try:
            with self._reporting():
                self.header = load_header(self._file.read)
                self._check_seal()
                self._check_contents()
                self._check_blobs(progress or Progress())
                if len(self.header.contents) > 1:
                    self._pack.expect_many()
        except StoreFormatError as error:
            raise StoreFormatError(f"{self.path} cannot be imported: {error}") from error
        except (IntegrityError, MemoryError) as error:
            raise IntegrityError(
                f"{self.path} is not a bundle, or is damaged: {error}; copy it again, or export it again"
            ) from error

    def manifest(self, content: Content) -> Manifest:
        """What the bundle holds of one scope.

        Raises:
            IntegrityError: it is missing, or holds what no commit makes.
        """
        for _, manifest in self._manifests((content,)):
            return manifest
        raise _manifest_missing(content)

    def _manifests(self, contents: Iterable[Content]) -> Iterator[tuple[bytes, Manifest]]:
        """Yield (digest, manifest) of these scopes, each manifest once: any number of scopes may name the same."""
        sizes: dict[bytes, int] = {}
        for content in contents:
            if content.size > _MAX_MANIFEST:
                raise IntegrityError(f"a manifest declares {content.size} bytes")
            _add(sizes, content.manifest, content.size)
        for digest, data in self.fetch(sizes):
            manifest = Manifest.load(bytes(data))
            check_manifest(manifest)
            yield digest, manifest

    def fetch(self, wanted: Mapping[bytes, int]) -> Iterator[tuple[bytes, memoryview]]:
        """Yield (digest, bytes) of the blobs that are wanted, given by digest and size, in the order of the file."""
        with self._reporting():
            yield from self._pack.fetch(wanted)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FileError(f"cannot read {self.path}: {error.strerror}") from error

    def _check_seal(self) -> None:
        found = blake3()
        for offset in range(0, self._file.size, _CHUNK):
            found.update(self._file.read(offset, _CHUNK))
        if self._whole.read(self._file.size, SEAL_SIZE) != seal(found.digest()):
            raise IntegrityError("its bytes do not match its seal")

    def _check_contents(self) -> None:
        """Check that the index names what the manifests need, each blob once and with one size, and nothing else."""
        needed = {content.manifest: content.size for content in self.header.contents}
        found = set()
        for digest, manifest in self._manifests(self.header.contents):
            found.add(digest)
            for digest_of_blob, size in manifest.blobs():
                _add(needed, digest_of_blob, size)
        for content in self.header.contents:
            if content.manifest not in found:
                raise _manifest_missing(content)
        index = self._pack.index
        if len(index.digests) != len(needed) or index.sizes_by_digest() != needed:
            raise IntegrityError("its index does not name what its manifests need")

    def _check_blobs(self, progress: Progress) -> None:
        progress.total, progress.done = len(self._pack.index.digests), 0
        for _ in self.fetch(self._pack.index.sizes_by_digest()):
            progress.done += 1
        if progress.done != progress.total:
            raise IntegrityError(f"{progress.total - progress.done} blobs do not match their digests")


def _manifest_missing(content: Content) -> IntegrityError:
    return IntegrityError(f"the manifest of {content.scope} is missing")


def _add(needed: dict[bytes, int], digest: bytes, size: int) -> None:
    if needed.setdefault(digest, size) != size:
        raise IntegrityError(f"blob {digest.hex()} has two sizes")
