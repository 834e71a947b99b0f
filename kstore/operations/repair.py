"""Repair: what `verify` found damaged goes to `quarantine/`, and what is whole is published without it.

Only newest generations are published again, because those are restored. For earlier ones, what is whole in a pack that
they name is saved. A damaged pack that a newest generation still names in the end, because that could not be published
again, stays where it is. A lost blob that lies whole in `quarantine/` is put back: it just could not be read when it
was moved.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from kstore.blobs import Layout
from kstore.blobs.packindex import pack_name
from kstore.blobs.packreader import Blob, PackReader
from kstore.condemned import read_doomed
from kstore.damaged import damaged_blobs, drop_notes, put_back, set_aside_blob, set_aside_pack, set_aside_ref
from kstore.errors import IntegrityError, MissError, StoreUnavailable
from kstore.files import NO_FILE
from kstore.gc.digests import DigestSet
from kstore.gc.mark import needs_in
from kstore.published.generations import are_present, publish_empty, publish_loss, republish
from kstore.published.ref import Ref, RefState
from kstore.scope import Scope
from kstore.storage import Storage, reporting_trouble

log = logging.getLogger(__name__)

_MAX_RACES = 100
_LATER = (IntegrityError, MissError, StoreUnavailable)
"""What keeps one generation, and no other, from being published again."""


class Repair:
    """One repair of one store."""

    def __init__(self, storage: Storage, packs: Iterable[str], lost: Mapping[bytes, int], whole: DigestSet) -> None:
        """`packs` are damaged. `lost` are blobs, with their sizes, that are not whole where they must be; `whole` are
        those that are whole anywhere.
        """
        self._storage = storage
        self._backend = storage.backend
        self._packs = set(packs)
        self._lost = dict(lost)
        self._whole = whole
        self._saved: dict[str, tuple[str, ...]] = {}
        self._back: set[bytes] = set()
        """Digests of the lost blobs that are loose again."""

    def run(self, broken: Iterable[tuple[Scope, int]], verified: Container[Scope] = ()) -> bool:
        """Mend what can be mended; `broken` are generations. It is known what the scopes that were `verified` need.
        Returns whether nothing is left in the way.
        """
        self._give_up(self._lost)
        left = [generation for scope, generation in broken if not self._pass_over(scope, generation)]
        self._replace_all()
        named = self._named()
        named |= {pack for pack in sorted(self._packs - named) if not self._take_away(pack)}
        self._replace_all()  # Somebody may meanwhile have published what names one of them, as a rollback does.
        self._drop_needless(is_all_known=all(scope in verified for scope in self._storage.refs.all_scopes()))
        return not named and not left

    def _drop_needless(self, *, is_all_known: bool) -> None:
        """Delete from quarantine the blobs that are whole where they must be. A key whose needs are not known may lack
        as a loose blob what is in a pack of another key.
        """
        for digest, names in damaged_blobs(self._backend).items():
            if digest in self._back or (is_all_known and digest in self._whole and digest not in self._lost):
                for name in names:
                    self._backend.delete(name)

    def _give_up(self, lost: dict[bytes, int]) -> None:
        """Leave blobs to whoever has them, except those that can be stored anew."""
        noted = damaged_blobs(self._backend) if lost else {}
        for digest in sorted(lost):
            set_aside_blob(self._backend, digest)
            drop_notes(self._backend, noted.get(digest, ()))
        back = self._put_back(lost) if lost else set()
        self._back = (self._back - lost.keys()) | back
        self._lost = {digest: size for digest, size in (self._lost | lost).items() if digest not in back}

    def _put_back(self, lost: Mapping[bytes, int]) -> set[bytes]:
        """Store anew what lies whole in quarantine, such as what a commit healed just before it was moved there, or
        what is whole in a pack of another generation.
        """
        kept = damaged_blobs(self._backend)
        back = {d for d, size in sorted(lost.items()) if put_back(self._backend, d, size, kept.get(d, ()))}
        packed = {d: size for d, size in lost.items() if d not in back and d in self._whole}
        blobs = self._storage.blobs_anew()
        for digest, data in blobs.fetch_many(packed):
            blobs.loose.put_many([(digest, data)])
            back.add(digest)
        return back

    def _pass_over(self, scope: Scope, generation: int) -> bool:
        """If the damaged generation is the newest, publish what can be read; then take it out. False if it stays."""
        try:
            with reporting_trouble(self._storage.location, "read"):
                _, snapshot = self._storage.newest_whole(scope)
            if snapshot:
                republish(self._storage, snapshot.ref, upon=generation, after_loss=True)
            else:
                publish_loss(self._storage, scope, upon=generation)
        except _LATER as error:
            log.warning("nothing takes the place of generation %d of %s yet: %s", generation, scope, error)
            return False
        set_aside_ref(self._backend, scope, generation)
        self._storage.refs.unpin(scope, generation)
        return True

    def _replace_all(self) -> None:
        for scope in self._storage.refs.all_scopes() if self._packs else ():
            self._replace(scope)

    def _replace(self, scope: Scope) -> None:
        """Publish anew what names a damaged pack, including other keys and what was committed since it was read."""
        for _ in range(_MAX_RACES):
            with suppress(IntegrityError, MissError):
                ref = self._storage.refs.newest(scope)
                if ref and not self._packs.isdisjoint(ref.packs) and not self._republish(ref):
                    continue
            return

    def _republish(self, ref: Ref) -> bool:
        """False if it is no longer the newest."""
        try:
            with reporting_trouble(self._storage.location, "read"):
                self._storage.snapshot(ref)
            return self._publish_anew(ref) is not None
        except _LATER as error:
            log.warning("generation %d of %s is not published again: %s", ref.generation, ref.scope, error)
            return True

    def _publish_anew(self, ref: Ref) -> Ref | None:
        """Publish it without the damaged packs. If it is not live, only its state is needed."""
        if ref.state is RefState.LIVE:
            return republish(self._storage, ref, self._whole_packs, upon=ref.generation)
        if ref.state is RefState.LOST:
            return publish_loss(self._storage, ref.scope, upon=ref.generation)
        return publish_empty(self._storage, ref.scope, ref.state, upon=ref.generation)

    def _whole_packs(self, ref: Ref) -> tuple[str, ...]:
        """Where the blobs of a generation are, without the damaged packs. Called once a place for its ref is reserved:
        what was saved earlier may be gone by then.
        """
        named = dict.fromkeys(new for old in ref.packs for new in (self._save(old) if old in self._packs else (old,)))
        return (*named, *self._found_elsewhere(ref, tuple(named)))

    def _take_away(self, pack: str) -> bool:
        """Save what is whole in a damaged pack for earlier generations, since gc keeps what they need wherever it is,
        and move it aside. False if it stays: until it was moved, gc saw no need for what was saved, and may delete it.
        """
        for _ in range(_MAX_RACES):
            saved = self._save(pack)
            aside = set_aside_pack(self._backend, pack)
            doomed = read_doomed(self._backend, tuple)  # By a list that cannot be read, gc deletes nothing.
            if not aside or (doomed.packs.isdisjoint(saved) and all(map(self._storage.blobs.has_pack, saved))):
                return True
            self._backend.move(aside, pack_name(pack))
        return False

    def _save(self, pack: str) -> tuple[str, ...]:
        """Copy what is whole in a damaged pack into a new one, once for all keys."""
        if pack not in self._saved or not are_present(self._storage, self._saved[pack]):
            self._saved[pack] = self._copy(PackReader(self._backend, pack).salvage())
        return self._saved[pack]

    def _found_elsewhere(self, ref: Ref, packs: tuple[str, ...]) -> tuple[str, ...]:
        """Copy what a generation needs and these packs lack from packs that may go with earlier generations. What none
        of them has is given up: it may belong to a key that was not verified.

        Raises:
            StoreUnavailable: some of it may be where nothing can be read just now.
        """
        troubles: list[Exception] = []
        blobs = self._storage.blobs_anew()
        needs = needs_in(blobs, replace(ref, packs=packs), self._storage.snapshot(ref).manifest)
        wanted = blobs.loose.lacking(needs.loose)
        copied = self._copy(blobs.fetch_many(wanted, troubles=troubles))
        settled = blobs.digests_in(copied) | self._lost.keys()
        lost = {digest: size for digest, size in wanted.items() if digest not in settled}
        if lost and troubles:
            raise StoreUnavailable(f"{len(lost)} of its blobs may be where nothing can be read now: {troubles[0]}")
        self._give_up(lost)
        return copied

    def _copy(self, blobs: Iterable[Blob]) -> tuple[str, ...]:
        """Write blobs into a pack, as far as they are whole.

        Raises:
            OSError: they cannot be read just now, or cannot be written; none of them is to be given up.
        """
        with self._storage.blobs.writer(Layout.PACKED) as writer:
            try:
                for digest, data in blobs:
                    writer.put(digest, bytes(data))
            except IntegrityError as error:
                log.debug("no more of it can be saved: %s", error)
            except OSError as error:
                if error.errno not in NO_FILE:
                    raise
            return writer.finish()

    def _named(self) -> set[str]:
        """The damaged packs that a newest generation still names."""
        named = set[str]()
        for scope in self._storage.refs.all_scopes() if self._packs else ():
            with suppress(IntegrityError, MissError):
                ref = self._storage.refs.newest(scope)
                named |= self._packs.intersection(ref.packs if ref else ())
        return named
