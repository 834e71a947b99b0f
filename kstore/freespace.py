"""How much room a filesystem says that it has."""

from __future__ import annotations

import math
import os


def free_bytes(path: str | os.PathLike[str]) -> float:
    """Bytes that are free to this user where `path` is; infinite if the filesystem has no size, as ramfs, a tmpfs with
    size=0, and some mounts of FUSE.

    Raises:
        OSError: the filesystem does not say.
    """
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize if status.f_blocks else math.inf
