"""A restore of what already exists asks only for times, and still brings back whatever is gone."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kstore.environment import Host
from kstore.errors import StoreFormatError
from kstore.published.manifest import Manifest
from kstore.report import CommitStatus, RestoreStatus
from kstore.used import last_used
from kstore.worker import Worker
from tests.local.stillness import IGNORED, make_lock
from tests.local.test_still import CHANGES, TICK
from tests.trees import KEY, Node, contents

pytestmark = pytest.mark.usefixtures("host")


def still_of(node: Node) -> Path:
    (path,) = (node.tree.root / ".kstore").glob("still-*")
    return path


def test_it_scans_nothing_and_parses_no_manifest(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "scan", None)
    monkeypatch.setattr(Manifest, "load", None)
    for _ in range(3):
        assert node.restore().status is RestoreStatus.CURRENT
        assert node.commit().status is CommitStatus.UNCHANGED


def test_its_report_is_that_of_the_worker_that_looks(node: Node, scans: list[Worker]) -> None:
    quick = node.restore()
    still_of(node).unlink()
    assert replace(quick, seconds=0) == replace(node.restore(), seconds=0, used_modes=None)
    assert len(scans) == 1


@pytest.mark.parametrize("make", IGNORED)
def test_what_is_ignored_is_no_change(node: Node, scans: list[Worker], make: Callable[[Node], None]) -> None:
    make(node)
    assert (node.restore().status, scans) == (RestoreStatus.CURRENT, [])


def one_file(root: Path) -> None:
    (root / "inductor/ab/x.cu").unlink()


def one_that_is_linked(root: Path) -> None:
    next((root / "inductor").glob("??/c*.py")).unlink()


def a_kernel(root: Path) -> None:
    shutil.rmtree(next((root / "triton").iterdir()))


def a_component(root: Path) -> None:
    shutil.rmtree(root / "triton")


def folders_above(root: Path) -> None:
    shutil.rmtree(root / "inductor/fxgraph")


def everything(root: Path) -> None:
    for component in ("inductor", "triton"):
        shutil.rmtree(root / component)


def all_files_of_a_folder(root: Path) -> None:
    """The file that stays in it is ignored."""
    (root / "inductor/ab/x.cu").unlink()
    (root / "inductor/ab/x.tmp").write_bytes(b"")


def one_whose_folder_has_its_time_again(root: Path) -> None:
    before = (root / "inductor/ab").stat()
    (root / "inductor/ab/x.cu").unlink()
    os.utime(root / "inductor/ab", ns=(before.st_atime_ns, before.st_mtime_ns))


GONE = [
    one_file, one_that_is_linked, a_kernel, a_component, folders_above, everything, all_files_of_a_folder,
    one_whose_folder_has_its_time_again,
]  # fmt: skip


@pytest.mark.parametrize("lock", [False, True])
@pytest.mark.parametrize("remove", GONE)
def test_what_is_gone_is_brought_back(node: Node, remove: Callable[[Path], None], lock: bool) -> None:
    before = contents(node.tree.root)
    if lock:
        make_lock(node)
    remove(node.tree.root)
    assert node.restore().status is RestoreStatus.RESTORED
    assert contents(node.tree.root).items() >= before.items()


def test_what_goes_after_something_else_was_brought_back_is_brought_back(tmp_path: Path, layout: str) -> None:
    """The last restore has placed only a part of it, and knows nothing of the rest."""
    builder, node = Node(tmp_path, "builder", layout=layout), Node(tmp_path, layout=layout)
    paths = [builder.tree.wrapper(name) for name in ("one", "two")]
    builder.commit()
    node.restore()
    for path in paths:
        shutil.rmtree((node.tree.root / path).parent)
        assert node.restore().placed == 1
    assert contents(node.tree.root).keys() == set(paths)


@pytest.mark.parametrize("change", CHANGES)
def test_where_something_came_or_changed_the_root_is_scanned(
    node: Node, scans: list[Worker], change: Callable[[Node], object]
) -> None:
    change(node)
    node.restore()
    assert len(scans) == 1
    assert node.commit().status is CommitStatus.COMMITTED


def test_what_is_newer_is_restored(node: Node, builder: Node) -> None:
    builder.tree.kernel("two")
    builder.commit()
    report = node.restore()
    assert (report.status, report.placed, report.generation) == (RestoreStatus.RESTORED, 8, 2)


def test_what_was_withdrawn_is_a_miss(node: Node) -> None:
    node.store.forget(KEY)
    assert node.restore().status is RestoreStatus.MISS


def test_a_worker_that_asks_for_a_generation_gets_it(node: Node, builder: Node) -> None:
    builder.tree.kernel("two")
    builder.commit()
    for generation in (1, 2, 2, 1):
        assert node.restore(generation=generation).generation == generation
    assert node.restore().generation == 2


def test_after_a_commit_of_its_own_the_root_is_scanned(node: Node, scans: list[Worker]) -> None:
    """The root may lack what was merged."""
    node.tree.kernel("two")
    node.commit()
    scans.clear()
    assert node.restore().status is RestoreStatus.CURRENT
    assert len(scans) == 1


def test_what_had_gone_when_a_commit_found_nothing_new_is_brought_back(node: Node) -> None:
    still_of(node).unlink()
    one_file(node.tree.root)
    assert node.commit().status is CommitStatus.UNCHANGED
    time.sleep(TICK)
    assert node.commit().status is CommitStatus.UNCHANGED
    assert still_of(node).exists()
    assert node.restore().placed == 1


def test_with_another_compiler_what_was_built_by_the_one_before_is_taken_out(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that is seen of the host without asking the compiler shows this."""
    monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host("b" * 16, {}))
    node.restore()
    assert not node.tree.has("inductor/so/c.so")


