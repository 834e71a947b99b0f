"""Caches from which Python imports modules: what it writes beside them is of no use after a restore."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kstore.environment import Host
from tests.trees import Node

DIGEST = hashlib.sha256(b"kernel").hexdigest()


@pytest.mark.parametrize(
    "path",
    [
        "flashinfer/.cache/flashinfer/qwen_3_5_block/gemm_sources/gemm.py",  # compiler in gemm.frost
        "helion/backward/helion_bwd_0f1e.py",  # backward in helion.experimental.autodiff
        "inductor/helion/backward/helion_bwd_0f1e.py",
        f"tilelang/0.1.15/linux-x86_64/kernels/{DIGEST}/kernel.py",  # import_from_file in NVRTCLibraryGenerator
    ],
)
def test_a_module_that_is_imported_is_no_news(tmp_path: Path, host: Host, path: str) -> None:
    """A .pyc holds its source's time, so each start would write another .pyc and publish it."""
    for name in ("first", "second", "third"):
        node = Node(tmp_path, name)
        node.restore()
        if name == "first":
            node.tree.put(path, b"answer = 42")
            node.tree.put(f"{os.path.dirname(path)}/params.json", b"[]")
        import_from_file(node.tree.root / path)
        assert node.commit().new_files == (2 if name == "first" else 0)


def import_from_file(path: Path) -> None:
    """Import a module as all of these caches do."""
    program = f"""
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("kernel", {str(path)!r})
spec.loader.exec_module(module_from_spec(spec))
"""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([sys.executable, "-c", program], check=True, env=environ)
    assert (path.parent / "__pycache__").is_dir()
