"""What ninja built, and from which files elsewhere.

Ninja knows sources and headers by their times alone. On another worker a source of another release that is older than
the object would be taken for the one that was compiled, and the old code would run. So ninja's log is stored with the
names and a digest of all files outside its folder that the log's objects were built from. A worker with others gets
an empty log, and ninja builds anew.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, lru_cache
from itertools import chain

from kstore.digest import digest_of, digest_of_parts
from kstore.files import read_all

log = logging.getLogger(__name__)

_MARK = b"@kstore-inputs@"
_ABSENT = bytes(32)
"""In the place of a digest: there is no such file, or none that a compiler would read."""
_LARGEST = 1 << 26
"""Bytes; no source is larger."""
_OF_ENVIRONMENT = "-packages/torch/include/"
"""Torch's headers, two thousand of them, are another environment's if they are others. Not every folder of that name is
torch's: it is where Python's packages are installed.
"""
_DEPS_HEADER, _DEPS_VERSIONS = b"# ninjadeps\n", {3: 8, 4: 12}
"""By version: the bytes in a record before what an output was built from, its own number and a time."""
_WORD = struct.Struct("<I")
_IS_DEPS = 1 << 31
_EDGE = re.compile(r"^build ((?:[^:$]|\$.)*): *\S+(.*)$", re.MULTILINE)
_INCLUDES = re.compile(r"^(?:include|subninja) ", re.MULTILINE)
_TOKEN = re.compile(r"(?:[^\s$]|\$.)+")
_ESCAPE = re.compile(r"\$([$: ])")

Coming = Callable[[str], bytes | None]
"""The digest of a file that is about to be placed in a component's folder, by its path there; None of others."""


def nothing_comes(_: str) -> bytes | None:
    """A log that is written by itself."""
    return None


def with_inputs(data: bytes, path: str, folder: str) -> bytes:
    """Ninja's log as it is stored: followed by what it was built from. `path` is its own, below `folder`.

    Raises:
        ValueError: the log is empty, or ninja would build something anew; or what ninja knows, or what an object was
            built from, cannot be read.
    """
    if not data:
        raise ValueError("it is empty")
    place = f"{folder}/{path}".rpartition("/")[0]
    paths = sorted({found for found in _inputs(place) if _OF_ENVIRONMENT not in found})
    since = os.stat(f"{folder}/{path}").st_mtime_ns
    for found in paths:
        try:
            is_newer = os.stat(found).st_mtime_ns > since
        except OSError as error:
            raise ValueError(f"{found}, which it was built from, is not there any more") from error
        if is_newer:
            raise ValueError(f"{found} is newer than what was built from it")
    return data + _MARK + json.dumps({"digest": _digest(paths), "paths": paths}).encode()


def for_inputs_here(stored: bytes, folder: str, coming: Coming) -> bytes:
    """The log for a worker whose component lives in `folder`: empty if it has other sources or headers. Those in that
    folder may come with the log.
    """
    data, mark, known = stored.rpartition(_MARK)
    if not mark:
        return stored
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        content = json.loads(known)
        if _digest(map(str, content["paths"]), _coming_to(folder, coming)) == content["digest"]:
            return data
    log.info("%s: built from other sources or headers than there are here, so ninja builds a module anew", folder)
    return b""


def _digest(paths: Iterable[str], coming: Coming = nothing_comes) -> str:
    """Of the contents of files, in that order; of what is `coming`, where there is none."""
    return digest_of_parts(_digest_or(path, coming(path)) for path in paths).hex()


def _digest_or(path: str, comes: bytes | None) -> bytes:
    found = _digest_of_file(path)
    if comes is None or comes == found:
        return found
    return comes if found == _ABSENT else _ABSENT  # Which of two will be there is not known.


def _coming_to(folder: str, coming: Coming) -> Coming:
    """The same of paths that are not below `folder`, but full, and may lead there by links."""
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
    """The digest of a file; of modules that include the same headers each is read once."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return digest_of(read_all(fd, size))
    finally:
        os.close(fd)


def _inputs(place: str) -> Iterator[str]:
    """The files outside `place`, a folder where ninja builds, that what is there was built from.

    Links may lead to it, and what is in it be named without them.
    """
    place, folder_of = os.path.realpath(place), cache(os.path.realpath)
    sources, outputs = _sources(f"{place}/build.ninja")
    headers = _headers(f"{place}/.ninja_deps")
    # It also knows of objects that are not built any more.
    read = [names for output, names in headers.items() if outputs is None or output in outputs]
    for name in chain(sources, *read):
        path = os.path.normpath(os.path.join(place, name))
        if not f"{folder_of(os.path.dirname(path))}/".startswith(f"{place}/"):
            yield path


def _sources(path: str) -> tuple[list[str], set[str] | None]:
    """What each rule of a build file names after its output, sources and objects of the folder; and all outputs, if it
    names each in full.
    """
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read().replace("$\n", " ")
    except FileNotFoundError:
        return [], None
    edges = _EDGE.findall(text)
    outputs = {os.path.normpath(output) for built, _ in edges for output in _tokens(built)}
    is_told = not _INCLUDES.search(text) and not any("$" in output for output in outputs)
    return [source for _, named in edges for source in _tokens(named)], outputs if is_told else None


def _tokens(text: str) -> list[str]:
    return [_ESCAPE.sub(r"\1", token) for token in _TOKEN.findall(text) if token not in ("|", "||")]


def _headers(path: str) -> dict[str, list[str]]:
    """What the compiler told ninja that it has read for each output, the sources among it.

    The format is that of ninja's `deps_log.h`: records of paths, which are numbered in their order, and records of what
    an output was built from, of which the last one counts. A record that is cut short ends it.

    Raises:
        ValueError: it is none, or of a version that is not known.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return {}
    at = len(_DEPS_HEADER) + _WORD.size
    before = _DEPS_VERSIONS.get(int.from_bytes(data[at - _WORD.size : at], "little"))
    if not data.startswith(_DEPS_HEADER) or before is None:
        raise ValueError("the .ninja_deps beside it has a form that is not known")
    paths, inputs = list[str](), dict[int, bytes]()
    while len(data) >= at + _WORD.size:
        (size,) = _WORD.unpack_from(data, at)
        start, at = at + _WORD.size, at + _WORD.size + (size & ~_IS_DEPS)
        record = data[start:at]
        if at > len(data):
            break
        if size & _IS_DEPS:
            inputs[int.from_bytes(record[: _WORD.size], "little")] = record[before:]
        else:
            paths.append(os.fsdecode(record[: -_WORD.size].rstrip(b"\0")))
    try:
        numbers = {output: _WORD.iter_unpack(record) for output, record in inputs.items()}
        return {paths[output]: [paths[number] for (number,) in each] for output, each in numbers.items()}
    except (struct.error, IndexError) as error:
        raise ValueError("the .ninja_deps beside it is damaged") from error
