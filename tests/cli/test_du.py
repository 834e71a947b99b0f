from __future__ import annotations

from pathlib import Path

import pytest

from kstore.words import size
from tests.cli.commandline import ENVIRONMENT, GPU, Cli
from tests.faults.reading import unlistable


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_what_a_key_alone_frees_and_what_it_shares(cli: Cli) -> None:
    cli.publish("my/v1", "one", "two")
    cli.publish("my/v2", "two", "three")
    content = cli("du", "--json").json

    keys = {row["key"]: row for row in content["keys"]}
    assert keys["my/v1"]["shared"] == keys["my/v2"]["shared"] == len("two")
    assert keys["my/v1"]["alone"] == keys["my/v1"]["stored"] - len("two")
    assert content["objects"]["bytes"] == content["total"]["stored"] == bytes_in(cli.store / "blobs")


def test_forgetting_and_gc_free_what_was_said(cli: Cli) -> None:
    cli.publish("my/v1", "one", "two")
    cli.publish("my/v2", "two", "three")
    (row,) = cli("du", "my/v1", "--json").json["keys"]
    before = bytes_in(cli.store / "blobs")
    assert cli("forget", "my/v1").code == 0
    assert cli("gc", "--offline").code == 0

    assert before - bytes_in(cli.store / "blobs") == row["alone"]


def test_a_table_for_people(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    cli.publish("my/v2", "two")
    result = cli("du")

    assert result.code == 0
    assert result.out.splitlines()[0].split()[:3] == ["KEY", "GENS", "FILES'"]
    assert "my/v1" in result.out and "my/v2" in result.out
    assert "needed: " in result.out and "in the store: 4 files" in result.out


def test_the_key_that_frees_most_comes_first(cli: Cli) -> None:
    for number, names in enumerate((["one"], ["one", "two", "three"], ["one", "four"])):
        cli.publish(f"my/v{number}", *names)

    assert [line.split()[0] for line in cli("du").out.splitlines()[1:4]] == ["my/v1", "my/v2", "my/v0"]


def test_what_nothing_needs_is_told_and_who_deletes_it(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    assert "not needed" not in cli("du").out
    ref = cli.store / f"refs/{GPU}/my/v1/@{ENVIRONMENT}/1"
    ref.chmod(0o644)
    ref.write_text("damaged")
    assert f"not needed: 2 files, {size(bytes_in(cli.store / 'blobs'))}; what cannot be read may" in cli("du").out
    ref.unlink()
    assert "; gc deletes them" in cli("du").out


def test_one_key_is_told_by_itself(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    cli.publish("my/v2", "two")
    result = cli("du", "my/v1")

    assert "my/v1" in result.out and "my/v2" not in result.out


def test_a_key_that_does_not_exist_is_a_miss(cli: Cli) -> None:
    cli.publish("my/v1")

    assert cli("du", "your/v1").code == 3


@pytest.mark.parametrize("command", ["du", "stats"])
@pytest.mark.parametrize("key", ["my/", "a b", "../up"])
def test_text_that_is_not_a_key_is_a_usage_error(cli: Cli, command: str, key: str) -> None:
    cli.publish("my/v1")
    result = cli(command, key)

    assert result.code == 2
    assert f"key {key!r} is not made of parts" in result.err


def test_an_empty_store_holds_nothing(cli: Cli) -> None:
    cli("init")
    result = cli("du")

    assert result.code == 0
    assert "in the store: 0 files" in result.out


def test_what_is_lost_is_named(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    before = cli("du", "--json").json["total"]["stored"]
    (lost,) = (path for path in (cli.store / "blobs").rglob("*") if path.is_file() and path.read_bytes() == b"one")
    lost.unlink()

    for command in ("du", "stats"):
        result = cli(command)
        assert result.code == 4
        assert "1 lost blob, 3 bytes; `kstore verify` says of what" in result.err
    assert cli("du", "--json").json["total"]["stored"] == before - len("one")


def test_a_key_of_which_only_a_folder_is_left_is_a_miss(cli: Cli) -> None:
    cli.publish("my/v1")
    (cli.store / f"refs/{GPU}/my/v1/@{ENVIRONMENT}/1").unlink()
    result = cli("du", "my/v1")

    assert (result.code, result.out) == (3, "")


@pytest.mark.parametrize("command", ["du", "stats"])
@pytest.mark.parametrize("folder", ["packs", "blobs"])
def test_a_store_that_cannot_be_listed_is_named_with_the_reason(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str, folder: str
) -> None:
    cli.publish("my/v1")
    unlistable(monkeypatch, folder)
    result = cli(command)

    assert (result.code, result.out) == (1, "")
    assert f"cannot read the store at {cli.store}: " in result.err


def test_what_cannot_be_read_is_named(cli: Cli) -> None:
    cli.publish("my/v1")
    ref = cli.store / f"refs/{GPU}/my/v1/@{ENVIRONMENT}/1"
    ref.chmod(0o644)
    ref.write_text("damaged")

    assert cli("du").code == 4
