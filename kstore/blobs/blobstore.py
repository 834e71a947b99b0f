"""All blobs of one store, loose and packed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from itertools import chain

from kstore.backends import Backend
from kstore.batches import batches
from kstore.blobs.batches import keepable
from kstore.blobs.frames import Tails
from kstore.blobs.loose import LooseBlobs
from kstore.blobs.packindex import FOLDER, PackIndex, pack_name
from kstore.blobs.packreader import Blob, PackReader, Part, Sizes
from kstore.blobs.wanted import Wanted
from kstore.blobs.writers import (
    BATCH_COUNT,
    BATCH_SIZE,
    BlobWriter,
    Layout,
    LooseBlobWriter,
    PackedBlobWriter,
)
from kstore.digest import Bytes
from kstore.errors import IntegrityError
from kstore.files import NO_FILE
from kstore.threads import Pool, submit

log = logging.getLogger(__name__)

_Tell = Callable[[str, Exception], None]
"""Called with the id of a pack, and with what is wrong with it."""
_INDEX_THREADS = 8
_ATTEMPTS = 2
MOST_SEARCHED = 100
"""Packs that are looked through for what is missing while somebody waits: some milliseconds each if every call has to
cross a network. A ref names the packs that it needs; others hold the same blob by chance.
"""


class _Search:
    """How far one operation looks for what is not where it is expected."""

    def __init__(self) -> None:
        self._left = MOST_SEARCHED
        self._has_warned = False

    def among(self, packs: list[str], missing: Mapping[bytes, int]) -> Iterator[str]:
        """The packs that may be looked through, as long as anything is `missing`."""
        for number, pack in enumerate(packs):
            if self._left <= 0:
                self._warn(len(missing), len(packs) - number)
                return
            self._left -= 1
            yield pack

    def _warn(self, missing: int, packs: int) -> None:
        if missing and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%d missing blobs are not looked for in %d of the store's packs; `kstore verify --repair` looks in all",
                missing, packs,
            )  # fmt: skip


class BlobStore:
    """The blobs of one store."""

    def __init__(self, backend: Backend, told: set[str] | None = None) -> None:
        """`told` are the packs that the log already says cannot be read; others are added to them."""
        self._backend = backend
        self._readers: dict[str, PackReader] = {}
        self._tails = Tails()
        self._search: _Search | None = None
        """How far an operation in a hurry looks; None if all packs may be looked through."""
        self._told = set() if told is None else told
        self.loose = LooseBlobs(backend)

    @contextmanager
    def in_a_hurry(self) -> Iterator[None]:
        """In the block, what is not where it is expected is looked for in some packs only.

        A store may have tens of thousands. What is in one that cannot be read counts as missing: it would have been
        there by chance.
        """
        self._search = search = _Search()
        try:
            yield
        finally:
            if self._search is search:  # or another operation has begun while this one never ended in its thread
                self._search = None

    def writer(self, layout: Layout, *, asks: bool = False, expected: int = 0) -> BlobWriter:
        """Start storing the blobs of one commit. See `LooseBlobWriter` for `asks`.

        `expected` is about how many bytes they have, if that is known.
        """
        if layout is Layout.PACKED:
            return PackedBlobWriter(self._backend, expected)
        return LooseBlobWriter(self.loose, asks=asks)

    def expect_pack(self) -> Callable[[], None]:
        """Announce that a pack will be stored soon. Returns a function that waits until there is a folder for it."""
        return self._backend.make_ahead(FOLDER)

    def packs(self) -> list[str]:
        """The ids of all packs."""
        return [child.name for child in self._backend.list(FOLDER) if not child.is_folder]

    def packs_listed(self) -> list[str]:
        """The ids of all packs, for callers that can do without: none, and a log line, if they cannot be listed."""
        try:
            return self.packs()
        except OSError as error:
            log.warning("packs cannot be listed, and what only they hold is missing: %s", error)
            return []

    def has_pack(self, pack_id: str) -> bool:
        """Whether a pack is here now, whatever is known about its index."""
        try:
            self._backend.stat(pack_name(pack_id))
        except FileNotFoundError:
            return False
        return True

    def pack(self, pack_id: str) -> PackReader:
        """One pack; its index is read once."""
        return self._readers.setdefault(pack_id, PackReader(self._backend, pack_id, tails=self._tails))

    def keep_only(self, packs: Container[str]) -> None:
        """Forget what is known about all other packs: that takes memory."""
        for pack_id in list(self._readers):
            if pack_id not in packs:
                self._readers.pop(pack_id, None)

    def close(self) -> None:
        """Close the packs that are open for parts that nobody will load any more."""
        for reader in list(self._readers.values()):
            reader.close()

    def digests_in(self, packs: Iterable[str]) -> set[bytes]:
        """The digests in these packs; packs that cannot be read are left out."""
        return self.contents(packs)[0]

    def contents(self, packs: Iterable[str]) -> tuple[set[bytes], set[str]]:
        """The digests in these packs, and those of the packs that do not say what they hold."""
        packs, found, unread = tuple(packs), set[bytes](), set[str]()
        self.read_indexes(packs)
        for pack_id in packs:
            if index := self._index_of(pack_id):
                found.update(index.digests)
            else:
                unread.add(pack_id)
        return found, unread

    def _index_of(self, pack_id: str) -> PackIndex | None:
        """What a pack holds; None if it does not say."""
        try:
            return self.pack(pack_id).index
        except (IntegrityError, OSError) as error:
            log.debug("pack %s: %s", pack_id, error)
            return None

    def read_indexes(self, packs: Iterable[str]) -> None:
        """Read the indexes of packs side by side, because each takes several round trips to the store.

        What is wrong with one will be known when it is used.
        """
        unknown = [pack_id for pack_id in packs if not self.pack(pack_id).is_known]
        if len(unknown) < 2:
            return
        with Pool(min(len(unknown), _INDEX_THREADS)) as pool:
            for answer in [submit(pool, self._index_of, pack_id) for pack_id in unknown]:
                answer.result()

    def _one_by_one(self, packs: Sequence[str]) -> Iterator[str]:
        """Packs to look into until everything is found: most often the first one has it."""
        yield from packs[:1]
        for start in range(1, len(packs), _INDEX_THREADS):
            some = packs[start : start + _INDEX_THREADS]
            self.read_indexes(some)
            yield from some

    def can_read(self, pack_id: str) -> bool:
        """Whether a pack says what it holds."""
        return self._index_of(pack_id) is not None

    def may_hold(self, pack_id: str, digests: Set[bytes]) -> bool:
        """Whether a pack holds any of these blobs, or cannot be read just now: a ref names it to be safe."""
        index = self._index_of(pack_id)
        return index is None or not digests.isdisjoint(index.digests)

    def is_known_to_lack(self, pack_id: str, digests: Set[bytes]) -> bool:
        """Whether the index of a pack was read, and lists none of these blobs."""
        return self.pack(pack_id).is_known and digests.isdisjoint(self.pack(pack_id).index.digests)

    def fetch_many(
        self, wanted: Mapping[bytes, int], packs: Sequence[str] = (), troubles: list[Exception] | None = None
    ) -> Iterator[tuple[bytes, memoryview]]:
        """Yield (digest, bytes) of each wanted blob once, verified. What is missing or damaged is left out.

        `wanted` says how large each is, in bytes: whatever the store holds instead, no more memory is taken.
        `packs` says where to look first; then come the loose blobs, and finally the other packs. Errors that might pass
        and kept a place from being read are added to `troubles`: what was left out may be there.
        """
        left = dict(wanted)
        troubles = [] if troubles is None else troubles
        yield from self._from_packs(left, self._one_by_one(packs), self.pack, troubles)
        for digest, data in self.loose.fetch(dict(left), troubles):
            left.pop(digest, None)
            yield digest, data
            del data
        if left:
            tried = set(packs)
            others = [pack for pack in self.packs() if pack not in tried]
            # In a hurry it is no trouble if one cannot be read: what is there is there by chance.
            chosen, noted = (self._search.among(others, left), []) if self._search else (others, troubles)
            # A store may have thousands: what a pack holds is not kept once it was looked at.
            yield from self._from_packs(left, chosen, partial(PackReader, self._backend), noted)

    def parts(self, wanted: Wanted, packs: Sequence[str] = ()) -> Iterator[Part]:
        """The wanted blobs in parts that threads may load side by side. They are wanted no more once they are found.

        First what `packs` hold, in the order of the files; what they lack is looked for among the loose blobs.
        """
        for pack_id in packs:
            yield from self._parts_of_pack(self.pack(pack_id), wanted, self._tell)
            if index := self._index_of(pack_id):
                wanted.found(index.digests)
        yield from self._loose_parts(wanted.items())

    def have_all(self, wanted: Wanted, packs: Iterable[str]) -> bool:
        """Whether these packs hold all that is wanted; what is in those that cannot be read does not count."""
        packs = tuple(packs)
        self.read_indexes(packs)
        known = filter(None, map(self._index_of, packs))
        return wanted.are_among(chain.from_iterable(index.digests for index in known))

    @staticmethod
    def _parts_of_pack(reader: PackReader, wanted: Sizes, tell: _Tell) -> Iterator[Part]:
        """The parts of a pack that hold wanted blobs.

        What is damaged, or cannot be read, costs only its own part, and `tell` is called.
        """

        def load(part: Part) -> Iterator[Blob]:
            try:
                yield from part.load()
            except (IntegrityError, OSError) as error:
                tell(reader.pack_id, error)

        try:
            for part in reader.parts(wanted):
                yield Part(part.size, partial(load, part))
        except (IntegrityError, OSError) as error:
            tell(reader.pack_id, error)

    def _tell(self, pack_id: str, error: Exception) -> None:
        """Log that a pack cannot be read, only once as a warning, however often it is tried."""
        level = logging.DEBUG if pack_id in self._told else logging.WARNING
        self._told.add(pack_id)
        reason = getattr(error, "strerror", None) or error
        log.log(level, "pack %s cannot be read in full, its blobs are looked for elsewhere: %s", pack_id, reason)

    def _loose_parts(self, wanted: Iterable[tuple[bytes, int]]) -> Iterator[Part]:
        for batch in batches(wanted, BATCH_SIZE, BATCH_COUNT):
            yield Part(sum(size for _, size in batch), partial(self.loose.fetch, dict(batch)))

    def fetch(self, digest: bytes, size: int, packs: Sequence[str] = ()) -> Bytes:
        """One blob of `size` bytes.

        Raises:
            IntegrityError: it is missing or damaged.
            OSError, MemoryError: a place where it may be cannot be read just now, which is no damage. In a hurry only
                `packs` and the loose blobs are such places.
        """
        troubles: list[Exception] = []
        for _ in range(_ATTEMPTS):
            troubles.clear()
            for _, data in self.fetch_many({digest: size}, packs, troubles):
                whole = data.obj
                return whole if isinstance(whole, bytes) and len(whole) == len(data) else keepable(data)
        raise troubles[0] if troubles else IntegrityError(f"blob {digest.hex()} is missing or damaged")

    def _from_packs(
        self,
        left: dict[bytes, int],
        packs: Iterable[str],
        reader: Callable[[str], PackReader],
        troubles: list[Exception],
    ) -> Iterator[tuple[bytes, memoryview]]:
        def tell(pack_id: str, error: Exception) -> None:
            self._tell(pack_id, error)
            if isinstance(error, OSError) and error.errno not in NO_FILE:
                error.__context__ = None  # An error keeps the frames that raised it, and these have the pack open.
                troubles.append(error.with_traceback(None))

        for pack_id in packs:
            if not left:
                return
            for part in self._parts_of_pack(reader(pack_id), left, tell):
                for digest, data in part.load():
                    if digest in left:
                        left.pop(digest)
                        yield digest, data
                    del data
