"""Artifacts that hold absolute paths are stored with a placeholder and written with the local folder.

Triton's `__grp__<kernel>.json` lists a kernel's files by absolute path, and Triton reads them from exactly
there (`FileCacheManager.get_group`): moved as it is, a kernel is a miss, or is read from the old place.
"""

from __future__ import annotations

import json
from collections.abc import Callable

PLACEHOLDER = "@kstore-component@"


def to_stored(method: str, data: bytes, path: str) -> bytes:
    """The form that is the same on every worker. `path` is the file's own, below its component's folder.

    Raises:
        ValueError: the file is not of the kind that `method` is for.
    """
    return _METHODS[method](data, path)


def to_local(data: bytes, folder: str) -> bytes:
    """The form for a worker whose component lives in `folder`."""
    return data.replace(PLACEHOLDER.encode(), json.dumps(folder)[1:-1].encode())


def is_local(data: bytes, stored: bytes, folder: str) -> bool:
    """Whether a file with these bytes, whose stored form is `stored`, means the component's folder of this worker."""
    local = to_local(stored, folder)
    return data == local or json.loads(data) == json.loads(local)


def group_children(stored: bytes) -> list[str]:
    """Names of the files that a stored `__grp__` file says its kernel has."""
    children = json.loads(stored)["child_paths"]
    return list(children)


def _triton_group(data: bytes, path: str) -> bytes:
    content = json.loads(data)
    children = content.get("child_paths") if isinstance(content, dict) else None
    if isinstance(children, list):
        # Triton's RemoteCacheManager writes names, not paths: nothing to relocate.
        return data
    if not isinstance(children, dict) or any("/" in name or not name for name in children):
        raise ValueError("it does not list a kernel's files by name")
    group = f"{PLACEHOLDER}/{path.rpartition('/')[0]}"
    content["child_paths"] = {name: f"{group}/{name}" for name in children}
    return json.dumps(content).encode()


_METHODS: dict[str, Callable[[bytes, str], bytes]] = {"triton_group": _triton_group}
