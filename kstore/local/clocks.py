"""What time it is by the clocks that files get their times from. A cache root may be on a server, whose clock differs
from this host's: the time of a file says how old it is only beside another one of the same filesystem.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from kstore.components.table import KSTORE_FOLDER

_CLOCK = "clock"
_NOWHERE = -1
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def clocks_of(state: str, folders: Mapping[str, str]) -> dict[str, int]:
    """Component → the present time, in nanoseconds, by the clock of the filesystem that its folder is on.

    `state` is the cache root's own folder. 0 if nobody can tell: then no file is old.
    """
    devices = {folder: _device_of(folder) for folder in (state, *folders.values())}
    host_ns, told = time.time_ns(), dict[int, int | None]({_NOWHERE: 0})
    for folder, device in devices.items():
        if told.get(device) is None:
            told[device] = _now(folder, state if folder == state else f"{folder}/{KSTORE_FOLDER}")
    clocks = ((name, told[devices[folder]]) for name, folder in folders.items())
    return {name: host_ns if now_ns is None else now_ns for name, now_ns in clocks}


def _device_of(folder: str) -> int:
    try:
        return os.stat(folder).st_dev
    except OSError:
        return _NOWHERE


def _now(folder: str, own: str) -> int | None:
    """The time by the clock of `folder`; `own` is kstore's folder on the same filesystem, which may not exist yet.

    None if this worker may not write there: another folder of the filesystem may tell, and if none does, this host's
    clock will do, since no compiler of this worker's writes there either.
    """
    trouble = 0
    for look in (partial(_of_nameless, folder), partial(_of_named, own)):
        try:
            return look()
        except OSError as error:
            trouble = error.errno or 0
    return None if trouble in _DENIED else 0


def _of_nameless(folder: str) -> int:
    """The time of a file without a name: that leaves no trace, but NFS for one has none."""
    fd = os.open(folder, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    try:
        return os.fstat(fd).st_mtime_ns
    finally:
        os.close(fd)


def _of_named(folder: str) -> int:
    """The time of a file that is cut short and written. Touching it may set the client's time, as on sshfs."""
    with suppress(FileExistsError):
        os.mkdir(folder)  # not what it is in: that may not be there
    path = os.path.join(folder, _CLOCK)
    with open(path, "wb", opener=_open_own) as file:
        file.write(b"\n")
    return os.stat(path).st_mtime_ns


def _open_own(path: str, flags: int) -> int:
    """Neither through a link nor into a pipe: others may write into a component's folder, and this runs in the job."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
