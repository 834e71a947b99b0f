"""Bring in what another store, or a bundle, has for a scope: merge → upload → publish, as a commit does.

There is no cache root and no base (see `incoming`). So nothing that is published is lost, and what was brought in
before adds nothing new. Blobs are stored in batches, and a note of what was stored is left in the store: whoever
repeats it after a kill relies on that, by the rules for what is uploaded ahead.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from kstore.aside import Kept
from kstore.backends import StagingLost, Upload
from kstore.batches import batches
from kstore.blobs import Layout
from kstore.digest import digest_of
from kstore.errors import IntegrityError
from kstore.operations.incoming import Incoming, News, merge_in
from kstore.operations.theirs import Theirs, is_kept, is_passed_over, kept_in_place
from kstore.progress import Progress
from kstore.published.layers import newest_whole
from kstore.published.leaning import noted, standing
from kstore.published.lost import lost_of
from kstore.published.manifest import Manifest, meta_of, sizes_of
from kstore.published.races import outraced, races
from kstore.ranks.board import FOLDER as NOTES
from kstore.ranks.board import IMPORTED
from kstore.report import CommitStatus
from kstore.scope import Scope
from kstore.similarity import by_similarity
from kstore.storage import Storage
from kstore.upload.named import packs_to_name
from kstore.upload.plan import UploadPlan, plan_upload
from kstore.upload.reliance import Reliance
from kstore.upload.shortened import shortened
from kstore.upload.uploader import Uploader
from kstore.used import mark_used

log = logging.getLogger(__name__)

_BATCH = 128 << 20
"""Bytes of blobs, before compression, that are stored at a time: what a kill can cost."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where it goes: a `Committer` without a cache root."""

    storage: Storage
    scope: Scope
    layout: Layout | None
    links_into: str
    progress: Progress
    ahead: tuple[str, ...] = ()
    """Packs that an earlier attempt has stored."""


@dataclass(frozen=True, slots=True)
class Brought:
    """What became of one scope."""

    scope: Scope
    status: CommitStatus
    generation: int = 0
    """The newest now; 0 for none."""
    files: int = 0
    """Artifacts in that generation, those of other hosts included."""
    bytes: int = 0
    new_files: int = 0
    """Artifacts that were brought in."""
    declined: int = 0
    """Artifacts that differ from published ones, which stay."""
    new_blobs: int = 0
    """Blobs that the store did not have, including the manifest."""
    uploaded: int = 0
    """Bytes written to the store."""

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        content = asdict(self)
        return {**content.pop("scope"), **content}


class Withdrawn(Exception):
    """The scope was forgotten or quarantined, and what comes in is not to bring it back."""


def bring_in(target: Target, incoming: Incoming, *, revives: bool = True) -> Brought:
    """Publish the part of what comes in that the scope lacks.

    Raises:
        Withdrawn: without `revives`, if the scope was taken out, even if only meanwhile; nothing is published.
        IntegrityError: a blob that it needs is missing or damaged at its source; nothing is published.
        StoreUnavailable, OSError: the store cannot be used.
    """
    return _BringIn(target, incoming, revives).run()


