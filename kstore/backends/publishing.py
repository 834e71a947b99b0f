"""How a finished file gets its name: only one of several writers gets it, and an existing file is never replaced."""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress

FILE_MODE = 0o444
_WRITABLE_MODE = 0o644
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EIO}
"""EIO is what FUSE makes of an answer that it does not understand, such as rclone's."""
_NO_SUCH_RENAME = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM}
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1


class CannotPublish(OSError):
    """The filesystem, such as an object store's, cannot give a name to one writer only.

    The error number is that of the link: with EIO, the reason may have been a server that was away (NFS, mounted soft).
    """


def publish_file(source: str, target: str) -> bool:
    """Give a finished file its name; False if that is taken.

    Raises:
        CannotPublish: nothing can be published on this filesystem.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        return _has_two_names(source)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if error.errno == errno.EIO and _has_two_names(source):
            return True
        is_anothers = error.errno == errno.EPERM and os.stat(source).st_uid != os.geteuid()
        return _link_anothers(source, target, error) if is_anothers else _rename_if_absent(source, target, error)
    return True


def has_hard_links(path: str) -> bool:
    """Whether names are taken by hard links, and not by a rename that never replaces.

    It is tried with a file at `path` and a name beside it, which nobody else uses.

    Raises:
        CannotPublish: they are taken by neither.
        OSError: nothing can be written there.
    """
    names = path, f"{path}.1"
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE), "wb") as file:
            file.write(b"\n")
        publish_file(*names)
        return os.path.exists(path)
    finally:
        for name in names:
            with suppress(OSError):
                os.unlink(name)


def _has_two_names(source: str) -> bool:
    """Whether our own link was made: a server that loses its reply reports "exists", or an error, for it."""
    return os.stat(source).st_nlink > 1


def _link_anothers(source: str, target: str, refusal: OSError) -> bool:
    """Publish a file that an NFS server which maps users (all_squash) has made another user's.

    It must be writable for the moment, because nobody may link another user's file without being allowed to write it
    (fs.protected_hardlinks, proc(5)).
    """
    try:
        os.chmod(source, _WRITABLE_MODE)
        try:
            os.link(source, target)
        finally:
            os.chmod(source, FILE_MODE)
    except FileExistsError:
        return _has_two_names(source)
    except PermissionError:
        return _rename_if_absent(source, target, refusal)
    return True


def _rename_if_absent(source: str, target: str, refusal: OSError) -> bool:
    """Publish by renameat2 with RENAME_NOREPLACE, after this `refusal` of a hard link."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE)
    if done == 0:
        return True
    code = ctypes.get_errno()
    if code == errno.EEXIST:
        return False
    if code not in _NO_SUCH_RENAME:
        raise OSError(code, os.strerror(code), target)
    owner = os.stat(source).st_uid
    why = f": files written here belong to user {owner}, see fs.protected_hardlinks" if owner != os.geteuid() else ""
    raise CannotPublish(
        refusal.errno,
        f"no hard link can be made here ({refusal.strerror}), and a rename that never replaces fails too "
        f"({os.strerror(code)}), so one worker could overwrite what another published{why}",
        target,
    )
