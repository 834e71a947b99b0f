"""Bytes that nobody needs for a while: in a file without a name, and not in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from tempfile import TemporaryFile

from kstore.calls import write_all
from kstore.digest import Bytes
from kstore.errors import IntegrityError

_PIECE = 1 << 20


class Aside:
    """They are gone with this object, however the process ends."""

    def __init__(self, data: Bytes, folder: str) -> None:
        """Keep them in a file in `folder`.

        Raises:
            OSError: it cannot be written.
        """
        self._size = len(data)
        self._file = TemporaryFile(dir=folder, buffering=0)
        write_all(self._file.fileno(), data)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def pieces(self) -> Iterator[bytes]:
        """Read them, one piece after the other.

        Raises:
            IntegrityError: the file has become shorter.
            OSError: it cannot be read.
        """
        for at in range(0, self._size, _PIECE):
            piece = os.pread(self._file.fileno(), _PIECE, at)
            if len(piece) != min(_PIECE, self._size - at):
                raise IntegrityError(f"{len(piece)} bytes at {at} of a file of {self._size}")
            yield piece
