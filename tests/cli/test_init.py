from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from tests.cli.commandline import Cli


def test_it_makes_a_store_and_says_what_to_do_next(cli: Cli) -> None:
    result = cli("init")

    assert result.code == 0
    assert result.out == f"made a store in {cli.store}; what is superseded is kept for 1 h\n"
    assert result.err.startswith("kstore: next")
    assert json.loads((cli.store / "kstore.json").read_text())["grace"] == 3600


def test_power_that_fails_leaves_a_store_its_settings(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[int]()
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *_: written.append(os.fstat(fd).st_ino))
    cli("init")

    assert written == [(cli.store / "kstore.json").stat().st_ino]


def test_without_posix_fadvise_a_store_is_made_all_the_same(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, *_: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "posix_fadvise", refuse)

    assert cli("init").code == 0


def test_a_store_that_exists_is_left_as_it_is(cli: Cli) -> None:
    cli("init")
    before = (cli.store / "kstore.json").read_text()
    results = [cli("init"), cli("init", "--grace", "1h")]

    assert [result.code for result in results] == [0, 0]
    assert all("is already a store" in result.out for result in results)
    assert (cli.store / "kstore.json").read_text() == before


@pytest.mark.parametrize(
    ("grace", "advice"),
    [("5h", "for a longer one: `kstore gc --grace 18000s`, each time"), ("5m", "for a shorter one: end all workers")],
)
def test_the_grace_of_an_existing_store_is_not_changed(cli: Cli, grace: str, advice: str) -> None:
    cli.publish("my/v1")  # which makes the store
    before = (cli.store / "kstore.json").read_text()
    result = cli("init", "--grace", grace)

    assert (result.code, result.out) == (2, "")
    assert f"{cli.store} is already a store and keeps its grace of 3600 s, not" in result.err
    assert advice in result.err
    assert (cli.store / "kstore.json").read_text() == before


def test_a_worker_that_only_reads_leaves_a_store_as_it_is_and_makes_none(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSTORE_MODE", "read")
    assert (cli("init").code, cli.store.exists()) == (1, False)
    monkeypatch.delenv("KSTORE_MODE")
    cli("init")
    monkeypatch.setenv("KSTORE_MODE", "read")

    assert "is already a store" in cli("init").out


def test_the_grace_is_a_duration(cli: Cli) -> None:
    assert cli("init", "--grace", "2d", "--json").json["grace"] == 2 * 86400


def test_a_grace_that_is_not_a_duration_is_a_usage_error(cli: Cli) -> None:
    result = cli("init", "--grace", "soon")

    assert result.code == 2
    assert "'soon' is not a duration" in result.err
    assert not cli.store.exists()


def test_json_says_whether_it_was_made(cli: Cli) -> None:
    first, second = cli("init", "--json"), cli("init", "--json")

    assert (first.json["made"], second.json["made"]) == (True, False)
    assert first.json["store"] == str(cli.store)
    assert (first.json["command"], first.err) == ("init", "")


def test_a_folder_that_holds_something_else_is_refused(cli: Cli) -> None:
    cli.store.mkdir()
    (cli.store / "thesis.tex").touch()
    result = cli("init")

    assert (result.code, result.out) == (1, "")
    assert "thesis.tex" in result.err


def test_a_store_whose_settings_are_no_text_is_said_to_be_damaged_in_few_words(cli: Cli) -> None:
    cli.store.mkdir()
    (cli.store / "kstore.json").write_bytes(b"\xff" * 5000)
    result = cli("init")

    assert result.code == 1
    assert "kstore.json is damaged" in result.err
    assert len(result.err) < 500


def test_damaged_settings_may_be_replaced_by_those_of_another_store(cli: Cli, tmp_path: Path) -> None:
    cli.publish("my/v1", "one")
    cli("init", "--store", str(tmp_path / "other"))
    settings = cli.store / "kstore.json"
    settings.unlink()
    settings.write_text("{")
    assert cli("init").err.endswith("; put a whole one there, its own or another store's\n")

    settings.write_bytes((tmp_path / "other/kstore.json").read_bytes())
    assert cli("verify").code == 0


def test_a_store_whose_settings_name_only_a_format_has_the_usual_grace(cli: Cli) -> None:
    cli.store.mkdir()
    (cli.store / "kstore.json").write_text('{"format": 1}')
    result = cli("init")

    assert (result.code, result.err) == (0, "")
    assert result.out == f"{cli.store} is already a store; what is superseded is kept for 1 h\n"


def test_quiet_says_nothing(cli: Cli) -> None:
    result = cli("init", "-q")

    assert (result.code, result.out, result.err) == (0, "", "")
    assert (cli.store / "kstore.json").exists()


def test_what_to_do_next_names_the_same_store(cli: Cli) -> None:
    other = cli.folder / "a store"

    assert f"kstore exec my-model/v1 --store '{other}' -- python" in cli("init", "--store", str(other)).err


def test_the_store_can_be_named(cli: Cli) -> None:
    assert cli("init", "--store", str(cli.folder / "other")).code == 0
    assert (cli.folder / "other/kstore.json").exists()
