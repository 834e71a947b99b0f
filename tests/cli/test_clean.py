from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

import pytest

from kstore.local.cacheroot import CacheRoot
from kstore.local.numbered import Owner, claim_root, claimed_roots
from kstore.local.state import StateFolder
from tests.cli.commandline import ENVIRONMENT, GPU, Cli


class Terminal(io.StringIO):
    """A user who answers."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def roots(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of numbered roots: 0 belongs to my/v1, 1 to my/v2, and 2 to my/v1 of another store."""
    monkeypatch.delenv("KSTORE_CACHE_ROOT")
    cli("env", "my/v1")
    cli("env", "my/v2")
    cli("env", "my/v1", "--store", str(cli.folder / "other-store"))
    folder = cli.folder / "roots" / ENVIRONMENT
    (folder / "0" / "inductor").mkdir()
    (folder / "0" / "inductor" / "one.py").write_text("x" * 5000)
    return folder


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir()}


def test_it_removes_the_roots_of_a_key(cli: Cli, roots: Path) -> None:
    result = cli("clean", "my/v1", "--yes")

    assert result.code == 0
    assert result.out == f"removed {roots}/0 of my/v1, 5.0 kB\n"
    assert left(roots) == {"1", "2"}


def test_a_removed_root_is_nobodys(cli: Cli, roots: Path) -> None:
    cli("clean", "my/v1", "--yes")

    assert [path.name for path, _ in claimed_roots(roots.parent)] == ["1", "2"]
    assert cli("env", "my/v3", "--json").json["cache_root"] == str(roots / "0")


def test_the_key_is_that_of_the_store_in_use(cli: Cli, roots: Path) -> None:
    cli("clean", "my/v1", "--yes", "--store", str(cli.folder / "other-store"))

    assert left(roots) == {"0", "1"}


def test_all_are_those_of_every_key_and_store(cli: Cli, roots: Path) -> None:
    assert cli("clean", "--all", "-y").code == 0
    assert left(roots) == set()


def test_another_users_are_never_removed(cli: Cli, roots: Path) -> None:
    claim_root(roots, Owner(str(cli.store), GPU, "my/v1", os.geteuid() + 1))
    cli("clean", "--all", "--yes")

    assert left(roots) == {"3"}


def test_what_a_link_points_to_is_never_removed(cli: Cli, roots: Path) -> None:
    precious = cli.folder / "precious"
    precious.mkdir()
    (precious / "file").touch()
    shutil.rmtree(roots / "1")
    (roots / "1").symlink_to(precious)
    result = cli("clean", "--all", "--yes")

    assert (result.code, str(roots / "1") in result.out + result.err) == (0, False)
    assert (precious / "file").exists()
    assert (roots / "1").is_symlink()


@pytest.mark.parametrize("place", ["roots", "roots/torch1"])
def test_nothing_behind_a_link_to_folders_of_other_things_is_removed(cli: Cli, place: str) -> None:
    """Any user may make such a link in /tmp or in the folder of environments, and claims where it leads, as to /tmp."""
    things = cli.folder / "things"
    precious = things / "torch2" / "precious" if place == "roots" else things / "precious"
    precious.mkdir(parents=True)
    precious.with_suffix(".json").write_bytes(Owner(str(cli.store), GPU, "my/v1", os.geteuid()).dump())
    link = cli.folder / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(things)
    result = cli("clean", "--all", "--yes")

    assert (result.code, result.out) == (0, "there is no cache root to remove\n")
    assert precious.exists()


def test_a_dry_run_removes_nothing(cli: Cli, roots: Path) -> None:
    result = cli("clean", "my/v1", "--dry-run")

    assert (result.code, result.out) == (0, f"would remove {roots}/0 of my/v1, 5.0 kB\n")
    assert left(roots) == {"0", "1", "2"}


def test_a_file_that_goes_while_sizes_are_added_up_counts_as_none(
    cli: Cli, roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.walk", lambda folder: [(str(folder / "inductor"), [], ["gone.py", "one.py"])])

    assert cli("clean", "my/v1", "--dry-run").out.endswith(" of my/v1, 5.0 kB\n")


def test_without_a_terminal_it_does_not_ask(cli: Cli, roots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    result = cli("clean", "my/v1")

    assert (result.code, result.out) == (2, "")
    assert "--yes" in result.err
    assert left(roots) == {"0", "1", "2"}


def test_without_a_stdin_it_does_not_ask_either(cli: Cli, roots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    result = cli("clean", "my/v1")

    assert result.code == 2
    assert "there is no terminal to ask on" in result.err


@pytest.mark.parametrize(("answer", "code", "rest"), [("y", 0, {"1", "2"}), ("n", 1, {"0", "1", "2"})])
def test_on_a_terminal_it_asks(
    cli: Cli, roots: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, rest: set[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
    result = cli("clean", "my/v1")

    assert result.code == code
    assert f"{roots}/0  my/v1  5.0 kB" in result.err
    assert "remove 1 cache root?" in result.err
    assert left(roots) == rest


def test_json_says_that_the_answer_was_no(cli: Cli, roots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    result = cli("clean", "my/v1", "--json")

    assert (result.code, result.json["removed"]) == (1, [])
    assert [root["cache_root"] for root in result.json["kept"]] == [str(roots / "0")]


def test_no_answer_removes_nothing(cli: Cli, roots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(""))

    assert cli("clean", "--all").code == 1
    assert left(roots) == {"0", "1", "2"}


def test_a_root_that_kstore_is_working_on_stays(cli: Cli, roots: Path) -> None:
    with StateFolder(CacheRoot(str(roots / "0"), {}, {}), "rules").locked():
        result = cli("clean", "--all", "--yes")

    assert result.code == 1
    assert f"warning: {roots}/0 stays: {roots}/0/.kstore/lock is locked: another process holds it now" in result.err
    assert left(roots) == {"0"}


def test_a_claim_whose_root_is_gone_is_released(cli: Cli, roots: Path) -> None:
    shutil.rmtree(roots / "1")

    assert cli("clean", "my/v2", "--yes").code == 0
    assert [path.name for path, _ in claimed_roots(roots.parent)] == ["0", "2"]


def test_nothing_to_do_is_said_with_the_key_and_the_store(cli: Cli) -> None:
    one, every = cli("clean", "my/v1"), cli("clean", "--all")

    assert (one.code, one.out) == (0, f"there is no cache root of my/v1 with {cli.store} to remove\n")
    assert (every.code, every.out) == (0, "there is no cache root to remove\n")


def test_json_lists_what_was_removed_and_what_stays(cli: Cli, roots: Path) -> None:
    with StateFolder(CacheRoot(str(roots / "1"), {}, {}), "rules").locked():
        content = cli("clean", "--all", "--yes", "--json").json

    assert content["dry_run"] is False
    assert [root["cache_root"] for root in content["kept"]] == [str(roots / "1")]
    first = content["removed"][0]
    assert first == {
        "cache_root": str(roots / "0"), "key": "my/v1", "store": str(cli.store), "gpu": GPU, "bytes": 5000
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "why"),
    [([], "name a KEY, or give --all"), (["my/v1", "--all"], "--all is for every key: leave it out to clean my/v1")],
)
def test_it_wants_a_key_or_all(cli: Cli, arguments: list[str], why: str) -> None:
    result = cli("clean", *arguments)

    assert result.code == 2
    assert why in result.err


def test_text_that_is_not_a_key_is_a_usage_error(cli: Cli) -> None:
    result = cli("clean", "my/")

    assert (result.code, result.out) == (2, "")
    assert "key 'my/' is not made of parts" in result.err
