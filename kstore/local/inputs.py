"""Ninja's log is of use only beside the files that its objects were built from.

Ninja knows sources and headers by their times alone. On another worker, a source of another release that is older than
the object would be taken for the one that was compiled, and the old code would run. So ninja's log is stored with the
names and a digest of all files outside its folder that the log's objects were built from. A worker with different files
gets an empty log, and ninja builds anew.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, lru_cache

from kstore.digest import digest_of, digest_of_parts
from kstore.files import read_all
from kstore.local.ninja import inputs_of

log = logging.getLogger(__name__)

_MARK = b"@kstore-inputs@"
_ABSENT = bytes(32)
"""In place of a digest: there is no such file, or none that a compiler would read."""
_LARGEST = 1 << 26
"""Bytes; no source is larger."""
_OF_ENVIRONMENT = "-packages/torch/include/"
"""Torch's headers, two thousand of them: if they differ, so does the environment. Not every folder of that name is
torch's, only the one where Python's packages are installed.
"""

Coming = Callable[[str], bytes | None]
"""The digest of a file that is about to be placed in a component's folder, by its path there; None for others."""


def nothing_comes(_: str) -> bytes | None:
    """The `Coming` of a log that is written by itself."""
    return None


def with_inputs(data: bytes, path: str, folder: str) -> bytes:
    """Ninja's log as it is stored: followed by what its objects were built from. `path` is its own, below `folder`.

    Raises:
        ValueError: the log is empty, or ninja would build something anew; or what ninja knows, or what an object was
            built from, cannot be read.
    """
    if not data:
        raise ValueError("it is empty")
    place = f"{folder}/{path}".rpartition("/")[0]
    paths = sorted({found for found in inputs_of(place) if _OF_ENVIRONMENT not in found})
    since = os.stat(f"{folder}/{path}").st_mtime_ns
    for found in paths:
        try:
            is_newer = os.stat(found).st_mtime_ns > since
        except OSError as error:
            raise ValueError(f"{found}, which it was built from, is gone") from error
        if is_newer:
            raise ValueError(f"{found} is newer than what was built from it")
    return data + _MARK + json.dumps({"digest": _digest(paths), "paths": paths}).encode()


def for_inputs_here(stored: bytes, folder: str, coming: Coming) -> bytes:
    """The log for a worker whose component lives in `folder`: empty if its sources or headers differ.

    Those in that folder may be coming with the log.
    """
    data, mark, known = stored.rpartition(_MARK)
    if not mark:
        return stored
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        content = json.loads(known)
        if _digest(map(str, content["paths"]), _coming_to(folder, coming)) == content["digest"]:
            return data
    log.info("%s: built from sources or headers that differ from those here, so ninja rebuilds a module", folder)
    return b""


def _digest(paths: Iterable[str], coming: Coming = nothing_comes) -> str:
    """A digest of the contents of files, in that order; of what is `coming` for a file that does not exist."""
    return digest_of_parts(_digest_or(path, coming(path)) for path in paths).hex()


def _digest_or(path: str, comes: bytes | None) -> bytes:
    found = _digest_of_file(path)
    if comes is None or comes == found:
        return found
    return comes if found == _ABSENT else _ABSENT  # It is not known which of the two will be there.


def _coming_to(folder: str, coming: Coming) -> Coming:
    """`coming` for full paths, which may lead to `folder` through links."""
    top, folder_of = f"{os.path.realpath(folder)}/", cache(os.path.realpath)

    def find(path: str) -> bytes | None:
        place = f"{folder_of(os.path.dirname(path))}/"
        return coming(place[len(top) :] + os.path.basename(path)) if place.startswith(top) else None

    return find


def _digest_of_file(path: str) -> bytes:
    try:
        found = os.stat(path)
        is_source = stat.S_ISREG(found.st_mode) and found.st_size <= _LARGEST
        return _read(path, found.st_mtime_ns, found.st_size, found.st_ino) if is_source else _ABSENT
    except (OSError, ValueError):
        return _ABSENT


@lru_cache(maxsize=4096)
def _read(path: str, mtime_ns: int, size: int, inode: int) -> bytes:
    """The digest of a file. A header that several modules include is read once."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return digest_of(read_all(fd, size))
    finally:
        os.close(fd)
