"""Reads the files that a scan has to read: in batches, uploading meanwhile. What goes into a pack is read in the order
that compresses best.

A batch is handled column by column, so that the interpreter takes few steps for each of ten thousand files. Only files
that are stored in another form, or that a compiler may still be writing, are handled one by one.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress
from operator import attrgetter
from typing import Any, NamedTuple

from kstore.calls import Status
from kstore.components import Kind
from kstore.local.artifact import is_plain, read_artifact, records_of
from kstore.local.finished import Unfinished
from kstore.local.found import Listed, Scan, left_out
from kstore.local.index import settled_before
from kstore.local.reading import Batch, Content, read_in_batches
from kstore.similarity import suffix

StoreEach = Callable[[Sequence[tuple[bytes, bytes]]], None]
"""Takes digests with their blobs, in any thread and any order."""
Offer = Callable[[Sequence[tuple[bytes, bytes]], int], StoreEach | None]
"""Called with the digests and stored forms of a batch that was read, and with about how many bytes all files have.
Returns what to call with the remaining batches, if each blob is stored by itself.
"""
_Row = tuple["Unread", bytes | None, Status, bytes]
"""One file of a batch, across its columns."""


class Unread(NamedTuple):
    """A file that has to be read."""

    folder: Listed
    number: int
    """Among the files of that folder."""

    @property
    def kind(self) -> Kind:
        """What the rules say about it."""
        kind = self.folder.kinds[self.number]
        assert kind  # or it need not be read
        return kind

    @property
    def size(self) -> int:
        """Bytes, when it was listed."""
        return self.folder.sizes[self.number]

    @property
    def name(self) -> str:
        """Its name there."""
        return self.folder.known.files[self.number]

    @property
    def path(self) -> str:
        """Its artifact path."""
        return self.folder.path(self.number)

    @property
    def local(self) -> str:
        """Its local path."""
        return f"{self.folder.place.local}/{self.name}"


_NUMBER_BITS = 32
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1
_COLUMNS: Sequence[Callable[[Unread], Any]] = (
    attrgetter("name"),
    attrgetter("folder.place.path"),
    attrgetter("size"),
)
"""What files with one suffix are sorted by, the most important last. Paths are not made for it: they would all be in
memory at once.
"""


class Reader:
    """Reads files for one scan."""

    def __init__(self, found: Scan, offer: Offer | None, expected: int) -> None:
        """There are about `expected` bytes to read."""
        self._found = found
        self._settled_before_ns = settled_before(min(found.clocks.values(), default=0))
        self._offer = offer
        self._expected = expected
        self._store: StoreEach | None = None

    def read(self, files: Iterable[Unread]) -> None:
        """Take all files that are finished, and leave out the others."""
        then = partial(_give_away, self._store) if self._store else None
        # What is stored by itself is read as it was found, folder by folder: the kernel looks for it where it just was.
        order = ((file, file.size) for file in files) if self._store else _in_order(files)
        for batch in read_in_batches(order, _local_paths, then):
            self._take(batch)

    def _take(self, batch: Batch[Unread]) -> None:
        files, stored, statuses, digests = self._as_stored(batch)
        if not files:
            return
        kinds = [file.kind for file in files]
        for file, record in zip(files, records_of(kinds, stored, statuses, digests), strict=True):
            file.folder.know(file.number, record)
        for file, status, digest in zip(files, statuses, digests, strict=True):
            if not 0 <= status.mtime_ns < self._settled_before_ns:
                began_ns = self._found.clocks[file.folder.part.component.name]
                file.folder.doubt_if_young(file.number, status.mtime_ns, digest, began_ns)
        if self._offer:
            blobs = [(digest, data) for digest, data in zip(digests, stored, strict=True) if data is not None]
            self._store = self._offer(blobs, self._expected)

    def _as_stored(self, batch: Batch[Unread]) -> Batch[Unread]:
        """The same files in the form in which they are stored, without those that are left out."""
        are_plain = _are_plain(batch)
        if all(are_plain):
            return batch
        rows = zip(are_plain, zip(*batch, strict=True), strict=True)
        left = [*filter(None, (row if plain else self._read_alone(*row) for plain, row in rows))]
        return Batch(*zip(*left, strict=True)) if left else Batch((), (), (), ())

    def _read_alone(self, file: Unread, data: bytes | None, status: Status, digest: bytes) -> _Row | None:
        """One file in the form in which it is stored; None if it is left out. The arguments are a row of the batch."""
        relative, folder = file.path.partition("/")[2], file.folder
        content = None if status.error or data is None else Content(data, status, digest)
        try:
            artifact = read_artifact(folder.part.component, folder.place.top, relative, file.kind, content)
        except (Unfinished, OSError, MemoryError) as error:
            folder.part.skipped.append(left_out(file.path, error))
            return None
        if artifact.promised and (lacking := set(artifact.promised).difference(folder.known.files)):
            folder.part.promised += (f"{folder.place.path}/{child}" for child in sorted(lacking))
        if artifact.is_displaced:
            self._found.displaced.append(file.path)
            folder.doubt(file.number)  # otherwise nobody reads it again if a commit comes first
        return file, *artifact.content


def _are_plain(batch: Batch[Unread]) -> list[bool]:
    return [*map(is_plain, [file.kind for file in batch.items], batch.statuses)]


def _give_away(store: StoreEach, batch: Batch[Unread]) -> Batch[Unread]:
    """Give away the files that are stored as they are, in the thread that has read them: none waits in memory."""
    plain = _are_plain(batch)
    blobs = compress(zip(batch.digests, batch.contents, strict=True), plain)
    store([(digest, data) for digest, data in blobs if data])
    left = zip(batch.contents, plain, strict=True)
    return batch._replace(contents=[None if is_given else data for data, is_given in left])


def _in_order(files: Iterable[Unread]) -> Iterator[tuple[Unread, int]]:
    """The files with their sizes, sorted as by `similarity`. There may be a hundred thousand: only those of one suffix
    are objects at a time.
    """
    folders = list[Listed]()
    rows: dict[str, array[int]] = defaultdict(partial(array, "Q"))
    for folder, number in files:
        if not folders or folders[-1] is not folder:
            folders.append(folder)
        rows[suffix(folder.known.files[number])].append((len(folders) - 1) << _NUMBER_BITS | number)
    for name in sorted(rows):
        some = [Unread(folders[row >> _NUMBER_BITS], row & _NUMBER_MASK) for row in rows.pop(name)]
        for column in _COLUMNS:  # one after the other: numbers and text compare faster than tuples of them
            some.sort(key=column)
        yield from ((file, file.size) for file in some)


def _local_paths(files: Sequence[Unread]) -> list[str]:
    return [file.local for file in files]
