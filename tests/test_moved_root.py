"""A cache root that is found at another path than it was filled at: Triton's lists say where their files are."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstore.local.stages import clock_of
from kstore.report import CommitStatus, RestoreStatus
from kstore.worker import Worker
from tests.trees import KEY, Node, Tree, listing

TICK = 0.15
"""Seconds after which a time is trusted."""


def listed(root: Path) -> list[Path]:
    """Every file that a list in the root names."""
    lists = [json.loads(path.read_text())["child_paths"] for path in root.rglob("__grp__*.json")]
    return [Path(path) for children in lists for path in children.values()]


def moved(source: Path, target: Path) -> None:
    source.rename(target)


def copied(source: Path, target: Path) -> None:
    """All of its files are linked: except for its folders' change times, it is as if it had been moved."""
    shutil.copytree(source, target, symlinks=True)


def copied_without_memory(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(".kstore"))


@pytest.fixture(params=[moved, copied, copied_without_memory])
def node(request: pytest.FixtureRequest, tmp_path: Path, layout: str) -> Node:
    """A worker with a kernel that was restored, one that was committed since, and one that was not."""
    builder = Node(tmp_path, "builder", layout=layout)
    builder.tree.kernel("restored")
    builder.commit()
    before = Node(tmp_path, "before", layout=layout)
    before.restore()
    before.tree.kernel("committed")
    before.commit()
    before.tree.kernel("own")
    assert before.restore().status is RestoreStatus.CURRENT
    take: Callable[[Path, Path], None] = request.param
    take(before.tree.root, tmp_path / "after")
    return Node(tmp_path, "after", layout=layout)


def test_every_list_says_where_its_files_are_now(node: Node) -> None:
    node.restore()
    found = listed(node.tree.root)
    assert len(found) == 3 * 7
    assert all(path.is_relative_to(node.tree.root / "triton") and path.exists() for path in found)


def test_nothing_else_is_written_and_nothing_a_second_time(node: Node) -> None:
    def rest() -> dict[str, object]:
        return {path: status for path, status in listing(node.tree.root / "triton").items() if path.endswith("cubin")}

    before = rest()
    node.restore()
    assert rest() == before
    after = listing(node.tree.root / "triton")
    node.restore()
    assert listing(node.tree.root / "triton") == after


def test_a_commit_that_comes_first_hides_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("scan", "found"):
        monkeypatch.setattr(f"kstore.local.{module}.is_settled", lambda *_: True)
    node.commit()
    node.restore()
    assert all(path.is_relative_to(node.tree.root / "triton") for path in listed(node.tree.root))


def test_a_second_commit_looks_at_none_of_it_and_a_restore_puts_it_right_all_the_same(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    time.sleep(TICK)
    assert node.commit().status is CommitStatus.COMMITTED
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "scan", None)
        assert node.commit().status is CommitStatus.UNCHANGED
    node.restore()
    assert all(path.is_relative_to(node.tree.root / "triton") for path in listed(node.tree.root))
    assert node.commit().status is CommitStatus.UNCHANGED


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("take", [moved, copied])
def test_a_restore_that_misses_puts_a_moved_root_right_too(
    take: Callable[[Path, Path], None], restored: bool, tmp_path: Path
) -> None:
    before = Node(tmp_path, "before")
    if restored:
        before.restore()
    before.tree.kernel("one")
    before.commit()
    before.store.forget(KEY)
    take(before.tree.root, tmp_path / "after")
    node = Node(tmp_path, "after")
    assert node.restore().status is RestoreStatus.MISS
    assert all(path.is_relative_to(node.tree.root / "triton") for path in listed(node.tree.root))


