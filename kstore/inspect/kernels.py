"""Names and configurations of kernels, read from the small text files that compilers leave beside them.

The files may be anybody's: nothing here is trusted to be well formed, short, or fit for a terminal.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kstore.digest import digest_of

Value = str | int | float | bool | None
Configuration = Mapping[str, Value]

MAX_METADATA = 1 << 20
"""Bytes: real metadata has one or two kB. Anything larger is not read."""
MAX_SOURCE = 2 << 20
"""Bytes of generated code; anything larger is not read."""
MAIN_OPTIONS = ("num_warps", "num_stages", "num_ctas")
"""The options that tell one configuration of a kernel from another at a glance."""

_MAX_FIELDS = 200
_MAX_TEXT = 200
# A digest over everything, the name that the file already has, and where libdevice was on the builder.
_NOT_CONFIGURATION = {"hash", "name", "extern_libs"}
# When and how a choice was made, not what was chosen.
_NOT_CHOICE = {"configs_hash", "time_taken_ms", "triton_cache_hash", "found_by_coordesc"}
_DEFINITION = re.compile(r"^(\w+) = async_compile\.\w+\(", re.MULTILINE)
_JITTED = re.compile(r"^@triton\.jit\s*\ndef (\w+)\(", re.MULTILINE)
# A statement is followed by " loc(#loc7)" or " loc("x"(#loc))"; lines below say "#loc7 = loc("kernel.py":12:0)".
_PLACE = re.compile(rb" loc\((?:#loc\d*|\"[^\"\n]*\"\(#loc\d*\))\)")
_PLACES = re.compile(rb"#loc[^\n]*\n?")
_QUOTES = "'''"
_MAX_ARGUMENTS = 64 << 10
_BINDINGS = b"// Python bindings to call"


class Definition(NamedTuple):
    """A kernel as a generated module defines it."""

    name: str
    digest: bytes
    """The digest of its source."""


def read_configuration(data: bytes) -> Configuration | None:
    """The options and results in Triton's `<kernel>.json`; None if it cannot be understood."""
    return _scalars(data, _NOT_CONFIGURATION)


def read_choice(data: bytes) -> Configuration | None:
    """What an Inductor `.best_config` chose; None if it cannot be understood."""
    return _scalars(data, _NOT_CHOICE)


def chosen_kernel(data: bytes) -> str:
    """The Triton folder of the kernel that a `.best_config` chose; empty if it does not say."""
    content = _object(data)
    name = content.get("triton_cache_hash") if content else None
    return name if isinstance(name, str) else ""


def definitions(text: str) -> Iterator[Definition]:
    """The kernels that an Inductor module hands to its compilers: `name = async_compile.triton('…', '''…''')`."""
    found, start = _DEFINITION.search(text), 0
    while found:
        end = found.end()
        if start < end:  # The quotes that one definition is too far from may be those of a later one.
            start = text.find(_QUOTES, end)
        if start < 0:
            return
        if start - end < _MAX_ARGUMENTS:
            end = text.find(_QUOTES, start + len(_QUOTES))
            if end < 0:
                return  # The text is cut short.
            yield Definition(found[1], source_digest(text[start + len(_QUOTES) : end].encode(errors="replace")))
        found = _DEFINITION.search(text, end)


def jitted_name(text: str) -> str:
    """The Triton kernel that has this module to itself; empty if there is none."""
    found = _JITTED.search(text)
    return found[1] if found else ""


def source_digest(source: bytes) -> bytes:
    """Names the C++ of a kernel, as its module holds it or as it is compiled, with bindings for Python after it."""
    return digest_of(source.partition(_BINDINGS)[0].strip())


def code_digest(text: bytes) -> bytes:
    """Names the code in Triton's `.source` or `.ttir`, regardless of the file and lines that it was written in."""
    return digest_of(_PLACES.sub(b"", _PLACE.sub(b"", text)))


def _scalars(data: bytes, left_out: set[str]) -> Configuration | None:
    content = _object(data)
    if content is None:
        return None
    found: dict[str, Value] = {}
    for name, value in _flat(content):
        if name not in left_out and len(found) < _MAX_FIELDS:
            found[name[:_MAX_TEXT]] = _bounded(value)
    return found


def _bounded(value: Value) -> Value:
    """A value that is not too long, and that JSON can hold: JSON has no infinity, though Python reads one."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value[:_MAX_TEXT] if isinstance(value, str) else value


def _flat(content: Mapping[str, object]) -> Iterator[tuple[str, Value]]:
    """The scalars of an object; those of a nested object under both names, and lists of scalars as text."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", item) for inner, item in value.items() if _is_scalar(item))
        elif isinstance(value, list) and all(map(_is_scalar, value)):
            yield name, " ".join(map(str, value))
        elif _is_scalar(value):
            yield name, value  # type: ignore[misc]


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _object(data: bytes) -> dict[str, object] | None:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
