"""User variables that give two components one folder, or one component a folder inside another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kstore.report import CommitStatus
from kstore.store import Store
from tests.trees import ENVIRONMENT, GPU, KEY, Node, contents

pytestmark = pytest.mark.usefixtures("host")


def worker(folder: Path, name: str, triton: str) -> Node:
    """A worker that has set Triton's folder to `triton` inside Inductor's."""
    node = Node(folder, name)
    inductor = node.tree.root / "inductor"
    (inductor / triton).mkdir(parents=True)
    node.environ.update(TORCHINDUCTOR_CACHE_DIR=str(inductor), TRITON_CACHE_DIR=str(inductor / triton))
    return node


@pytest.mark.parametrize("triton", ["", "kernels", "triton"])
def test_a_kernel_in_inductors_folder_is_stored_and_restored_once(tmp_path: Path, triton: str) -> None:
    first, second = worker(tmp_path, "first", triton), worker(tmp_path, "second", triton)
    kernel, graph = first.tree.kernel(below=f"inductor/{triton}".rstrip("/")), first.tree.graph()
    files = len(contents(first.tree.root))

    assert first.commit().new_files == files
    assert first.commit().status is CommitStatus.UNCHANGED
    report = second.restore()
    assert (report.files, report.placed, report.left_out) == (files, files, 0)
    assert contents(second.tree.root / kernel).keys() == contents(first.tree.root / kernel).keys()
    assert second.tree.read(graph) == first.tree.read(graph)
    assert second.commit().status is CommitStatus.UNCHANGED


def test_a_worker_whose_components_share_a_folder_is_told_what_becomes_of_it(tmp_path: Path) -> None:
    node = worker(tmp_path, "node", "")
    (note,) = node.restore().notes

    assert note == (
        f"Triton and TorchInductor share the folder {node.tree.root}/inductor: everything in it is taken for "
        "TorchInductor's; set TRITON_CACHE_DIR to a folder of its own"
    )


def test_a_link_to_the_folder_is_the_folder(tmp_path: Path) -> None:
    node = worker(tmp_path, "node", "")
    node.environ["TRITON_CACHE_DIR"] = str(tmp_path / "link")
    (tmp_path / "link").symlink_to(node.tree.root / "inductor")
    node.tree.kernel(below="inductor")

    assert node.commit().new_files == len(contents(node.tree.root))
    assert {path.partition("/")[0] for path in node.published()} == {"inductor"}


def test_a_kernel_in_a_shared_folder_is_whole_or_not_there(tmp_path: Path) -> None:
    node = worker(tmp_path, "node", "")
    kernel = node.tree.kernel(below="inductor")
    (node.tree.root / kernel / "k.cubin").unlink()

    (skipped,) = node.commit().skipped
    assert skipped.path == kernel


@pytest.mark.parametrize("linked", [False, True])
def test_a_store_in_a_components_folder_is_not_stored_in_itself(linked: bool, tmp_path: Path) -> None:
    """One volume for everything: a variable of the user's names the volume, and the store is on it."""
    volume = tmp_path / "volume"
    (volume / "ab").mkdir(parents=True)
    (volume / "ab/cone.py").write_text("one")
    if linked:
        (tmp_path / "link").symlink_to(volume)
    environ = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "link" if linked else volume)}
    settings: dict[str, Any] = {"gpu": GPU, "environment": ENVIRONMENT, "environ": environ}
    store = Store(volume / "kstore", cache_root=tmp_path / "root", **settings)
    reports = [store.commit(KEY) for _ in range(3)]
    assert [report.status for report in reports] == ["committed", "unchanged", "unchanged"]
    assert [report.files for report in reports] == [1, 1, 1]
