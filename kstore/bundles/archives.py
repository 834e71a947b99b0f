"""The artifacts of one generation as plain files, for programs without kstore: tar, compressed or not, and zip.

The same generation gives the same bytes: the order is fixed, and nothing says who made the archive or when.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from functools import partial
from typing import IO, TYPE_CHECKING, NamedTuple

import zstandard

from kstore.blobs.batches import Fetch, fetch_in_order
from kstore.components import load_table
from kstore.errors import UsageError
from kstore.local.relocate import to_local
from kstore.published.leaning import check_supported, fetch_many
from kstore.published.manifest import RELOCATE, Entry, Files, Manifest, blobs_of
from kstore.published.ref import Ref
from kstore.report import Count, Written
from kstore.similarity import by_similarity
from kstore.store import Store

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PERMISSIONS = 0o777
_CHUNK = 1 << 20
_FIRST_IN_ZIP, _LAST_IN_ZIP = 315532800, 4354819198
"""Seconds since 1970: a zip file can hold the years 1980 to 2107."""


class _File(NamedTuple):
    """One artifact."""

    path: str
    data: memoryview
    mode: int
    mtime: int
    """Seconds since 1970."""


def export_tar(store: Store, ref: Ref, stream: IO[bytes], *, under: str = "", host: str = "") -> Written:
    """Write the files of a generation as a tar archive, so that they work when unpacked in the folder `under`.

    The default is the cache root that they were built in. Host-bound files are those of the host whose fingerprint
    begins with `host`; the others are left out.

    Raises:
        IntegrityError: a blob is missing or damaged, or the manifest holds what no commit makes.
        StoreBelowMissing: the generation leans on a store that was not named.
        UsageError: there is no such host, or `under` is not an absolute path.
    """
    files, written = _files(store, ref, under, host)
    pipe = _Pipe(stream)
    with tarfile.open(fileobj=pipe, mode="w|", format=tarfile.PAX_FORMAT) as archive, pipe:
        for file in files:
            found = tarfile.TarInfo(file.path)
            found.size, found.mode, found.mtime = len(file.data), file.mode, file.mtime
            archive.addfile(found, _Reader(file.data))
    return written


def export_compressed_tar(store: Store, ref: Ref, stream: IO[bytes], *, under: str = "", host: str = "") -> Written:
    """As `export_tar`, compressed with zstd."""
    with zstandard.ZstdCompressor().stream_writer(stream, closefd=False) as compressed:
        return export_tar(store, ref, compressed, under=under, host=host)


def export_zip(store: Store, ref: Ref, stream: IO[bytes], *, under: str = "", host: str = "") -> Written:
    """As `export_tar`, as a zip file.

    Raises:
        UsageError: also if a name is not UTF-8; a zip file has no others.
    """
    files, written = _files(store, ref, under, host, is_text=True)
    pipe = _Pipe(stream)
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive, pipe:
        for file in files:
            moment = time.gmtime(min(max(file.mtime, _FIRST_IN_ZIP), _LAST_IN_ZIP))
            found = zipfile.ZipInfo(file.path, moment[:6])
            found.compress_type = zipfile.ZIP_DEFLATED
            found.create_system = 3  # Unix, whatever this machine is
            found.external_attr = (stat.S_IFREG | file.mode) << 16
            found.file_size = len(file.data)
            with archive.open(found, "w") as member:
                for start in range(0, len(file.data), _CHUNK):
                    member.write(file.data[start : start + _CHUNK])
    return written


def _files(store: Store, ref: Ref, under: str, host: str, *, is_text: bool = False) -> tuple[Iterator[_File], Written]:
    snapshot = store.snapshot(ref)
    manifest = snapshot.checked
    if under and not os.path.isabs(under):
        raise UsageError(f"{under!r} is not an absolute path; programs look there from any folder")
    files, other_hosts = _choose(manifest, host)
    if is_text:
        _check_text(files)
    check_supported(store.storage, snapshot, dict(blobs_of(files)))
    held = Count.of([entry.size for entry in files.values()])
    fetch = partial(fetch_many, store.storage, (ref,))
    folder = os.path.normpath(under or _built_in(manifest))
    return _read(sorted(files.items(), key=by_similarity), folder, fetch), Written(held, other_hosts=other_hosts)


def _check_text(paths: Iterable[str]) -> None:
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"the name {path!r} is not UTF-8, which a zip file needs; export a tar archive") from error


def _choose(manifest: Manifest, host: str) -> tuple[Files, tuple[str, ...]]:
    """The files that one host may use, and the paths of all other hosts' host-bound files."""
    found = [name for name in manifest.hosts if host and name.startswith(host)]
    if host and len(found) != 1:
        there = f"there are: {', '.join(manifest.hosts)}" if manifest.hosts else "it has no C++ objects of any host"
        raise UsageError(f"{host!r} matches no host of this generation, or several; {there}")
    others = {path for name, files in manifest.hosts.items() if name not in found for path in files}
    files = manifest.for_host(found[0]) if found else manifest.files
    return files, tuple(sorted(others - files.keys()))


def _built_in(manifest: Manifest) -> str:
    folder = manifest.meta.get("cache_root")
    if not isinstance(folder, str) or not folder:
        raise UsageError("the generation does not say in which folder it was built; name one with --under")
    return folder


def _read(files: list[tuple[str, Entry]], under: str, fetch: Fetch) -> Iterator[_File]:
    blobs = fetch_in_order(((entry.digest, entry.size) for _, entry in files), fetch)
    for path, entry in files:
        data = next(blobs)[1]
        component, _, relative = path.partition("/")
        folder = _folder_of(component)
        content = to_local(bytes(data), f"{under}/{folder}") if entry.flags & RELOCATE else data
        seconds = max(entry.mtime_ns, 0) // 1_000_000_000
        yield _File(f"{folder}/{relative}", memoryview(content), entry.mode & _PERMISSIONS, seconds)
        del data, content  # or a large blob would be held while the next one is fetched


def _folder_of(component: str) -> str:
    """The folder below a cache root where a restore puts a component; its name if only a newer kstore knows it."""
    known = load_table().get(component)
    return known.part_of(component) if known else component


class _Reader:
    """A file to read from front to back, without a copy of it."""

    def __init__(self, data: memoryview) -> None:
        self._rest = data

    def read(self, size: int = -1) -> bytes:
        """The next bytes, empty at the end."""
        size = len(self._rest) if size < 0 else size
        data, self._rest = self._rest[:size], self._rest[size:]
        return bytes(data)


class _Pipe(io.RawIOBase):
    """A stream that cannot seek, so that a file and a pipe get the same bytes.

    It takes nothing after its block has failed: archives that are closed then write an end, as if they were whole.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._has_failed = False

    def __exit__(self, kind: object, *_: object) -> None:
        self._has_failed = kind is not None

    def write(self, data: Buffer, /) -> int:
        """Append `data`."""
        if not self._has_failed:
            self._stream.write(data)
        return memoryview(data).nbytes
