"""What kstore does with SGLang's folder, replayed file by file: see `serving_trees`. SGLang itself is not run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from kstore.published.manifest import Flag
from kstore.report import CommitStatus
from tests.components.serving_trees import Sglang
from tests.trees import Node, contents

LINK, GROUP, SLOT, MERGE, RELOCATE = Flag.LINK, Flag.GROUP, Flag.SLOT, Flag.MERGE, Flag.RELOCATE
PIECEWISE = r"sglang/torch_compile_cache/\w{10}/rank_0_0/backbone"
RULES = [
    (rf"{PIECEWISE}/inductor_cache/fxgraph/\w\w/\w+/\w+", LINK | SLOT),
    (rf"{PIECEWISE}/inductor_cache/aotautograd/\w+/\w+", LINK | SLOT),
    (rf"{PIECEWISE}/inductor_cache/ab/\w+\.(py|best_config)", LINK),
    (rf"{PIECEWISE}/inductor_cache/cache/\w+", MERGE),
    (rf"{PIECEWISE}/triton_cache/\w{{52}}/k\.\w+", LINK | GROUP),
    (rf"{PIECEWISE}/triton_cache/\w{{52}}/__grp__k\.json", GROUP | RELOCATE),
    (rf"{PIECEWISE}/sglang_compile_cache\.py", MERGE),
    (r"sglang/deep_gemm/cache/kernel\.gemm\.0123/kernel\.(cu|cubin)", LINK | GROUP),
    (r"triton/\w{52}/k\.\w+", LINK | GROUP),
    (r"triton/\w{52}/__grp__k\.json", GROUP | RELOCATE),
    (r"sglang/flashinfer/autotune/0\.7\.2/90a/0123/rank_tp0_pp0_dp0\.json", Flag(0)),
]
LEFT_OUT = {
    "ple", "model_streamer", "targets", "gpu_p2p_access_cache_for_0,1.json", "rank_tp0_pp0_dp0_gpuGPU-1.json",
    "locks", "error",
}  # fmt: skip


def start(node: Node, *, own_process: bool = True) -> list[str]:
    """Restore, and start SGLang: as a child of `kstore exec`, or in the process that commits."""
    node.restore()
    environ = dict(node.environ) if own_process else node.environ
    return Sglang(Path(environ["SGLANG_CACHE_DIR"]), environ).serve()


def test_each_file_is_stored_under_the_rule_for_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    start(node)
    Sglang(node.tree.root / "sglang", {}).beside()
    assert node.commit().skipped == ()
    published = node.published()

    for path, entry in published.items():
        assert [flags for pattern, flags in RULES if re.fullmatch(pattern, path)] == [Flag(entry.flags)], path
    assert [pattern for pattern, _ in RULES if not any(re.fullmatch(pattern, path) for path in published)] == []
    for path in contents(node.tree.root).keys() - published.keys():
        assert LEFT_OUT & {*path.split("/"), path.rpartition(".")[2]} or "/computation_graph_" in path, path


def test_the_next_worker_compiles_nothing_and_has_nothing_to_commit(tmp_path: Path) -> None:
    """Though SGLang writes its list, and its graph under a new name, at every start."""
    first = Node(tmp_path)
    assert start(first)
    first.commit()
    shutil.rmtree(first.tree.root)

    second = Node(tmp_path)
    assert start(second) == []
    assert list(second.tree.root.rglob("computation_graph_*.py"))
    assert second.commit().status is CommitStatus.UNCHANGED


def test_a_commit_in_the_process_of_sglang_takes_each_file_once(tmp_path: Path) -> None:
    """SGLang has moved the caches of Inductor, Triton and DeepGEMM below its own folder."""
    child, same = Node(tmp_path / "child"), Node(tmp_path / "same")
    start(child)
    start(same, own_process=False)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "DG_JIT_CACHE_DIR"):
        assert Path(same.environ[name]).is_relative_to(same.tree.root / "sglang")
    child.commit()
    same.commit()
    named = [{re.sub(r"/\w{52}$", "", path) for path in node.published()} for node in (child, same)]
    assert named[0] == named[1]


def test_an_existing_folder_is_brought_along(tmp_path: Path) -> None:
    """Each variable says where SGLang had put that cache."""
    home = tmp_path / "home" / ".cache" / "sglang"
    assert Sglang(home, {}).serve()
    node = Node(tmp_path, "old")
    below = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TILELANG_CACHE_DIR": "tilelang"}
    node.environ.update({name: f"{home}/{folder}" for name, folder in below.items()} | {"SGLANG_CACHE_DIR": str(home)})
    node.commit()
    assert not [path for path in node.published() if path.startswith("sglang/triton/")]
    assert start(Node(tmp_path, "new")) == []
