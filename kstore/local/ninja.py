"""What ninja knows about a folder where it builds: the files in other folders that its contents were built from."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from functools import cache
from itertools import chain

_EDGE = re.compile(r"^build ((?:[^:$]|\$.)*): *\S+(.*)$", re.MULTILINE)
_INCLUDES = re.compile(r"^(?:include|subninja) ", re.MULTILINE)
_TOKEN = re.compile(r"(?:[^\s$]|\$.)+")
_ESCAPE = re.compile(r"\$([$: ])")
_DEPS_HEADER, _DEPS_VERSIONS = b"# ninjadeps\n", {3: 8, 4: 12}
"""By version: the bytes of an output's number and of a time, which in a record precede what it was built from."""
_WORD = struct.Struct("<I")
_IS_DEPS = 1 << 31


def inputs_of(place: str) -> Iterator[str]:
    """The full paths of the files outside `place`, a folder where ninja builds, that its contents were built from.

    Links may lead to the folder, and what is in it may be named without them.

    Raises:
        ValueError: what ninja has noted cannot be read.
    """
    place, folder_of = os.path.realpath(place), cache(os.path.realpath)
    sources, outputs = _sources(f"{place}/build.ninja")
    headers = _headers(f"{place}/.ninja_deps")
    # Ninja also knows objects that are no longer built.
    read = [names for output, names in headers.items() if outputs is None or output in outputs]
    for name in chain(sources, *read):
        path = os.path.normpath(os.path.join(place, name))
        if not f"{folder_of(os.path.dirname(path))}/".startswith(f"{place}/"):
            yield path


def _sources(path: str) -> tuple[list[str], set[str] | None]:
    """What each rule of a build file names after its output: sources, and objects of the folder.

    With that come all outputs, if the file names each in full.
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
    """What the compiler told ninja that it read for each output, sources included. Of several records of one output,
    the last counts.

    Raises:
        ValueError: the file is not ninja's, of an unknown version, or damaged.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return {}
    start = len(_DEPS_HEADER) + _WORD.size
    before = _DEPS_VERSIONS.get(int.from_bytes(data[start - _WORD.size : start], "little"))
    if not data.startswith(_DEPS_HEADER) or before is None:
        raise ValueError("the .ninja_deps beside it has a form that is not known")
    paths, inputs = list[str](), dict[int, bytes]()
    for is_deps, record in _records(data, start):
        if is_deps:
            inputs[int.from_bytes(record[: _WORD.size], "little")] = record[before:]
        else:
            paths.append(os.fsdecode(record[: -_WORD.size].rstrip(b"\0")))
    try:
        numbers = {output: _WORD.iter_unpack(record) for output, record in inputs.items()}
        return {paths[output]: [paths[number] for (number,) in each] for output, each in numbers.items()}
    except (struct.error, IndexError) as error:
        raise ValueError("the .ninja_deps beside it is damaged") from error


def _records(data: bytes, at: int) -> Iterator[tuple[bool, bytes]]:
    """The records of ninja's `deps_log.h`. One that is cut short is the end.

    A record has a path, which is numbered by its place among the paths, or what the output of a number was built from.
    """
    while len(data) >= at + _WORD.size:
        (size,) = _WORD.unpack_from(data, at)
        start, at = at + _WORD.size, at + _WORD.size + (size & ~_IS_DEPS)
        if at <= len(data):
            yield bool(size & _IS_DEPS), data[start:at]
