"""What kstore does with vLLM's folder, replayed file by file: see `serving_trees`. vLLM itself is not run."""

from __future__ import annotations

import ast
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kstore.calls import Status, read_each
from kstore.components import load_table
from kstore.local import reading
from kstore.published.manifest import Entry, Flag
from kstore.report import CommitStatus
from tests.components.serving_trees import Vllm
from tests.trees import Node, contents

LAYOUTS = ("whole", "listed", "classic")
LINK, GROUP, SLOT, MERGE, RELOCATE = Flag.LINK, Flag.GROUP, Flag.SLOT, Flag.MERGE, Flag.RELOCATE
COPIED = Flag(0)
SMALL, LARGE = (1, 8), (1, 8192)
LIST = "vllm_compile_cache.py"

RULES = [
    # whole
    (r"vllm/torch_compile_cache/torch_aot_compile/\w{64}/rank_[01]_0/model", LINK),
    (r"vllm/torch_compile_cache/torch_aot_compile/\w{64}/inductor_cache/fxgraph/\w\w/\w+/\w+", LINK | SLOT),
    (r"vllm/torch_compile_cache/torch_aot_compile/\w{64}/inductor_cache/aotautograd/\w+/\w+", LINK | SLOT),
    (r"vllm/torch_compile_cache/torch_aot_compile/\w{64}/inductor_cache/ab/\w+\.(py|best_config)", LINK),
    (r"vllm/torch_compile_cache/torch_aot_compile/\w{64}/inductor_cache/cache/\w+", MERGE),
    (r"triton/\w{52}/k\.\w+", LINK | GROUP),
    (r"triton/\w{52}/__grp__k\.json", GROUP | RELOCATE),
    # all
    (r"vllm/torch_compile_cache/\w{10}/rank_[01]_0/\w+/(computation_graph\.py|cache_key_factors\.json)", COPIED),
    # listed
    (r"vllm/torch_compile_cache/\w{10}/rank_[01]_0/\w+/artifact_compile_range_1_8192_subgraph_0", LINK),
    (r"vllm/torch_compile_cache/\w{10}/rank_[01]_0/\w+/vllm_compile_cache\.py", MERGE),
    # classic
    (r"vllm/torch_compile_cache/\w{10}/rank_[01]_0/inductor_cache/fxgraph/\w\w/\w+/\w+", LINK | SLOT),
    (r"vllm/torch_compile_cache/\w{10}/rank_[01]_0/inductor_cache/aotautograd/\w+/\w+", LINK | SLOT),
    (r"vllm/torch_compile_cache/\w{10}/rank_[01]_0/inductor_cache/ab/\w+\.(py|best_config)", LINK),
    (r"vllm/torch_compile_cache/\w{10}/rank_[01]_0/inductor_cache/cache/\w+", MERGE),
    (r"vllm/torch_compile_cache/\w{10}/rank_[01]_0/triton_cache/\w{52}/k\.\w+", LINK | GROUP),
    (r"vllm/torch_compile_cache/\w{10}/rank_[01]_0/triton_cache/\w{52}/__grp__k\.json", GROUP | RELOCATE),
    # beside: tuned choices
    (r"vllm/flashinfer_autotune_cache/0\.7\.2/90a/\w+/autotune_configs\.json", COPIED),
    (r"vllm/rocm_segmented_attention/\w+\.json", COPIED),
    (r"vllm/rocm_segmented_attention/triton/\w{52}/k\.\w+", LINK | GROUP),
    (r"vllm/rocm_segmented_attention/triton/\w{52}/__grp__k\.json", GROUP | RELOCATE),
]
LEFT_OUT = {
    "modelinfos", "startup_plan", "gpu_p2p_access_cache_for_0,1.json", "deep_gemm", "assets",  # see components.toml
    "locks", "error", "lock", "part", "tmp_0f1e2d3",
}  # fmt: skip


def start(node: Node, layout: str, *shapes: tuple[int, int], own_process: bool = True) -> list[str]:
    """Restore, and start vLLM: as a child of `kstore exec`, or in the process that commits."""
    node.restore()
    environ = dict(node.environ) if own_process else node.environ
    return Vllm(Path(environ["VLLM_CACHE_ROOT"]), environ).serve(layout, shapes=shapes or (LARGE,))


def lists(node: Node) -> dict[str, Any]:
    """What the lists below the node's folder say."""
    found = node.tree.root.rglob(LIST)
    return {str(path.relative_to(node.tree.root)): ast.literal_eval(path.read_text()) for path in found}


def kind(entry: Entry) -> Flag:
    return Flag(entry.flags)


# ---- Each file


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_file_is_stored_under_the_rule_for_it(tmp_path: Path, layout: str) -> None:
    node = Node(tmp_path)
    start(node, layout)
    Vllm(node.tree.root / "vllm", {}).beside()
    assert node.commit().skipped == ()
    published = node.published()

    for path, entry in published.items():
        rules = [flags for pattern, flags in RULES if re.fullmatch(pattern, path)]
        assert rules == [kind(entry)], path
    assert len(published) > 10

    left_out = contents(node.tree.root).keys() - published.keys()
    assert left_out
    for path in left_out:
        assert LEFT_OUT & {*path.split("/"), path.rpartition(".")[2]}, path


