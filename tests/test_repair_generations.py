"""Verify and repair if generations are damaged: their refs, their manifests, and everything that they had."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstore.blobs import Layout
from kstore.blobs.packindex import pack_name
from kstore.condemned import list_names
from kstore.damaged import set_aside_blob
from kstore.digest import digest_of
from kstore.environment import Host
from kstore.gc import GcStatus
from kstore.operations.copy import copy_keys
from kstore.operations.verified import Damage, VerifyReport
from kstore.published.ref import RefState, ref_name
from kstore.published.refs import Refs
from kstore.report import RestoreStatus
from tests.bundles.carrying import other_store
from tests.gc.stores import collect, collect_fully, generations, kernels, restored
from tests.test_repair import OTHER, meanwhile, rot
from tests.test_unreadable import AWAY, trouble_with
from tests.trees import KEY, Node


@pytest.fixture(autouse=True)
def known(host: Host) -> None:
    """A host that is known without running the compiler."""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path, layout="packed")
    node.tree.kernel("one")
    node.commit()
    return node


def overwrite(path: Path, data: bytes = b"") -> None:
    """As a server's crash leaves it."""
    path.chmod(0o644)
    path.write_bytes(data)


def empty_pack(node: Node) -> None:
    """Empty the one pack of the newest generation."""
    (pack,) = node.newest().packs
    overwrite(node.location / pack_name(pack))


@pytest.fixture(params=[RefState.FORGOTTEN, RefState.QUARANTINED])
def withdrawn(request: pytest.FixtureRequest, node: Node) -> Node:
    """A worker whose key was taken out; of the generation that says so, nothing but the ref can be read."""
    node.store.forget(KEY) if request.param is RefState.FORGOTTEN else node.store.quarantine(KEY)
    empty_pack(node)
    return node


def test_what_was_taken_out_does_not_come_back_with_damage(withdrawn: Node, tmp_path: Path) -> None:
    state = withdrawn.newest().state
    for name in ("before", "after"):
        report = Node(tmp_path, name).restore()
        assert (report.status, report.withdrawn) == (RestoreStatus.MISS, str(state))
        withdrawn.commit()
        assert withdrawn.store.verify(repair=True).repaired
        assert withdrawn.newest().state is state
    assert generations(withdrawn) == [1, 2, 3]
    withdrawn.tree.kernel("compiled since")
    withdrawn.commit()
    assert withdrawn.store.verify().ok


def test_the_pin_of_a_ref_that_a_repair_moves_aside_goes_with_it(node: Node) -> None:
    ref = node.newest()
    node.store.pin(KEY, ref.generation)
    overwrite(node.location / ref.name)
    assert node.store.verify(repair=True).repaired
    assert node.store.storage.refs.pins(ref.scope) == set()


def test_what_was_taken_out_is_not_copied_for_damage(withdrawn: Node, tmp_path: Path) -> None:
    target = other_store(tmp_path / "target", "packed")
    assert copy_keys(withdrawn.store, target.store).scopes == []


def test_gc_goes_on_where_damage_has_hit_a_generation_that_is_empty(withdrawn: Node) -> None:
    assert collect_fully(withdrawn, keep=1).status is GcStatus.COLLECTED


def test_what_is_lost_stays_so_when_the_generation_that_says_it_is_damaged(node: Node, tmp_path: Path) -> None:
    for generation in (2, 3):
        empty_pack(node)
        assert node.store.verify(repair=True).repaired
        newest = node.newest()
        assert (newest.generation, newest.state, newest.line) == (generation, RefState.LOST, generation)
    assert Node(tmp_path, "fresh").restore().withdrawn == ""


def twice(tmp_path: Path, key: str) -> Node:
    """Two generations of a key, the newer of which cannot be read."""
    node = Node(tmp_path, key.replace("/", " "), layout="packed")
    for name in ("one", "two"):
        node.tree.kernel(name)
        node.commit(key)
    overwrite(node.location / node.newest(key).name)
    return node


def test_a_generation_that_cannot_be_published_again_just_now_keeps_no_other_key_from_being_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = twice(tmp_path, KEY), twice(tmp_path, OTHER)
    refs = node.store.storage.refs
    meanwhile(monkeypatch, Refs, "reserve", lambda: refs.drop(node.store.scope(KEY), 1))
    assert not node.store.verify(repair=True).repaired
    assert (generations(node), other.newest(OTHER).generation) == ([2], 3)
    assert node.store.verify(repair=True).repaired
    assert node.newest().state is RefState.LOST


