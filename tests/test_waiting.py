"""What is new in every process, whatever was restored, is no reason for a generation as long as it is little.

The CUDA driver's cache is an example: besides what a job needs, each process leaves entries there that no other process
reads. So are what a job has learnt about its shapes, under its own name, and modules of graphs that torch cannot cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kstore.blobs.loose import blob_name
from kstore.operations.commit import commit
from kstore.report import CommitReport, CommitStatus, RestoreStatus
from tests.trees import KEY, Node, contents

pytestmark = pytest.mark.usefixtures("host")

ENTRIES = 32
"""How many of the driver's entries are published with a kernel."""
ENTRY = b"machine code" * 100


def driver_makes(node: Node, *names: str, data: bytes = ENTRY) -> None:
    for name in names:
        node.tree.put(f"cuda/{name[-1]}/{name}", data + name.encode())


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    builder = Node(tmp_path, "builder")
    builder.tree.kernel("one")
    driver_makes(builder, *(f"first-{number}" for number in range(ENTRIES)))
    assert builder.commit().status is CommitStatus.COMMITTED
    return tmp_path


@pytest.fixture
def node(fleet: Path) -> Node:
    node = Node(fleet)
    node.restore()
    return node


def files_of_the_driver(node: Node) -> int:
    return sum(path.startswith("cuda/") for path in node.published())


def test_little_alone_publishes_nothing(node: Node) -> None:
    driver_makes(node, "new-1", "new-2")
    for _ in range(2):
        report = node.commit()
        assert (report.status, report.new_files, report.generation) == (CommitStatus.UNCHANGED, 0, 1)
        assert (report.waiting, report.skipped) == (2, ())
    assert files_of_the_driver(node) == ENTRIES


def test_it_stays_in_the_root_and_is_published_with_other_news(node: Node, fleet: Path) -> None:
    driver_makes(node, "new-1")
    node.commit()
    node.tree.kernel("two")
    report = node.commit()
    assert (report.status, report.new_files, report.waiting) == (CommitStatus.COMMITTED, 9, 0)
    assert node.commit().waiting == 0

    other = Node(fleet, "other")
    other.restore()
    assert contents(other.tree.root / "cuda") == contents(node.tree.root / "cuda")


def test_it_waits_through_what_others_publish_and_what_is_restored(node: Node, fleet: Path) -> None:
    driver_makes(node, "new-1")
    node.commit()
    other = Node(fleet, "other")
    other.tree.kernel("two")
    other.commit()
    assert node.commit().status is CommitStatus.UNCHANGED
    node.restore()
    assert node.commit().status is CommitStatus.UNCHANGED
    node.tree.kernel("three")
    node.commit()
    assert "cuda/1/new-1" in node.published()


