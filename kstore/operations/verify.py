"""Verify: every byte that a generation needs, against its digest; and repair what can be.

Repair moves what is damaged to `quarantine/`, saves what is whole of a damaged pack, and publishes what is readable
again where a ref or a manifest is lost. The next commit of a worker that has a lost blob puts it back.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kstore.blobs.loose import LooseBlobs, bears_stamp
from kstore.blobs.packreader import PackReader
from kstore.digest import digest_of
from kstore.errors import IntegrityError, MissError
from kstore.gc.digests import DigestSet
from kstore.leaning import leaning, leans_on
from kstore.local.cacheroot import CacheRoot
from kstore.manifest import Entry, Flag, Manifest, unit_of
from kstore.operations.repair import Repair
from kstore.progress import Progress
from kstore.refs import Ref
from kstore.report import SCHEMA
from kstore.scope import Scope
from kstore.storage import Storage
from kstore.threads import submit

log = logging.getLogger(__name__)

_LINK = int(Flag.LINK)
_THREADS = 4
_BATCH = 256


class Damage(NamedTuple):
    """One generation that is not whole."""

    scope: Scope
    generation: int
    reason: str
    """Why it cannot be read at all; empty if it can."""
    paths: tuple[str, ...] = ()
    """The artifacts that are lost."""
    store: str = ""
    """Where it is; of what is elsewhere, where that was."""

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "key": self.scope.key,
            "gpu": self.scope.gpu,
            "environment": self.scope.environment,
            "generation": self.generation,
            "reason": self.reason,
            "paths": list(self.paths),
            "store": self.store,
        }


@dataclass(slots=True)
class VerifyReport:
    """What a verify found."""

    store: str = ""
    generations: int = 0
    blobs: int = 0
    """Different ones that the generations need, those included that are damaged."""
    bytes: int = 0
    """That were read and hashed, decompressed."""
    packs: list[str] = field(default_factory=list)
    """Ids of the packs that are damaged or missing."""
    damage: list[Damage] = field(default_factory=list)
    """The generations that are not whole."""
    elsewhere: list[Damage] = field(default_factory=list)
    """Generations that lean on a store below which was not given: what only that has cannot be checked."""
    local: list[str] = field(default_factory=list)
    """Files of the local cache root that were altered in place."""
    repaired: bool = False
    is_current: bool = False
    """Whether newest generations are damaged: earlier ones are not restored, and a repair leaves them to gc."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether everything is whole that should be in the stores that were given."""
        return not (self.packs or self.damage or self.local)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            "store": self.store,
            "generations": self.generations,
            "blobs": self.blobs,
            "bytes": self.bytes,
            "packs": self.packs,
            "damage": [damage.as_json() for damage in self.damage],
            "elsewhere": [damage.as_json() for damage in self.elsewhere],
            "local": self.local,
            "repaired": self.repaired,
            "seconds": self.seconds,
        }


def verify(
    storage: Storage, scopes: Iterable[Scope], *, repair: bool = False, progress: Progress | None = None
) -> VerifyReport:
    """Read every byte that the generations of `scopes` need; with `repair`, mend what can be.

    Stores below are read as well, for what the first leans on, and for generations of their own; they cannot be mended.

    Raises:
        OSError: the store cannot be read.
    """
    started = time.perf_counter()
    report, scopes = VerifyReport(storage.location), tuple(scopes)
    _verify(storage, scopes, report, progress or Progress(), repair=repair)
    for below in storage.below.there if storage.below else ():
        _verify(below, scopes, report, progress or Progress(), repair=False)
    report.seconds = time.perf_counter() - started
    return report


def _verify(
    storage: Storage, scopes: tuple[Scope, ...], report: VerifyReport, progress: Progress, *, repair: bool
) -> None:
    with DigestSet() as needed, DigestSet() as whole:
        verification = _Verification(storage, report, needed, whole, progress)
        verification.run(scopes)
        report.is_current |= verification.is_current()
        if repair:
            unreadable = [(damage.scope, damage.generation) for damage in report.damage if damage.reason]
            report.repaired = Repair(storage, report.packs, verification.lost, whole).run(unreadable)


