"""Where artifacts are built: on the filesystem that they go to, for a rename reaches no further."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack

from kstore.local.cacheroot import CacheRoot
from kstore.local.scan import Skipped
from kstore.local.state import StateFolder


def find_elsewhere(root: CacheRoot, components: Iterable[str]) -> set[str]:
    """Components outside the cache root, or on a filesystem of their own in it: staging makes their folder."""
    inside, device = f"{root.path}/", _device(root.state)
    return {c for c in components if not root.folders[c].startswith(inside) or _device(root.folders[c]) != device}


def open_stages(
    root: CacheRoot, state: StateFolder, components: Iterable[str], elsewhere: Iterable[str], stack: ExitStack
) -> tuple[dict[str, str], list[Skipped]]:
    """A staging folder for each component, on the filesystem that it is on; and those that can have none."""
    stages = dict.fromkeys(components, stack.enter_context(state.staging()))
    unusable = []
    for component in elsewhere:
        folder = root.folders[component]
        try:
            stages[component] = stack.enter_context(state.staging(folder))
        except OSError as error:
            del stages[component]
            unusable.append(Skipped(component, f"{folder} cannot be written: {error.strerror}"))
    return stages, unusable


def _device(path: str) -> int:
    """Of the filesystem that `path` is on, or will be."""
    try:
        return os.stat(path).st_dev
    except (FileNotFoundError, NotADirectoryError):
        return _device(os.path.dirname(path))