def test_many_files_do_not_wait(node: Node) -> None:
    driver_makes(node, *(f"new-{number}" for number in range(ENTRIES // 8)), data=b"small")
    assert node.commit().new_files == ENTRIES // 8


def test_a_large_file_does_not_wait(node: Node) -> None:
    driver_makes(node, "new", data=ENTRY * (ENTRIES // 4))
    assert node.commit().new_files == 1


def test_what_another_driver_has_made_does_not_wait_however_much_those_before_it_have(node: Node) -> None:
    driver_makes(node, *(f"second-{number}" for number in range(1000)))
    node.commit()
    driver_makes(node, *(f"third-{number}" for number in range(32)))
    assert node.commit().new_files == 32


@pytest.mark.parametrize("verb", ["forget", "quarantine"])
def test_it_does_not_bring_back_a_key_that_was_taken_out(node: Node, fleet: Path, verb: str) -> None:
    driver_makes(node, "new-1", "new-2")
    node.commit()
    getattr(node.store, verb)(KEY)
    assert node.commit().status is CommitStatus.UNCHANGED
    assert Node(fleet, "other").restore().status is RestoreStatus.MISS


def test_little_becomes_much_in_time(node: Node) -> None:
    reports = list[CommitReport]()
    for number in range(ENTRIES // 8):
        driver_makes(node, f"new-{number}")
        reports.append(node.commit())
    assert [report.new_files for report in reports] == [0] * (ENTRIES // 8 - 1) + [ENTRIES // 8]


def test_what_is_changed_waits_as_what_is_added(node: Node) -> None:
    driver_makes(node, "first-1", data=b"another")
    assert node.commit().status is CommitStatus.UNCHANGED
    node.tree.kernel("two")
    assert node.commit().new_files == 9


def test_where_nothing_of_it_is_published_it_does_not_wait(tmp_path: Path) -> None:
    node = Node(tmp_path)
    driver_makes(node, "only")
    assert node.commit().new_files == 1


def test_the_least_of_another_component_does_not_wait(node: Node) -> None:
    node.tree.graph()
    assert node.commit().new_files == 1


def test_a_key_does_not_grow_with_the_starts_of_its_workers(tmp_path: Path) -> None:
    statuses = list[CommitStatus]()
    for start in range(30):
        node = Node(tmp_path, f"worker-{start}")
        node.restore()
        node.tree.kernel("one")
        driver_makes(node, f"{start}-a", f"{start}-b")
        node.tree.put("cuda/index", f"index of {start} {start * 7}".encode())
        statuses.append(node.commit().status)
    assert set(statuses[-15:]) == {CommitStatus.UNCHANGED}
    assert files_of_the_driver(node) <= 25


def test_nothing_of_it_is_uploaded_ahead(node: Node) -> None:
    before = contents(node.location / "blobs")
    driver_makes(node, "new-1", "new-2")
    node.store.upload_ahead(KEY)
    assert contents(node.location / "blobs") == before


def test_it_is_published_when_something_lost_is_put_back(fleet: Path) -> None:
    worker = Node(fleet)
    blob = Path(worker.location) / blob_name(worker.published()["cuda/1/first-1"].digest)
    blob.unlink()
    assert worker.restore().left_out == 1
    driver_makes(worker, "first-1", "new-1")
    assert worker.commit().status is CommitStatus.COMMITTED
    assert blob.exists()
    assert "cuda/1/new-1" in worker.published()


def module(name: str) -> str:
    """Named by its content, which contains addresses: `_frozen_param0 = None  # device(type='cpu') … 7febed0a0820`."""
    return f"inductor/ab/c{name:q<51}.py"


def profile(job: str) -> str:
    return f"inductor/dynamo/code_state_{job}.pkl"


@pytest.mark.parametrize("path_of", [module, profile])
def test_what_no_other_process_looks_for_is_no_reason_for_a_generation(
    tmp_path: Path, path_of: Callable[[str], str]
) -> None:
    node = Node(tmp_path)
    for number in range(10):
        node.tree.put(path_of(f"job{number}"), ENTRY)
    node.commit()
    node.tree.put(path_of("last"), b"new")
    report = node.commit()
    assert (report.status, report.generation, report.waiting) == (CommitStatus.UNCHANGED, 1, 1)

    node.tree.graph("f20")
    assert node.commit().new_files == 2
    assert path_of("last") in node.published()


@pytest.mark.parametrize("path_of", [module, profile])
def test_the_first_of_its_kind_does_not_wait_whatever_else_there_is(
    tmp_path: Path, path_of: Callable[[str], str]
) -> None:
    """A job may have the same name every time."""
    node = Node(tmp_path)
    for number in range(20):
        node.tree.graph(f"f{number:02}")
    node.commit()
    node.tree.put(path_of("only"), b"new")
    assert node.commit().new_files == 1


def test_nothing_waits_in_a_root_that_is_removed_after_the_commit(tmp_path: Path) -> None:
    """For example, the root of an import."""
    node = Node(tmp_path)
    for number in range(20):
        node.tree.put(profile(f"job{number}"), ENTRY)
    node.commit()
    worker = replace(node.store.worker(KEY, before_import=False), is_temporary=True)
    assert commit(worker).status is CommitStatus.UNCHANGED
    node.tree.put(profile("last"), b"new")
    assert commit(worker).new_files == 1
