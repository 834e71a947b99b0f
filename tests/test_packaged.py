"""What is shipped with kstore in addition to its modules."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import kstore
from kstore.packaged import read_packaged

PACKAGE = Path(kstore.__file__).parent

USE = """
import kstore
from kstore.blobs.dictionary import NEWEST, dictionary
from kstore.calls import IS_COMPILED
from kstore.components import load_table
from kstore.inspect.kinds import kind_of
assert ".zip/" in kstore.__file__ and not IS_COMPILED
assert load_table() and dictionary(NEWEST) and kind_of("inductor/ab/c.py")
print(kstore.commit("key/v1", store="store", cache_root="root").status)
"""


def test_what_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        read_packaged("kstore.components", "nothing.toml")


def test_kstore_runs_from_a_zip(tmp_path: Path) -> None:
    """As zipapps do, and as the archives do that job schedulers ship."""
    with zipfile.ZipFile(tmp_path / "kstore.zip", "w") as archive:
        for path in PACKAGE.rglob("*"):
            if path.is_file() and path.suffix not in (".so", ".pyc"):
                archive.write(path, path.relative_to(PACKAGE.parent))
    ran = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "kstore.zip")},
        capture_output=True, text=True,
    )  # fmt: skip
    assert (ran.stdout, ran.returncode) == ("unchanged\n", 0), ran.stderr
