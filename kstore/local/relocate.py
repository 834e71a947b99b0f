"""Artifacts that are stored in a form other than the one they have in a cache root.

Triton's `__grp__<kernel>.json` lists a kernel's files by absolute path, and Triton reads them from exactly there
(`FileCacheManager.get_group`). A kernel that is moved as it is would be a miss, or be read from the old place. So the
list is stored with a placeholder, and written with the local folder. For ninja's log see `inputs`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import NamedTuple

from kstore.local.inputs import Coming, for_inputs_here, nothing_comes, with_inputs

PLACEHOLDER = "@kstore-component@"
_PLAIN = re.compile(r"[\w/.-]*", re.ASCII)


class Stored(NamedTuple):
    """A file in the form that is the same on every worker."""

    data: bytes
    children: tuple[str, ...]
    """Names of the files that it says are beside it."""
    is_local: bool = True
    """Whether it says that they are in this worker's folder of the component."""


def to_stored(method: str, data: bytes, path: str, folder: str) -> Stored:
    """The stored form of a file, whose own `path` is relative to its component's `folder`.

    Raises:
        ValueError: the file is not of the kind that `method` is for.
    """
    return _METHODS[method](data, path, folder)


def to_local(data: bytes, folder: str, coming: Coming = nothing_comes) -> bytes:
    """The form for a worker whose component lives in `folder`, where other files may be `coming` with it."""
    return for_inputs_here(data, folder, coming).replace(PLACEHOLDER.encode(), _as_json(folder))


@cache
def _as_json(folder: str) -> bytes:
    return json.dumps(folder)[1:-1].encode()


def _triton_group(data: bytes, path: str, folder: str) -> Stored:
    content = json.loads(data)
    children = content.get("child_paths") if isinstance(content, dict) else None
    if isinstance(children, list) and all(isinstance(name, str) for name in children):
        # Triton's RemoteCacheManager writes names, not paths: nothing to relocate.
        return Stored(data, tuple(children))
    if not isinstance(children, dict) or any("/" in name or not name for name in children):
        raise ValueError("it does not list a kernel's files by name")
    inside = path.rpartition("/")[0]
    moved = _below(f"{PLACEHOLDER}/{inside}/", children)
    is_plain = len(content) == 1 and _PLAIN.fullmatch(inside + "".join(children))
    stored = _dump_plain(moved) if is_plain else json.dumps({**content, "child_paths": moved})
    return Stored(stored.encode(), tuple(children), children == _below(f"{folder}/{inside}/", children))


def _dump_plain(children: Mapping[str, str]) -> str:
    """What json.dumps returns if nothing needs escaping, in a quarter of the time: there are thousands."""
    pairs = ", ".join([f'"{name}": "{path}"' for name, path in children.items()])
    return f'{{"child_paths": {{{pairs}}}}}'


def _below(folder: str, names: Iterable[str]) -> dict[str, str]:
    return {name: folder + name for name in names}


def _ninja_log(data: bytes, path: str, folder: str) -> Stored:
    return Stored(with_inputs(data, path, folder), ())


_METHODS: dict[str, Callable[[bytes, str, str], Stored]] = {"triton_group": _triton_group, "ninja_log": _ninja_log}
