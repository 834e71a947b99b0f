"""The first commit after a restore into an empty root asks only for times, and still finds every change."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.blobs.loose import stamp
from kstore.calls import stat_each
from kstore.damaged import set_aside_blob
from kstore.digest import digest_of
from kstore.local import placed, write
from kstore.report import CommitStatus, RestoreStatus
from kstore.worker import Worker
from tests.local.stillness import IGNORED, StillConformance, make_lock
from tests.local.test_still import CHANGES, copied_with_all_times_set_back
from tests.trees import KEY, Node

pytestmark = pytest.mark.usefixtures("host")


class TestStillPlaced(StillConformance):
    """The tests of stillness after a restore."""


@pytest.mark.parametrize("make", IGNORED)
def test_what_is_ignored_is_no_news(node: Node, scans: list[Worker], make: Callable[[Node], None]) -> None:
    make(node)
    assert (node.commit().status, scans) == (CommitStatus.UNCHANGED, [])


def test_beside_what_is_ignored_what_is_new_is_committed(node: Node) -> None:
    make_lock(node)
    node.tree.put("inductor/new.py", b"new")
    report = node.commit()
    assert (report.status, report.new_files) == (CommitStatus.COMMITTED, 1)


def shared_object_in_place(node: Node) -> None:
    path = node.tree.root / "inductor/so/c.so"
    path.write_bytes(path.read_bytes() + b"more")


def file_of_a_kernel(node: Node) -> None:
    (kernel,) = (node.tree.root / "triton").iterdir()
    node.tree.put(f"triton/{kernel.name}/k.more", b"more")


@pytest.mark.parametrize("change", [*CHANGES, shared_object_in_place, file_of_a_kernel])
def test_every_change_is_committed_however_soon(node: Node, change: Callable[[Node], object]) -> None:
    change(node)
    assert node.commit().status is CommitStatus.COMMITTED
    assert node.commit().status is CommitStatus.UNCHANGED


def test_a_file_that_is_replaced_with_all_modification_times_set_back_is_seen(node: Node, scans: list[Worker]) -> None:
    path = node.tree.root / "inductor/ab/x.cu"
    before, above = path.stat(), path.parent.stat()
    node.tree.put("inductor/ab/x.cu", b"IN PLACE")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.utime(path.parent, ns=(above.st_atime_ns, above.st_mtime_ns))
    node.commit()

    assert len(scans) == 1


def test_what_is_changed_in_place_with_its_time_set_back_is_seen(node: Node, scans: list[Worker]) -> None:
    path = node.tree.root / "inductor/ab/x.cu"
    before = path.stat()
    path.write_bytes(b"IN PLACE")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    node.commit()

    assert len(scans) == 1


def test_what_is_changed_in_place_is_seen_although_that_of_another_component_stands(
    builder: Node, tmp_path: Path, layout: str
) -> None:
    builder.tree.put("vllm/x", b"in place")
    builder.commit()
    node = Node(tmp_path, layout=layout)
    node.restore()
    (node.tree.root / "inductor/ab/x.cu").write_bytes(b"IN PLACE")
    assert node.commit().new_files == 1


@pytest.mark.parametrize("change", [each for each in CHANGES if each is not copied_with_all_times_set_back])
def test_what_changes_within_the_tick_of_the_clock_in_which_all_was_placed_is_seen(
    node: Node, change: Callable[[Node], object]
) -> None:
    (path,) = (node.tree.root / ".kstore").glob("still-*")
    fields, _, paths = path.read_bytes().partition(b"\n")
    content = json.loads(fields)
    content["still"]["mark"][1] = time.time_ns() + 3600 * 10**9
    path.write_bytes(json.dumps(content).encode() + b"\n" + paths)
    change(node)
    assert node.commit().status is CommitStatus.COMMITTED


def test_what_is_changed_in_place_bears_the_stamp_that_tells_of_it(node: Node, scans: list[Worker]) -> None:
    path = node.tree.root / "inductor/ab/x.cu"
    (status,) = stat_each([str(path)])
    path.write_bytes(path.read_bytes())
    (after,) = stat_each([str(path)])
    node.commit()

    assert after.mtime_ns != status.mtime_ns
    assert len(scans) == 1


def test_no_copy_has_a_time_in_the_future_that_the_next_restore_would_take_for_a_compilers(
    builder: Node, tmp_path: Path, layout: str
) -> None:
    data = next(each for each in (b"%d" % number for number in range(999)) if stamp(digest_of(each)) > 0.95e9)
    builder.tree.put("inductor/ab/late.cu", data)
    builder.commit()
    node = Node(tmp_path, layout=layout)
    node.restore()
    for path in ("ab/late.cu", "ab/x.cu", "so/c.so"):
        assert (node.tree.root / "inductor" / path).stat().st_mtime_ns < time.time_ns()


def test_while_anything_in_the_store_is_known_to_be_damaged_the_root_is_scanned(
    builder: Node, tmp_path: Path, layout: str, scans: list[Worker]
) -> None:
    set_aside_blob(builder.store.storage.backend, digest_of(b"of another key"))
    node = Node(tmp_path, "late", layout=layout)
    node.restore()
    scans.clear()
    assert (node.commit().status, len(scans)) == (CommitStatus.UNCHANGED, 1)


def test_a_component_in_a_folder_of_the_users_is_no_news_either(
    builder: Node, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, layout=layout)
    node.environ["TRITON_CACHE_DIR"] = str(tmp_path / "kernels")
    node.restore()
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "scan", None)
        assert node.commit().status is CommitStatus.UNCHANGED
    node.tree.kernel("two", below=os.path.relpath(tmp_path / "kernels", node.tree.root))
    assert node.commit().new_files == 8


def test_a_folder_that_is_a_link_now_is_looked_at(node: Node, scans: list[Worker]) -> None:
    (module,) = (node.tree.root / "inductor").glob("??/*.py")
    shutil.rmtree(module.parent)
    module.parent.symlink_to("so")
    node.commit()
    assert len(scans) == 1


def test_where_a_filesystem_keeps_no_such_times_the_root_is_scanned(
    builder: Node, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    coarse = digest_of(b"in place")  # one file is enough: its time is in whole seconds
    monkeypatch.setattr(write, "stamps", lambda digests: (0 if each == coarse else stamp(each) for each in digests))
    monkeypatch.setattr(placed, "is_settled", lambda moment_ns: False)  # nor is the last one over yet
    node = Node(tmp_path, layout=layout)
    node.restore()
    assert not [*(node.tree.root / ".kstore").glob("still-*")]


@pytest.mark.parametrize("where", ["cd", "ab", "so", "fxgraph/on"])
def test_what_was_in_the_root_before_is_committed(builder: Node, tmp_path: Path, layout: str, where: str) -> None:
    node = Node(tmp_path, layout=layout)
    node.tree.put(f"inductor/{where}/local.py", b"local")
    node.restore()
    report = node.commit()
    assert (report.status, report.new_files) == (CommitStatus.COMMITTED, 1)


def test_what_was_in_a_component_that_is_not_published_is_committed(builder: Node, tmp_path: Path, layout: str) -> None:
    node = Node(tmp_path, layout=layout)
    node.restore()
    node.tree.put("vllm/torch_compile_cache/a/b.py", b"new")
    assert node.commit().new_files == 1


@pytest.mark.parametrize("folder", ["vllm", "inductor", "triton"])
def test_a_folder_that_a_compiler_made_before_is_no_news(
    builder: Node, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    node = Node(tmp_path, layout=layout)
    os.makedirs(node.tree.root / folder)
    node.restore()
    monkeypatch.setattr(Worker, "scan", None)
    assert node.commit().status is CommitStatus.UNCHANGED


def test_a_worker_that_has_restored_another_key_publishes_it_as_its_own(
    builder: Node, tmp_path: Path, layout: str
) -> None:
    node = Node(tmp_path, layout=layout)
    assert node.restore("model/v2", seed=KEY).status is RestoreStatus.SEEDED
    assert node.commit("model/v2").status is CommitStatus.COMMITTED


def test_a_worker_that_has_restored_an_earlier_generation_looks(builder: Node, tmp_path: Path, layout: str) -> None:
    builder.tree.wrapper("two")
    builder.commit()
    node = Node(tmp_path, layout=layout)
    node.restore(generation=1)
    assert (node.commit().status, node.commit().generation) == (CommitStatus.UNCHANGED, 2)


def test_what_the_store_has_lost_since_is_put_back(node: Node, scans: list[Worker]) -> None:
    set_aside_blob(node.store.storage.backend, digest_of(b"in place"))
    node.commit()

    assert len(scans) == 1
    assert node.store.verify().ok


def test_a_store_that_is_another_one_gets_all(node: Node, tmp_path: Path) -> None:
    shutil.rmtree(node.location)
    other = Node(tmp_path, "other")
    other.tree.wrapper()
    other.commit()
    assert node.commit().status is CommitStatus.COMMITTED


@pytest.mark.parametrize("content", [b"in place", b"linked"])
def test_a_restore_that_lacked_something_vouches_for_nothing(tmp_path: Path, content: bytes) -> None:
    builder = Node(tmp_path, "builder")
    for name, data in {"ab/x.cu": b"in place", "cd/c.py": b"linked"}.items():
        builder.tree.put(f"inductor/{name}", data)
    builder.commit()
    digest = digest_of(content).hex()
    (builder.location / f"blobs/{digest[:2]}/{digest}").unlink()
    node = Node(tmp_path)
    assert node.restore().left_out == 1
    assert not [*(node.tree.root / ".kstore").glob("still-*")]
