"""Merges mutable files by meaning: what one writer added to them is never lost to another's copy."""

from __future__ import annotations

import ast
import csv
import io
import json
import pprint
import struct
from collections.abc import Callable
from typing import Any

Merger = Callable[[bytes, bytes], bytes]

_UNREADABLE = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError, csv.Error, struct.error)


def json_union(published: bytes, ours: bytes) -> bytes:
    """The union of two JSON objects, nested ones too; if both have a value, the published one stays."""
    known = json.loads(published)
    merged = _union(known, json.loads(ours))
    return published if merged == known else json.dumps(merged, sort_keys=True).encode()


def csv_union(published: bytes, ours: bytes) -> bytes:
    """The published rows, then those of ours whose first two columns (TunableOp's operator and shape) are new."""
    rows = _rows(published)
    known = {tuple(row[:2]) for row in rows}
    if _validators(rows) != _validators(_rows(ours)):
        return published
    new = [row for row in _rows(ours) if row[:1] != ["Validator"] and tuple(row[:2]) not in known]
    if not new:
        return published
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows + new)
    return text.getvalue().encode()


def literal_union(published: bytes, ours: bytes) -> bytes:
    """The union of two dictionaries, each a literal that makes up a Python file; for a key that both have, the
    published value (`CompilerManager.save_to_file` in vLLM and SGLang: shape and number of a graph → its artifact
    beside it).
    """
    known, new = _dictionary(published), _dictionary(ours)
    if new.keys() <= known.keys():
        return published
    return pprint.pformat(new | known, indent=4).encode()


def oldest(published: bytes, ours: bytes) -> bytes:
    """The older of two times, eight bytes each (JAX's `LRUCache`): whoever reads an entry writes its time anew, and
    that alone is not worth publishing.
    """
    return min(published, ours, key=lambda data: struct.unpack("<Q", data))


MERGERS: dict[str, Merger] = {
    "json_union": json_union, "csv_union": csv_union, "literal_union": literal_union, "oldest": oldest,
}  # fmt: skip
"""Mergers, by the name that the component table uses."""
_PARSERS: dict[str, Callable[[bytes], object]] = {
    "json_union": json.loads,
    "literal_union": lambda data: ast.parse(data.decode(), mode="eval"),
}
"""Parsers for mergers whose files are dictionaries: each fails on a dictionary that is cut short."""


def merge_files(merger: str, published: bytes, ours: bytes, *, prevails: bool = False) -> bytes:
    """Merge two versions of a file; one that cannot be read gives way to the other.

    Where the two disagree, the published version holds, or ours if it `prevails`.
    """
    try:
        return MERGERS[merger](ours, published) if prevails else MERGERS[merger](published, ours)
    except _UNREADABLE:
        return published if _readable(merger, published) else ours


def is_cut_short(merger: str, data: bytes) -> bool:
    """Whether it is a dictionary cut short. A file of another form, such as a later version's, counts as whole."""
    parse = _PARSERS.get(merger)
    if parse and data.lstrip().startswith(b"{"):
        try:
            parse(data)
        except (ValueError, SyntaxError):
            return True
        except (RecursionError, MemoryError):
            pass
    return False


def _readable(merger: str, data: bytes) -> bool:
    try:
        MERGERS[merger](data, data)
    except _UNREADABLE:
        return False
    return True


def _union(published: Any, ours: Any) -> Any:
    if not (isinstance(published, dict) and isinstance(ours, dict)):
        return published
    merged = dict(published)
    for key, value in ours.items():
        merged[key] = _union(merged[key], value) if key in merged else value
    return merged


def _dictionary(data: bytes) -> dict[Any, Any]:
    value = ast.literal_eval(data.decode())
    if not isinstance(value, dict):
        raise ValueError("it is not a dictionary")
    return value


def _rows(data: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(data.decode())))


def _validators(rows: list[list[str]]) -> list[list[str]]:
    """TunableOp's own lines on versions and devices: results under others are void."""
    return sorted(row for row in rows if row[:1] == ["Validator"])