class _BringIn:
    def __init__(self, target: Target, incoming: Incoming, revives: bool) -> None:
        self._storage = target.storage
        self._revives = revives
        self._scope = target.scope
        self._incoming = replace(incoming, manifest=standing(incoming.manifest))
        self._progress = target.progress
        self._notes = _Notes(target, incoming)
        self._target = target
        self._taken = 0
        """The highest number that is known to be taken."""
        self._published: News | None = None

    def run(self) -> Brought:
        self._storage.create()
        self._uploader = Uploader(replace(self._target, ahead=self._notes.packs()))
        for _ in races():
            theirs = Theirs(*newest_whole(self._storage, self._scope, self._taken))
            if not self._revives and theirs.snapshot and theirs.snapshot.ref.withdrawn:
                raise Withdrawn
            news = merge_in(self._storage, self._incoming, theirs)
            lost = self._lost(theirs)
            if not news.taken and not lost:
                return self._report(theirs, news)
            with suppress(StagingLost), self._storage.refs.reserve() as reserved:
                self._upload_and_publish(theirs, news, lost, reserved)
        raise outraced(self._scope)

    def _lost(self, theirs: Theirs) -> set[bytes]:
        """Digests of incoming blobs that the newest generation needs and the store has lost."""
        sizes = dict(self._incoming.manifest.blobs())
        return lost_of(self._storage, theirs.snapshot, sizes) if theirs.snapshot else set()

    def _upload_and_publish(self, theirs: Theirs, news: News, lost: set[bytes], reserved: Upload) -> None:
        """Whether another writer was faster shows when the generation that is newest by then is merged again."""
        uploader = self._uploader
        among = {digest for digest, _ in self._incoming.manifest.blobs()} | news.contents.keys()
        among |= theirs.snapshot.ref.stored.keys() if theirs.snapshot else set()
        among |= kept_in_place(theirs)
        reliance = uploader.begin(theirs.snapshot, None, lambda: among, is_first=not theirs.generation)
        if not is_kept(reliance, theirs):
            return
        plan = self._plan(reliance, news, lost)
        offered = {entry.digest for _, entry in news.taken} | lost
        manifest = Manifest(news.files, news.hosts, self._meta(theirs))
        manifest = noted(self._storage, manifest, theirs.snapshot, offered, plan.below)
        data = manifest.dump()
        to_store, delta = shortened(data, reliance)
        self._upload(plan, news.contents, to_store)
        packs = packs_to_name(plan, uploader.stored, manifest, delta)
        ref = theirs.successor(self._scope, manifest, data, delta, packs)
        if not is_passed_over(self._storage, self._scope, theirs):
            return
        if self._storage.refs.publish(ref, reserved):
            self._published = news
        else:
            log.debug("generation %d of %s was published by another worker", ref.generation, ref.scope)
        self._taken = ref.generation

    def _plan(self, reliance: Reliance, news: News, lost: set[bytes]) -> UploadPlan:
        """What is to be uploaded, with similar blobs next to each other."""
        again = ((path, entry) for path, entry in self._incoming.manifest.items() if entry.digest in lost)
        offered = sorted((*news.taken, *again), key=by_similarity)
        return plan_upload(reliance, sizes_of(entry for _, entry in offered), lost)

    def _upload(self, plan: UploadPlan, contents: Mapping[bytes, bytes], manifest: Kept) -> None:
        self._progress.done, self._progress.total = 0, len(plan.wanted)

        def fetch(chosen: Mapping[bytes, int]) -> Iterator[tuple[bytes, memoryview]]:
            yield from ((digest, memoryview(contents[digest])) for digest in chosen if digest in contents)
            yield from self._incoming.fetch({d: size for d, size in chosen.items() if d not in contents})

        parts = [replace(plan, wanted=dict(batch)) for batch in batches(plan.wanted.items(), _BATCH)]
        *others, last = parts or [plan]
        for part in others:
            self._check(self._uploader.copy(part, fetch))
            self._notes.add(self._uploader.packs)
        self._check(self._uploader.copy(last, fetch, manifest))

    def _check(self, refused: set[bytes]) -> None:
        if refused:
            raise IntegrityError(
                f"{len(refused)} blobs of {self._incoming.location} are missing or damaged; nothing is published"
            )

    def _meta(self, theirs: Theirs) -> dict[str, Any]:
        """What is kept about who built it: that of the published generation, if it holds anything."""
        manifest = theirs.manifest if any(theirs.manifest.entries()) else self._incoming.manifest
        return {**manifest.meta, **meta_of(self._scope, theirs.generation)}

    def _report(self, theirs: Theirs, news: News) -> Brought:
        """Everything is in the store now, or declined."""
        ref, told = theirs.snapshot and theirs.snapshot.ref, self._published or news
        if self._published:
            self._notes.remove()
        elif ref:
            mark_used(self._storage.backend, self._scope)  # as a commit with nothing new does
        return Brought(
            scope=self._scope,
            status=CommitStatus.COMMITTED if self._published else CommitStatus.UNCHANGED,
            generation=ref.generation if ref else 0,
            files=ref.files if ref else 0,
            bytes=ref.size if ref else 0,
            new_files=len(told.taken),
            declined=told.declined,
            new_blobs=self._uploader.blobs,
            uploaded=self._uploader.bytes,
        )


class _Notes:
    """Notes on which packs hold what was stored already, for whoever goes on. gc removes them once they are old."""

    def __init__(self, target: Target, incoming: Incoming) -> None:
        self._backend = target.storage.backend
        self._prefix = f"{IMPORTED}{digest_of(str(target.scope).encode() + incoming.identity).hex()[:32]}-"
        self._known: set[str] = set()

    def packs(self) -> tuple[str, ...]:
        """The packs that an earlier attempt stored."""
        names = (child.name for child in self._backend.list(NOTES))
        self._known = {name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)}
        return tuple(sorted(self._known))

    def add(self, packs: tuple[str, ...]) -> None:
        """Remember these packs."""
        for pack in packs:
            if pack not in self._known:
                self._backend.put_if_absent(f"{NOTES}/{self._prefix}{pack}", b"")
                self._known.add(pack)

    def remove(self) -> None:
        """Forget the packs: a ref names them now."""
        for pack in self._known:
            with suppress(OSError):
                self._backend.delete(f"{NOTES}/{self._prefix}{pack}")
