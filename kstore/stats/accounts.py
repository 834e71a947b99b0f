"""Whose bytes a store holds, found by reading the manifest of every generation and the index of every pack.

What is counted is what gc goes by. An object, that is a pack or a loose blob, is needed if a generation needs it; a
pack is deleted whole or not at all. So what only one group needs is what gc frees, in the end, if that group is
forgotten. A frame of a pack that others need too is freed only when gc rewrites the pack, as it does with one that is
mostly dead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain, islice
from typing import Generic, NamedTuple, Self

from kstore.batches import MAX_COUNT
from kstore.blobs.loose import ASIDE, blob_name
from kstore.blobs.loose import FOLDER as LOOSE
from kstore.blobs.packindex import Frame, pack_name
from kstore.blobs.packreader import PackReader, read_ahead
from kstore.digest import HEXADECIMAL
from kstore.errors import IntegrityError, MissError, StoreFormatError, reason_of
from kstore.far import ask_each
from kstore.gc.digests import DigestSet
from kstore.gc.mark import Needs, needs_in
from kstore.gc.seek import seek
from kstore.progress import Progress
from kstore.published.fetched import fetch_each, trouble_with
from kstore.published.manifest import Manifest
from kstore.published.ref import Ref, RefState
from kstore.report import Count
from kstore.scope import Scope
from kstore.stats.owners import Owners
from kstore.stats.space import Group, Held, Space, some_of
from kstore.storage import Storage
from kstore.words import plural

_PINNED = 0
"""The owner of what pinned generations need: forgetting a group does not free it."""
_MANIFEST = 0
"""The kind of a manifest. Each component is another."""
OTHER = "other"
"""Takes the place of the names of all components but the first few hundred, because a manifest may name any number."""
_MOST_COMPONENTS = 254


class Holding(NamedTuple):
    """One generation and everything that it needs."""

    ref: Ref
    is_pinned: bool
    manifest: Manifest
    needs: Needs


def readable_scopes(storage: Storage, key: str | None, unreadable: list[str]) -> Iterator[Scope]:
    """Every scope with a folder, of one key if given. Why some cannot be listed is appended to `unreadable`."""
    return storage.refs.scopes_of(key, lambda folder: unreadable.append(folder.trouble))


def holdings(
    storage: Storage, scopes: Iterable[Scope], unreadable: list[str], progress: Progress | None
) -> Iterator[Holding]:
    """Every generation of these scopes that can be read; why others cannot be is appended to `unreadable`."""
    progress = progress or Progress()
    pins: dict[Scope, set[int]] = {}
    for (scope, number), fetch in fetch_each(storage, _listed(storage, scopes, pins, unreadable)):
        try:
            fetched = fetch()
            manifest = Manifest.load(fetched.data())
            needs = needs_in(fetched.blobs, fetched.ref, manifest)
            yield Holding(fetched.ref, number in pins[scope], manifest, needs)
        except MissError:
            continue  # removed since it was listed
        except (IntegrityError, StoreFormatError, OSError, MemoryError) as error:
            if _is_there(storage, scope, number):
                unreadable.append(trouble_with(scope, number, error))
        progress.done += 1


def _is_there(storage: Storage, scope: Scope, number: int) -> bool:
    """Whether a generation is still published: gc may have removed it, and what it needs, since it was listed."""
    try:
        return storage.refs.exists(scope, number)
    except OSError:
        return True


def _listed(
    storage: Storage, scopes: Iterable[Scope], pins: dict[Scope, set[int]], unreadable: list[str]
) -> Iterator[tuple[Scope, int]]:
    """Every generation of these scopes; which of them are pinned is added to `pins`."""

    def look(scope: Scope) -> tuple[set[int], list[int]]:
        return storage.refs.pins(scope), storage.refs.generations(scope)

    for scope, answer in ask_each(look, scopes):
        try:
            pins[scope], generations = answer()
        except OSError as error:
            unreadable.append(f"{scope}: {reason_of(error)}")
            continue
        yield from ((scope, number) for number in generations)


class Accounts(Generic[Group]):
    """Counts holdings, each for the group that `by` gives. To be used as a context manager."""

    def __init__(self, storage: Storage, by: Callable[[Scope], Group]) -> None:
        self._storage = storage
        self._by = by
        self._numbers: dict[Group, int] = {}
        self._held: dict[int, Held] = {}
        """What each group has, by the group's number."""
        self._kinds: dict[str, int] = {}
        """The kind of each component's blobs."""
        self._packs: dict[str, set[int]] = {}
        """Needed pack → its owners."""
        self._newest: dict[Scope, Ref] = {}
        self._counted: dict[Scope, set[int]] = {}
        """The generations of each scope."""
        self._sought: set[str] = set()
        """Packs that no ref names and that gc keeps because they hold what generations lack."""
        self.space: Space[Group] = Space()

    def __enter__(self) -> Self:
        self._open = ExitStack()
        self._blobs = Owners(self._open.enter_context(DigestSet()))
        """Everything, wherever it is."""
        self._loose = Owners(self._open.enter_context(DigestSet()))
        """What is in none of the owner's packs."""
        self._leant = Owners(self._open.enter_context(DigestSet()))
        """What was not uploaded because a store below had it."""
        self._lacking = self._open.enter_context(DigestSet())
        """What generations need and have neither loose nor in their packs; `seek` uses it up."""
        self._sought_for = self._open.enter_context(DigestSet())
        """The same, kept."""
        self._saved = self._open.enter_context(DigestSet())
        """What of it is in some pack after all."""
        self._hidden: dict[str, str] = {}
        """Folders of loose blobs that cannot be read, and why."""
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, holding: Holding) -> None:
        """Count one generation."""
        ref, group = holding.ref, self._by(holding.ref.scope)
        number = self._numbers.setdefault(group, len(self._numbers) + 1)
        owners = [number, _PINNED] if holding.is_pinned else [number]
        self._held[number] = self.space.groups.setdefault(group, Held())
        size = sum(size for _, size in holding.manifest.blobs())
        for one in (self._held[number], self.space.whole):
            one.generations += 1
            one.live += ref.state is RefState.LIVE
            one.artifacts += size
        self._newest[ref.scope] = ref
        self._counted.setdefault(ref.scope, set()).add(ref.generation)
        for lacking in (self._lacking, self._sought_for):
            lacking.add(holding.needs.lacking)
        for owner in owners:
            self._blobs.add(owner, self._blobs_of(holding))
            self._loose.add(owner, ((digest, 0, size) for digest, size in holding.needs.loose.items()))
            self._leant.add(owner, ((digest, 0, size) for digest, size in holding.needs.leant.items()))
            for pack in ref.packs:
                self._packs.setdefault(pack, set()).add(owner)

    def _blobs_of(self, holding: Holding) -> Iterator[tuple[bytes, int, int]]:
        """(digest, kind, bytes) of each blob."""
        for digest, size in holding.ref.stored.items():
            yield digest, _MANIFEST, size
        for path, entry in holding.manifest.items():
            yield entry.digest, self._kind(path.partition("/")[0]), entry.size

    def _kind(self, component: str) -> int:
        if len(self._kinds) >= _MOST_COMPONENTS and component not in self._kinds:
            component = OTHER
        return self._kinds.setdefault(component, 1 + len(self._kinds))

    def finish(self, *, survey: bool = True) -> Space[Group]:
        """The result. Without `survey`, only what the generations that were added need is counted."""
        for scope, ref in self._newest.items():
            for one in (self.space.groups[self._by(scope)], self.space.whole):
                one.published |= ref.state is RefState.LIVE
        for blob in self._blobs:
            is_manifest = blob.kind == _MANIFEST
            for one in self._held_by(blob.owners):
                one.unique += 0 if is_manifest else blob.size
                one.manifests += blob.size if is_manifest else 0
        for blob in self._leant:
            for one in self._held_by(blob.owners):
                one.elsewhere += blob.size
        self._seek()
        self._count_loose()
        for pack, reader in ask_each(partial(read_ahead, self._storage.backend), self._packs):
            self._count_pack(pack, reader())
        if survey:
            self._survey()
        self.space.unreadable += some_of([*self._hidden.values()], "other folder")
        return self.space

    def blobs(self) -> Iterator[tuple[frozenset[Group], str, int]]:
        """(groups that have it, component, bytes) of each blob, manifests left out."""
        groups = {number: group for group, number in self._numbers.items()}
        components = {kind: component for component, kind in self._kinds.items()}
        for _, owners, kind, size in self._blobs:
            if kind != _MANIFEST:
                yield frozenset(groups[owner] for owner in owners - {_PINNED}), components[kind], size

    def _seek(self) -> None:
        """Find in the packs of others what generations lack: a repair saved it there and moved their own packs away."""
        if len(self._lacking):
            self._note_saved(list(self._packs))
            self._sought = seek(self._storage, self._lacking, self._packs)
            self._note_saved(self._sought)

    def _note_saved(self, packs: Iterable[str]) -> None:
        for pack in packs:
            with suppress(IntegrityError, OSError, MemoryError):
                digests = PackReader(self._storage.backend, pack).index.digests
                found = self._loose.of(digest for digest in digests if digest in self._sought_for)
                self._saved.add(found)
                self._packs.setdefault(pack, set()).update(*found.values())

    def _count_pack(self, pack: str, reader: PackReader) -> None:
        owners = self._packs[pack]
        try:
            self._count_frames(reader, owners)
            self._count_object(owners, reader.size)
        except (IntegrityError, OSError, MemoryError) as error:
            if not isinstance(error, FileNotFoundError) or self._is_missed(pack):
                self.space.unreadable.append(f"pack {pack}: {reason_of(error)}")

    def _is_missed(self, pack: str) -> bool:
        """Whether a pack that is gone should be there: earlier generations may name one that a repair moved away."""
        naming = (ref for ref in self._newest.values() if pack in ref.packs)
        return any(_is_there(self._storage, ref.scope, ref.generation) for ref in naming)

    def _count_loose(self) -> None:
        each = iter(self._loose)
        with DigestSet() as there, DigestSet() as lost:
            for digests in self._storage.blobs.loose.folders(self._hide):
                there.add(digests)
            while some := list(islice(each, MAX_COUNT)):
                gone = set(there.absent(blob.digest for blob in some))
                nowhere = set(self._saved.absent(gone))
                lost.add(digest for digest in nowhere if not self._may_hide(digest))
                for digest, owners, _, size in some:
                    if digest not in gone:
                        self._count_copy(owners, size)
                    for one in self._held_by(owners) if digest in nowhere else ():
                        one.elsewhere += size
            self._tell_lost(lost)

    def _tell_lost(self, lost: DigestSet) -> None:
        missed = self._missed(lost) if len(lost) else Count()
        if missed.files:
            blobs = plural(missed.files, "lost blob")
            self.space.unreadable.append(f"{blobs}, {missed.bytes} bytes; `kstore verify` says of what")

    def _missed(self, lost: DigestSet) -> Count:
        """Those of the lost blobs that are needed by generations that are still there."""
        missed = Count()
        troubles: list[str] = []
        with DigestSet() as told:
            for ref, _, _, needs in holdings(self._storage, self._counted, troubles, None):
                if ref.generation in self._counted[ref.scope]:
                    new = told.add(needs.loose.keys() - lost.absent(needs.loose))
                    missed += Count.of([needs.loose[digest] for digest in new])
        self.space.unreadable += [trouble for trouble in troubles if trouble not in self.space.unreadable]
        return missed

    def _hide(self, folder: str, error: OSError) -> None:
        self._hidden.setdefault(folder, f"{folder}: {reason_of(error)}")

    def _may_hide(self, digest: bytes) -> bool:
        """Whether a loose blob may be there for whoever can read its folder."""
        return ASIDE in self._hidden or blob_name(digest).rpartition("/")[0] in self._hidden

    def _count_copy(self, owners: set[int], size: int) -> None:
        """Count a loose blob: an object that holds one blob."""
        self._count_object(owners, size)
        for one in self._held_by(owners):
            one.copies += size

    def _count_object(self, owners: set[int], size: int) -> None:
        for one in self._held_by(owners):
            one.stored += size
        if len(owners) == 1:
            self._held[next(iter(owners))].alone += size
            self.space.whole.alone += size

    def _held_by(self, owners: set[int]) -> list[Held]:
        """The accounts to add to for these owners: their own and that of the whole."""
        return [self.space.whole, *(self._held[owner] for owner in owners - {_PINNED})]

    def _count_frames(self, reader: PackReader, owners: set[int]) -> None:
        """Count the frames of a pack that these owners need."""
        index, first = reader.index, 0
        for frame in index.frames:
            blobs = slice(first, first + frame.blobs)
            needing = self._blobs.of(index.digests[blobs])
            for digest, size in zip(index.digests[blobs], index.sizes[blobs], strict=True):
                for one in self._held_by(owners & needing[digest]) if digest in needing else ():
                    one.copies += size
            self._count_frame(frame, set[int]().union(*needing.values()), is_shared=len(owners) > 1)
            first = blobs.stop

    def _count_frame(self, frame: Frame, owners: set[int], *, is_shared: bool) -> None:
        if not owners:
            self.space.dead_frames += frame.packed_size
        elif is_shared and len(owners) == 1:
            self._held[next(iter(owners))].frames += frame.packed_size

    def _survey(self) -> None:
        """Count what is in the store, and how much of it nothing needs."""
        needed = self._packs.keys() | self._sought
        packs = {pack: pack in needed for pack in self._storage.blobs.packs()}
        self._count_stored({pack_name(pack): is_needed for pack, is_needed in packs.items()})
        for folder in [f"{LOOSE}/{shard.name}" for shard in self._storage.backend.list(LOOSE)]:
            try:
                self._count_stored(self._loose_in(folder))
            except OSError as error:
                self._hide(folder, error)

    def _loose_in(self, shard: str) -> dict[str, bool]:
        """The loose blobs of a folder, and whether anything needs them."""
        names = {child.name for child in self._storage.backend.list(shard) if HEXADECIMAL.fullmatch(child.name)}
        found = (blobs.of(map(bytes.fromhex, names)) for blobs in (self._loose, self._leant))
        needed = {digest.hex() for digest in chain.from_iterable(found)}
        return {f"{shard}/{name}": name in needed for name in names}

    def _count_stored(self, names: Mapping[str, bool]) -> None:
        # None for what gc has removed since.
        stats = zip(names.values(), self._storage.backend.stat_many(list(names)), strict=True)
        sizes = [(is_needed, found.size) for is_needed, found in stats if found]
        self.space.objects += Count.of([size for _, size in sizes])
        self.space.unneeded += Count.of([size for is_needed, size in sizes if not is_needed])


def space_of(
    storage: Storage,
    by: Callable[[Scope], Group],
    key: str | None = None,
    progress: Progress | None = None,
) -> Space[Group]:
    """Whose bytes a store holds; only those of one key, if it is given.

    Raises:
        OSError: the store cannot be read.
    """
    with Accounts(storage, by) as accounts:
        unreadable = accounts.space.unreadable
        for holding in holdings(storage, readable_scopes(storage, key, unreadable), unreadable, progress):
            accounts.add(holding)
        return accounts.finish(survey=key is None)
