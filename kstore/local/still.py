"""Whether anything in a cache root can have changed since a scan of it: asks for times, and reads and lists nothing.

A folder's status-change time moves with every name that comes or goes in it, and nobody can set it back. So while those
of all folders stand, each file is the one that was scanned; of those that are changed in place their own is asked for.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from kstore.calls import change_times
from kstore.digest import digest_of_parts
from kstore.local.cacheroot import CacheRoot
from kstore.local.found import Scan
from kstore.local.index import is_settled
from kstore.published.manifest import NEVER_IN_PLACE


@dataclass(frozen=True, slots=True)
class Times:
    """When the statuses of some paths last changed."""

    paths: bytes
    """Below a component's folder, "." for that itself, with a NUL between each two."""
    digest: str
    """Of the paths and all their times, hexadecimal: read and compared as one."""


@dataclass(frozen=True, slots=True)
class Still:
    """A cache root in which nothing moves."""

    components: dict[str, str]
    """Where each component is."""
    folders: dict[str, Times]
    """Component → all of its folders that were scanned; none for one that is not there."""
    files: dict[str, Times]
    """Component → those of its files that are changed in place."""

    def dump(self) -> tuple[dict[str, Any], bytes]:
        """For JSON, and all paths beside it: thousands need not be parsed."""
        kinds = {"folders": self.folders, "files": self.files}
        fields = {kind: {name: [len(t.paths), t.digest] for name, t in times.items()} for kind, times in kinds.items()}
        paths = b"".join(t.paths for times in kinds.values() for t in times.values())
        return {"components": self.components, **fields}, paths

    @classmethod
    def load(cls, content: Any, paths: bytes) -> Self:
        """What `dump` returned.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is damaged.
        """
        left = io.BytesIO(paths)
        folders, files = (
            {name: Times(left.read(min(size, len(paths))), digest) for name, (size, digest) in content[kind].items()}
            for kind in ("folders", "files")
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
    return all(_stands(root, component, known, follows=follows) for component, known in times.items())


def _stands(root: CacheRoot, component: str, known: Times, *, follows: bool) -> bool:
    found = _ask(root, component, known.paths, follows=follows)
    return found is not None and _digest(known.paths, found) == known.digest


def still_since(root: CacheRoot, found: Scan, started_ns: int) -> Still | None:
    """What is to stand from now on; None if something may have changed since the scan `found` began at `started_ns`,
    or is unfinished, so that it may be found otherwise where nothing changes.
    """
    # What is displaced is looked at again only for who restores, and puts it right.
    if found.skipped or found.busy or found.unsettled.difference(found.displaced):
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
        names = os.fsencode("\0".join(those))
        times = _ask(root, component, names, follows=follows)
        if times is None or not all(is_settled(moment, started_ns) for moment in memoryview(times).cast("q")):
            return None
        settled[component] = Times(names, _digest(names, times))
    return settled


def _digest(paths: bytes, times: bytes) -> str:
    return digest_of_parts((paths, times)).hex()


def _ask(root: CacheRoot, component: str, paths: bytes, *, follows: bool) -> bytes | None:
    """There are thousands of paths: the kernel walks the component's own only once."""
    fd = os.open(root.folders[component], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return change_times(paths, fd, follows=follows)
    finally:
        os.close(fd)
