from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commandline import REPOSITORY, Cli
from tests.compilers.programs import QUICK, temporary_folder


def test_without_torch_it_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.environment.software.torch_folder", lambda: None)
    result = cli("demo")

    assert (result.code, result.out) == (1, "")
    assert "pip install torch" in result.err


def test_what_goes_wrong_in_its_program_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(broken_torch(cli.folder)))
    result = cli.process("demo")

    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines()[-1] == "kstore: the demo's program failed: RuntimeError: no such luck"


def broken_torch(folder: Path) -> Path:
    package = folder / "path" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('no such luck')")
    return package.parent


def test_no_settings_of_the_users_are_read(cli: Cli) -> None:
    """Otherwise its program would fail because of the setting rather than because of torch."""
    project, temporary = cli.folder / "project", cli.folder / "tmp"
    project.mkdir()
    temporary.mkdir()
    (project / "kstore.toml").write_text("nonsense = true\n")
    path = f"{broken_torch(cli.folder)}:{REPOSITORY}"
    done = subprocess.run(
        [sys.executable, "-m", "kstore", "demo"], cwd=project, capture_output=True, text=True, timeout=120,
        check=False, env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(temporary)},
    )  # fmt: skip

    assert "RuntimeError: no such luck" in done.stderr


@pytest.mark.compiler
@pytest.mark.slow
def test_a_restored_model_compiles_nothing_and_gives_the_same_output(cli: Cli) -> None:
    temporary = cli.folder / "tmp"
    result = cli.process("demo", "--keep", "--json", env={**os.environ, **QUICK, **temporary_folder(temporary)})
    content = result.json

    assert result.code == 0, result.err
    assert content["equal_outputs"] is True
    assert (content["cold"]["restore"]["status"], content["restored"]["restore"]["status"]) == ("miss", "restored")
    assert content["cold"]["compiled"] >= 1 and content["restored"]["compiled"] == 0
    assert content["cold"]["commit"]["new_files"] > 1 and content["restored"]["commit"]["new_files"] == 0
    assert Path(content["folder"]).parent == temporary
    assert (Path(content["folder"]) / "store" / "kstore.json").exists()


@pytest.mark.compiler
@pytest.mark.exhaustive
def test_its_table_fits_80_columns_and_its_folder_goes(cli: Cli) -> None:
    temporary = cli.folder / "tmp"
    temporary.mkdir()
    result = cli.process("demo", env={**os.environ, "TMPDIR": str(temporary)})

    assert result.code == 0, result.err
    assert result.out.splitlines()[0].split() == ["COLD", "RESTORED"]
    assert "first call" in result.out and "outputs   equal" in result.out
    assert max(map(len, result.out.splitlines())) <= 80
    assert not list(temporary.glob("kstore-demo-*"))