def test_every_rule_of_this_page_was_seen(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for layout in LAYOUTS:
        start(node, layout)
    Vllm(node.tree.root / "vllm", {}).beside()
    node.commit()
    published = node.published()
    assert [pattern for pattern, _ in RULES if not any(re.fullmatch(pattern, path) for path in published)] == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_second_worker_compiles_nothing(tmp_path: Path, layout: str) -> None:
    first, second = Node(tmp_path, "first"), Node(tmp_path, "second")
    assert start(first, layout)
    first.commit()

    assert start(second, layout) == []
    assert second.commit().status is CommitStatus.UNCHANGED


@pytest.mark.parametrize("layout", LAYOUTS)
def test_restoring_puts_each_file_where_vllm_looks(tmp_path: Path, layout: str) -> None:
    first, second = Node(tmp_path, "first"), Node(tmp_path, "second")
    start(first, layout)
    first.commit()
    second.restore()
    environ = dict(second.environ)
    root = second.tree.root

    assert environ["VLLM_CACHE_ROOT"] == str(root / "vllm")
    assert set(contents(root)) == set(first.published())
    Vllm(root / "vllm", environ).serve(layout)
    # Wherever vLLM has moved them, they are below what kstore stores and restores.
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert Path(environ[name]).is_relative_to(root)


def test_triton_stays_where_kstore_put_it_and_inductor_goes_where_vllm_puts_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.restore()
    environ = dict(node.environ)
    Vllm(node.tree.root / "vllm", environ).serve("whole")
    assert environ["TRITON_CACHE_DIR"] == str(node.tree.root / "triton")
    assert environ["TORCHINDUCTOR_CACHE_DIR"].endswith("/inductor_cache")
    assert not (node.tree.root / "inductor").exists()


# ---- A commit in the process in which vLLM has moved the variables


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_commit_in_the_process_of_vllm_takes_each_file_once(tmp_path: Path, layout: str) -> None:
    child, same = Node(tmp_path / "child"), Node(tmp_path / "same")
    start(child, layout)
    start(same, layout, own_process=False)
    if layout != "listed":
        assert same.environ["TORCHINDUCTOR_CACHE_DIR"] != child.environ["TORCHINDUCTOR_CACHE_DIR"]
    child.commit()
    same.commit()

    named = [{re.sub(r"/\w{52}$", "", path) for path in node.published()} for node in (child, same)]
    assert named[0] == named[1]  # except names that are digests of bytes that are never the same
    digests = [entry.digest for path, entry in same.published().items() if "/fxgraph/" in path]
    assert len(digests) == len(set(digests))


@pytest.mark.parametrize("layout", ["whole", "classic"])
def test_what_was_compiled_before_vllm_moved_inductor_is_committed_too(tmp_path: Path, layout: str) -> None:
    node = Node(tmp_path)
    node.restore()
    path = node.tree.wrapper()
    Vllm(node.tree.root / "vllm", node.environ).serve(layout)
    node.commit()
    assert path in node.published()


def test_a_restore_in_the_process_of_vllm_leaves_its_variables_alone(tmp_path: Path) -> None:
    node = Node(tmp_path)
    start(node, "whole", own_process=False)
    moved = node.environ["TORCHINDUCTOR_CACHE_DIR"]
    node.commit()
    node.restore()
    assert node.environ["TORCHINDUCTOR_CACHE_DIR"] == moved


# ---- The list that is rewritten in place


def test_what_is_written_in_place_is_copied_and_what_is_replaced_is_linked(tmp_path: Path) -> None:
    first, second = Node(tmp_path, "first"), Node(tmp_path, "second")
    for layout in LAYOUTS:
        start(first, layout)
    first.commit()
    second.restore()
    for path, entry in second.published().items():
        assert (os.stat(second.tree.root / path).st_nlink > 1) == bool(entry.flags & LINK), path


def test_a_later_commit_has_the_list_as_it_was_rewritten(tmp_path: Path) -> None:
    node = Node(tmp_path)
    start(node, "listed", SMALL)
    node.commit()
    assert len(start(node, "listed", SMALL, LARGE)) == 4
    assert node.commit().status is CommitStatus.COMMITTED

    other = Node(tmp_path, "other")
    other.restore()
    assert lists(other) == lists(node)
    assert all(len(known) == 2 for known in lists(other).values())


@pytest.mark.parametrize("layout", ["listed", "classic"])
def test_two_workers_that_compile_different_shapes_lose_nothing(tmp_path: Path, layout: str) -> None:
    one, two, three = (Node(tmp_path, name) for name in ("one", "two", "three"))
    start(one, layout, SMALL)
    start(two, layout, LARGE)
    one.commit()
    two.commit()

    assert start(three, layout, SMALL, LARGE) == []
    assert all(len(known) == 2 for known in lists(three).values())
    assert three.commit().status is CommitStatus.UNCHANGED
    assert one.commit().status is two.commit().status is CommitStatus.UNCHANGED


def test_a_list_is_never_published_without_what_it_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    start(node, "listed", SMALL)

    def compiling_meanwhile(paths: Sequence[str], sizes: Sequence[int]) -> tuple[list[bytes], list[Status]]:
        """vLLM compiles one more shape after the folder was listed and before its list is read."""
        if any(path.endswith(LIST) for path in paths):
            time.sleep(0.02)  # the clock of file times ticks slowly
            Vllm(node.tree.root / "vllm", {}).serve("listed", shapes=(SMALL, LARGE))
        return read_each(paths, sizes)

    monkeypatch.setattr(reading, "read_each", compiling_meanwhile)
    report = node.commit()
    assert "files were added to its folder meanwhile" in {reason for _, reason in report.skipped}
    assert start(Node(tmp_path, "other"), "listed", SMALL)  # vLLM starts

    monkeypatch.setattr(reading, "read_each", read_each)
    node.commit()
    assert start(Node(tmp_path, "another"), "listed", SMALL, LARGE) == []


@pytest.mark.parametrize(("layout", "lost"), [("listed", "artifact_compile_range"), ("classic", "/fxgraph/")])
def test_a_list_is_not_restored_without_what_it_lists(tmp_path: Path, layout: str, lost: str) -> None:
    """vLLM would not start."""
    node, other = Node(tmp_path, "first"), Node(tmp_path, "other")
    start(node, layout)
    node.commit()
    damaged, entry = next((p, e) for p, e in node.published().items() if lost in p)
    digest = entry.digest.hex()
    (tmp_path / "store" / "blobs" / digest[:2] / digest).unlink()

    report = other.restore()
    assert damaged in {skip.path for skip in report.skipped}
    assert start(other, layout)
    assert other.commit().status is CommitStatus.COMMITTED
    assert start(Node(tmp_path, "third"), layout) == []


# ---- A folder that existed before kstore


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_existing_folder_is_brought_along(tmp_path: Path, layout: str) -> None:
    """`VLLM_CACHE_ROOT=~/.cache/vllm TRITON_CACHE_DIR=~/.triton/cache kstore commit KEY`."""
    home = tmp_path / "home"
    old = {"VLLM_CACHE_ROOT": f"{home}/.cache/vllm", "TRITON_CACHE_DIR": f"{home}/.triton/cache"}
    assert Vllm(home / ".cache" / "vllm", dict(old)).serve(layout)
    before = contents(home)
    node = Node(tmp_path, "old")
    node.environ.update(old)
    assert node.commit().status is CommitStatus.COMMITTED

    assert start(Node(tmp_path, "new"), layout) == []
    assert contents(home) == before
    node.environ.clear()
    assert start(node, layout) == []  # on the same worker, now in kstore's own place


def test_caches_in_folders_of_their_own_below_another_are_taken_once(tmp_path: Path) -> None:
    node = Node(tmp_path)
    old = {"VLLM_CACHE_ROOT": f"{tmp_path}/old", "DG_JIT_CACHE_DIR": f"{tmp_path}/old/deep_gemm"}
    Vllm(tmp_path / "old", dict(old)).beside()
    node.environ.update(old)
    node.commit()
    stored = node.published()
    assert "deepgemm/cache/kernel.a/kernel.cubin" in stored
    assert not [path for path in stored if path.startswith("vllm/deep_gemm")]


def test_a_folder_that_an_engine_gave_to_inductor_has_the_rules_of_inductor() -> None:
    table = load_table()
    inductor, vllm = table["inductor"], table["vllm"]
    below = "torch_compile_cache/0123/inductor_cache"
    for path in ("ab/c1.py", "ab/c1.so", "ab/c1.cu", "cutedsl_compile_cache/a.o", "cache/system", "x_metadata.json"):
        assert vllm.kind(f"{below}/{path}", 0, 0) == inductor.kind(path, 0, 0), path
    for folder in ("torch_cutlass/", "locks/", "tmpabc/", "aoti_eager/"):
        assert vllm.ignores(f"{below}/{folder}") and inductor.ignores(folder), folder
        assert not vllm.ignores(f"torch_compile_cache/{folder}") or folder == "locks/"
    assert vllm.held(f"{below}/") == "inductor"
    assert vllm.held("torch_compile_cache/0123/") is None


def test_the_lock_of_a_shared_object_is_found_below_the_engine() -> None:
    vllm = load_table()["vllm"]
    lock = vllm.method("lock", "torch_compile_cache/0/inductor_cache/ab/c1.so")
    assert lock == "{folder}/../locks/{stem}.lock"


def test_what_finishes_a_kernel_of_deepgemm_does_not_finish_one_of_triton() -> None:
    sglang = load_table()["sglang"]
    assert sglang.completes("deep_gemm/cache/kernel.a/kernel.cubin")
    assert not sglang.completes("torch_compile_cache/0/rank_0_0/backbone/triton_cache/ABC/k.cubin")
    assert sglang.completes("torch_compile_cache/0/rank_0_0/backbone/triton_cache/ABC/__grp__k.json")
