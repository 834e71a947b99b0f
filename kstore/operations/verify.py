"""Verify every byte that a generation needs against its digest, and repair what can be repaired.

Repair moves what is damaged to `quarantine/`, saves what is whole in a damaged pack and, where a ref or a manifest is
lost, publishes again what is readable. The next commit of a worker that has a lost blob puts it back. What just cannot
be read, because of a server's trouble or another user's permissions, is no damage: it is reported, and left alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice

from kstore.blobs import BlobStore
from kstore.blobs.loose import LooseBlobs, blob_name
from kstore.blobs.packreader import PackReader, read_ahead
from kstore.damaged import damaged_blobs
from kstore.errors import IntegrityError, MissError, StoreFormatError, reason_of
from kstore.far import ask_each
from kstore.files import NO_FILE
from kstore.gc.digests import DigestSet
from kstore.gc.mark import needs_in
from kstore.operations.repair import Repair
from kstore.operations.verified import Damage, VerifyReport
from kstore.progress import Progress
from kstore.published.fetched import Fetched, fetch_each, trouble_with
from kstore.published.leaning import are_here, leaning, leans_on
from kstore.published.manifest import Manifest
from kstore.published.ref import Ref
from kstore.published.refs import Unlisted
from kstore.published.scopes import every_scope, scopes_of
from kstore.scope import Scope, check_key
from kstore.storage import Storage
from kstore.threads import Pool, submit
from kstore.words import plural

log = logging.getLogger(__name__)

_THREADS = 4
_BATCH = 256


def verify(
    storage: Storage, key: str | None, gpu: str | None, environment: str | None, *, repair: bool, progress: Progress
) -> VerifyReport:
    """Read every byte that the generations of `key`, or of all keys, need; with `repair`, mend what can be mended. Of a
    key, only the scopes of `gpu` and `environment` are looked at if these are given.

    Stores below are read as well, for what the first leans on, and for generations of their own; they cannot be mended.

    Raises:
        MissError: there is nothing of the key.
        OSError, StoreUnavailable: the store cannot be read.
    """
    started = time.perf_counter()
    report = VerifyReport(storage.location)
    unlisted: list[Unlisted] = []
    if key:
        every = scopes_of(storage, check_key(key), gpu, environment, unlisted=unlisted)
    else:
        every, unlisted = every_scope(storage)
    if repair and unlisted:  # What their keys need must stay.
        raise unlisted[0].error
    report.unreadable += [folder.trouble for folder in unlisted]
    scopes = tuple(every)
    _verify(storage, scopes, report, progress, repair=repair)
    for below in storage.below.there:
        _verify(below, scopes, report, progress, repair=False)
    report.seconds = time.perf_counter() - started
    return report


def _verify(
    storage: Storage, scopes: tuple[Scope, ...], report: VerifyReport, progress: Progress, *, repair: bool
) -> None:
    with DigestSet() as needed, DigestSet() as loose, DigestSet() as whole:
        verification = _Verification(storage, report, needed, loose, whole, progress)
        verification.run(scopes, repairs=repair)
        report.is_newest_damaged |= verification.is_newest_damaged()
        report.is_mendable |= storage.depth == 0 and verification.is_mendable()
        if repair:
            broken = [(damage.scope, damage.generation) for damage in report.damage if damage.reason]
            verified = () if report.unreadable else scopes
            is_mended = Repair(storage, report.packs, verification.lost, whole).run(broken, verified)
            report.repaired = is_mended and not report.unreadable


class _Verification:
    def __init__(
        self, storage: Storage, report: VerifyReport, needed: DigestSet, loose: DigestSet, whole: DigestSet,
        progress: Progress,
    ) -> None:  # fmt: skip
        """The sets are filled: with what is `needed`, what of that must be `loose`, and what is `whole` anywhere."""
        self._storage = storage
        self._report = report
        self._needed = needed
        self._loose = loose
        self._whole = whole
        self._progress = progress
        self.refs: list[Ref] = []
        """The refs of the generations whose manifests can be read."""
        self.lost: dict[bytes, int] = {}
        """Digest → size of the blobs that are needed and not whole where they must be."""
        self._hidden: set[bytes] = set()
        """Digests of what may be whole in a pack that cannot be read just now."""

    def run(self, scopes: tuple[Scope, ...], *, repairs: bool) -> None:
        for generation, fetch in fetch_each(self._storage, self._generations(scopes, repairs=repairs)):
            self._survey(*generation, fetch, repairs=repairs)
        self._report.blobs += len(self._needed)
        self._progress.done, self._progress.total = 0, len(self._needed)
        packs = sorted({pack for ref in self.refs for pack in ref.packs})
        for pack, reader in ask_each(partial(read_ahead, self._storage.backend), packs):
            self._check_pack(pack, reader())
        self._read_loose()
        troubles = self._read_elsewhere()
        self._read_below()
        if troubles:
            self._spare(troubles[0])
        self._report.read += len(self._needed) - len(self.lost)
        lost, self.lost = self.lost, {}
        for ref in self.refs if lost else ():
            self._tell_lost(ref, lost)

    def _generations(self, scopes: tuple[Scope, ...], *, repairs: bool) -> Iterator[tuple[Scope, int]]:
        for scope, list_generations in ask_each(self._storage.refs.generations, scopes):
            try:
                generations = list_generations()
            except OSError as error:
                if repairs:
                    raise
                self._report.unreadable.append(f"{scope}: {reason_of(error)}")
                continue
            yield from ((scope, generation) for generation in generations)

    def is_newest_damaged(self) -> bool:
        """Whether a newest generation is damaged, or names a pack that is."""
        newest = self._newest()
        named = {pack for ref in newest.values() for pack in ref.packs}
        here = (damage for damage in self._report.damage if damage.store == self._storage.location)
        return not named.isdisjoint(self._report.packs) or any(
            damage.scope not in newest or damage.generation >= newest[damage.scope].generation for damage in here
        )

    def is_mendable(self) -> bool:
        """Whether a repair has anything to move, to note, or to publish."""
        if self._report.packs or any(damage.reason for damage in self._report.damage):
            return True
        noted = damaged_blobs(self._storage.backend) if self.lost else {}
        return any(d not in noted or d in self._whole or self._is_in_place(d) for d in self.lost)

    def _is_in_place(self, digest: bytes) -> bool:
        """Whether a loose blob is in its place, in whatever state."""
        with suppress(OSError):
            self._storage.backend.stat(blob_name(digest))
            return True
        return False

    def _newest(self) -> dict[Scope, Ref]:
        """The newest ref of each scope."""
        return {ref.scope: ref for ref in sorted(self.refs, key=lambda ref: ref.generation)}

    def _survey(self, scope: Scope, generation: int, fetch: Callable[[], Fetched], *, repairs: bool) -> None:
        try:
            fetched = fetch()
            ref = fetched.ref
            manifest = self._storage.read_snapshot(ref, fetched.data).checked
        except MissError:
            return
        except (IntegrityError, StoreFormatError, OSError, MemoryError) as error:
            if repairs and isinstance(error, StoreFormatError):  # What it needs must stay, and nobody here knows that.
                raise
            self._tell_trouble(scope, generation, error)
            return
        self._report.generations += 1
        self.refs.append(ref)
        sizes = dict(manifest.blobs()) | ref.stored
        self._needed.update({digest: size.to_bytes(8, "little") for digest, size in sizes.items()})
        self._loose.add(_must_be_loose(fetched.blobs, ref, manifest))

    def _tell_trouble(self, scope: Scope, generation: int, trouble: Exception) -> None:
        if generation not in self._storage.refs.generations(scope):  # gc has removed it since it was listed
            return
        if isinstance(trouble, IntegrityError):
            self._report.damage.append(Damage(scope, generation, str(trouble), store=self._storage.location))
        else:
            self._report.unreadable.append(trouble_with(scope, generation, trouble))

    def _check_pack(self, pack: str, reader: PackReader) -> None:
        trouble = self._read_pack(reader) and self._read_pack(reader)  # The trouble may pass.
        if trouble is None or not self._is_named(pack) or self._was_moved(pack):
            return
        log.warning("pack %s: %s", pack, reason_of(trouble))
        if _is_damage(trouble):
            self._report.packs.append(pack)
        else:
            self._report.unreadable.append(f"pack {pack}: {reason_of(trouble)}")
            self._hidden |= self._held(reader)

    def _is_named(self, pack: str) -> bool:
        """Whether a generation that names it still exists: gc may have removed all of them since they were read."""
        return any(self._storage.refs.exists(ref.scope, ref.generation) for ref in self.refs if pack in ref.packs)

    def _was_moved(self, pack: str) -> bool:
        """Whether a pack that only earlier generations name is missing, as after a repair: what they lack is told."""
        is_newest = any(pack in ref.packs for ref in self._newest().values())
        return not is_newest and not self._storage.blobs.has_pack(pack)

    def _read_pack(self, reader: PackReader) -> Exception | None:
        """What keeps the pack from being whole; None if nothing does."""
        seen: dict[bytes, int] = {}
        try:
            wanted = set(reader.index.digests)
            for digest, data in reader.salvage():
                wanted.discard(digest)
                seen[digest] = len(data)
                if len(seen) == _BATCH:
                    self._count(seen)
                    seen = {}
        except (IntegrityError, OSError, MemoryError) as error:
            return error
        finally:
            self._count(seen)
        return IntegrityError(f"damaged in {plural(len(wanted), 'blob')}") if wanted else None

    def _held(self, reader: PackReader) -> set[bytes]:
        """What a pack may hold: anything, if not even its index can be read."""
        with suppress(IntegrityError, OSError, MemoryError):
            return set(reader.index.digests)
        return {digest for digest, _ in self._needed.items()}

    def _read_loose(self) -> None:
        """Read what was in no pack, or must be loose, in parallel; then once more what could not be read."""
        loose = LooseBlobs(self._storage.backend)
        with Pool(_THREADS) as pool:
            unread = list(self._unread())
            reading = [submit(pool, _read, loose, batch) for batch in unread]
            for batch, future in zip(unread, reading, strict=True):
                whole, _ = future.result()
                again, unreadable = _read(loose, {d: size for d, size in batch.items() if d not in whole})
                self._count({digest: batch[digest] for digest in whole | again})
                self._report.unreadable += unreadable.values()
                gone = batch.keys() - whole - again - unreadable.keys() - self._hidden
                self.lost.update({digest: batch[digest] for digest in gone})

    def _read_elsewhere(self) -> list[Exception]:
        """Read what gc keeps in other packs for generations that have an unreadable one: a repair has saved it there.
        Returns what keeps packs from being read just now.
        """
        wanted = {digest: size for digest, size in self.lost.items() if digest not in self._loose}
        troubles: list[Exception] = []
        for digest, data in self._storage.blobs_anew().fetch_many(wanted, troubles=troubles) if wanted else ():
            self._count({digest: len(data)})
            del self.lost[digest]
        return troubles

    def _spare(self, trouble: Exception) -> None:
        """What may be in a pack that cannot be read just now is not lost."""
        lost = {digest: size for digest, size in self.lost.items() if digest in self._loose}
        if hidden := len(self.lost) - len(lost):
            self._report.unreadable.append(
                f"{plural(hidden, 'blob')} that may be in another pack: {reason_of(trouble)}"
            )
        self.lost = lost

    def _read_below(self) -> None:
        """Read what this store lacks."""
        for blobs in self._storage.below.blobs() if self.lost else ():
            for digest, data in blobs.fetch_many(dict(self.lost), blobs.packs()):
                self._count({digest: len(data)})
                del self.lost[digest]

    def _unread(self) -> Iterator[dict[bytes, int]]:
        """Digests and sizes of what is still to be read, some at a time."""
        needed = self._needed.items()
        while some := dict(islice(needed, _BATCH)):
            done = some.keys() - self._whole.absent(some)
            done &= set(self._loose.absent(done))
            if unread := {d: int.from_bytes(size, "little") for d, size in some.items() if d not in done}:
                yield unread

    def _count(self, sizes: Mapping[bytes, int]) -> None:
        """Note what is whole, given with the sizes of the blobs in bytes."""
        new = self._whole.add(sizes)
        self._progress.done += len(new)
        self._report.bytes += sum(map(sizes.__getitem__, new))

    def _tell_lost(self, ref: Ref, lost: Mapping[bytes, int]) -> None:
        try:
            manifest = self._storage.snapshot(ref).manifest
        except (IntegrityError, OSError, MemoryError) as error:
            self._tell_trouble(ref.scope, ref.generation, error)
            return
        if not self._storage.refs.exists(ref.scope, ref.generation):  # gc has removed it since it was read
            return
        loose = _must_be_loose(self._storage.blobs_anew(), ref, manifest)
        lost = {digest: size for digest, size in lost.items() if digest not in self._whole or digest in loose}
        leant = leaning(manifest)
        files = list(manifest.items())
        gone = {entry.digest for _, entry in files if entry.digest in lost and entry.digest not in leant}
        away = lost.keys() & leant.keys()
        self.lost |= {digest: lost[digest] for digest in gone}
        for digests, told, where, is_here in (
            (gone, self._report.damage, self._storage.location, True),
            (away, self._report.elsewhere, ", ".join(leans_on(manifest)), are_here(self._storage, manifest)),
        ):
            if paths := tuple(sorted(path for path, entry in files if entry.digest in digests)):
                told.append(Damage(ref.scope, ref.generation, "", paths, where, is_here))


def _must_be_loose(blobs: BlobStore, ref: Ref, manifest: Manifest) -> set[bytes]:
    """What a generation needs and none of its packs has: it is linked when loose, and gc keeps it nowhere else.

    If a pack does not say what it has, that is nothing.
    """
    with suppress(MemoryError):
        if all(map(blobs.can_read, ref.packs)):
            return set(needs_in(blobs, ref, manifest).loose)
    return set()


def _read(loose: LooseBlobs, batch: Mapping[bytes, int]) -> tuple[set[bytes], dict[bytes, str]]:
    """The blobs that are whole, and why others cannot be read just now."""
    whole, unreadable = set(), {}
    for digest, size in batch.items():
        try:
            if loose.read(digest, size) is not None:
                whole.add(digest)
        except (OSError, MemoryError) as error:
            unreadable[digest] = f"blob {digest.hex()}: {reason_of(error)}"
    return whole, unreadable


def _is_damage(trouble: Exception) -> bool:
    """Whether something is gone or wrong, and will stay so: anything else that keeps it from being read may pass."""
    return isinstance(trouble, IntegrityError) or (isinstance(trouble, OSError) and trouble.errno in NO_FILE)
