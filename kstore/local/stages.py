"""Where artifacts are built: in the mount that they go to, because a rename cannot cross mounts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack

from kstore.components import load_table
from kstore.local.cacheroot import CacheRoot
from kstore.local.found import Skipped
from kstore.local.state import StateFolder
from kstore.mounts import mounts


def find_elsewhere(root: CacheRoot, components: Iterable[str]) -> set[str]:
    """Components outside the cache root, or in their own mount within it: staging makes their folders."""
    outside, points = root.outside, {mount.point for mount in mounts()}
    here = _mount_of(root.state, points)
    return {c for c in components if c in outside or _mount_of(root.folders[c], points) != here}


def open_stages(
    root: CacheRoot,
    state: StateFolder,
    components: Iterable[str],
    elsewhere: Iterable[str],
    stage: str,
    stack: ExitStack,
) -> tuple[dict[str, str], list[Skipped]]:
    """A staging folder for each component, in the mount that it is in, and the components that can have none.

    In the cache root's own mount that folder is `stage`.
    """
    stages = dict.fromkeys(components, stage)
    unusable = []
    for component in elsewhere:
        folder = root.folders[component]
        try:
            stages[component] = stack.enter_context(state.staging(folder))
        except OSError as error:
            del stages[component]
            unusable.append(Skipped(component, f"{folder} cannot be written: {error.strerror}"))
    return stages, unusable


def cannot_write(root: CacheRoot, error: OSError) -> str:
    """What is wrong with a restore, and what to do. A component's variable may name a folder on another disk."""
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else root.path
    outside = root.outside
    component = next((c for c, folder in outside.items() if f"{path}/".startswith(f"{folder}/")), "")
    where = outside.get(component, f"the cache root {root.path}")
    variable = load_table()[component].variable if component else "KSTORE_CACHE_ROOT"
    return (
        f"cannot write {path}: {error.strerror}; check the space, inodes and permissions of {where}, "
        f"or set {variable} to another folder"
    )


def clock_of(folder: str) -> int:
    """The present time, in nanoseconds, by the clock of the filesystem that a staging folder is on."""
    os.utime(folder)
    return os.stat(folder).st_mtime_ns


def _mount_of(path: str, points: set[str]) -> tuple[str, int]:
    """Mount and device that `path` is or will be on: a device can be mounted twice, and a mount can have several."""
    path = os.path.realpath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    device = os.stat(path).st_dev
    while path not in points and path != "/":
        path = os.path.dirname(path)
    return path, device
