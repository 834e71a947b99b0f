"""Whether anything in a cache root can have changed since a scan of it: asks for times, and reads and lists nothing.

A folder's status-change time moves with every name that comes or goes in it, and nobody can set it back. So while those
of all folders stand, each file is the one that was scanned; of those that are changed in place their own is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from kstore.calls import change_times
from kstore.digest import digest_of
from kstore.local.cacheroot import CacheRoot
from kstore.local.found import Scan
from kstore.local.index import is_settled
from kstore.published.manifest import NEVER_IN_PLACE


@dataclass(frozen=True, slots=True)
class Times:
    """When the statuses of some paths last changed."""

    paths: list[str]
    """Below a component's folder, "." for that itself."""
    digest: str
    """Of all the times, hexadecimal: read and compared as one."""


@dataclass(frozen=True, slots=True)
class Still:
    """A cache root in which nothing moves."""

    components: dict[str, str]
    """Where each component is."""
    folders: dict[str, Times]
    """Component → all of its folders that were scanned; none for one that is not there."""
    files: dict[str, Times]
    """Component → those of its files that are changed in place."""

    @classmethod
    def load(cls, content: Any) -> Self:
        """From its fields, as JSON has them.

        Raises:
            KeyError, TypeError, AttributeError: it is damaged.
        """
        folders, files = (
            {name: Times(**times) for name, times in content[kind].items()} for kind in ("folders", "files")
        )
        return cls(dict(content["components"]), folders, files)

    def holds(self, root: CacheRoot) -> bool:
        """Whether nothing has changed since."""
        if self.components != dict(root.folders):
            return False
        if any(name not in self.folders and os.path.lexists(folder) for name, folder in root.folders.items()):
            return False
        try:
            return _stand(root, self.folders, follows=True) and _stand(root, self.files, follows=False)
        except (OSError, KeyError, TypeError, ValueError):  # What is remembered may be damaged.
            return False


def _stand(root: CacheRoot, times: dict[str, Times], *, follows: bool) -> bool:
    asked = ((_ask(root, name, known.paths, follows=follows), known.digest) for name, known in times.items())
    return all(found is not None and digest_of(found).hex() == digest for found, digest in asked)


def still_since(root: CacheRoot, found: Scan, started_ns: int) -> Still | None:
    """What is to stand from now on; None if something may have changed since the scan `found` began at `started_ns`,
    or is unfinished, so that it may be found otherwise where nothing changes.
    """
    if found.skipped or found.busy or found.unsettled:
        return None
    in_place = (path for path, known in found.known.items() if not known.entry.flags & NEVER_IN_PLACE)
    try:
        folders = _settled(root, found.folders, started_ns, follows=True)
        files = _settled(root, in_place, started_ns, follows=False)
    except OSError:
        return None
    return Still(dict(root.folders), folders, files) if folders is not None and files is not None else None


def _settled(root: CacheRoot, paths: Iterable[str], started_ns: int, *, follows: bool) -> dict[str, Times] | None:
    """Component → the times of its paths; None if one of them may not tell of a change after `started_ns`."""
    below: dict[str, list[str]] = {}
    for path in paths:
        component, _, rest = path.partition("/")
        below.setdefault(component, []).append(rest or ".")
    settled = {}
    for component, those in below.items():
        times = _ask(root, component, those, follows=follows)
        if times is None or not all(is_settled(moment, started_ns) for moment in memoryview(times).cast("q")):
            return None
        settled[component] = Times(those, digest_of(times).hex())
    return settled


def _ask(root: CacheRoot, component: str, paths: list[str], *, follows: bool) -> bytes | None:
    """There are thousands of paths: the kernel walks the component's own only once."""
    fd = os.open(root.folders[component], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return change_times(paths, fd, follows=follows)
    finally:
        os.close(fd)
