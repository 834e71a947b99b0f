"""What torch itself writes into the environment when it is imported, and what the user set."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.compilers.programs import TIMEOUT, Container

pytestmark = pytest.mark.compiler

PROGRAM = """
import json, os, sys
before = sys.argv[1] == "import-first"
if before:
    import torch._dynamo
import kstore
report = kstore.restore("m", store=sys.argv[2], gpu="nvidia-test-sm90", strict=True,
                        cache_root=None if len(sys.argv) < 4 else sys.argv[3])
assert before or "torch" not in sys.modules
from torch._inductor.runtime.cache_dir_utils import cache_dir, triton_cache_dir
print(json.dumps({"inductor": cache_dir(), "triton": triton_cache_dir(0), "notes": report.notes}))
"""


def restore_in_process(tmp_path: Path, order: str, **variables: str) -> dict[str, Any]:
    environ = Container(tmp_path).environ() | variables
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, order, str(tmp_path / "store"), str(tmp_path / "root")],
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def test_torch_uses_the_cache_root(tmp_path: Path) -> None:
    report = restore_in_process(tmp_path, "import-last")

    assert report["inductor"] == f"{tmp_path}/root/inductor"
    assert report["triton"] == f"{tmp_path}/root/triton"
    assert report["notes"] == []


def test_a_default_that_an_import_pinned_is_no_choice(tmp_path: Path) -> None:
    report = restore_in_process(tmp_path, "import-first")

    assert report["inductor"] == f"{tmp_path}/root/inductor"
    assert "torch._dynamo was imported before" in report["notes"][0]


@pytest.mark.parametrize("order", ["import-first", "import-last"])
def test_what_the_user_set_is_respected(tmp_path: Path, order: str) -> None:
    mine = str(tmp_path / "mine")
    report = restore_in_process(tmp_path, order, TORCHINDUCTOR_CACHE_DIR=mine)

    assert report["inductor"] == mine
    assert report["triton"] == f"{tmp_path}/root/triton"
    assert report["notes"] == []
