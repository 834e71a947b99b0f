"""Whether packs of the newest generation are gone: a commit asks once for each pack that it finds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kstore.blobs import BlobStore
from kstore.damaged import set_aside_blob
from kstore.environment import Host
from kstore.published.refs import Refs
from kstore.report import CommitStatus
from tests.test_repair import meanwhile
from tests.trees import Node


@pytest.fixture(autouse=True)
def known(host: Host) -> None:
    """A host that is known without running the compiler."""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A worker with two generations, each with a pack of its own."""
    node = Node(tmp_path, layout="packed")
    for name in ("one", "two"):
        node.tree.kernel(name)
        node.commit()
    return Node(tmp_path, layout="packed")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """For each pack, how often it was asked whether it exists."""
    found, real = Counter[str](), BlobStore.has_pack

    def has_pack(blobs: BlobStore, pack: str) -> bool:
        found[pack] += 1
        return real(blobs, pack)

    monkeypatch.setattr(BlobStore, "has_pack", has_pack)
    return found


def test_a_commit_of_news_asks_once(node: Node, asked: Counter[str]) -> None:
    before = node.newest().packs
    node.tree.kernel("three")
    assert node.commit().status is CommitStatus.COMMITTED
    assert [asked[pack] for pack in before] == [1, 1]


def test_a_commit_that_looks_for_what_was_lost_asks_once(node: Node, asked: Counter[str]) -> None:
    digest = node.published()[f"{node.tree.kernel('one')}/k.ptx"].digest
    set_aside_blob(node.store.storage.backend, digest)
    assert node.commit().status is CommitStatus.UNCHANGED
    assert [asked[pack] for pack in node.newest().packs] == [1, 1]


def test_after_a_lost_race_it_is_asked_of_the_packs_of_who_won(
    node: Node, tmp_path: Path, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, other = node.newest().packs, Node(tmp_path, "other", layout="packed")
    other.tree.kernel("of another worker")
    node.tree.kernel("three")
    meanwhile(monkeypatch, Refs, "reserve", other.commit)
    assert node.commit().generation == 4
    (pack,) = set(node.store.storage.refs.get(node.newest().scope, 3).packs) - {*before}
    assert asked[pack] == 1
