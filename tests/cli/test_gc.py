from __future__ import annotations

import json

import pytest

from kstore.creator import creator
from kstore.lease import Lease
from kstore.storage import Storage
from kstore.words import parse_size
from tests.cli.commandline import ENVIRONMENT, GPU, Cli


def test_it_says_what_goes_and_why(cli: Cli) -> None:
    for name in ("one", "two", "three"):
        cli.publish("my/v1", name)
    result = cli("gc", "--keep", "1", "--offline")

    assert result.code == 0
    rows = [line.split() for line in result.out.splitlines()]
    assert [row[:1] + row[3:5] for row in rows[1:3]] == [["my/v1", "1", "goes"], ["my/v1", "2", "goes"]]
    assert "2 generations of 3 removed" in result.out
    assert "assumes that no worker" in result.err


def test_a_dry_run_changes_nothing(cli: Cli) -> None:
    for name in ("one", "two", "three"):
        cli.publish("my/v1", name)
    planned = cli("gc", "--keep", "1", "--offline", "--dry-run")

    assert "2 generations of 3 would be removed" in planned.out
    assert planned.err == ""
    assert len(cli("show", "my/v1", "--json").json["scopes"][0]["generations"]) == 3


def test_what_stays_is_listed_only_with_v(cli: Cli) -> None:
    cli.publish("my/v1")

    assert cli("gc").out.startswith("0 generations of 1 removed\n")
    assert cli("gc", "-v").out.splitlines()[1].split()[-3:] == ["1", "stays", "newest"]


def test_what_an_earlier_gc_has_condemned_is_counted_until_it_is_deleted(cli: Cli) -> None:
    cli.publish("my/v1")
    name = "ab" * 32
    (cli.store / "blobs" / name[:2]).mkdir(exist_ok=True)
    (cli.store / "blobs" / name[:2] / name).write_text("nobody needs this")

    assert "condemned: 1 file, 17 B; a gc in 1 h or later deletes them" in cli("gc").out
    assert "condemned before: 1 file, 17 B" in cli("gc").out
    assert "deleted: 1 file, 17 B" in cli("gc", "--offline").out
    assert "condemned" not in cli("gc").out


def test_it_says_what_makes_up_for_a_damaged_list(cli: Cli) -> None:
    """A repair does not make up for it."""
    for name in ("one", "two"):
        cli.publish("my/v1", name)
    settings = json.loads((cli.store / "kstore.json").read_bytes())
    (cli.store / "kstore.json").chmod(0o644)
    (cli.store / "kstore.json").write_text(json.dumps(settings | {"grace": 0}))
    assert cli("gc", "--keep", "1").code == 0
    (condemned,) = (cli.store / "gc/condemned").iterdir()
    condemned.chmod(0o600)
    condemned.write_bytes(b"garbage")
    result = cli("gc")

    assert result.code == 4
    assert "is damaged; the next gc condemns what was on it again" in result.err
    assert "--repair" not in result.err
    assert cli("gc").code == 0


