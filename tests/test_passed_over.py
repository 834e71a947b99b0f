"""Commits while the newest generation cannot be read, though it is whole: what others have published is not lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kstore.blobs.loose import blob_name
from kstore.blobs.packindex import pack_name
from kstore.environment import Host
from kstore.errors import IntegrityError, StoreUnavailable
from tests.bundles.carrying import bring, bundle_of, other_store
from tests.faults.reading import cut_short, trouble_with
from tests.gc.stores import restored
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
