"""Those who work on the store in the explorations, and what it holds when they begin.

A new kind of actor is a function that returns an `Actor`, and an entry of `ACTORS`.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

from kstore.backends import NewObject
from kstore.blobs import BlobStore, Layout
from kstore.components import load_table
from kstore.condemned import list_names
from kstore.digest import digest_of
from kstore.gc import Policy
from kstore.gc.digests import DigestSet
from kstore.local.index import Index
from kstore.local.scan import scan
from kstore.operations.bring import Target, bring_in
from kstore.operations.incoming import Incoming
from kstore.operations.repair import Repair
from kstore.progress import Progress
from kstore.published.manifest import Files, Manifest
from kstore.published.refs import Refs
from kstore.report import CommitStatus
from kstore.scope import Scope
from tests.interleavings.conversation import Actor, run_alone
from tests.interleavings.memory import Contents, Memory, MemoryBackend
from tests.trees import ENVIRONMENT, GPU, HOUR, KEY, Node, Tree

GROUP = "triton/KERNEL"
Fill = Callable[[Tree], None]
"""Puts what a worker compiled into its cache root."""

History = Callable[[MemoryBackend], None]
"""Does something to a store before the actors begin."""


def unchanged(backend: MemoryBackend) -> None:
    """The history of a store to which nothing was done except commits."""


class Outcome(NamedTuple):
    """How an actor ended, without anything that may differ between equal schedules."""

    status: str
    generation: int = 0
    skipped: int = 0
    """Artifacts that a restore left out."""


@dataclass(frozen=True)
class World:
    """Where an exploration takes place."""

    folder: Path
    layout: str
    fills: Mapping[str, Fill] = field(default_factory=dict)
    """Actor → what it has compiled."""
    layouts: Mapping[str, str] = field(default_factory=dict)
    """Actor → its layout, if it is another one."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Actor → the key that it works on, if it is not `KEY`."""
    published: tuple[Fill, ...] = ()
    """What each generation added that exists from the start. Committers begin with the newest one restored."""
    history: History = unchanged
    """What else was done to the store before."""

    @cached_property
    def start(self) -> Contents:
        """The store that the actors find."""
        memory = Memory(Contents())
        assert run_alone(Actor("founder", self._found), memory) is None
        return memory.contents

    def _found(self, backend: MemoryBackend) -> None:
        node = self.node("founder", backend)
        node.store.create()
        for fill in self.published:
            fill(node.tree)
            assert node.commit().status is CommitStatus.COMMITTED
        self.history(backend)

    def actor(self, name: str) -> Actor:
        """An actor by its name, such as `commit A`: the entry of the table, and whose it is."""
        return Actor(name, partial(ACTORS[name.partition(" ")[0]], self, self.start, name))

    def key_of(self, name: str) -> str:
        return self.keys.get(name, KEY)

    def scope_of(self, name: str) -> Scope:
        return Scope(GPU, self.key_of(name), ENVIRONMENT)

    def news_of(self, name: str) -> Files:
        """What a committer has compiled."""
        tree = Tree(self.folder / name)
        self.fills[name](tree)
        files = tree.scan().files
        shutil.rmtree(tree.root)
        return files

    def restored_node(self, name: str, start: Contents) -> Node:
        """A worker with a new cache root, into which everything was restored that existed at the start."""
        node = self.node(name, Memory(start).backend)
        if self.published and self.key_of(name) == KEY:
            assert node.restore().ok
        return node

    def node(self, name: str, backend: MemoryBackend) -> Node:
        """A worker with a new cache root."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        node = Node(self.folder, name, layout=self.layouts.get(name, self.layout))
        put_on(node, backend)
        return node


def aged(backend: MemoryBackend) -> None:
    """Everything is older than the grace."""
    backend.wait(2 * HOUR)


def old_and_condemned(backend: MemoryBackend) -> None:
    """All generations but the newest are gone, and what only they had has been condemned for long enough to be deleted.

    So has the pack of a commit that was killed.
    """
    node = Node(Path("/nowhere"))
    put_on(node, backend)
    with node.store.storage.blobs.writer(Layout.PACKED) as writer:
        writer.put(digest_of(b"never published"), b"never published")
        writer.finish()
    backend.wait(2 * HOUR)
    assert node.store.gc(Policy(keep=1)).condemned.files
    backend.wait(2 * HOUR)


def forgotten_and_condemned(backend: MemoryBackend) -> None:
    """The key misses, and everything that it had has been condemned for long enough to be deleted."""
    node = Node(Path("/nowhere"))
    put_on(node, backend)
    assert node.store.forget(KEY)
    old_and_condemned(backend)


def repaired(backend: MemoryBackend) -> None:
    """The key was forgotten, and its first generation is pinned; but a repair has taken away the pack that it names.

    Everything is in two other packs, which no ref names: what was saved, and what another key had. gc keeps one of
    them, and condemned the other long enough ago that it is to be deleted.
    """
    node = Node(Path("/nowhere"))
    put_on(node, backend)
    storage, scope = node.store.storage, node.store.scope(KEY)
    storage.refs.pin(scope, 1)
    packs = storage.refs.get(scope, 1).packs
    with storage.blobs.writer(Layout.PACKED) as writer:
        for pack in packs:
            for digest, data in storage.blobs.pack(pack).salvage():
                writer.put(digest, bytes(data))
        writer.finish()
    with DigestSet() as whole:
        assert Repair(storage, packs, {}, whole).run(())
    assert node.store.forget(KEY)
    backend.wait(2 * HOUR)
    assert node.store.gc(Policy(keep=1)).condemned.files
    backend.wait(2 * HOUR)


def put_on(node: Node, backend: MemoryBackend) -> None:
    """Give a worker another storage for the same store."""
    storage = node.store.storage
    storage.backend = backend  # type: ignore[assignment]
    storage.refs = Refs(backend)
    storage.blobs = BlobStore(backend)


# ---- What compilers leave


def compile_kernel(tree: Tree, by: str) -> None:
    """A group of two files, the same one for all workers, but not with the same bytes."""
    tree.put(f"{GROUP}/k.cubin", f"machine code by {by}".encode())
    children = {"k.cubin": f"{tree.root}/{GROUP}/k.cubin"}
    tree.put(f"{GROUP}/__grp__k.json", json.dumps({"child_paths": children}).encode())


def write_wrapper(tree: Tree, by: str) -> None:
    """A single file, with the same bytes for all who write one with this name."""
    tree.put(f"inductor/ab/c{by}.py", f"# {by}".encode())


# ---- What actors do


def commit(world: World, start: Contents, name: str, backend: MemoryBackend) -> Hashable:
    node = world.restored_node(name, start)
    world.fills[name](node.tree)
    put_on(node, backend)
    report = node.commit(world.key_of(name))
    return Outcome(report.status.value, report.generation)


def live(world: World, start: Contents, name: str, backend: MemoryBackend) -> Hashable:
    """Uploads ahead what it then commits."""
    node = world.restored_node(name, start)
    world.fills[name](node.tree)
    put_on(node, backend)
    node.store.upload_ahead(world.key_of(name))
    report = node.commit(world.key_of(name))
    return Outcome(report.status.value, report.generation)


def bring(world: World, start: Contents, name: str, backend: MemoryBackend) -> Hashable:
    """Imports what its fill makes, one blob at a time."""
    node = world.node(name, backend)
    world.fills[name](node.tree)
    stored: dict[bytes, bytes] = {}
    found = scan(node.tree.cacheroot(), load_table(), Index(), dict, offer=lambda blobs, _: stored.update(blobs))

    def fetch(wanted: Mapping[bytes, int]) -> Iterator[tuple[bytes, memoryview]]:
        yield from ((digest, memoryview(stored[digest])) for digest in wanted)

    incoming = Incoming(Manifest(found.files), b"identity", fetch, "elsewhere")
    layout = Layout(world.layouts.get(name, world.layout))
    brought = bring_in(Target(node.store.storage, world.scope_of(name), layout, "", Progress()), incoming)
    return Outcome(brought.status.value, brought.generation)


def restore(world: World, start: Contents, name: str, backend: MemoryBackend) -> Hashable:
    node = world.node(name, backend)
    report = node.restore(world.key_of(name))
    return Outcome(report.status.value, report.generation, len(report.skipped))


def gc(world: World, start: Contents, name: str, backend: MemoryBackend) -> Hashable:
    """Both phases: deletes what an earlier gc condemned long enough ago, and condemns the rest."""
    return world.node(name, backend).store.gc(Policy(keep=1)).status.value


def unused(world: World, start: Contents, name: str, backend: MemoryBackend) -> Hashable:
    """A gc that forgets what nobody has used for an hour."""
    return world.node(name, backend).store.gc(Policy(keep=1, unused=HOUR)).status.value


class Full(MemoryBackend):
    """A store without room for anything."""

    def put_many(self, objects: Sequence[NewObject]) -> list[bool]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def put(self, name: str, data: bytes, fraction_ns: int | None = None) -> None:
        self.put_many([])


def full(world: World, start: Contents, name: str, backend: MemoryBackend) -> Hashable:
    """A gc that finds no room for what it has to write."""
    return gc(world, start, name, Full(backend._performer))


class Timeless(Full):
    """A full store that cannot even tell the time."""

    def clock(self) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def timeless(world: World, start: Contents, name: str, backend: MemoryBackend) -> Hashable:
    """A gc that has to guess what time it is."""
    return gc(world, start, name, Timeless(backend._performer))


def forget(world: World, start: Contents, name: str, backend: MemoryBackend) -> Hashable:
    world.node(name, backend).store.forget(world.key_of(name))
    return None


def rot(world: World, start: Contents, name: str, backend: MemoryBackend) -> Hashable:
    """Damage each list of what gc is about to delete."""
    for listed in list_names(backend):
        backend.put(listed, b"garbage")
    return None


def wait(world: World, start: Contents, name: str, backend: MemoryBackend) -> Hashable:
    """Wait as many seconds as the name says, each time the schedule lets it."""
    for seconds in name.split()[1:]:
        backend.wait(float(seconds))
    return None


ACTORS: dict[str, Callable[[World, Contents, str, MemoryBackend], Hashable]] = {
    "commit": commit,
    "live": live,
    "bring": bring,
    "restore": restore,
    "gc": gc,
    "full": full,
    "unused": unused,
    "timeless": timeless,
    "forget": forget,
    "rot": rot,
    "wait": wait,
}
