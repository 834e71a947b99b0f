from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstore.environment import Environment
from kstore.errors import FileError
from kstore.integrations import fal
from kstore.report import CommitReport
from kstore.store import Store
from tests.cli.commandline import ENVIRONMENT, GPU, Cli


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: object) -> Path:
    """fal's folder, on a worker whose GPU fal calls H100."""
    monkeypatch.setattr(fal, "old_gpu_type", lambda: "H100")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / "inductor-caches"


def put(folder: Path, name: str, *modules: str) -> Path:
    """Make a zip with these generated modules."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for module in modules or ("cone",):
            archive.writestr(f"ab/{module}.py", module)
    return path


def keys(cli: Cli) -> dict[str, int]:
    """Key → how many files are published for this GPU and environment."""
    scopes = cli("ls", "--json").json["scopes"]
    assert {(scope["gpu"], scope["environment"]) for scope in scopes} <= {(GPU, ENVIRONMENT)}
    return {scope["key"]: scope["files"] for scope in scopes}


def test_every_zip_of_this_gpu_becomes_a_key(cli: Cli, folder: Path) -> None:
    put(folder, "H100/flux/2.zip", "cone", "ctwo")
    put(folder, "H100/sdxl.zip")
    result = cli("import", "fal", str(folder))

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("committed flux/2 generation 1: 2 new files of 2, ")
    assert keys(cli) == {"flux/2": 2, "sdxl": 1}


def test_zips_of_earlier_versions_without_a_gpu_are_imported_too(cli: Cli, folder: Path) -> None:
    put(folder, "sdxl.zip")
    put(folder, "flux/2.zip")

    assert cli("import", "fal", str(folder)).code == 0
    assert keys(cli) == {"flux/2": 1, "sdxl": 1}


def test_a_key_may_be_named_like_a_gpu_or_be_in_a_folder_that_ends_like_a_zip(cli: Cli, folder: Path) -> None:
    for name in ("H100.zip", "A100.zip", "sdxl.zip/v1.zip"):
        put(folder, name)

    assert cli("import", "fal", str(folder)).code == 0
    assert keys(cli) == {"H100": 1, "A100": 1, "sdxl.zip/v1": 1}


def test_this_gpu_s_zip_goes_before_one_without_a_gpu(cli: Cli, folder: Path) -> None:
    put(folder, "H100/flux.zip", "cone", "ctwo")
    put(folder, "flux.zip", "cone")
    imported = cli("import", "fal", str(folder), "--json").json["imported"]

    assert [(report["new_files"], report["status"]) for report in imported] == [(2, "committed"), (0, "unchanged")]


def test_zips_of_other_gpus_are_left_and_named(cli: Cli, folder: Path) -> None:
    put(folder, "H100/flux/2.zip")
    put(folder, "A100/flux/2.zip", "cother")
    result = cli("import", "fal", str(folder))

    assert (result.code, keys(cli)) == (0, {"flux/2": 1})
    assert "the zips for A100 are left: import them on workers with these GPUs" in result.err


def test_zips_of_another_gpu_can_be_requested(cli: Cli, folder: Path) -> None:
    put(folder, "A100/flux/2.zip")
    result = cli(
        "import", "fal", str(folder), "--gpu-folder", "A100", "--gpu", "nvidia-a100-sm80", "--environment", "torch9",
        "--json",
    )  # fmt: skip

    (imported,) = result.json["imported"]
    assert (imported["gpu"], imported["environment"], imported["status"]) == ("nvidia-a100-sm80", "torch9", "committed")


def test_a_zip_can_be_imported_again(cli: Cli, folder: Path) -> None:
    put(folder, "H100/flux.zip")
    cli("import", "fal", str(folder))
    assert cli("import", "fal", str(folder)).out.startswith("nothing new for flux: generation 1 has everything")
    put(folder, "H100/flux.zip", "cone", "ctwo")

    assert cli("import", "fal", str(folder)).code == 0
    assert keys(cli) == {"flux": 2}


def test_a_key_that_a_store_cannot_have_is_the_one_that_a_load_asks_for(cli: Cli, folder: Path) -> None:
    put(folder, "H100/FLUX.1 [dev].zip")
    cli("import", "fal", str(folder))

    assert list(keys(cli)) == [fal.store_key("FLUX.1 [dev]")]


def test_a_damaged_zip_does_not_keep_the_others_out(cli: Cli, folder: Path) -> None:
    put(folder, "H100/a.zip").write_bytes(b"no zip")
    put(folder, "H100/b.zip")
    result = cli("import", "fal", str(folder), "--json")

    assert result.code == 4
    assert [Path(failure["archive"]).name for failure in result.json["failed"]] == ["a.zip"]
    assert [imported["key"] for imported in result.json["imported"]] == ["b"]
    assert "warning" in result.err


def test_a_zip_that_cannot_be_read_does_not_keep_the_others_out(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt_old = fal.adopt_old

    def adopt(store: Store, key: str, archive: Path) -> CommitReport:
        if key == "a":
            raise FileError(f"{archive} cannot be unpacked")
        return adopt_old(store, key, archive)

    put(folder, "H100/a.zip")
    put(folder, "H100/b.zip")
    monkeypatch.setattr(fal, "adopt_old", adopt)

    assert cli("import", "fal", str(folder)).code == 1
    assert keys(cli) == {"b": 1}


def closed(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Path:
    """Make a folder that only another user may list."""
    scandir, path = os.scandir, folder / name
    path.mkdir(parents=True)

    def listed(top: str | int = ".") -> Iterator[os.DirEntry[str]]:
        if top == str(path):
            raise PermissionError(errno.EACCES, "Permission denied", top)
        return scandir(top)

    monkeypatch.setattr(os, "scandir", listed)
    return path


@pytest.mark.parametrize("name", ["H100", "H100/team", "team"])
def test_a_folder_that_cannot_be_listed_is_named_and_does_not_keep_the_others_out(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = closed(folder, monkeypatch, name)
    put(folder, "a.zip")
    result = cli("import", "fal", str(folder), "--json")

    assert result.code == 1
    assert f"{path} cannot be listed: Permission denied" in result.err
    assert [failure["archive"] for failure in result.json["failed"]] == [str(path)]
    assert keys(cli) == {"a": 1}


def test_a_closed_folder_alone_is_not_an_empty_one(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(folder, monkeypatch, "H100")
    result = cli("import", "fal", str(folder))

    assert (result.code, "there is no zip" in result.err) == (1, False)


def test_what_another_gpu_s_closed_folder_holds_is_not_for_this_worker(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed(folder, monkeypatch, "A100")
    put(folder, "H100/a.zip")
    result = cli("import", "fal", str(folder))

    assert (result.code, result.err) == (0, "")


def test_what_is_left_behind_is_counted_and_with_v_named(cli: Cli, folder: Path) -> None:
    put(folder, "H100/a.zip", "cone")
    with zipfile.ZipFile(folder / "H100/a.zip", "a") as archive:
        archive.writestr("ab/cone.main.so", b"\x7fELF")
    result = cli("import", "fal", str(folder), "-v")

    assert "1 file of" in result.err
    assert "left out inductor/ab/cone.main.so: nobody knows which host it was built on" in result.err


def test_a_missing_folder_is_reported_as_missing(cli: Cli, folder: Path) -> None:
    result = cli("import", "fal", str(folder / "missing"))

    assert result.code == 1
    assert f"there is no folder {folder}/missing" in result.err


def test_without_a_zip_it_is_a_miss_that_names_the_other_gpus(cli: Cli, folder: Path) -> None:
    put(folder, "A100/flux.zip")
    result = cli("import", "fal", str(folder))

    assert (result.code, result.out) == (3, "")
    assert "only for A100; --gpu-folder chooses one" in result.err


def test_without_torch_the_scope_must_be_said(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder, "H100/flux.zip")
    monkeypatch.delenv("KSTORE_ENVIRONMENT")
    monkeypatch.setattr(Store, "environment", Environment("none", {"torch": "none"}))

    assert cli("import", "fal", str(folder)).code == 2
    assert cli("import", "fal", str(folder), "--environment", "torch9").code == 0


def test_a_worker_that_may_only_read_imports_nothing(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder, "H100/flux.zip")
    monkeypatch.setenv("KSTORE_MODE", "read")
    result = cli("import", "fal", str(folder))

    assert result.code == 1
    assert "mode is `read`" in result.err
