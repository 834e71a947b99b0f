"""Whether anything in a cache root can have changed since a scan of it: asks for times, and reads and lists nothing.

A folder's status-change time moves with every name that comes or goes in it, and nobody can set it back. So while those
of all folders stand, each file is the one that was scanned; of those that are changed in place their own is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

from kstore.calls import Status, stat_each
from kstore.local.cacheroot import CacheRoot
from kstore.local.found import Scan
from kstore.local.index import is_settled
from kstore.published.manifest import NEVER_IN_PLACE

Times = dict[str, int]
"""Path below a component's folder → status-change time, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Still:
    """A cache root in which nothing moves."""

    components: dict[str, str]
    """Where each component is."""
    folders: dict[str, Times]
    """Component → all of its folders that were scanned, "." for its own; none for one that is not there."""
    files: dict[str, Times]
    """Component → those of its files that are changed in place."""

    @classmethod
    def load(cls, content: Any) -> Self:
        """From its fields, as JSON has them.

        Raises:
            KeyError, TypeError, AttributeError: it is damaged.
        """
        folders, files = content["folders"], content["files"]
        return cls(dict(content["components"]), _times(folders), _times(files))

    def holds(self, root: CacheRoot) -> bool:
        """Whether nothing has changed since."""
        if self.components != dict(root.folders):
            return False
        if any(name not in self.folders and os.path.lexists(folder) for name, folder in root.folders.items()):
            return False
        try:
            return all(self._holds(name, root.folders[name]) for name in self.folders)
        except OSError:
            return False

    def _holds(self, component: str, folder: str) -> bool:
        """There are thousands of paths: the kernel walks the folder's own only once."""
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            folders, files = self.folders.get(component, {}), self.files.get(component, {})
            return _stand(folders, stat_each([*folders], fd, follows=True)) and _stand(files, stat_each([*files], fd))
        finally:
            os.close(fd)


def _stand(times: Times, statuses: Iterable[Status]) -> bool:
    return all(
        not found.error and found.ctime_ns == moment for found, moment in zip(statuses, times.values(), strict=True)
    )


def _times(content: Any) -> dict[str, Times]:
    return {component: dict(times) for component, times in content.items()}


def still_since(root: CacheRoot, found: Scan, started_ns: int) -> Still | None:
    """What is to stand from now on; None if something may have changed since the scan `found` began at `started_ns`,
    or is unfinished, so that it may be found otherwise where nothing changes.
    """
    if found.skipped or found.busy or found.unsettled:
        return None
    in_place = (path for path, known in found.known.items() if not known.entry.flags & NEVER_IN_PLACE)
    try:
        folders = _ask(root, found.folders, os.stat)
        files = _ask(root, in_place, os.lstat)
    except OSError:
        return None
    every = (moment for asked in (folders, files) for times in asked.values() for moment in times.values())
    if not all(is_settled(moment, started_ns) for moment in every):
        return None
    return Still(dict(root.folders), folders, files)


def _ask(root: CacheRoot, paths: Iterable[str], status: Callable[[str], os.stat_result]) -> dict[str, Times]:
    asked: dict[str, Times] = {}
    for path in paths:
        component, _, below = path.partition("/")
        asked.setdefault(component, {})[below or "."] = status(root.local_path(path)).st_ctime_ns
    return asked