@pytest.mark.parametrize("take", [moved, copied])
def test_a_kernel_that_lacks_a_file_keeps_no_other_from_being_put_right(
    take: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    before = Node(tmp_path, "before")
    whole, cut = before.tree.kernel("whole"), before.tree.kernel("cut")
    before.commit()
    next((before.tree.root / cut).glob("*.cubin")).unlink()
    take(before.tree.root, tmp_path / "after")
    node = Node(tmp_path, "after")
    node.store.forget(KEY)
    assert node.restore().status is RestoreStatus.MISS
    assert all(path.is_relative_to(node.tree.root / whole) for path in listed(node.tree.root / whole))


@pytest.fixture
def missing(tmp_path: Path) -> tuple[Node, Path]:
    """A worker with a moved root for which nothing is published, and its kernel's list."""
    before = Node(tmp_path, "before")
    before.restore()
    (path,) = (before.tree.root / before.tree.kernel()).glob("__grp__*")
    before.commit()
    before.store.forget(KEY)
    moved(before.tree.root, tmp_path / "after")
    node = Node(tmp_path, "after")
    return node, node.tree.root / path.relative_to(before.tree.root)


@pytest.mark.parametrize("before", ["it is read", "it is written"])
def test_a_list_that_a_compiler_replaces_before_it_is_put_right_stays(
    missing: tuple[Node, Path], before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, path = missing
    read = Worker.read_stored

    def replace_and_read(*what: Any) -> bytes | None:
        stored = None if before == "it is read" else read(*what)
        path.unlink()
        path.write_text("of the compiler")
        return read(*what) if before == "it is read" else stored

    monkeypatch.setattr(Worker, "read_stored", replace_and_read)
    assert node.restore().status is RestoreStatus.MISS
    assert path.read_text() == "of the compiler"


def test_a_list_that_cannot_be_written_anew_stays_and_that_is_said(
    missing: tuple[Node, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node, path = missing
    before, replace = path.read_bytes(), os.replace

    def refuse(source: str, target: str, **options: Any) -> None:
        if str(target) == str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)
        replace(source, target, **options)

    monkeypatch.setattr(os, "replace", refuse)
    assert node.restore().status is RestoreStatus.MISS
    assert path.read_bytes() == before
    assert f"{path} holds the paths of another folder, and cannot be written: Permission denied" in caplog.text


def test_a_list_that_is_written_anew_keeps_its_mode(tmp_path: Path) -> None:
    """A root may be shared by a group of users."""
    before = Node(tmp_path, "before")
    (path,) = (before.tree.root / before.tree.kernel()).glob("__grp__*")
    path.chmod(0o664)
    before.commit()
    moved(before.tree.root, tmp_path / "after")
    node = Node(tmp_path, "after")
    node.restore()
    after = node.tree.root / path.relative_to(before.tree.root)
    assert all(path.is_relative_to(node.tree.root) for path in listed(node.tree.root))
    assert after.stat().st_mode & 0o777 == 0o664


def test_what_is_published_is_the_same(node: Node) -> None:
    node.restore()
    report = node.commit()
    assert (report.status, report.new_files) == (CommitStatus.COMMITTED, 8)
    assert node.commit().status is CommitStatus.UNCHANGED


def test_a_list_that_a_compiler_has_written_in_a_form_of_its_own_stays(tmp_path: Path) -> None:
    node = Node(tmp_path)
    (path,) = (node.tree.root / node.tree.kernel()).glob("__grp__*")
    Tree(node.tree.root).put(
        str(path.relative_to(node.tree.root)), json.dumps(json.loads(path.read_text()), indent=1).encode()
    )
    node.commit()
    before = listing(path.parent)
    node.restore()
    assert listing(path.parent) == before


@pytest.mark.parametrize("layout", ["loose", "packed"])
def test_what_kstore_itself_has_just_written_anew_is_replaced_all_the_same(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of file times lags by a tick: what was written just before the restore looked seems to be newer."""
    builder = Node(tmp_path, "builder", layout=layout)
    kernel = builder.tree.kernel("one")
    builder.commit()
    before = Node(tmp_path, "before", layout=layout)
    before.restore()
    builder.tree.kernel("one", "of other sources")
    builder.commit()
    time.sleep(TICK)
    before.tree.root.rename(tmp_path / "after")
    monkeypatch.setattr("kstore.local.staging.clock_of", lambda folder: clock_of(folder) - 9_000_000)
    after = Node(tmp_path, "after", layout=layout)
    assert after.restore().skipped == ()
    assert after.tree.read(f"{kernel}/k.source") == builder.tree.read(f"{kernel}/k.source")