def test_a_dry_run_needs_to_write_too_and_says_so(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(storage: Storage) -> int:
        raise PermissionError(13, "Permission denied")

    cli.publish("my/v1")
    monkeypatch.setattr(Storage, "clock", refuse)
    result = cli("gc", "-n")

    assert (result.code, result.out) == (1, "")
    assert "Permission denied; gc makes a file there for that, even in a dry run" in result.err


@pytest.mark.parametrize("option", ["--unused", "--max-size"])
@pytest.mark.parametrize("number", ["30", "0.5", " 7 "])
def test_a_number_without_a_unit_is_refused(cli: Cli, option: str, number: str) -> None:
    """The user meant thirty days or gigabytes, not seconds or bytes."""
    cli.publish("my/v1")
    result = cli("gc", option, number)

    assert result.code == 2
    assert "of what? Give the unit, as in " in result.err
    assert cli("show", "my/v1").code == 0


def test_a_limit_that_cannot_be_kept_says_why(cli: Cli) -> None:
    cli.publish("my/v1")
    said = cli("gc", "--max-size", "1B").err
    assert "must stay; it is pinned, or was superseded a short time ago, or is the newest of its key: --allow" in said

    planned = cli("gc", "--max-size", "1B", "--allow-live", "--dry-run")
    assert "would be forgotten: my/v1" in planned.out
    assert "what forgotten keys took" not in planned.err
    assert cli("show", "my/v1").code == 0

    cli("pin", "my/v1", "1")
    pinned = cli("gc", "--max-size", "1B", "--allow-live")
    assert "forgotten" not in pinned.out
    assert "must stay; it is pinned" in pinned.err

    cli("unpin", "my/v1", "1")
    done = cli("gc", "--max-size", "1B", "--allow-live")
    assert "forgotten: my/v1" in done.out
    assert "what forgotten keys took is condemned by a gc in 1 h or later" in done.err


def test_without_a_limit_no_key_is_forgotten_for_its_size(cli: Cli) -> None:
    cli.publish("my/v1")
    result = cli("gc", "--allow-live")

    assert result.code == 2
    assert "--allow-live is for --max-size" in result.err


def test_json_has_every_decision(cli: Cli) -> None:
    cli.publish("my/v1")
    content = cli("gc", "--json").json

    assert content["status"] == "collected"
    assert content["generations"] == [
        {"gpu": GPU, "key": "my/v1", "environment": ENVIRONMENT, "generation": 1, "stays": True, "why": "newest"}
    ]
    assert content["live"]["files"] == 2


def test_a_short_grace_needs_offline(cli: Cli) -> None:
    cli.publish("my/v1")
    result = cli("gc", "--grace", "60s")

    assert result.code == 2
    assert "--offline" in result.err


def test_what_cannot_be_read_is_kept_and_reported(cli: Cli) -> None:
    cli.publish("my/v1")
    ref = cli.store / "refs" / GPU / "my/v1" / f"@{ENVIRONMENT}" / "1"
    ref.chmod(0o644)
    ref.write_text("{")
    result = cli("gc")

    assert result.code == 4
    assert "cannot be read, so nothing that it may need is removed, unless `kstore verify" in result.err
    assert "kstore: nothing is deleted, because 1 generation cannot" in result.err.splitlines()[0]
    assert "kstore: kstore: " not in result.err
    assert result.out.splitlines()[-1].startswith("needed: unknown (")
    assert cli("gc", "--json").json["live"] is None


@pytest.mark.parametrize(
    ("text", "count"),
    [("500", 500), ("500M", 5 * 10**8), ("1.5 GB", 15 * 10**8), ("2TiB", 2 * 2**40), ("50g", 5 * 10**10)],
)
def test_sizes_are_understood(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "much", "-5G", "0", "5X"])
def test_text_that_is_not_a_size_is_a_usage_error(cli: Cli, text: str) -> None:
    assert cli("gc", f"--max-size={text}").code == 2


def test_what_stays_for_the_grace_only_is_counted(cli: Cli) -> None:
    for name in ("one", "two", "three"):
        cli.publish("my/v1", name)
    for keep, count in ((1, "2 generations"), (2, "1 generation")):
        result = cli("gc", "--keep", str(keep))
        assert "0 generations of 3 removed" in result.out
        assert f"superseded less than 1 h ago, and kept for now: {count}\n" in result.out


@pytest.mark.parametrize("live", [(), ("--allow-live",)])
def test_what_is_over_the_size_limit_only_for_the_grace_is_not_said_to_take_a_forgotten_key(
    cli: Cli, live: tuple[str, ...]
) -> None:
    cli.write("inductor/ab/clarge.py", "x" * 10**6)
    cli("commit", "my/v1", "--layout", "loose")
    cli("forget", "my/v1")
    cli.publish("my/v1", "two")
    result = cli("gc", "--max-size", "1M", "--dry-run", *live)

    assert "would be forgotten" not in result.out
    assert "over --max-size must stay; it is" in result.err and "superseded a short time ago" in result.err


def test_what_stays_without_the_grace_too_is_not_said_to_stay_for_now(cli: Cli) -> None:
    for name in ("one", "two", "three"):
        cli.publish("my/v1", name)
    assert "for now" not in cli("gc", "--keep", "3").out


@pytest.fixture
def killed(cli: Cli) -> None:
    """A gc that began just now and will never end."""
    for name in ("one", "two"):
        cli.publish("my/v1", name)
    assert Lease(Storage(cli.store), "@gc", 3600).acquire()


@pytest.mark.usefixtures("killed")
def test_it_says_whose_gc_is_at_work_and_what_to_do_if_that_was_killed(cli: Cli) -> None:
    result = cli("gc")
    assert (result.code, result.out) == (0, f"another gc is running, of {creator()}; nothing was done\n")
    assert "until an hour after it began" in result.err and "--offline" in result.err


@pytest.mark.usefixtures("killed")
def test_offline_does_not_wait_for_another_gc(cli: Cli) -> None:
    report = cli("gc", "--offline", "--keep", "1", "--json").json
    assert (report["status"], report["holder"], report["deleted"]["files"] > 0) == ("collected", "", True)
    assert cli("gc", "--json").json["status"] == "busy", "its lease was left alone"
