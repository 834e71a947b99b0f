"""What a newer kstore has published hides nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commandline import GPU, Cli
from tests.trees import as_if_newer, contents


@pytest.fixture
def newer(cli: Cli) -> Cli:
    """A store with a key of which a newer kstore has published the newest generation."""
    cli.publish("my/v1", "one")
    cli.publish("my/v2", "two")
    cli.publish("my/v2", "two", "three")
    (ref,) = cli.store.glob(f"refs/{GPU}/my/v2/*/2")
    as_if_newer(ref)
    return cli


def told(err: str) -> str:
    """The one line about it."""
    (line,) = (line for line in err.splitlines() if "install the version that made it" in line)
    assert line.count("generation 2 of my/v2 (") == 1
    return line


@pytest.mark.parametrize("command", ["stats", "du"])
def test_statistics_count_everything_else(newer: Cli, command: str) -> None:
    result = newer(command, "--json")

    assert result.code == 4
    assert "warning: cannot be read, and is not counted: generation 2 of my/v2" in told(result.err)
    assert {row["key"]: row["generations"] for row in result.json["keys"]} == {"my/v1": 1, "my/v2": 1}
    assert newer(command, "my/v2").code == 4


def test_a_report_shows_everything_else_and_not_what_gc_would_do(newer: Cli, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    result = newer("report", "-o", str(path))

    assert result.code == 4
    assert "cannot be read, and is not counted" in told(result.err)
    assert '"my/v1"' in path.read_text() and '"gc":null' in path.read_text()


@pytest.mark.parametrize("key", [(), ("my/v2",)])
def test_verify_reads_everything_else(newer: Cli, key: tuple[str, ...]) -> None:
    (blob,) = (path for path in newer.store.glob("blobs/*/*") if path.read_bytes() == b"two")
    blob.chmod(0o644)
    blob.write_bytes(b"TWO")
    result = newer("verify", *key)

    assert result.code == 4
    assert "cannot be read just now: generation 2 of my/v2" in told(result.out)
    assert "generation 1 of my/v2" in result.out and "has lost inductor/ab/ctwo.py" in result.out


def test_the_other_generations_of_its_key_are_shown(newer: Cli) -> None:
    result = newer("show", "my/v2", "--json")

    assert result.code == 1
    assert "warning: " in told(result.err)
    (scope,) = result.json["scopes"]
    assert [row["generation"] for row in scope["generations"]] == [1]


def stored(cli: Cli) -> dict[str, bytes]:
    """Everything but the note that a gc is at work."""
    return {path: data for path, data in contents(cli.store).items() if not path.startswith("leases/")}


@pytest.mark.parametrize("command", [("gc",), ("gc", "--dry-run"), ("gc", "--offline", "--keep", "1")])
def test_gc_removes_nothing_and_says_why(newer: Cli, command: tuple[str, ...]) -> None:
    before = stored(newer)
    result = newer(*command)

    assert (result.code, result.out) == (1, "")
    assert "gc removes nothing, as it cannot know what this needs: generation 2" in told(result.err)
    assert stored(newer) == before
