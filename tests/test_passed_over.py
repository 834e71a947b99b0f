"""Commits while the newest generation cannot be read, though it is whole: what others have published is not lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kstore.backends import PosixBackend
from kstore.blobs import Layout
from kstore.blobs.loose import blob_name
from kstore.blobs.packindex import pack_name
from kstore.condemned import Condemned, write_lists
from kstore.environment import Host
from kstore.errors import IntegrityError, StoreUnavailable
from kstore.published.generations import republish
from kstore.published.ref import Ref
from kstore.published.refs import Refs
from tests.bundles.carrying import bring, bundle_of, other_store
from tests.faults.reading import cut_short, trouble_with
from tests.gc.stores import collect, collect_fully, pass_time, restored
from tests.test_repair import meanwhile
from tests.trees import Node


@pytest.fixture(autouse=True)
def known(host: Host) -> None:
    """A host that is known without running the compiler."""


def publish(folder: Path, layout: str) -> Node:
    """A worker that has restored the first generation, after which another one has published the second."""
    other, node = Node(folder, "other", layout=layout), Node(folder, layout=layout)
    other.tree.wrapper("one")
    other.commit()
    node.restore()
    other.tree.wrapper("two")
    other.commit()
    return node


def wrappers(folder: Path) -> set[str]:
    """The names of what a fresh worker gets."""
    return {data.split()[1].decode() for path, data in restored(folder, "fresh").items() if path.endswith(".py")}


NEWEST: dict[str, tuple[str, Callable[[Node], str]]] = {
    "its ref": ("loose", lambda node: node.newest().name),
    "its manifest": ("loose", lambda node: blob_name(node.newest().manifest)),
    "its pack": ("packed", lambda node: pack_name(node.newest().packs[0])),
}


@pytest.mark.parametrize("what", NEWEST)
def test_a_generation_of_which_a_server_gives_only_a_part_is_not_passed_over(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, name = NEWEST[what]
    node = publish(tmp_path, layout)
    node.tree.wrapper("three")
    with monkeypatch.context() as patch:
        cut_short(patch, name(node))
        with pytest.raises(StoreUnavailable, match="ends in its middle"):
            node.commit()
    assert node.commit().generation == 3
    assert wrappers(tmp_path) == {"one", "two", "three"}


@pytest.mark.parametrize("what", NEWEST)
def test_a_repair_moves_nothing_of_which_a_server_gives_only_a_part(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, name = NEWEST[what]
    node = publish(tmp_path, layout)
    with monkeypatch.context() as patch:
        cut_short(patch, name(node))
        with suppress(StoreUnavailable):
            assert node.store.verify(repair=True).unreadable
    assert node.newest().generation == 2
    assert node.store.verify().ok
    assert wrappers(tmp_path) == {"one", "two"}


GARBLED = IntegrityError("what came is garbled")
_READS = 4
"""How often a ref is read until it is passed over."""


def test_a_generation_that_can_be_read_once_all_is_uploaded_is_merged_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = publish(tmp_path, "packed")
    node.tree.wrapper("three")
    trouble_with(monkeypatch, node.newest().name, GARBLED, times=_READS)
    assert node.commit().generation == 3
    assert wrappers(tmp_path) == {"one", "two", "three"}
    assert node.newest().line == 1


def with_three(folder: Path) -> Path:
    """A bundle with one wrapper."""
    source = other_store(folder / "elsewhere")
    source.tree.wrapper("three")
    source.commit()
    return bundle_of(source, folder)


def test_an_import_looks_once_more_at_a_generation_that_it_could_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, bundle = publish(tmp_path, "packed"), with_three(tmp_path)
    trouble_with(monkeypatch, node.newest().name, GARBLED, times=_READS // 2)
    assert bring(node, bundle).scopes[0].generation == 3
    assert wrappers(tmp_path) == {"one", "two", "three"}


def sizes_of(node: Node, ref: Ref) -> dict[bytes, int]:
    """Digest → bytes of what a generation needs."""
    return dict(node.store.snapshot(ref).manifest.blobs()) | ref.stored


def repacked(node: Node, ref: Ref) -> tuple[str, ...]:
    """A pack with all that a generation has, as where a commit or a rollback copies what is condemned."""
    blobs = node.store.storage.blobs
    with blobs.writer(Layout.PACKED) as writer:
        for digest, data in blobs.fetch_many(sizes_of(node, ref)):
            writer.put(digest, bytes(data))
        return writer.finish()


def condemn(node: Node, ref: Ref) -> int:
    """As a gc does for which nothing needs what a generation has. Returns how many objects that is."""
    backend = node.store.storage.backend
    names = {bytes.fromhex(pack): pack_name(pack) for pack in ref.packs}
    names = names or {digest: blob_name(digest) for digest in sizes_of(node, ref)}
    found = [(digest, backend.stat(name)) for digest, name in names.items()]
    write_lists(backend, [Condemned(bool(ref.packs), d, at.inode, at.mtime_ns, at.size) for d, at in found])
    return len(found)


def commit_of(node: Node, bundle: Path) -> None:
    node.tree.wrapper("three")
    node.commit()


@pytest.mark.parametrize("layout", ["loose", "packed"])
@pytest.mark.parametrize("publish_next", [commit_of, bring])
def test_what_a_gc_that_can_read_the_newest_deletes_of_the_one_before_is_not_relied_on(
    publish_next: Callable[[Node, Path], object], layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Node(tmp_path, "other", layout=layout)
    other.tree.wrapper("one")
    other.commit()
    node, bundle = Node(tmp_path, layout=layout), with_three(tmp_path)
    first = node.newest()
    assert republish(node.store.storage, first, lambda ref: repacked(node, ref), upon=1)
    condemned = condemn(node, first)
    pass_time(node)
    get, name = PosixBackend.get, node.newest().name

    def collect_meanwhile() -> None:
        with monkeypatch.context() as gc_host:
            gc_host.setattr(PosixBackend, "get", get)
            assert collect(node, keep=1).deleted.files == condemned

    with monkeypatch.context() as patch:
        trouble_with(patch, name, GARBLED)
        meanwhile(patch, Refs, "publish", collect_meanwhile)
        publish_next(node, bundle)
    assert {*node.newest().packs}.isdisjoint(first.packs)
    collect_fully(node, keep=1)
    assert wrappers(tmp_path) == {"one", "three"}
    assert node.newest().line == 3