def test_what_only_a_damaged_generation_had_comes_back_after_its_repair(node: Node, tmp_path: Path) -> None:
    node.tree.kernel("two")
    node.commit()
    overwrite(node.location / node.newest().name)
    assert Node(tmp_path, "operator").store.verify(repair=True).repaired
    node.commit()
    assert restored(tmp_path, "fresh") == kernels(node)


def test_trouble_with_an_earlier_generation_keeps_no_other_key_from_being_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = twice(tmp_path, KEY), twice(tmp_path, OTHER)
    with monkeypatch.context() as patch:
        trouble_with(patch, ref_name(node.store.scope(KEY), 1), AWAY)
        assert not node.store.verify(repair=True).repaired
    assert (generations(node), other.newest(OTHER).generation) == ([1, 2], 3)
    assert node.store.verify(repair=True).repaired
    assert node.newest().generation == 3


def test_trouble_with_the_newest_manifest_keeps_the_damaged_pack_that_it_names_in_its_place(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (damaged,) = node.newest().packs
    rot(node.location / pack_name(damaged), 8)
    node.tree.kernel("two")
    node.commit()
    named = node.newest().packs
    with monkeypatch.context() as patch:
        trouble_with(patch, pack_name(named[0]), AWAY)
        assert not node.store.verify(repair=True).repaired
    assert node.newest().packs == named and damaged in named
    assert all(map(node.store.storage.blobs.has_pack, named))
    assert caplog.text.count("is not published again") == 2  # once before packs are moved, and once after that
    assert node.store.verify(repair=True).repaired
    assert {*node.newest().packs} & {*named} == {*named} - {damaged}


def test_while_nobody_knows_what_gc_is_about_to_delete_nothing_takes_the_place_of_a_damaged_generation(
    node: Node,
) -> None:
    overwrite(write_list(node), b"garbage")
    node.tree.kernel("two")
    node.commit()
    overwrite(node.location / node.newest().name)
    assert not node.store.verify(repair=True).repaired
    assert generations(node) == [1, 2]


def write_list(node: Node) -> Path:
    """Have gc condemn something; returns its list."""
    with node.store.storage.blobs.writer(Layout.PACKED) as writer:
        writer.put(digest_of(b"never published"), b"never published")
        writer.finish()
    collect(node)
    (name,) = list_names(node.store.storage.backend)
    return node.location / name


def test_what_is_in_quarantine_and_nobody_needs_is_left_to_gc(node: Node) -> None:
    with node.store.storage.blobs.writer(Layout.LOOSE) as writer:
        writer.put(digest_of(b"unneeded"), b"unneeded")
        writer.finish()
    set_aside_blob(node.store.storage.backend, digest_of(b"unneeded"))
    assert node.store.verify(repair=True).repaired
    assert any((node.location / "quarantine").iterdir())
    collect_fully(node)
    assert not any((node.location / "quarantine").iterdir())


@pytest.fixture
def grown(node: Node) -> tuple[Node, str]:
    """A key with two generations, and the pack that only the first of them made."""
    (first,) = node.newest().packs
    node.tree.kernel("two")
    node.commit()
    return node, first


def test_a_pack_that_is_gone_is_named_no_more(grown: tuple[Node, str]) -> None:
    node, gone = grown
    (node.location / pack_name(gone)).unlink()
    assert node.store.verify(repair=True).repaired
    assert node.newest().generation == 3 and gone not in node.newest().packs


def test_what_is_committed_meanwhile_and_names_a_damaged_pack_is_published_without_it(
    grown: tuple[Node, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, damaged = grown
    other = Node(tmp_path, "other", layout="packed")
    other.tree.kernel("three")
    rot(node.location / pack_name(damaged), 8)
    meanwhile(monkeypatch, Refs, "reserve", other.commit)
    assert node.store.verify(repair=True).repaired
    assert node.newest().generation == 4 and damaged not in node.newest().packs


def test_the_repair_of_a_key_is_not_kept_from_it_by_another_whose_newest_generation_cannot_be_read(
    grown: tuple[Node, str], tmp_path: Path
) -> None:
    node, damaged = grown
    twice(tmp_path, OTHER)
    rot(node.location / pack_name(damaged), 8)
    assert node.store.verify(KEY, repair=True).repaired
    assert damaged not in node.newest().packs


def test_gc_is_stopped_by_what_cannot_be_read_at_all_in_the_store_that_is_written(tmp_path: Path) -> None:
    scope = Node(tmp_path).store.scope(KEY)

    def is_stopped_by(*, reason: str, store: str) -> bool:
        return VerifyReport("written", damage=[Damage(scope, 1, reason, store=store)]).is_gc_stopped

    assert is_stopped_by(reason="its ref is damaged", store="written")
    assert not is_stopped_by(reason="its ref is damaged", store="below")
    assert not is_stopped_by(reason="", store="written")
