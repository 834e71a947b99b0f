"""What is mounted where, as far as this process sees: proc_pid_mountinfo(5)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

_ESCAPED = re.compile(rb"\\([0-7]{3})")
"""A blank in a path."""
_DEVICE, _POINT = 2, 4
"""Fields of a line."""


class Mount(NamedTuple):
    """One filesystem in one place."""

    point: str
    device: int
    """As `os.stat` gives it for what is in the filesystem."""
    kind: str
    """Such as `ext4` or `fuse.sshfs`."""


def mounts() -> list[Mount]:
    """All of them; none where the system has no such list."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:  # not Linux
        return []
    return [_mount(line.split(b" ")) for line in lines]


def _mount(fields: list[bytes]) -> Mount:
    point = _ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), fields[_POINT])
    major, minor = map(int, fields[_DEVICE].split(b":"))
    return Mount(os.fsdecode(point), os.makedev(major, minor), os.fsdecode(fields[fields.index(b"-") + 1]))
