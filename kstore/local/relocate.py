"""Artifacts that hold absolute paths are stored with a placeholder and written with the local folder.

Triton's `__grp__<kernel>.json` lists a kernel's files by absolute path, and Triton reads them from exactly
there (`FileCacheManager.get_group`): moved as it is, a kernel is a miss, or is read from the old place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

PLACEHOLDER = "@kstore-component@"
_IN_FOLDER = f"{PLACEHOLDER}/".encode()


class Stored(NamedTuple):
    """A file in the form that is the same on every worker."""

    data: bytes
    children: tuple[str, ...]
    """Names of the files that it says are beside it."""
    is_local: bool = True
    """Whether it says that they are in the component's folder of this worker."""


def to_stored(method: str, data: bytes, path: str, folder: str) -> Stored:
    """Take a file, whose own `path` is below its component's `folder`.

    Raises:
        ValueError: the file is not of the kind that `method` is for.
    """
    return _METHODS[method](data, path, folder)


def to_local(data: bytes, folder: str) -> bytes:
    """The form for a worker whose component lives in `folder`."""
    return data.replace(PLACEHOLDER.encode(), _as_json(folder))


@cache
def _as_json(folder: str) -> bytes:
    return json.dumps(folder)[1:-1].encode()


def _triton_group(data: bytes, path: str, folder: str) -> Stored:
    # Most often this is its stored form, as reading it shows: that takes half the time of writing another one.
    stored = data.replace(_as_json(f"{folder}/"), _IN_FOLDER) if _IN_FOLDER not in data else data
    content = json.loads(stored)
    children = content.get("child_paths") if isinstance(content, dict) else None
    if isinstance(children, list) and all(isinstance(name, str) for name in children):
        # Triton's RemoteCacheManager writes names, not paths: nothing to relocate.
        return Stored(data, tuple(children))
    if not isinstance(children, dict) or any("/" in name or not name for name in children):
        raise ValueError("it does not list a kernel's files by name")
    inside = path.rpartition("/")[0]
    moved = _below(f"{PLACEHOLDER}/{inside}/", children)
    if children == moved and stored is not data:
        return Stored(stored, tuple(children))
    content = json.loads(data)
    is_local = content["child_paths"] == _below(f"{folder}/{inside}/", children)
    return Stored(json.dumps({**content, "child_paths": moved}).encode(), tuple(children), is_local)


def _below(folder: str, names: Iterable[str]) -> dict[str, str]:
    return {name: folder + name for name in names}


_METHODS: dict[str, Callable[[bytes, str, str], Stored]] = {"triton_group": _triton_group}
