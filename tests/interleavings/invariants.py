"""What must be true of a store whenever one looks, whoever was killed where.

- Every published generation can be restored completely, from the packs that its ref names and from loose blobs; if
  a repair has taken away one of these packs, from any pack.
- What a commit reported as published is in the newest generation: its own files or, where another worker offered
  others under the same names, that worker's, and each group from one worker only. The exception is what a `forget`
  dropped: everything that was there before the generation that it published, which is empty.
- No actor fails, and no restore leaves anything out. (Actors to which that may happen are excused by name.)
- Whatever is left can be collected: `collect` leaves no object that nothing refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from functools import cache

from kstore import condemned
from kstore.blobs import BlobStore
from kstore.blobs.loose import ASIDE, blob_name
from kstore.blobs.packindex import pack_name
from kstore.digest import digest_of
from kstore.errors import IntegrityError
from kstore.published.delta import read_manifest
from kstore.published.manifest import Files, Manifest, unit_of
from kstore.published.ref import Ref, load_ref
from kstore.report import CommitStatus
from kstore.scope import Scope
from tests.interleavings.actors import Outcome, World
from tests.interleavings.conversation import Trouble
from tests.interleavings.exploration import Broken
from tests.interleavings.memory import Contents, Memory, MemoryBackend, Object

_PUBLISHED = {CommitStatus.COMMITTED.value, CommitStatus.UNCHANGED.value}
_KEPT = ("kstore.json", "CACHEDIR.TAG", "refs/", "used/")
"""Folders that collection does not concern."""
_manifests: dict[bytes, Manifest] = {}
"""By digest: the same manifests are looked at again and again."""


class Invariants:
    """A check of an exploration in one world."""

    def __init__(
        self,
        world: World,
        *,
        excused: frozenset[str] = frozenset(),
        collect: Callable[[MemoryBackend], None] | None = None,
    ) -> None:
        """`excused` are the actors that may fail or leave something out.

        `collect` does everything until no object is left that nothing refers to; it may let time pass.
        """
        self._world = world
        self._news = {name: world.news_of(name) for name in world.fills}
        self._first = _files_at(world.start)
        self._excused = excused
        self._collect = collect
        self._tidy: set[Hashable] = set()

    def __call__(self, contents: Contents, outcomes: Mapping[str, Hashable]) -> None:
        for name, outcome in outcomes.items():
            if name not in self._excused:
                _check_outcome(name, outcome)
        self.check_store(contents, outcomes)
        if self._collect and contents.key not in self._tidy:
            self._tidy.add(contents.key)
            self.check_store(collected := self._collected(contents), outcomes)
            check_no_orphans(collected)

    def check_store(self, contents: Contents, outcomes: Mapping[str, Hashable]) -> None:
        """Whether all generations are whole, and hold what was reported."""
        refs = refs_in(contents)
        for ref in refs:
            check_whole(contents, ref)
        for name, outcome in outcomes.items():
            if name in self._news and isinstance(outcome, Outcome) and outcome.status in _PUBLISHED:
                scope = self._world.scope_of(name)
                self._check_kept(contents, [ref for ref in refs if ref.scope == scope], name, outcome)

    def _check_kept(self, contents: Contents, refs: list[Ref], name: str, outcome: Outcome) -> None:
        if not refs or refs[-1].generation < outcome.generation:
            raise Broken(f"{name} published generation {outcome.generation}, and the newest is older: {refs}")
        forgotten = [ref.generation for ref in ever_published(contents, refs[-1].scope) if not ref.files]
        promised: Files = {} if max(forgotten, default=0) > outcome.generation else dict(self._news[name])
        if not forgotten:
            promised |= self._first.get(refs[-1].scope, {})
        found = manifest_of(contents, refs[-1]).files
        for path in promised:
            self._check_path(found, path, name)

    def _check_path(self, found: Files, path: str, name: str) -> None:
        offers = [files for files in (*self._news.values(), *self._first.values()) if path in files]
        unit = unit_of(path, offers[0][path])
        if path not in found:
            raise Broken(f"{path}, which {name} published, is not in the newest generation")
        if not any(_part(found, unit) == _part(files, unit) for files in offers):
            raise Broken(f"{unit} in the newest generation is not as any worker had it")

    def _collected(self, contents: Contents) -> Contents:
        assert self._collect
        memory = Memory(contents)
        self._collect(memory.backend)
        return memory.contents


def _check_outcome(name: str, outcome: Hashable) -> None:
    if isinstance(outcome, Trouble):
        raise Broken(f"{name} failed: {outcome.error}")
    if isinstance(outcome, Outcome) and outcome.skipped:
        raise Broken(f"{name} left out {outcome.skipped} artifacts")


def check_whole(contents: Contents, ref: Ref) -> None:
    """Whether all blobs of a generation, its manifest first, are where its readers look."""
    wanted = set(ref.stored)
    if _missing(contents, ref, wanted):
        raise Broken(f"the manifest of generation {ref.generation} of {ref.scope} is missing")
    wanted = {entry.digest for entry in manifest_of(contents, ref).entries()}
    if missing := _missing(contents, ref, wanted):
        raise Broken(f"generation {ref.generation} of {ref.scope} lacks {len(missing)} of {len(wanted)} blobs")


def check_no_orphans(contents: Contents) -> None:
    """Whether every object is needed by some generation."""
    live: set[str] = set()
    for ref in refs_in(contents):
        packed = _packed(contents, ref)
        wanted = ref.stored.keys() | {entry.digest for entry in manifest_of(contents, ref).entries()}
        live |= {blob_name(digest) for digest in wanted - packed}
        live |= {pack_name(pack) for pack in ref.packs}
    # What was condemned before it was needed stays listed for as long as it is needed.
    lists = (name for name in contents.objects if name.startswith(condemned.FOLDER))
    for name in lists:
        with suppress(IntegrityError):
            if any(entry.name in live for entry in condemned.load_list(name, contents.objects[name][0])):
                live |= {name, name.replace("condemned", "fences")}
    orphans = [name for name in contents.objects if name not in live and not name.startswith(_KEPT)]
    if orphans:
        raise Broken(f"nothing refers to {orphans}")


def refs_in(contents: Contents) -> list[Ref]:
    """Every published generation, those of one scope from the oldest to the newest."""
    found = (_ref(name, data) for name, (data, *_) in contents.objects.items() if name.startswith("refs/"))
    return sorted((ref for ref in found if ref), key=lambda ref: (ref.scope, ref.generation))


def ever_published(contents: Contents, scope: Scope) -> Iterator[Ref]:
    """All that were ever published, also those that no longer exist."""
    return (ref for name, data in contents.refs if (ref := _ref(name, data)) and ref.scope == scope)


@cache
def _ref(name: str, data: bytes) -> Ref | None:
    """None for a mark beside the refs."""
    folder, _, number = name.rpartition("/")
    gpu, _, rest = folder.removeprefix("refs/").partition("/")
    key, _, environment = rest.rpartition("/@")
    return load_ref(Scope(gpu, key, environment), int(number), data) if number.isdecimal() else None


def manifest_of(contents: Contents, ref: Ref) -> Manifest:
    """What a generation holds."""
    if ref.manifest not in _manifests:
        _manifests[ref.manifest] = Manifest.load(read_manifest(BlobStore(Memory(contents).backend), ref))
    return _manifests[ref.manifest]


def _missing(contents: Contents, ref: Ref, wanted: set[bytes]) -> set[bytes]:
    left = wanted - _packed(contents, ref)
    return {digest for digest in left if not any(_is_blob(digest, found) for found in _places(contents, digest))}


def _places(contents: Contents, digest: bytes) -> Iterator[Object | None]:
    """Where a reader looks for a loose blob."""
    yield contents.objects.get(blob_name(digest))
    aside = f"{ASIDE}/{digest.hex()}"
    yield from (found for name, found in contents.objects.items() if name.startswith(aside))


def _packed(contents: Contents, ref: Ref) -> set[bytes]:
    """The contents of the packs in which a ref's blobs are looked for."""
    packs = [contents.objects.get(pack_name(pack)) for pack in ref.packs]
    if None in packs:
        packs = [found for name, found in contents.objects.items() if name.startswith("packs/")]
    return set().union(*(_digests_in(found.data) for found in packs if found))


@cache
def _digests_in(pack: bytes) -> frozenset[bytes]:
    """What can be read undamaged from a pack."""
    memory = Memory(Contents())
    memory.backend.put("packs/one", pack)
    reader = BlobStore(memory.backend).pack("one")
    return frozenset(digest for digest, _ in reader.fetch(reader.index.sizes_by_digest()))


@cache
def _is_blob(digest: bytes, found: Object | None) -> bool:
    return found is not None and digest_of(found.data) == digest


def _part(files: Files, unit: str) -> set[tuple[str, bytes]]:
    """The files of a group, or the one file."""
    return {(path, entry.digest) for path, entry in files.items() if unit_of(path, entry) == unit}


def _files_at(contents: Contents) -> dict[Scope, Files]:
    """What each scope's newest generation holds."""
    return {ref.scope: manifest_of(contents, ref).files for ref in refs_in(contents)}
