"""Generations that cannot be read: what is said of them, and what is taken in their place."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.blobs.loose import blob_name, stamp
from kstore.digest import digest_of
from kstore.errors import IntegrityError
from kstore.published.manifest import Manifest
from tests.trees import KEY, Node, entry


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def damage_ref(node: Node) -> None:
    overwrite(node.location / node.newest().name, b"garbage")


def lose_manifest(node: Node) -> None:
    (node.location / blob_name(node.newest().manifest)).unlink()


def name_another_manifest(node: Node) -> None:
    """One that no commit makes."""
    data = Manifest({"inductor/../../outside": entry("one")}).dump()
    node.store.storage.backend.put(blob_name(digest_of(data)), data, stamp(digest_of(data)))
    path = node.location / node.newest().name
    manifest = {"digest": digest_of(data).hex(), "size": len(data)}
    overwrite(path, json.dumps({**json.loads(path.read_bytes()), "manifest": manifest}).encode())


DAMAGE = {"the ref": damage_ref, "the manifest": lose_manifest, "a path": name_another_manifest}


@pytest.fixture(params=DAMAGE.values(), ids=DAMAGE.keys())
def damage(request: pytest.FixtureRequest) -> Callable[[Node], None]:
    """Of the newest generation."""
    done: Callable[[Node], None] = request.param
    return done


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """The committer of two generations, the first of which has one file."""
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


# ---- Rolling back


def roll_back(node: Node, folder: Path) -> set[str]:
    """Names of what a fresh worker gets then."""
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
