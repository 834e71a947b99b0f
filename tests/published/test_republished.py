"""Generations that are published again although some of what they need is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstore.blobs.loose import blob_name
from kstore.blobs.packindex import pack_name
from kstore.condemned import Condemned, staged, write_lists
from kstore.environment import Host
from kstore.errors import MissError, StoreUnavailable
from kstore.published.refs import Refs
from kstore.scope import Scope
from tests.gc.stores import kernels, restored
from tests.test_repair import condemn, large, rot_frame
from tests.test_unreadable import AWAY, trouble_with
from tests.trees import KEY, Node


@pytest.fixture(autouse=True)
def known(host: Host) -> None:
    """A host that is known without running the compiler."""


def restored_but(folder: Path, name: str, left_out: int) -> dict[str, bytes]:
    """What a fresh worker gets when this many files are lost."""
    fresh = Node(folder, name, layout=None)
    assert fresh.restore().left_out == left_out
    return kernels(fresh)


def condemn_blob(node: Node, path: str) -> str:
    """Condemn a loose blob as gc does. Returns where it is stored."""
    digest = node.published()[path].digest
    found = node.store.storage.backend.stat(blob_name(digest))
    write_lists(node.store.storage.backend, [Condemned(False, digest, found.inode, found.mtime_ns, found.size)])
    return blob_name(digest)


def test_what_is_lost_and_condemned_as_a_loose_blob_is_left_out(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="loose")
    node.tree.kernel("whole")
    whole = kernels(node)
    lost = node.tree.wrapper("lost")
    node.commit()
    (node.location / condemn_blob(node, lost)).unlink()
    assert node.store.rollback(KEY, 1).generation == 2
    assert restored_but(tmp_path, "fresh", 1) == whole
    node.store.verify(repair=True)
    Node(tmp_path, layout="loose").commit()
    assert restored(tmp_path, "healed") == kernels(node)


def test_what_is_lost_of_a_condemned_pack_is_left_out(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="packed")
    node.tree.kernel("whole")
    whole = kernels(node)
    large(node)
    node.commit()
    (pack,) = node.newest().packs
    rot_frame(node, "inductor/ab/clarge.py")
    condemn(node.store.storage, pack)
    assert pack not in node.store.rollback(KEY, 1).packs
    assert restored_but(tmp_path, "fresh", 1) == whole


def test_what_is_condemned_and_cannot_be_read_just_now_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, layout="loose")
    condemned = node.tree.wrapper()
    node.commit()
    name = condemn_blob(node, condemned)
    with monkeypatch.context() as patch:
        trouble_with(patch, name, AWAY)
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            node.store.rollback(KEY, 1)
    assert node.newest().generation == 1
    node.store.rollback(KEY, 1)
    assert restored(tmp_path, "fresh") == kernels(node)


def test_a_condemned_pack_that_cannot_be_read_just_now_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can say just now what of it is needed."""
    node = Node(tmp_path, layout="packed")
    for name in ("first", "second"):
        node.tree.kernel(name)
        node.commit()
    pack = node.store.storage.refs.get(node.newest().scope, 1).packs[0]
    condemn(node.store.storage, pack)
    with monkeypatch.context() as patch:
        trouble_with(patch, pack_name(pack), AWAY)
        assert pack in node.store.rollback(KEY, 2).packs
    assert restored(tmp_path, "fresh") == kernels(node)


def test_what_gc_removes_while_it_is_rolled_back_to_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, layout="packed")
    for name in ("first", "second"):
        node.tree.kernel(name)
        node.commit()
    real = Refs.published_at

    def removed(refs: Refs, scope: Scope, generation: int) -> int:
        assert refs.drop(scope, generation)
        return real(refs, scope, generation)

    monkeypatch.setattr(Refs, "published_at", removed)
    with pytest.raises(MissError, match=r"generation 1 of .* was removed just now"):
        node.store.rollback(KEY, 1)
    assert node.newest().generation == 2


def test_who_has_waited_too_long_for_gc_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, layout="packed")
    node.tree.kernel()
    node.commit()
    backend, real, taken = node.store.storage.backend, Refs.published_at, list[str]()

    def close_fence(refs: Refs, scope: Scope, generation: int) -> int:
        for name in [] if taken else staged(backend):
            backend.delete(f"tmp/{name}")
            taken.append(name)
        return real(refs, scope, generation)

    monkeypatch.setattr(Refs, "published_at", close_fence)
    assert node.store.rollback(KEY, 1).generation == 2
    assert taken
    assert restored(tmp_path, "fresh") == kernels(node)
