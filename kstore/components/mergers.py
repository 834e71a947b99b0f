"""Mutable files that are merged by meaning: what one writer added to them is never lost to another's copy."""

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
    """The union of two JSON objects, nested ones too; where both have a value, the published one stays."""
    known = json.loads(published)
    merged = _union(known, json.loads(ours))
    return published if merged == known else json.dumps(merged, sort_keys=True).encode()


def csv_union(published: bytes, ours: bytes) -> bytes:
    """The published rows, then ours whose first two columns are not among them (TunableOp's operator and shape)."""
    rows = _rows(published)
    known = {tuple(row[:2]) for row in rows if row[:1] != ["Validator"]}
    if _validators(rows) != _validators(_rows(ours)):
        return published
    new = [row for row in _rows(ours) if row[:1] != ["Validator"] and tuple(row[:2]) not in known]
    if not new:
        return published
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows + new)
    return text.getvalue().encode()


def literal_union(published: bytes, ours: bytes) -> bytes:
    """The union of two dictionaries, each the literal that is a file of Python; of a key that both have, the published
    value (`CompilerManager.save_to_file` in vLLM and SGLang: shape and number of a graph → its artifact beside it).
    """
    known, new = _dictionary(published), _dictionary(ours)
    if new.keys() <= known.keys():
        return published
    return pprint.pformat(new | known, indent=4).encode()


def oldest(published: bytes, ours: bytes) -> bytes:
    """The older of two times, of eight bytes each (JAX's `LRUCache`): whoever reads an entry writes its time anew, and
    that alone is nothing to publish.
    """
    return min(published, ours, key=lambda data: struct.unpack("<Q", data))


MERGERS: dict[str, Merger] = {
    "json_union": json_union, "csv_union": csv_union, "literal_union": literal_union, "oldest": oldest,
}  # fmt: skip
"""By the name that the component table uses."""
_PARSERS: dict[str, Callable[[bytes], object]] = {
    "json_union": json.loads,
    "literal_union": lambda data: ast.parse(data.decode(), mode="eval"),
}
"""Parsers for those whose files are dictionaries: each fails on the beginning of one."""


def merge_files(merger: str, published: bytes, ours: bytes, *, prevails: bool = False) -> bytes:
    """Merge two versions of a file; one that cannot be read gives way to the other.

    Where both say something else the published version holds, or ours if it `prevails`.
    """
    try:
        return MERGERS[merger](ours, published) if prevails else MERGERS[merger](published, ours)
    except _UNREADABLE:
        return published if _readable(merger, published) else ours


def is_cut_short(merger: str, data: bytes) -> bool:
    """Whether it is the beginning of a dictionary. What has another form, as a later version's, is whole."""
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
        raise ValueError("it is no dictionary")
    return value


def _rows(data: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(data.decode())))


def _validators(rows: list[list[str]]) -> list[list[str]]:
    """TunableOp's own lines on versions and devices: results under others are void."""
    return sorted(row for row in rows if row[:1] == ["Validator"])
