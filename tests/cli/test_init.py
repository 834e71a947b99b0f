from __future__ import annotations

import json

from tests.cli.commandline import Cli


def test_it_makes_a_store_and_says_what_to_do_next(cli: Cli) -> None:
    result = cli("init")

    assert result.code == 0
    assert result.out == f"made a store in {cli.store}; what is superseded is kept for 1 h\n"
    assert result.err.startswith("kstore: next")
    assert json.loads((cli.store / "kstore.json").read_text())["grace"] == 3600


def test_a_store_that_is_there_is_left_as_it_is(cli: Cli) -> None:
    cli("init")
    before = (cli.store / "kstore.json").read_text()
    result = cli("init", "--grace", "5h")

    assert result.code == 0
    assert "is a store already" in result.out
    assert (cli.store / "kstore.json").read_text() == before


def test_the_grace_is_a_duration(cli: Cli) -> None:
    assert cli("init", "--grace", "2d", "--json").json["grace"] == 2 * 86400


def test_a_grace_that_is_no_duration_is_a_usage_error(cli: Cli) -> None:
    result = cli("init", "--grace", "soon")

    assert result.code == 2
    assert "'soon' is no duration" in result.err
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