class _Verification:
    def __init__(
        self, storage: Storage, report: VerifyReport, needed: DigestSet, whole: DigestSet, progress: Progress
    ) -> None:
        self._storage = storage
        self._report = report
        self._needed = needed
        self._whole = whole
        self._progress = progress
        self.refs: list[Ref] = []
        """Of the generations whose manifests can be read."""
        self.lost: set[bytes] = set()
        """Digests of blobs that are needed and not whole anywhere."""

    def run(self, scopes: tuple[Scope, ...]) -> None:
        for scope in scopes:
            for generation in self._storage.refs.generations(scope):
                self._survey(scope, generation)
        self._report.blobs += len(self._needed)
        self._progress.done, self._progress.total = 0, len(self._needed)
        for pack in sorted({pack for ref in self.refs for pack in ref.packs}):
            if not (self._read_pack(pack) or self._read_pack(pack)):  # Trouble may pass; damage stays.
                self._report.packs.append(pack)
        self._read_loose()
        self._read_below()
        lost, self.lost = self.lost, set()
        for ref in self.refs if lost else ():
            self._tell_lost(ref, lost)

    def is_current(self) -> bool:
        """Whether a newest generation is damaged, or names a pack that is."""
        newest = {ref.scope: ref for ref in sorted(self.refs, key=lambda ref: ref.generation)}
        named = {pack for ref in newest.values() for pack in ref.packs}
        here = (damage for damage in self._report.damage if damage.store == self._storage.location)
        return not named.isdisjoint(self._report.packs) or any(
            damage.scope not in newest or damage.generation >= newest[damage.scope].generation for damage in here
        )

    def _survey(self, scope: Scope, generation: int) -> None:
        try:
            ref = self._storage.refs.get(scope, generation)
            manifest = self._storage.snapshot(ref).checked
        except MissError:
            return
        except IntegrityError as error:
            self._report.damage.append(Damage(scope, generation, str(error), store=self._storage.location))
            return
        self._report.generations += 1
        self.refs.append(ref)
        sizes = {entry.digest: entry.size for entry in manifest.entries()} | ref.stored
        self._needed.update({digest: size.to_bytes(8, "little") for digest, size in sizes.items()})

    def _read_pack(self, pack: str) -> bool:
        """Whether all of it is whole."""
        reader = PackReader(self._storage.backend, pack)
        try:
            wanted = set(reader.index.digests)
            for digest, data in reader.salvage():
                wanted.discard(digest)
                self._count(digest, len(data))
        except (IntegrityError, OSError) as error:
            log.warning("pack %s: %s", pack, error)
            return False
        return not wanted

    def _read_loose(self) -> None:
        """What was in no pack, in parallel."""
        loose = LooseBlobs(self._storage.backend)
        with ThreadPoolExecutor(_THREADS) as pool:
            batches = list(self._unread())
            reading = [submit(pool, _sizes, loose, batch) for batch in batches]
            for batch, future in zip(batches, reading, strict=True):
                sizes = future.result()
                sizes |= _sizes(loose, {digest: batch[digest] for digest in batch.keys() - sizes.keys()})
                for digest, size in sizes.items():
                    self._count(digest, size)
                self.lost.update(batch.keys() - sizes.keys())

    def _read_below(self) -> None:
        """What this store lacks."""
        for blobs in self._storage.below.blobs() if self.lost else ():
            wanted = {digest: int.from_bytes(self._needed.value(digest) or b"", "little") for digest in self.lost}
            for digest, data in blobs.fetch_many(wanted, blobs.packs()):
                self._count(digest, len(data))
                self.lost.discard(digest)

    def _unread(self) -> Iterator[dict[bytes, int]]:
        """Digests and sizes."""
        batch: dict[bytes, int] = {}
        for digest, size in self._needed.items():
            if digest not in self._whole:
                batch[digest] = int.from_bytes(size, "little")
            if len(batch) == _BATCH:
                yield batch
                batch = {}
        yield batch

    def _count(self, digest: bytes, size: int) -> None:
        if self._whole.add([digest]):
            self._progress.done += 1
            self._report.bytes += size

    def _tell_lost(self, ref: Ref, lost: set[bytes]) -> None:
        manifest = self._storage.snapshot(ref).manifest
        leant = leaning(manifest)
        files = list(manifest.items())
        gone = {entry.digest for _, entry in files if entry.digest in lost and entry.digest not in leant}
        away = lost & leant.keys()
        self.lost |= gone
        for digests, told, where in (
            (gone, self._report.damage, self._storage.location),
            (away, self._report.elsewhere, ", ".join(leans_on(manifest))),
        ):
            if paths := tuple(sorted(path for path, entry in files if entry.digest in digests)):
                told.append(Damage(ref.scope, ref.generation, "", paths, where))


def _sizes(loose: LooseBlobs, batch: dict[bytes, int]) -> dict[bytes, int]:
    """Of the blobs that are whole."""
    return {digest: len(data) for digest, data in loose.fetch(batch)}


def altered_files(root: CacheRoot, manifest: Manifest) -> list[str]:
    """Artifacts that look as if they came from their blob, and have other content: somebody wrote through a link."""
    return [path for path, entry in manifest.files.items() if _is_altered(root.local_path(path), entry)]


def _is_altered(path: str, entry: Entry) -> bool:
    if not entry.flags & _LINK:
        return False
    try:
        found = os.lstat(path)
        is_blob = found.st_size == entry.size and bears_stamp(found.st_mtime_ns, entry.digest)
        return is_blob and digest_of(Path(path).read_bytes()) != entry.digest
    except OSError:
        return False


def remove_altered(root: CacheRoot, manifest: Manifest, altered: Iterable[str]) -> None:
    """Remove them, each with its group, so that the compiler or the next restore makes them anew."""
    units = {unit_of(path, manifest.files[path]) for path in altered}
    for path, entry in manifest.files.items():
        if unit_of(path, entry) in units:
            with suppress(FileNotFoundError):
                os.unlink(root.local_path(path))
