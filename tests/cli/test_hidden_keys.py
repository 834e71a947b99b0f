"""A folder that another user hides, as one of a worker whose umask keeps others out, hides only what is in it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from kstore.cli.keys import keys_beginning
from kstore.cli.options import Invocation
from kstore.digest import digest_of
from tests.cli.commandline import ENVIRONMENT, GPU, Cli
from tests.faults.reading import raising, trouble_with, unlistable

HIDDEN = (f"refs/{GPU}/my/v2", f"refs/{GPU}/my/v2/@{ENVIRONMENT}")
"""A folder of keys, and what one key has for one environment."""
REFUSED = PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@pytest.fixture(params=HIDDEN, ids=["keys", "scope"])
def hidden(request: pytest.FixtureRequest, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> str:
    cli.publish("my/v1", "one")
    cli.publish("my/v2", "two")
    folder: str = request.param
    unlistable(monkeypatch, folder, PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder))
    return folder


@pytest.mark.parametrize("command", ["stats", "du"])
def test_statistics_say_what_they_lack(cli: Cli, hidden: str, command: str) -> None:
    result = cli(command)

    assert result.code == 4
    assert "my/v1" in result.out
    (line,) = result.err.splitlines()
    assert "warning: cannot be read, and is not counted: my/v2" in line and "Permission denied" in line


@pytest.mark.parametrize("command", ["stats", "du"])
def test_nobody_is_told_that_a_hidden_key_does_not_exist(cli: Cli, hidden: str, command: str) -> None:
    result = cli(command, "my/v2")

    assert (result.code, result.out) == (1, "")
    assert "Permission denied" in result.err and "nothing is published" not in result.err


def test_statistics_of_another_key_lack_nothing(cli: Cli, hidden: str) -> None:
    assert cli("stats", "my/v1").code == 0


@pytest.mark.parametrize("folder", [f"refs/gpu-other/{name}" for name in ("my/v1", f"my/v1/@{ENVIRONMENT}")])
@pytest.mark.parametrize("command", ["show", "verify", "copy"])
def test_what_is_hidden_of_a_key_hides_no_other_of_its_scopes(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str, folder: str
) -> None:
    cli.publish("my/v1", "one")
    with monkeypatch.context() as patch:
        patch.setenv("KSTORE_GPU", "gpu-other")
        cli.publish("my/v1", "two")
    monkeypatch.delenv("KSTORE_GPU")
    unlistable(monkeypatch, folder, PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder))
    result = cli(command, *([str(cli.store), str(cli.folder / "other")] if command == "copy" else []), "my/v1")

    assert result.code == (4 if command == "verify" else 1)
    (line,) = (line for line in (result.out + result.err).splitlines() if "Permission denied" in line)
    assert folder in line
    what = {"show": GPU, "verify": "of 1 generation,", "copy": f"copied my/v1 ({GPU},"}
    assert what[command] in result.out


def test_a_named_key_that_is_hidden_keeps_no_other_from_being_copied(cli: Cli, hidden: str) -> None:
    result = cli("copy", str(cli.store), str(cli.folder / "other"), "my/v2", "my/v1")

    assert result.code == 1
    assert f"copied my/v1 ({GPU}," in result.out and "copied my/v2" not in result.out
    (line,) = result.err.splitlines()
    assert "my/v2" in line and "is not copied: " in line and "Permission denied" in line and hidden in line


def test_a_repair_of_a_key_changes_nothing_if_part_of_it_is_hidden(cli: Cli, hidden: str) -> None:
    result = cli("verify", "--repair", "my/v2")

    assert (result.code, result.out) == (1, "")
    assert "Permission denied" in result.err


def test_one_ref_that_cannot_be_read_hides_no_other_generation(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for names in (["one"], ["one", "two"]):
        cli.publish("my/v1", *names)
    trouble_with(monkeypatch, f"refs/{GPU}/my/v1/@{ENVIRONMENT}/2", REFUSED)
    result = cli("show", "my/v1", "--json")

    assert result.code == 1
    assert "Permission denied" in result.err
    assert [row["generation"] for row in result.json["scopes"][0]["generations"]] == [1]


def test_a_report_says_what_it_lacks_and_that_gc_cannot_tell(cli: Cli, hidden: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    result = cli("report", "-o", str(path))

    assert result.code == 4
    assert "cannot be read, and is not counted: my/v2" in result.err
    assert '"my/v1"' in path.read_text()
    assert '"gc":null' in path.read_text()


def test_a_shell_is_offered_the_other_keys(cli: Cli, hidden: str) -> None:
    assert "my/v1" in keys_beginning(Invocation(), "my/")


@pytest.mark.parametrize("command", [("stats",), ("report",)])
@pytest.mark.parametrize("folder", [f"stats/{GPU}/my/v2/@{ENVIRONMENT}", "stats/@misses"])
def test_hidden_counts_of_restores_hide_nothing_else(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], folder: str
) -> None:
    for key in ("my/v1", "my/v2"):
        cli.publish(key, key[-1])
        assert cli("restore", key, "--cache-root", f"{cli.cache_root}/{key}").code == 0
    unlistable(monkeypatch, folder, REFUSED)
    monkeypatch.chdir(cli.folder)
    result = cli(*command, "--json")

    assert result.code == 4
    (warning,) = (line for line in result.err.splitlines() if "warning" in line)
    assert ("the misses: " if "misses" in folder else "the hits of my/v2 (") in warning
    if command == ("stats",):
        rows = {row["key"]: row for row in result.json["keys"]}
        assert [rows[key]["generations"] for key in ("my/v1", "my/v2")] == [1, 1]
        assert (rows["my/v1"]["hits"], rows["my/v2"]["hits"]) == (1, int("misses" in folder))
        assert result.json["unreadable"] == [warning.partition("not counted: ")[2]]


def test_what_hides_all_counts_of_restores_is_said_once(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        cli.publish(f"my/v{number}")
        unlistable(monkeypatch, f"stats/{GPU}/my/v{number}/@{ENVIRONMENT}", REFUSED)
    (warning,) = cli("stats").err.splitlines()

    assert "the hits of my/v0 (" in warning and warning.endswith("and 2 other scopes")


def test_one_ref_that_cannot_be_read_costs_no_other(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.publish("my/v1", "one")
    cli.publish("my/v1", "one", "two")
    trouble_with(monkeypatch, f"refs/{GPU}/my/v1/@{ENVIRONMENT}/1", REFUSED)
    result = cli("stats", "--json")

    assert result.code == 4
    assert [(row["generations"], row["commits"]["published"]) for row in result.json["keys"]] == [(1, 2)]
    (trouble,) = result.json["unreadable"]
    assert trouble.startswith("generation 1 of my/v1 (")


def test_what_was_missed_below_a_hidden_folder_is_not_listed_again(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.publish("my/v1")
    for key in ("no/v1", "no/v2"):
        cli("restore", key, "--cache-root", str(cli.cache_root))
    for folder in (f"refs/{GPU}", *(f"refs/{GPU}/no/{name}/@{ENVIRONMENT}" for name in ("v1", "v2"))):
        unlistable(monkeypatch, folder, REFUSED)
    result = cli("stats", "--json")

    (trouble,) = result.json["unreadable"]
    assert trouble.startswith(f"every key ({GPU})")
    assert result.json["keys"] == []


@pytest.mark.parametrize("command", [("stats",), ("du",), ("report",)])
def test_hidden_loose_blobs_hide_no_others(cli: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    cli.publish("my/v1", "one")
    names = ["two", "three", "four", "five"]
    cli.publish("my/v2", *names)
    folders = {name: f"blobs/{digest_of(name.encode()).hex()[:2]}" for name in names}
    hidden = [name for name in names if len(os.listdir(cli.store / folders[name])) == 1][:2]  # none has a manifest too
    for name in hidden:
        unlistable(monkeypatch, folders[name], REFUSED)
    monkeypatch.chdir(cli.folder)
    result = cli(*command, "--json")

    assert result.code == 4
    (warning,) = (line for line in result.err.splitlines() if "warning" in line)
    assert any(f"{folders[name]}: " in warning for name in hidden) and warning.endswith("and 1 other folder")
    if command == ("du",):
        rows = {row["key"]: row for row in result.json["keys"]}
        assert [rows[key]["elsewhere"] for key in ("my/v1", "my/v2")] == [0, len("".join(hidden))]
        assert result.json["objects"]["files"] == 1 + len(names) + 2 - len(hidden)


def test_a_key_whose_manifest_cannot_be_read_exists(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.publish("my/v1")
    monkeypatch.setattr("kstore.published.fetched.read_manifest", raising(REFUSED))
    result = cli("du", "my/v1")

    assert result.code == 4
    assert "generation 1 of my/v1" in result.err and "nothing is published" not in result.err


@pytest.mark.parametrize("command", ["ls", "du", "stats", "verify", "copy"])
@pytest.mark.parametrize("layout", ["loose", "packed"])
def test_a_store_that_has_lost_the_folder_of_all_refs_is_neither_empty_nor_intact(
    cli: Cli, command: str, layout: str
) -> None:
    """gc and a repair end there."""
    cli.write("inductor/ab/cone.py")
    assert cli("commit", "my/v1", "--layout", layout).code == 0
    shutil.rmtree(cli.store / "refs")
    result = cli(command, *([str(cli.store), str(cli.folder / "other")] if command == "copy" else []))

    assert result.code in (1, 4)
    said = result.out + result.err
    assert f"{cli.store}/refs" in said and "No such file" in said
    assert not any(text in said for text in ("is empty", "gc deletes them", "everything is intact", "nothing to copy"))


@pytest.mark.parametrize("command", ["show", "files", "verify", "du", "stats", "forget", "pin"])
def test_of_such_a_store_nobody_is_told_that_a_key_was_never_published(cli: Cli, command: str) -> None:
    cli.publish("my/v1")
    shutil.rmtree(cli.store / "refs")
    result = cli(command, "my/v1", *(["1"] if command == "pin" else []))

    assert (result.code, result.out) == (1, "")
    assert f"No such file or directory ({cli.store}/refs)" in result.err
    assert not (cli.store / "refs").exists()
