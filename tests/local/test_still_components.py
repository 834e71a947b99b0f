"""A component of which nothing was there when all was known to be still, and one whose memory is damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.components.table import KSTORE_FOLDER
from kstore.local.cacheroot import CacheRoot
from kstore.local.still import Still, Times
from kstore.local.untouched import UNMARKED, Mark


def root_with(folder: Path) -> CacheRoot:
    """A root with one component, which is in that folder."""
    return CacheRoot(str(folder.parent), {"triton": str(folder)}, {}, ())


def holds(folder: Path, still: Still) -> bool:
    return still.holds(root_with(folder), lambda path: False)


def absent(folder: Path) -> None:
    """Nobody has made it."""


def empty(folder: Path) -> None:
    folder.mkdir()


def kstores_own(folder: Path) -> None:
    (folder / KSTORE_FOLDER).mkdir(parents=True)


def with_a_file(folder: Path) -> None:
    folder.mkdir()
    (folder / "file").touch()


def a_file(folder: Path) -> None:
    folder.touch()


def a_link_to_what_is_not_mounted(folder: Path) -> None:
    folder.symlink_to("gone")


@pytest.mark.parametrize("mark", [UNMARKED, Mark(5, 7)], ids=["scanned", "placed"])
@pytest.mark.parametrize(
    ("make", "is_still"),
    [
        (absent, True), (empty, True), (kstores_own, True),
        (with_a_file, False), (a_file, False), (a_link_to_what_is_not_mounted, False),
    ],
)  # fmt: skip
def test_of_what_was_absent_or_empty_there_may_still_be_nothing(
    tmp_path: Path, mark: Mark, make: Callable[[Path], None], is_still: bool
) -> None:
    folder = tmp_path / "triton"
    make(folder)
    assert holds(folder, Still({"triton": str(folder)}, {}, {}, {}, mark)) is is_still


def test_a_component_that_is_elsewhere_now_is_not_still_though_nothing_is_there(tmp_path: Path) -> None:
    assert not holds(tmp_path / "triton", Still({"triton": f"{tmp_path}/before"}, {}, {}, {}))
    assert not holds(tmp_path / "triton", Still({}, {}, {}, {}))


@pytest.mark.parametrize("paths", [b"", b".\0", b"gone"], ids=repr)
def test_paths_that_are_damaged_do_not_hold(tmp_path: Path, paths: bytes) -> None:
    folder = tmp_path / "triton"
    folder.mkdir()
    times = {"triton": Times(paths, "")}
    for still in (
        Still({"triton": str(folder)}, times, {}, {"triton": b"."}, Mark(5, 7)),
        Still({"triton": str(folder)}, {}, times, {"triton": b"."}, Mark(5, 7)),
        Still({"triton": str(folder)}, times, {}, {}),
        Still({"triton": str(folder)}, {}, times, {}),
    ):
        assert not holds(folder, still)
