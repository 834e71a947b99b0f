"""How much has changed in a tree, from the times of its folders."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from kstore.local.activity import Activity
from tests.trees import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path / "root")
    made.kernel("one")
    made.graph()
    return made


@pytest.fixture
def activity(tree: Tree) -> Activity:
    """An activity that has already looked at the tree."""
    made = Activity([str(tree.root)])
    assert made.look() > 0
    time.sleep(0.02)  # The kernel's clock ticks every few milliseconds.
    return made


def test_in_a_tree_that_is_left_alone_nothing_has_changed(activity: Activity) -> None:
    assert [activity.look() for _ in range(3)] == [0, 0, 0]


def test_each_new_file_counts(activity: Activity, tree: Tree) -> None:
    tree.kernel("two")
    assert activity.look() >= 8
    assert activity.look() == 0


def test_folders_that_an_image_dates_to_1970_are_looked_into(tree: Tree) -> None:
    """Tools that build the same image twice from the same files date everything to the beginning of time."""
    folders = [tree.root, *(path for path in tree.root.rglob("*") if path.is_dir())]
    for folder in folders:
        os.utime(folder, ns=(0, 0))
    activity = Activity([str(tree.root)])
    assert activity.look() >= len(folders)
    assert activity.look() == 0

    (folders[-1] / "new").touch()
    assert activity.look() == 1


def test_a_replaced_file_counts_and_so_does_a_removed_one(activity: Activity, tree: Tree) -> None:
    path = tree.graph()
    assert activity.look() == 1
    time.sleep(0.02)
    (tree.root / path).unlink()
    assert activity.look() == 1


def test_what_kstore_writes_itself_does_not(activity: Activity, tree: Tree) -> None:
    (tree.root / ".kstore").mkdir()
    activity.look()
    (tree.root / ".kstore/index").write_text("index")
    assert activity.look() == 0


def test_a_tree_that_is_removed_and_comes_back_has_changed(activity: Activity, tree: Tree) -> None:
    shutil.rmtree(tree.root)
    assert activity.look() >= 1
    assert activity.look() == 0
    tree.kernel("one")
    assert activity.look() >= 8


def test_what_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    assert Activity([str(tmp_path / "nowhere")]).look() == 0


def test_links_are_not_followed(activity: Activity, tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tree.root / "link").symlink_to(tmp_path / "elsewhere")
    activity.look()
    (tmp_path / "elsewhere/one").write_text("")
    assert activity.look() == 0
