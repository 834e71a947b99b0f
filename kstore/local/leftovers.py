"""Removes what killed restores have left behind, whenever somebody works in the root again."""

from __future__ import annotations

import os
import shutil
import stat
import time
from contextlib import suppress

from kstore.local.held import is_held
from kstore.local.turn import is_left_turn

STAGE = "stage-"
"""The prefix of the names of folders that hold artifacts on their way."""
_LONGEST_RESTORE = 24 * 3600.0
"""Seconds after which nobody is still staging."""


def sweep(parent: str, longest_wait: float) -> None:
    """Remove what killed restores left in a state folder, but nothing of a restore that has only lent the root.

    Nobody waits for a turn longer than `longest_wait` seconds.
    """
    with suppress(FileNotFoundError):
        for name in os.listdir(parent):
            path = os.path.join(parent, name)
            if name.startswith(STAGE) and not is_held(path):
                shutil.rmtree(path, ignore_errors=True)
            elif is_left_turn(path, longest_wait):
                os.unlink(path)


def sweep_elsewhere(parent: str) -> None:
    """Do the same in a component's folder. Other roots and hosts may have it too, and its filesystem may lack locks."""
    for path in left_folders(parent, STAGE):
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):  # another restore's may be in it
            os.rmdir(parent)


def left_folders(parent: str, prefix: str) -> list[str]:
    """This user's folders with that prefix that are a day old, and that nobody is at work on."""
    with suppress(OSError):
        paths = [os.path.join(parent, name) for name in os.listdir(parent) if name.startswith(prefix)]
        return [path for path in paths if _is_old(path) and not is_held(path)]
    return []


def _is_old(path: str) -> bool:
    """Whether it is this user's folder, and a day old. In a temporary folder, anybody may make such a name."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return is_ours and time.time() - status.st_mtime > _LONGEST_RESTORE
