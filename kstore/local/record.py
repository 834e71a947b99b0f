"""The small files in which a cache root's `.kstore` folder remembers things. Each is replaced in one step."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from kstore.digest import DIGEST_SIZE, Bytes, digest_of, digest_of_parts
from kstore.errors import CacheRootError, IntegrityError, StoreFormatError
from kstore.files import read_whole
from kstore.published.ref import Ref, load_ref
from kstore.scope import Scope

UNREADABLE = (
    OSError, ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError,
    IntegrityError, StoreFormatError,
)  # fmt: skip
"""What reading a record raises if it is missing or damaged, or if a newer kstore wrote it."""


def replace_record(path: str, *parts: Bytes) -> None:
    """Replace a file with one that consists of these parts.

    Raises:
        CacheRootError: it cannot be written.
    """
    _write(path, parts)
    _put_in_place(path)


def replace_checked(path: str, parts: Iterable[bytes]) -> bytes:
    """Replace a file with one that begins with the digest of these parts; returns that digest.

    Each part is written when it comes, so they are never all in memory.

    Raises:
        CacheRootError: it cannot be written.
    """
    with _writing(path) as file:
        file.write(bytes(DIGEST_SIZE))
        digest = digest_of_parts(_each_written(file, parts))
        file.seek(0)
        file.write(digest)
    _put_in_place(path)
    return digest


def read_checked(path: str) -> tuple[bytes, bytes]:
    """The digest that `replace_checked` wrote, and what follows it.

    Raises:
        OSError: it cannot be read.
        IntegrityError: it is damaged. A power cut leaves pages of zeros, which would vouch for files that are not so.
    """
    data = read_whole(path)
    digest, rest = data[:DIGEST_SIZE], data[DIGEST_SIZE:]
    if digest_of(rest) != digest:
        raise IntegrityError(f"{path}, of {len(data)} bytes, is damaged")
    return digest, rest


def replace_records(records: Mapping[str, Iterable[Bytes]]) -> None:
    """Replace files with these, each given in parts, in this order; none of them if there is no room for all.

    Raises:
        CacheRootError: one cannot be written.
    """
    for path, parts in records.items():
        _write(path, parts)
    for path in records:
        _put_in_place(path)


def _write(path: str, parts: Iterable[Bytes]) -> None:
    with _writing(path) as file:
        file.writelines(parts)


@contextmanager
def _writing(path: str) -> Iterator[BinaryIO]:
    # Only the holder of the lock writes. What a killed holder leaves, the next write replaces.
    with _failing(path), open(f"{path}.new", "wb") as file:
        yield file


def _each_written(file: BinaryIO, parts: Iterable[bytes]) -> Iterator[bytes]:
    for part in parts:
        file.write(part)
        yield part


def _put_in_place(path: str) -> None:
    with _failing(path):
        os.replace(f"{path}.new", path)


@contextmanager
def _failing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        with suppress(OSError):  # An NFS client reports the failed write to whoever opens the file again.
            os.unlink(f"{path}.new")
        raise CacheRootError(f"cannot write {path}: {error.strerror}; check the space and permissions there") from error


def dump_ref(ref: Ref) -> dict[str, str]:
    """A ref with its scope, for a record in JSON."""
    scope = ref.scope
    return {**scope.describe(), "ref": ref.dump().decode()}


def read_ref(content: Mapping[str, Any]) -> Ref:
    """The reverse of `dump_ref`; raises one of `UNREADABLE`."""
    scope, text = Scope(content["gpu"], content["key"], content["environment"]), content["ref"]
    return load_ref(scope, json.loads(text)["generation"], text.encode())
