"""Whether anything in a cache root can have changed since a scan of it: asks for times, and reads and lists nothing.

A folder's status-change time moves with every name that comes or goes in it, and nobody can set it back. So while those
of all folders stand, each file is the one that was scanned; of those that are changed in place their own is asked for.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any, Self

from kstore.local.cacheroot import CacheRoot
from kstore.local.index import is_settled
from kstore.local.scan import Scan
from kstore.manifest import Flag

_NEVER_IN_PLACE = int(Flag.LINK | Flag.RELOCATE)


@dataclass(frozen=True, slots=True)
class Still:
    """A cache root in which nothing moves."""

    components: dict[str, str]
    """Where each component is."""
    folders: dict[str, int]
    """Status-change times, in nanoseconds, of all folders that were scanned."""
    files: dict[str, int]
    """Those of the files that are changed in place."""

    def dump(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, content: Any) -> Self:
        """Read what `dump` wrote.

        Raises:
            KeyError, TypeError: it is damaged.
        """
        return cls(dict(content["components"]), dict(content["folders"]), dict(content["files"]))

    def holds(self, root: CacheRoot) -> bool:
        """Whether nothing has changed since."""
        if self.components != dict(root.folders):
            return False
        if any(folder not in self.folders and os.path.lexists(folder) for folder in root.folders.values()):
            return False
        try:
            return all(os.stat(path).st_ctime_ns == moment for path, moment in self.folders.items()) and all(
                os.lstat(path).st_ctime_ns == moment for path, moment in self.files.items()
            )
        except OSError:
            return False


def still_since(root: CacheRoot, found: Scan, started_ns: int) -> Still | None:
    """What is to stand from now on; None if something may have changed since the scan `found` began at `started_ns`,
    or is unfinished, so that it may be found otherwise where nothing changes.
    """
    if found.skipped or found.busy or found.unsettled:
        return None
    try:
        folders = {path: os.stat(path).st_ctime_ns for path in map(root.local_path, found.folders)}
        in_place = (path for path, known in found.known.items() if not known.entry.flags & _NEVER_IN_PLACE)
        files = {path: os.lstat(path).st_ctime_ns for path in map(root.local_path, in_place)}
    except OSError:
        return None
    if not all(is_settled(moment, started_ns) for moment in (*folders.values(), *files.values())):
        return None
    return Still(dict(root.folders), folders, files)
