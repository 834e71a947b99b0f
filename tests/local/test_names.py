"""Which names a cache root refuses, and that it refuses no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kstore.digest import digest_of
from kstore.local.names import refused_names
from kstore.published.manifest import DEEPEST, Entry, Flag
from tests.trees import Node, Tree, contents

TOO_LONG = "its path is too long for this cache root"


def refused(stage: Path, path: str) -> str:
    """Why; empty if it is not."""
    entry = Entry(digest_of(b""), 0, 1_500_000_000, 0o644, int(Flag.LINK), 0)
    return refused_names({path: entry}, {"inductor": str(stage)}).get(path, "")


def path_of(length: int) -> str:
    path = f"inductor/{'n/' * 20}"
    while len(path) < length - 200:
        path += f"{'n' * 100}/"
    return path.ljust(length, "n")


@pytest.fixture
def room(tmp_path: Path) -> int:
    """The most bytes of a path below the folder."""
    return os.pathconf(tmp_path, "PC_PATH_MAX") - len(os.fsencode(f"{tmp_path}/\0"))


def test_a_path_may_be_as_long_as_the_system_takes(tmp_path: Path, room: int) -> None:
    assert [refused(tmp_path, path_of(room + more)) for more in (0, 1)] == ["", TOO_LONG]
    (tmp_path / path_of(room)).parent.mkdir(parents=True)
    (tmp_path / path_of(room)).touch()
    with pytest.raises(OSError, match="too long"):
        (tmp_path / path_of(room + 1)).touch()


def test_a_name_may_have_as_many_bytes_as_the_filesystem_takes(tmp_path: Path) -> None:
    most = os.pathconf(tmp_path, "PC_NAME_MAX")
    for name, reason in (("n" * most, ""), ("n" * (most + 1), TOO_LONG), ("é" * (most // 2 + 1), TOO_LONG)):
        assert refused(tmp_path, f"inductor/{name}") == reason


def test_a_path_may_be_as_deep_as_a_scan_looks(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    paths = [tree.put(f"inductor/{'d/' * depth}f", b"") for depth in (DEEPEST, DEEPEST + 1)]
    assert [refused(tmp_path, path) for path in paths] == ["", "its path is too deep"]
    assert tree.scan().known.keys() == {paths[0]}


def test_where_the_root_leaves_little_room_a_name_costs_itself(tmp_path: Path) -> None:
    """However short it is."""
    builder = Node(tmp_path, "builder")
    builder.tree.put(f"inductor/ab/{'n' * 100}.py", b"of a long name")
    short = builder.tree.put("inductor/ab/short.py", b"of a short name")
    builder.commit()
    most = os.pathconf(tmp_path, "PC_PATH_MAX") - len(str(tmp_path)) - 120
    node = Node(tmp_path, path_of(most))
    report = node.restore()
    assert [reason for _, reason in report.skipped] == [TOO_LONG]
    assert (report.placed, report.left_out) == (1, 1)
    assert contents(node.tree.root).keys() == {short}
