from __future__ import annotations

import errno
import os
import resource
import sys
from pathlib import Path

import pytest

from kstore.storage import Storage
from tests.cli.commandline import Cli
from tests.faults.reading import unlistable
from tests.trees import listing


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pytest.importorskip("plotly", reason="plotly is not installed")
    return tmp_path / "report.html"


def test_it_writes_a_page(cli: Cli, path: Path) -> None:
    cli.publish("my/v1", "one")
    result = cli("report", "-o", str(path))

    assert result.code == 0
    assert f"{path}: 1 key" in result.out
    assert "my/v1" in path.read_text()


def test_the_stores_path_need_not_be_text(cli: Cli, path: Path) -> None:
    store = path.with_name(os.fsdecode(b"not-text-\xff"))
    Storage(store).create()
    assert cli("report", "-o", str(path), "--store", str(store)).code == 0
    assert "not-text-?" in path.read_text()


def test_where_it_cannot_be_written_the_page_before_stays(cli: Cli, path: Path) -> None:
    cli.publish("my/v1", "one")
    path.write_text("the page before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # A full disk looks the same.
    try:
        result = cli("report", "-o", str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert (result.code, path.read_text()) == (1, "the page before")
    assert f"cannot write {path}.partial: {os.strerror(errno.EFBIG)}" in result.err
    assert [child.name for child in path.parent.iterdir() if "partial" in child.name] == []


def test_a_target_that_is_not_a_regular_file_is_written_in_place(cli: Cli, path: Path) -> None:
    cli.publish("my/v1", "one")
    path.symlink_to(os.devnull)

    assert cli("report", "-o", str(path)).code == 0
    assert path.is_symlink()


def test_json_says_where(cli: Cli, path: Path) -> None:
    cli.publish("my/v1", "one")
    cli.publish("my/v2", "two")
    cli("forget", "my/v2")
    cli("gc", "--offline")
    content = cli("report", "-o", str(path), "--json").json

    assert (content["file"], content["keys"]) == (str(path), 1)
    assert content["bytes"] == path.stat().st_size


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_stdout_gets_the_page_and_nothing_else(cli: Cli, name: str) -> None:
    cli.publish("my/v1", "one")
    for options in ((), ("--json",)):
        result = cli.process("report", "-o", name, *options, cwd=cli.folder)

        assert result.code == 0, result.err
        assert result.out.startswith("<!") and result.out.rstrip().endswith("</html>")
        assert (f'"file": "{name}"' if options else f"kstore: {name}: 1 key") in result.err
    assert not (cli.folder / "-").exists()


def test_a_worker_that_only_reads_writes_nothing_to_the_store(
    cli: Cli, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.publish("my/v1", "one")
    before = listing(cli.store)
    monkeypatch.setenv("KSTORE_MODE", "read")

    assert cli("report", "-o", str(path)).code == 0
    assert listing(cli.store) == before
    assert '"gc":null' in path.read_text()


def test_a_worker_that_may_not_write_writes_nothing_to_the_store(
    cli: Cli, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.publish("my/v1", "one")
    before = listing(cli.store)
    monkeypatch.setattr(Storage, "clock", refuse)

    assert cli("report", "-o", str(path)).code == 0
    assert listing(cli.store) == before
    assert '"gc":null' in path.read_text()


def refuse(storage: Storage) -> int:
    raise PermissionError(13, "Permission denied")


def test_without_plotly_nothing_is_written(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.publish("my/v1", "one")
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    monkeypatch.setattr(Storage, "open_existing", lambda storage: pytest.fail("the store is read"))
    path = tmp_path / "report.html"
    result = cli("report", "-o", str(path))

    assert result.code == 1
    assert "pip install plotly" in result.err
    assert not path.exists()


@pytest.mark.parametrize(("name", "why"), [("missing/report.html", "there is no folder"), ("", "it is a folder")])
def test_where_no_file_can_be_the_store_is_not_read(
    cli: Cli, path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    monkeypatch.setattr(Storage, "open_existing", lambda storage: pytest.fail("the store is read"))
    result = cli("report", "-o", str(path.parent / name))

    assert result.code == 2
    assert why in result.err


def test_a_store_that_cannot_be_listed_is_named_with_the_reason(
    cli: Cli, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.publish("my/v1")
    unlistable(monkeypatch, "packs")
    result = cli("report", "-o", str(path))

    assert (result.code, path.exists()) == (1, False)
    assert f"cannot read the store at {cli.store}: " in result.err


def test_a_full_disk_is_an_error_that_names_the_file(cli: Cli, path: Path) -> None:
    cli.publish("my/v1")
    result = cli("report", "-o", "/dev/full")

    assert result.code == 1
    assert "cannot write /dev/full: No space left on device" in result.err
