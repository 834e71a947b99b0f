from __future__ import annotations

import json
import math
import re

import pytest

from kstore.blobs.loose import blob_name
from kstore.digest import digest_of
from kstore.published.manifest import Entry, Manifest
from kstore.published.ref import Ref
from kstore.scope import Scope
from kstore.store import Store
from tests.cli.commandline import ENVIRONMENT, GPU, Cli
from tests.cli.test_diff import HOSTILE
from tests.cli.test_restore import damage_manifest
from tests.faults.reading import trouble_with
from tests.trees import publish


def test_it_shows_generations_and_the_components_of_the_newest(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    cli.publish("my/v1", "one", "two")
    result = cli("show", "my/v1")
    lines = result.out.splitlines()

    assert (result.code, result.err) == (0, "")
    assert lines[:4] == [
        "my/v1",
        f"  GPU          {GPU}",
        f"  environment  {ENVIRONMENT}",
        f"  cache root   {cli.folder}/builders/my/v1",
    ]
    assert lines[7].split() == ["GENERATION", "CREATED", "CREATOR", "FILES", "SIZE", "PARENT", "NOTE"]
    assert re.fullmatch(r" +2  \d{4}-\d\d-\d\d \d\d:\d\d  \S+@\S+ +2 +6 B +1", lines[8])
    assert re.fullmatch(r" +1  \d{4}-\d\d-\d\d \d\d:\d\d  \S+@\S+ +1 +3 B +-", lines[9])
    assert [line.split() for line in lines[11:]] == [["COMPONENT", "FILES", "SIZE"], ["inductor", "2", "6", "B"]]


def test_every_scope_of_the_key_is_shown(cli: Cli) -> None:
    cli.publish("my/v1")
    cli.write("inductor/ab/cone.py")
    cli("commit", "my/v1", "--gpu", "other-gpu")

    assert [scope["gpu"] for scope in cli("show", "my/v1", "--json").json["scopes"]] == [GPU, "other-gpu"]
    assert cli("show", "my/v1").out.count("my/v1\n  GPU ") == 2


def test_one_scope_can_be_named(cli: Cli) -> None:
    cli.publish("my/v1")
    cli.write("inductor/ab/cone.py")
    cli("commit", "my/v1", "--gpu", "other-gpu")
    scopes = cli("show", "my/v1", "--gpu", "other-gpu", "--json").json["scopes"]

    assert [scope["gpu"] for scope in scopes] == ["other-gpu"]
    assert cli("show", "my/v1", "--environment", "none-such").code == 3


def test_it_fits_80_columns(cli: Cli) -> None:
    cli.publish("my/v1")
    table = cli("show", "my/v1").out.partition("GENERATION")[2]

    assert max(map(len, table.splitlines())) <= 80


def test_json_has_everything(cli: Cli) -> None:
    cli.publish("my/v1")
    content = cli("show", "my/v1", "--json").json
    (scope,) = content["scopes"]
    (generation,) = scope["generations"]

    assert (content["key"], content["store"]) == ("my/v1", str(cli.store))
    assert (generation["generation"], generation["files"], generation["bytes"]) == (1, 1, 3)
    assert scope["components"] == {"inductor": {"files": 1, "bytes": 3}}
    assert scope["meta"]["cache_root"] == str(cli.folder / "builders/my/v1")
    assert (scope["packs"], scope["hosts"]) == ([], {})


def publish_hostile(cli: Cli) -> None:
    """A generation whose publisher wrote everything that nobody checks, in order to have it believed."""
    storage, evil = Store(cli.store).storage, f"\t{HOSTILE}"
    storage.create()
    files = {"inductor/ab/cone.so": Entry(bytes(32), 1, 0, 0o644, 0, 0)}
    data = Manifest({}, meta={"cache_root": evil, "size": math.nan}, hosts={evil: files}).dump()
    storage.blobs.loose.put_many([(digest_of(data), data)])
    publish(storage.refs, Ref(Scope(GPU, "my/v1", ENVIRONMENT), 1, digest_of(data), len(data), (), 0.0, evil, 1, 1))


def test_no_text_of_a_publisher_s_steers_a_terminal_or_forges_a_line(cli: Cli) -> None:
    publish_hostile(cli)
    result = cli("show", "my/v1")

    assert result.code == 0
    assert not {"\x1b", "\t"}.intersection(result.out)
    assert not any(line.startswith("- forged") for line in result.out.splitlines())


def test_json_is_json_whatever_a_publisher_has_written(cli: Cli) -> None:
    def refuse(text: str) -> None:
        pytest.fail(f"{text} is not JSON")

    publish_hostile(cli)
    (scope,) = json.loads(cli("show", "my/v1", "--json").out, parse_constant=refuse)["scopes"]

    assert scope["meta"]["size"] is None


def test_packs_are_counted(cli: Cli) -> None:
    cli.write("inductor/ab/cone.py")
    cli("commit", "my/v1", "--layout", "packed")

    assert "\n  packs        1\n" in cli("show", "my/v1").out


def test_a_store_without_packs_and_what_runs_anywhere_are_told_as_such(cli: Cli) -> None:
    cli.publish("my/v1")
    out = cli("show", "my/v1").out

    assert "\n  packs        none: every file in this store is stored by itself\n" in out
    assert "\n  hosts        any\n" in out


@pytest.mark.parametrize(("verb", "was"), [("forget", "forgotten"), ("quarantine", "quarantined")])
def test_of_a_key_that_was_withdrawn_the_generations_are_shown_and_no_contents(cli: Cli, verb: str, was: str) -> None:
    cli.publish("my/v1")
    cli(verb, "my/v1")
    lines = cli("show", "my/v1").out.splitlines()

    assert " ".join(line.split()[0] for line in lines if line) == "my/v1 GPU environment GENERATION 2 1"
    assert lines[-2].endswith(was)


def test_a_key_whose_only_generation_is_damaged_is_not_called_missing(cli: Cli) -> None:
    cli.publish("my/v1")
    (ref,) = cli.store.glob("refs/*/my/v1/*/1")
    ref.chmod(0o644)
    ref.write_bytes(b"damaged")
    result = cli("show", "my/v1")

    assert (result.code, result.out.splitlines()[0]) == (4, "my/v1")
    assert "generation 1 of my/v1" in result.err


def test_an_unknown_key_is_a_miss(cli: Cli) -> None:
    cli("init")
    result = cli("show", "my/v1")

    assert (result.code, result.out) == (3, "")
    assert "nothing is published for my/v1 in" in result.err


def test_a_key_of_which_only_a_folder_is_left_is_a_miss(cli: Cli) -> None:
    cli.publish("my/v1")
    (cli.store / "refs" / GPU / "my/v1" / f"@{ENVIRONMENT}" / "1").unlink()
    result = cli("show", "my/v1")

    assert (result.code, result.out) == (3, "")


def test_a_bad_key_is_a_usage_error(cli: Cli) -> None:
    assert cli("show", "/").code == 2


def test_a_lost_manifest_does_not_hide_the_generations(cli: Cli) -> None:
    cli.publish("my/v1")
    damage_manifest(cli.store)
    result = cli("show", "my/v1")

    assert result.code == 4
    assert "GENERATION" in result.out and "COMPONENT" not in result.out
    assert "warning: the manifest of generation 1" in result.err


def test_a_manifest_that_cannot_be_read_does_not_hide_the_generations(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.publish("my/v1")
    (generation,) = cli("show", "my/v1", "--json").json["scopes"][0]["generations"]
    trouble_with(monkeypatch, blob_name(bytes.fromhex(generation["manifest"])))
    result = cli("show", "my/v1")

    assert result.code == 1
    assert "GENERATION" in result.out and "COMPONENT" not in result.out
    assert f"warning: cannot read the store at {cli.store}" in result.err


def test_a_damaged_ref_does_not_hide_the_others(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    cli.publish("my/v1", "one", "two")
    ref = cli.store / "refs" / GPU / "my/v1" / f"@{ENVIRONMENT}" / "2"
    ref.chmod(0o644)
    ref.write_text("{")
    result = cli("show", "my/v1", "--json")

    assert result.code == 4
    assert [generation["generation"] for generation in result.json["scopes"][0]["generations"]] == [1]
