"""Delete an object that was condemned, but not what has taken its name since.

A loose blob's name may be taken anew by a commit after another gc has deleted the blob. So the blob is looked at, moved
aside, and looked at again: if it is not what was condemned, it is put back. Meanwhile a reader finds it aside, and if
this process is killed, the next gc puts it back.
"""

from __future__ import annotations

import secrets

from kstore.backends import Backend, NewObject
from kstore.backends.base import Stat
from kstore.blobs.loose import ASIDE, blob_name, stamp
from kstore.condemned import Condemned
from kstore.digest import digest_of
from kstore.files import NO_FILE


def delete(backend: Backend, entry: Condemned) -> bool:
    """Delete one condemned object; False if it is gone, or its name was taken anew."""
    try:
        if not _is_same(backend.stat(entry.name), entry):
            return False
        if entry.is_pack:
            backend.delete(entry.name)
            return True
        aside = f"{ASIDE}/{entry.digest.hex()}.{secrets.token_hex(8)}"
        backend.move(entry.name, aside)
        if _is_same(backend.stat(aside), entry):
            backend.delete(aside)
            return True
    except FileNotFoundError:  # another gc was faster
        return False
    put_back(backend, aside)
    return False


def put_back(backend: Backend, aside: str) -> None:
    """Put a blob back as a new file, which no gc has condemned. If its name was taken meanwhile, that file is as good.
    An altered blob does not get the stamp, as before: what relies on blobs looks for the stamp, and what links them
    does not take an altered one.
    """
    try:
        digest = bytes.fromhex(aside.rpartition("/")[2].partition(".")[0])
        data = backend.get(aside)
    except ValueError:
        return
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        return
    fraction = stamp(digest) if digest_of(data) == digest else None
    backend.put_many([NewObject(blob_name(digest), data, fraction)])
    backend.delete(aside)


def _is_same(found: Stat, entry: Condemned) -> bool:
    return (found.inode, found.mtime_ns, found.size) == (entry.inode, entry.mtime_ns, entry.size)
