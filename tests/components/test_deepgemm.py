"""DeepGEMM's kernels, as DeepJIT publishes them: with an empty file that it looks for and touches at every hit."""

from __future__ import annotations

import os
from pathlib import Path

from kstore.environment import Host
from tests.trees import Node, contents

KERNEL = f"deepgemm/cache/sm90_fp8_gemm_1d2d.{'3f2a' * 8}"
MARK = f"{KERNEL}/.committed"
"""`DiskCacheEntry.commit` in deep_jit/cache/disk.hpp; without it the kernel is compiled."""


def test_the_mark_of_a_kernel_comes_with_it_and_may_be_touched(tmp_path: Path, host: Host) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    for name in ("kernel.cu", "kernel.cubin", "meta.json"):
        node.tree.put(f"{KERNEL}/{name}", name.encode())
    node.tree.put(MARK, b"")
    node.tree.put("deepgemm/tmp/0f1e2d3c-4b5a/kernel.cu", b"being built")
    assert node.commit().new_files == 4
    other.restore()
    assert contents(other.tree.root / KERNEL) == contents(node.tree.root / KERNEL)
    mark = other.tree.root / MARK
    assert (mark.stat().st_mode & 0o200, mark.stat().st_nlink) == (0o200, 1)
    os.utime(mark)  # try_update_mtime
    assert other.commit().new_files == 0
