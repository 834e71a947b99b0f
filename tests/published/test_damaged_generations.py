"""Generations that cannot be read: what is said of them, and what is taken in their place."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.blobs.loose import blob_name, stamp
from kstore.digest import digest_of
from kstore.published.manifest import Manifest
from tests.trees import Node, entry


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
