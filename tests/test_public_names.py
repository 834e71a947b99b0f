from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kstore
from tests.trees import Tree

USES = {
    "each function twice": "for _ in range(2):\n    kstore.restore('k', **where)\n    kstore.commit('k', **where)",
    "after a Store": "kstore.Store(where['store'], cache_root=where['cache_root']).restore('k')\n"
    "kstore.restore('k', **where)",
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_functions_stay_functions_however_often_they_are_used(tmp_path: Path, use: str) -> None:
    """A submodule replaces a function of the same name as soon as it is imported."""
    Tree(tmp_path / "root").wrapper()
    code = f"import kstore, sys\nwhere = dict(store=sys.argv[1], cache_root=sys.argv[2])\n{use}"
    command = [sys.executable, "-c", code, tmp_path / "store", tmp_path / "root"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_kstore_imports_neither_torch_nor_the_rest() -> None:
    code = "import kstore, sys; print(*(m for m in ('torch', 'lmdb', 'click', 'kstore.store') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_only_live_commits_import_what_watches() -> None:
    code = "import kstore.api, kstore.job, kstore.cli.exec, sys; print('watchdog' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_every_public_name_is_listed() -> None:
    assert set(kstore.__all__) <= set(dir(kstore))


@pytest.mark.parametrize("name", kstore.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(kstore, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        kstore.nonsense  # noqa: B018
