"""How much has changed in folders since they were last looked at, from the times of the folders alone.

Creating, renaming or replacing an artifact changes its folder's time. One `stat` per folder costs a compiler in the
same process a thousandth of what being told about every event costs it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from kstore.components.table import KSTORE_FOLDER


class _Folder(NamedTuple):
    mtime_ns: int | None
    """None if there is none."""
    folders: tuple[str, ...] = ()
    """Paths of its subfolders."""
    entries: int = 0


_ABSENT = _Folder(None)


class Activity:
    """Looks at folders and everything below them."""

    def __init__(self, folders: Iterable[str]) -> None:
        self._tops = tuple(folders)
        self._known: dict[str, _Folder] = {}

    def look(self) -> int:
        """How many entries came, went or were replaced since the last look; at least one for each changed folder."""
        changes = 0
        found: dict[str, _Folder] = {}
        left = list(self._tops)
        while left:
            path = left.pop()
            known = self._known.get(path, _ABSENT)
            folder = _look_at(path, known)
            if folder is not known:
                changes += max(abs(folder.entries - known.entries), 1)
            if folder is not _ABSENT:
                found[path] = folder
                left += folder.folders
        self._known = found
        return changes


def _look_at(path: str, known: _Folder) -> _Folder:
    """What the folder holds now; `known` itself if nothing has changed."""
    try:
        mtime_ns = os.stat(path).st_mtime_ns
        if mtime_ns == known.mtime_ns:
            return known
        with os.scandir(path) as entries:
            children = [entry for entry in entries if entry.name != KSTORE_FOLDER]
            folders = tuple(entry.path for entry in children if entry.is_dir(follow_symlinks=False))
    except OSError:
        return _ABSENT
    return _Folder(mtime_ns, folders, len(children))
