"""A temporary cache root for what another tool has stored: it is committed from there."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from kstore.errors import FileError
from kstore.local.held import held
from kstore.local.leftovers import left_folders

CLASHES = frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR})
"""Errors for a name that occurs twice, or for both a file and a folder: what is unpacked is to blame."""
_PREFIX = "kstore-unpacked-"


@contextmanager
def temporary_root(what: str) -> Iterator[str]:
    """A private folder, removed afterwards. Such folders that killed processes left are removed too, a day later.

    Raises:
        FileError: no folder can be made to unpack `what` in.
    """
    with ExitStack() as stack:
        try:
            # A thread that nobody waits for any more may still be writing when it is removed.
            folder = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
            path = stack.enter_context(folder)
            stack.enter_context(held(path))
        except OSError as error:
            raise FileError(f"{what} cannot be unpacked: {error}; set TMPDIR to another folder") from error
        for left in left_folders(os.path.dirname(path), _PREFIX):
            shutil.rmtree(left, ignore_errors=True)
        yield path
