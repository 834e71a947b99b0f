"""Where live commits look, and when another folder has taken the place of one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstore.live.places import Places, watched_folders
from tests.trees import KEY, Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A worker whose Triton has a folder of its own."""
    node = Node(tmp_path)
    node.tree.root.mkdir()
    (tmp_path / "elsewhere").mkdir()
    node.environ["TRITON_CACHE_DIR"] = str(tmp_path / "elsewhere")
    return node


def found(monkeypatch: pytest.MonkeyPatch, folder: Path, see: Callable[[os.stat_result], tuple[int, int]]) -> None:
    """From now on, that is what is seen of the device and inode of a folder."""
    stat = os.stat

    def seen(path: Any, **options: Any) -> os.stat_result:
        real = stat(path, **options)
        if path != str(folder):
            return real
        device, inode = see(real)
        return os.stat_result((*real[:1], inode, device, *real[3:]))

    monkeypatch.setattr(os, "stat", seen)


def test_they_look_into_the_root_and_into_the_folders_of_components_elsewhere(node: Node, tmp_path: Path) -> None:
    assert sorted(watched_folders(node.store, KEY)) == [str(tmp_path / "elsewhere"), str(node.tree.root)]


def test_the_same_folders_are_no_others(node: Node) -> None:
    places = Places()
    assert [places.find(node.store, KEY) for _ in range(2)] == [True, False]


def test_a_folder_that_is_made_takes_nobodys_place(node: Node, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").rmdir()
    places = Places()
    places.find(node.store, KEY)
    (tmp_path / "elsewhere").mkdir()
    assert not places.find(node.store, KEY)


def test_a_folder_with_the_same_number_on_another_filesystem_is_another_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the first folder of each: a filesystem is mounted in the place of another one."""
    places = Places()
    places.find(node.store, KEY)
    found(monkeypatch, node.tree.root, lambda real: (real.st_dev + 1, real.st_ino))
    assert places.find(node.store, KEY)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.EIO], ids=errno.errorcode.get)
def test_a_folder_that_cannot_be_looked_at_keeps_nobody_from_looking_at_the_rest(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(real: os.stat_result) -> tuple[int, int]:
        raise OSError(number, os.strerror(number))

    found(monkeypatch, tmp_path / "elsewhere", refuse)
    places = Places()
    assert places.find(node.store, KEY)
    assert len(places.folders) == 2
