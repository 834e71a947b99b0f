"""Bytes that nobody needs for a while: in a file without a name, and not in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from tempfile import TemporaryFile

from kstore.calls import write_all
from kstore.digest import Bytes
from kstore.errors import IntegrityError
from kstore.files import read_fully

MANY = 4 << 20
"""Bytes that are worth a file: a manifest of thirty thousand artifacts has as many."""
_PIECE = 1 << 20


class Aside:
    """They are gone with this object, however the process ends."""

    def __init__(self, pieces: Iterable[Bytes], folder: str) -> None:
        """Keep them in a file in `folder`.

        Raises:
            OSError: it cannot be written.
        """
        self._size = 0
        self._file = TemporaryFile(dir=folder, buffering=0)
        for piece in pieces:
            write_all(self._file.fileno(), piece)
            self._size += len(piece)

    def __del__(self) -> None:
        # Python warns of a file that is only forgotten. There is none if it could not be made.
        if hasattr(self, "_file"):
            self._file.close()

    def __len__(self) -> int:
        return self._size

    def pieces(self) -> Iterator[bytes]:
        """Read them, one piece after the other.

        Raises:
            IntegrityError: the file has become shorter.
            OSError: it cannot be read.
        """
        return pieces_of_file(self._file.fileno(), self._size)


Kept = Bytes | Aside
"""Bytes, wherever they are."""


def pieces_of_file(descriptor: int, size: int) -> Iterator[bytes]:
    """The `size` bytes of an open file, one piece after the other.

    Raises:
        IntegrityError: it is shorter.
        OSError: it cannot be read.
    """
    for at in range(0, size, _PIECE):
        length = min(_PIECE, size - at)
        piece = read_fully(descriptor, at, length)
        if len(piece) != length:
            raise IntegrityError(f"{len(piece)} bytes at {at} of a file of {size}")
        yield piece


def put_aside(data: Kept, folder: str) -> Kept:
    """The same, kept in `folder`, which is local, if they are many and there is room."""
    if not isinstance(data, Aside) and len(data) >= MANY:
        with suppress(OSError):
            return Aside(pieces_of(data), folder)
    return data


def pieces_of(data: Kept) -> Iterator[Bytes]:
    """What is kept, one piece after the other.

    Raises:
        IntegrityError, OSError: it was put aside, and cannot be read.
    """
    if isinstance(data, Aside):
        return data.pieces()
    whole = memoryview(data)
    return (whole[at : at + _PIECE] for at in range(0, len(whole), _PIECE))


def whole(data: Kept) -> Bytes:
    """What is kept, in memory.

    Raises:
        IntegrityError, OSError: it was put aside, and cannot be read.
    """
    return b"".join(data.pieces()) if isinstance(data, Aside) else data
