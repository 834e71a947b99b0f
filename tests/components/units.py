"""What holds for every component whose folders ninja builds in: each folder is one worker's, and never a mixture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from tests.trees import Node


class NeverMixed:
    """Two workers restore the same, and each builds with a different change. A test class per component inherits it."""

    files: ClassVar[int]
    """How many files of a folder are stored."""
    build: ClassVar[Callable[[Node, str, str], None]]
    """Writes what a build leaves of two inputs, for example a source and flags."""
    built: ClassVar[Callable[[Node], dict[str, bytes]]]
    """What exists of the folder, by name."""

    def test_what_two_workers_have_built_is_never_mixed(self, tmp_path: Path) -> None:
        base = Node(tmp_path, "base")
        self.build(base, "1", "1")
        base.commit()
        changes_one, changes_other = Node(tmp_path, "one"), Node(tmp_path, "other")
        for node in (changes_one, changes_other):
            node.restore()
            assert self.built(node) == self.built(base)
        self.build(changes_one, "2", "1")
        self.build(changes_other, "1", "2")
        assert changes_other.commit().new_files == self.files
        assert changes_one.commit().declined == self.files
        third = Node(tmp_path, "third")
        third.restore()
        assert self.built(third) == self.built(changes_other)
