from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from kstore.environment import Environment
from kstore.integrations.b10 import variables
from tests.cli.commandline import Cli

OWN = "0123456789abcdef"
OTHER = "fedcba9876543210"


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A deployment's folder, with archives for two kinds of GPU; the first is this worker's kind."""
    monkeypatch.setattr("kstore.integrations.b10.archives.archive_key", lambda: OWN)
    monkeypatch.setattr(variables, "VOLUME", str(tmp_path / "cache/model"))
    folder = tmp_path / "cache/model/flux"
    folder.mkdir(parents=True)
    monkeypatch.setenv("B10FS_CACHE_DIR", str(folder))
    for key in (OWN, OTHER):
        make_archive(folder / f"cache_{key}.latest.tar.gz", key)
    return folder


def make_archive(path: Path, name: str) -> None:
    """As `tar -C folder .` makes it."""
    folder = path.with_suffix(".d")
    (folder / "ab").mkdir(parents=True)
    (folder / "ab" / f"c{name}.py").write_text(name)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, ".")


def stored(cli: Cli, key: str, *options: str) -> set[str]:
    root = cli.folder / f"restored-{key.replace('/', '-')}"
    assert cli("restore", key, "--require", "--cache-root", str(root), *options).code == 0
    return {str(path.relative_to(root)) for path in root.rglob("*.py")}


def test_the_archive_for_this_hardware_is_imported(cli: Cli, volume: Path) -> None:
    result = cli("import", "b10")

    assert result.code == 0, result.err
    assert result.out.startswith("committed b10/flux generation 1: 1 new file of 1, ")
    assert stored(cli, "b10/flux") == {f"inductor/ab/c{OWN}.py"}
    assert len(list(volume.glob("*.tar.gz"))) == 2


def test_without_a_store_of_your_own_it_goes_beside_the_archives(
    cli: Cli, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KSTORE_ROOT")

    assert cli("import", "b10", str(volume)).code == 0
    assert stored(cli, "b10/flux", "--store", str(volume / "kstore")) == {f"inductor/ab/c{OWN}.py"}


def test_an_archive_can_be_named_and_its_worker_and_key(cli: Cli, volume: Path) -> None:
    archive = volume / f"cache_{OTHER}.latest.tar.gz"
    options = ["--gpu", "nvidia-other-sm90", "--environment", "torch-other"]
    result = cli("import", "b10", str(archive), "--key", "flux/v1", *options, "--json")

    assert (result.json["archive"], result.json["status"], result.json["new_files"]) == (str(archive), "committed", 1)
    assert stored(cli, "flux/v1", *options) == {f"inductor/ab/c{OTHER}.py"}


@pytest.mark.parametrize("source", [".", f"cache_{OWN}.latest.tar.gz"])
def test_the_key_and_the_store_are_those_of_the_archive_s_folder(
    cli: Cli, volume: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.delenv("KSTORE_ROOT")
    monkeypatch.chdir(volume)

    assert cli("import", "b10", source).code == 0
    assert stored(cli, "b10/flux", "--store", str(volume / "kstore")) == {f"inductor/ab/c{OWN}.py"}


def test_a_store_can_be_named(cli: Cli, volume: Path, tmp_path: Path) -> None:
    assert cli("import", "b10", "--store", str(tmp_path / "other")).code == 0
    assert stored(cli, "b10/flux", "--store", str(tmp_path / "other")) == {f"inductor/ab/c{OWN}.py"}


def test_an_archive_of_vllm_goes_where_vllm_looks(cli: Cli, volume: Path) -> None:
    assert cli("import", "b10", "--vllm", "--built-under", "/home/app/.cache/vllm").code == 0
    assert stored(cli, "b10/flux") == {f"vllm/ab/c{OWN}.py"}


def test_importing_again_changes_nothing(cli: Cli, volume: Path) -> None:
    cli("import", "b10")

    assert cli("import", "b10", "--json").json["status"] == "unchanged"


def test_a_folder_without_an_archive_for_this_hardware_is_a_miss_that_names_the_others(cli: Cli, volume: Path) -> None:
    (volume / f"cache_{OWN}.latest.tar.gz").unlink()
    result = cli("import", "b10")

    assert result.code == 3
    assert f"name one of cache_{OTHER}.latest.tar.gz, with --gpu and --environment" in result.err


def test_a_missing_folder_is_reported_as_missing(cli: Cli, volume: Path, tmp_path: Path) -> None:
    result = cli("import", "b10", str(tmp_path / "missing"))

    assert result.code == 1
    assert f"there is no folder or file {tmp_path}/missing" in result.err


def test_a_folder_without_archives_is_a_miss(cli: Cli, volume: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    assert cli("import", "b10", str(tmp_path / "empty")).code == 3


def test_a_damaged_archive_is_an_error(cli: Cli, volume: Path) -> None:
    archive = volume / f"cache_{OWN}.latest.tar.gz"
    archive.write_bytes(archive.read_bytes()[:-20])
    result = cli("import", "b10", "--json")

    assert result.code != 0
    assert str(archive) in json.loads(result.out)["error"]["message"]


def test_a_worker_that_only_reads_imports_nothing(cli: Cli, volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSTORE_MODE", "read")

    assert cli("import", "b10").code == 1


def test_without_torch_it_must_be_said_whose_kernels_they_are(
    cli: Cli, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KSTORE_ENVIRONMENT")
    facts = Environment("no-torch", {"torch": "none"})
    monkeypatch.setattr("kstore.origin.detect_environment", lambda *_: facts)
    result = cli("import", "b10")

    assert result.code == 2
    assert "--environment" in result.err


def test_a_variable_out_of_bounds_is_an_error(cli: Cli, volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("B10FS_CACHE_DIR", "/elsewhere")
    result = cli("import", "b10")

    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "B10FS_CACHE_DIR is '/elsewhere'" in result.err
