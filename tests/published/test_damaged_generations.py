"""Generations that cannot be read: what is said about them, and what is taken in their place."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstore.backends import PosixBackend
from kstore.blobs import Layout
from kstore.blobs.loose import blob_name, stamp
from kstore.digest import digest_of
from kstore.errors import IntegrityError
from kstore.gc import GcStatus
from kstore.published.manifest import Manifest
from tests.bundles.carrying import bundle_of
from tests.trees import KEY, Node, entry


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def damage_ref(node: Node) -> None:
    overwrite(node.location / node.newest().name, b"garbage")


def lose_manifest(node: Node) -> None:
    (node.location / blob_name(node.newest().manifest)).unlink()


def name_another_manifest(node: Node) -> None:
    """Make the ref name a manifest that no commit makes."""
    data = Manifest({"inductor/../../outside": entry("one")}).dump()
    node.store.storage.backend.put(blob_name(digest_of(data)), data, stamp(digest_of(data)))
    path = node.location / node.newest().name
    manifest = {"digest": digest_of(data).hex(), "size": len(data)}
    overwrite(path, json.dumps({**json.loads(path.read_bytes()), "manifest": manifest}).encode())


DAMAGE = {"the ref": damage_ref, "the manifest": lose_manifest, "a path": name_another_manifest}


@pytest.fixture(params=DAMAGE.values(), ids=DAMAGE.keys())
def damage(request: pytest.FixtureRequest) -> Callable[[Node], None]:
    """A kind of damage to the newest generation."""
    done: Callable[[Node], None] = request.param
    return done


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """The worker that committed two generations, the first of which has one file."""
    node = Node(tmp_path)
    for name in ("one", "two"):
        node.tree.wrapper(name)
        node.commit()
    return node


def test_the_log_names_a_generation_that_is_passed_over_once(
    node: Node, damage: Callable[[Node], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scope = node.newest().scope
    damage(node)
    with caplog.at_level(logging.WARNING, "kstore"):
        assert Node(tmp_path, "fresh").restore().generation == 1
    (line,) = caplog.messages
    assert line.startswith("passed over: ")
    assert (line.count(f"generation 2 of {scope}"), line.count(str(scope))) == (1, 1)


def test_what_no_commit_makes_is_not_exported(node: Node, tmp_path: Path) -> None:
    name_another_manifest(node)
    with pytest.raises(IntegrityError, match=r"generation 2 of .* is damaged: "):
        bundle_of(node, tmp_path)


@pytest.mark.parametrize("code", [errno.EBADMSG, errno.EUCLEAN], ids=["ext4", "xfs"])
def test_a_ref_that_its_filesystem_calls_corrupt_is_damaged_and_gc_keeps_what_it_may_name(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    corrupt, get = node.newest().name, PosixBackend.get

    def fail(backend: PosixBackend, name: str, *part: Any) -> bytes:
        if name == corrupt:
            raise OSError(code, os.strerror(code), name)
        return get(backend, name, *part)

    with monkeypatch.context() as patch:
        patch.setattr(PosixBackend, "get", fail)
        assert Node(tmp_path, "another").restore().generation == 1
        assert "is corrupt on its filesystem" in node.store.verify().damage[0].reason
        assert node.store.gc().status is GcStatus.INCOMPLETE
    assert Node(tmp_path, "third").restore().generation == 2


@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
def test_what_a_lost_write_has_left_of_a_ref_is_told_in_a_line(
    node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture, byte: bytes
) -> None:
    path = node.location / node.newest().name
    overwrite(path, byte * path.stat().st_size)
    with caplog.at_level(logging.WARNING, "kstore"):
        Node(tmp_path, "another").restore()

    (line,) = (record.getMessage() for record in caplog.records if "passed over" in record.getMessage())
    assert "it is damaged" in line
    assert len(line) < 400


# ---- Rolling back


def roll_back(node: Node, folder: Path) -> set[str]:
    """Roll back. Returns the names of what a fresh worker gets then."""
    node.store.rollback(KEY)
    fresh = Node(folder, "fresh")
    fresh.restore()
    return {path.read_text().split()[1] for path in fresh.tree.root.glob("inductor/*/*.py")}


def test_a_rollback_from_a_damaged_generation_takes_the_one_before_it(
    node: Node, damage: Callable[[Node], None], tmp_path: Path
) -> None:
    damage(node)
    assert roll_back(node, tmp_path) == {"one"}
    assert Node(tmp_path, "another").restore().generation == 3


def test_a_rollback_passes_over_what_cannot_be_read_and_says_which_it_takes(
    node: Node, damage: Callable[[Node], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(node)
    other = Node(tmp_path, "other")
    other.tree.wrapper("three")
    assert other.commit().generation == 3
    caplog.clear()
    assert roll_back(node, tmp_path) == {"one"}
    why, which = caplog.messages
    assert why.startswith("passed over: ") and f"generation 2 of {node.newest().scope}" in why
    assert which == f"{node.newest().scope} is rolled back to generation 1"


def test_where_no_earlier_generation_can_be_read_a_rollback_says_what_to_do(tmp_path: Path) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    node.tree.wrapper("one")
    node.commit()
    lose_manifest(node)
    other.tree.wrapper("two")
    assert other.commit().generation == 2
    with pytest.raises(IntegrityError, match="commit from a worker that has the kernels"):
        node.store.rollback(KEY)
    assert node.newest().generation == 2


@pytest.fixture
def newer(node: Node) -> Node:
    """The same worker, with three generations: each has what the one before it has."""
    node.tree.wrapper("three")
    node.commit()
    return node


def lose(node: Node, name: str) -> None:
    """Remove what is stored of a wrapper."""
    (entry,) = (
        entry for path, entry in node.published().items() if node.tree.read(path).startswith(b"# %s\n" % name.encode())
    )
    (node.location / blob_name(entry.digest)).unlink()


def test_a_rollback_passes_over_what_has_lost_files_where_an_earlier_generation_is_whole(
    newer: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lose(newer, "two")
    assert roll_back(newer, tmp_path) == {"one"}
    assert caplog.messages == [f"{newer.newest().scope} is rolled back to generation 1"]


def test_where_none_is_whole_the_last_one_is_rolled_back_to_and_the_log_says_what_is_lost(
    newer: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lose(newer, "one")
    assert newer.store.rollback(KEY).files == 2
    which, lost = caplog.messages
    assert which == f"{newer.newest().scope} is rolled back to generation 2"
    assert lost.startswith(f"of generation 4 of {newer.newest().scope}, 1 file of 2 cannot be restored")
    assert Node(tmp_path, "fresh").restore().left_out == 1


def test_a_rollback_to_a_number_says_what_of_it_is_lost(newer: Node, caplog: pytest.LogCaptureFixture) -> None:
    lose(newer, "two")
    assert newer.store.rollback(KEY, 2).generation == 4
    (lost,) = caplog.messages
    assert "1 file of 2 cannot be restored" in lost


def test_what_only_the_packs_of_others_have_is_not_lost(
    newer: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with newer.store.storage.blobs.writer(Layout.PACKED) as writer:
        for path in newer.published():
            data = newer.tree.read(path)
            writer.put(digest_of(data), data)
        writer.finish()
    for name in ("one", "two"):
        lose(newer, name)
    assert roll_back(newer, tmp_path) == {"one", "two"}
    assert caplog.messages == []