def test_on_another_host_the_root_is_scanned(
    builder: Node, tmp_path: Path, layout: str, scans: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    (builder.tree.root / "inductor/so/c.so").unlink()  # For a key without host-bound files no host is known.
    builder.store.forget(KEY)
    builder.commit("portable")
    node = Node(tmp_path, layout=layout)
    node.restore("portable")
    # As where nothing can be removed.
    monkeypatch.setattr("kstore.operations.takeover.take_over_unrestored", lambda worker: None)
    monkeypatch.setattr("kstore.environment.ownhost.host_hint", lambda _: "another")
    scans.clear()
    node.restore("portable")
    assert len(scans) == 1


def test_where_nothing_is_bound_to_a_host_no_compiler_is_asked_and_nothing_is_scanned(
    builder: Node, tmp_path: Path, layout: str, scans: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    (builder.tree.root / "inductor/so/c.so").unlink()
    builder.store.forget(KEY)
    builder.commit("portable")
    node, asked = Node(tmp_path, layout=layout), list[object]()
    node.restore("portable")
    monkeypatch.setattr("kstore.environment.ownhost.detect_host", asked.append)
    scans.clear()
    assert node.restore("portable").status is RestoreStatus.CURRENT
    assert (scans, asked) == ([], [])


def test_twice_a_day_all_is_looked_at(node: Node, scans: list[Worker]) -> None:
    os.utime(node.tree.root / ".kstore/sync.json", (1, 1))
    assert node.restore().status is RestoreStatus.CURRENT
    assert len(scans) == 1


def test_what_another_version_has_noted_is_looked_through(node: Node, scans: list[Worker]) -> None:
    record = node.tree.root / ".kstore/restored.json"
    content = json.loads(record.read_bytes())
    del content["answer"]["components"]
    record.write_text(json.dumps(content))
    assert node.restore().status is RestoreStatus.CURRENT
    assert len(scans) == 1


def test_a_base_that_is_damaged_is_written_again(node: Node) -> None:
    base = node.tree.root / ".kstore/base"
    data = base.read_bytes()
    base.write_bytes(bytes(len(data)))
    node.restore()
    assert base.read_bytes() == data


def test_a_job_that_uses_the_root_for_another_key_is_warned(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kstore.operations.slips.key_in_use", lambda variables, besides: "another/key")
    node.restore()
    assert "is in use for another/key" in caplog.text


def test_a_folder_of_the_users_is_scanned_for_the_objects_of_other_hosts(
    builder: Node, tmp_path: Path, layout: str, scans: list[Worker]
) -> None:
    node = Node(tmp_path, layout=layout)
    node.environ["TRITON_CACHE_DIR"] = str(tmp_path / "kernels")
    node.restore()
    scans.clear()
    assert (node.restore().status, len(scans)) == (RestoreStatus.CURRENT, 1)


def test_the_key_is_used_by_it(node: Node) -> None:
    backend, scope = node.store.storage.backend, node.store.scope(KEY)
    before = last_used(backend, scope)
    time.sleep(0.05)
    node.restore()
    assert last_used(backend, scope) > before > 0


def test_what_is_read_counts_from_then_on(node: Node) -> None:
    state = node.store.worker(KEY, before_import=False).state
    before = state.last_restore.load()
    time.sleep(0.05)
    node.restore()
    after = state.last_restore.load()
    assert before and after
    assert after.ended_ns > before.ended_ns
    assert after.snapshot == before.snapshot


def test_without_the_store_nothing_is_current(node: Node) -> None:
    shutil.move(node.location, node.location.with_name("unmounted"))
    assert node.restore().status is RestoreStatus.MISS
    (node.location / "something else").mkdir(parents=True)
    with pytest.raises(StoreFormatError):
        node.restore()


@pytest.mark.parametrize("kept", [0, 1, 20, 0.5, -1])
def test_times_that_are_cut_short_are_looked_at_no_more(node: Node, scans: list[Worker], kept: float) -> None:
    data = still_of(node).read_bytes()
    still_of(node).write_bytes(data[: int(len(data) * kept) if 0 < kept < 1 else int(kept)])
    assert (node.restore().status, len(scans)) == (RestoreStatus.CURRENT, 1)


def empty_all(node: Node) -> None:
    """As a power failure leaves what was written just before: names and times are right. What is changed in place
    belongs to the job, whatever it holds.
    """
    for path in contents(node.tree.root).keys() - {"inductor/ab/x.cu", "inductor/cache/system"}:
        file = node.tree.root / path
        before = file.stat()
        file.chmod(0o600)
        os.truncate(file, 0)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("layout", ["packed"], indirect=True)
@pytest.mark.parametrize("commits", [False, True])
def test_what_power_that_failed_has_emptied_comes_back(
    node: Node, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    if commits:
        node.tree.kernel("two")
        time.sleep(TICK)
        assert node.commit().status is CommitStatus.COMMITTED
    before = contents(node.tree.root)
    empty_all(node)
    monkeypatch.setattr("kstore.local.state.boot", lambda: "another")

    assert node.restore().status is RestoreStatus.RESTORED
    assert contents(node.tree.root) == before
