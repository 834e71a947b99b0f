from __future__ import annotations

from pathlib import Path

import pytest

from kstore.blobs.loose import blob_name
from kstore.digest import digest_of
from kstore.local.link import LinkMode
from kstore.report import RestoreReport, RestoreStatus
from kstore.store import Store
from tests.cli.commandline import ENVIRONMENT, GPU, Cli
from tests.cli.test_diff import HOSTILE, commit


def test_it_restores_and_says_what(cli: Cli) -> None:
    cli.publish("my/v1", "one", "two")
    result = cli("restore", "my/v1")

    assert result.code == 0
    assert result.out.startswith("restored my/v1 generation 1: 2 files, 6 B in ")
    assert str(cli.cache_root) in result.out
    assert "inductor    2 files, 6 B" in result.out
    assert 'eval "$(kstore env my/v1)"' in result.err
    assert (cli.cache_root / "inductor/ab/cone.py").read_text() == "one"


def test_a_second_restore_says_that_all_is_there(cli: Cli) -> None:
    cli.publish("my/v1")
    cli("restore", "my/v1")

    assert cli("restore", "my/v1").out.startswith("my/v1 generation 1 is already in place: 1 file, 3 B")


def test_a_generation_can_be_named(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    cli.publish("my/v1", "one", "two")
    result = cli("restore", "my/v1", "--generation", "1", "--json")

    assert result.json["generation"] == 1
    assert not (cli.cache_root / "inductor/ab/ctwo.py").exists()


def test_a_generation_that_does_not_exist_is_a_miss(cli: Cli) -> None:
    cli.publish("my/v1")
    result = cli("restore", "my/v1", "--generation", "7")

    assert (result.code, result.out) == (3, "")
    assert "no generation 7" in result.err


def test_a_store_that_hangs_is_waited_for_no_longer_than_is_set(cli: Cli) -> None:
    cli.publish("my/v1")
    process = cli.start("restore", "my/v1", KSTORE_TIMEOUT="0.5", **cli.hanging())
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (5, "")
    assert f"restoring from {cli.store} has taken more than 0.5 s" in err
    assert not (cli.cache_root / "inductor").exists()


def test_a_miss_is_no_failure(cli: Cli) -> None:
    result = cli("restore", "my/v1")

    assert result.code == 0
    assert result.out.startswith(f"nothing is published for my/v1 on {GPU}, {ENVIRONMENT} yet\n")


@pytest.mark.parametrize(("verb", "was"), [("forget", "forgotten"), ("quarantine", "quarantined")])
def test_a_key_that_was_withdrawn_is_reported_as_withdrawn(cli: Cli, verb: str, was: str) -> None:
    cli.publish("my/v1")
    cli(verb, "my/v1")

    assert cli("restore", "my/v1").out.startswith(f"my/v1 was {was}: nothing is restored until")
    assert cli("restore", "my/v1", "--json").json["withdrawn"] == was
    assert f"`kstore rollback my/v1 --store {cli.store} --gpu" in cli("restore", "my/v1", "--require").err


@pytest.mark.parametrize("command", [("restore", "my/v1"), ("exec", "my/v1")])
def test_a_miss_for_a_gpu_that_was_named_tells_which_ones_there_are(cli: Cli, command: tuple[str, ...]) -> None:
    cli.publish("my/v1")
    rest = ("--", "true") if command[0] == "exec" else ()
    result = cli.process(*command, "--gpu", "nvidia-h10", *rest)

    assert result.code == 0
    assert f"kstore: my/v1 is published for: --gpu {GPU} --environment {ENVIRONMENT}\n" in result.err


def test_a_miss_names_no_gpu_for_which_nothing_is_published_any_more_or_yet(cli: Cli) -> None:
    cli.publish("my/v1")
    cli("forget", "my/v1")
    (cli.store / f"refs/nvidia-h10/my/v1/@{ENVIRONMENT}").mkdir(parents=True)  # as a commit that was killed leaves it

    result = cli("restore", "my/v1", "--gpu", "nvidia-h10")

    assert result.code == 0
    assert "is published for" not in result.err


def test_a_miss_is_exit_code_3_with_require(cli: Cli) -> None:
    result = cli("restore", "my/v1", "--require")

    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("kstore: nothing is published for my/v1")


def test_damage_that_leaves_nothing_is_an_error_with_require_too(cli: Cli) -> None:
    cli.publish("my/v1")
    (pack_or_blob,) = (
        path
        for path in cli.store.glob("*/**/*")
        if path.is_file() and path.parts[-3] == "blobs" and path.stat().st_size < 100
    )
    pack_or_blob.unlink()
    result = cli("restore", "my/v1", "--require")

    assert (result.code, result.out) == (4, "")
    assert "generation 1 of my/v1 is damaged, none of its 1 file could be restored" in result.err


def test_a_required_miss_is_an_error_in_json_too(cli: Cli) -> None:
    result = cli("restore", "my/v1", "--require", "--json")

    assert result.code == 3
    assert result.json["error"]["type"] == "MissError"


def test_a_seed_is_what_a_new_key_starts_from(cli: Cli) -> None:
    cli.publish("my/v1")
    result = cli("restore", "my/v2", "--seed", "my/v1", "--require")

    assert result.code == 0
    assert result.out.startswith("restored my/v2 from seed my/v1 generation 1: 1 file")


def test_a_seed_that_has_nothing_either_is_reported(cli: Cli) -> None:
    arguments = ("my/v2", "--seed", "typo/v0")

    said = f"nothing is published for my/v2 on {GPU}, {ENVIRONMENT} yet, nor for the seed typo/v0"
    assert cli("restore", *arguments).out.startswith(f"{said}\n")
    assert f"kstore: {said}; leave out --require" in cli("restore", *arguments, "--require").err
    assert f"kstore: {said}\n" in cli.process("exec", *arguments, "--", "true").err


def test_a_key_that_looks_like_an_option_is_advised_as_it_can_be_given(cli: Cli) -> None:
    assert 'eval "$(kstore env -- -x)"' in cli("restore", "--", "-x").err
    assert cli("env", "--", "-x").code == 0


def test_json_has_the_same_types_after_a_miss(cli: Cli) -> None:
    missed = cli("restore", "my/v1", "--json").json
    cli.publish("my/v1")
    restored = cli("restore", "my/v1", "--json").json

    assert (missed["ok"], missed["components"], missed["used_modes"]) == (False, {}, {})
    assert restored["ok"] and restored["components"] and restored["used_modes"]


def test_json_is_the_report(cli: Cli) -> None:
    cli.publish("my/v1")
    result = cli("restore", "my/v1", "--json")

    assert result.err == ""
    assert result.json["command"] == "restore"
    assert result.json["status"] == "restored"
    assert result.json["cache_root"] == str(cli.cache_root)
    assert result.json["components"] == {"inductor": {"files": 1, "bytes": 3}}


def test_the_cache_root_and_the_store_can_be_named(cli: Cli) -> None:
    cli.publish("my/v1")
    root = cli.folder / "elsewhere"
    result = cli("restore", "my/v1", "--cache-root", str(root), "--store", str(cli.store))

    assert result.code == 0
    assert (root / "inductor/ab/cone.py").exists()


def test_without_a_cache_root_it_takes_a_numbered_one(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KSTORE_CACHE_ROOT")

    assert cli("restore", "my/v1", "--json").json["cache_root"] == str(cli.folder / "roots" / ENVIRONMENT / "0")


def test_gpu_and_environment_can_be_named(cli: Cli) -> None:
    result = cli("restore", "my/v1", "--gpu", "other-gpu", "--environment", "other", "--json")

    assert (result.json["gpu"], result.json["environment"]) == ("other-gpu", "other")


def test_a_store_that_cannot_be_reached_is_an_error(cli: Cli) -> None:
    result = cli("restore", "my/v1", "--store", "/nowhere/at/all")

    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("kstore: there is no store at /nowhere/at/all")


def test_a_bad_key_is_a_usage_error(cli: Cli) -> None:
    result = cli("restore", "../v1", "--json")

    assert result.code == 2
    assert result.json["error"]["type"] == "UsageError"


def test_a_bad_setting_is_a_usage_error(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSTORE_LAYOUT", "sideways")
    result = cli("restore", "my/v1")

    assert result.code == 2
    assert "KSTORE_LAYOUT" in result.err


def test_a_damaged_manifest_is_an_integrity_error(cli: Cli) -> None:
    cli.publish("my/v1")
    damage_manifest(cli.store)
    result = cli("restore", "my/v1")

    assert (result.code, result.out) == (4, "")


def test_a_name_that_is_left_out_cannot_forge_a_line(cli: Cli) -> None:
    commit(cli, "my/v1", lambda tree: tree.put(f"inductor/{HOSTILE}.py", b"x"))
    (cli.store / blob_name(digest_of(b"x"))).unlink()
    said = cli("restore", "my/v1").err.splitlines()

    assert any("left out inductor/evil" in line for line in said)
    assert not any(line.startswith("kstore: - forged") for line in said)


def test_a_damaged_blob_is_a_warning(cli: Cli) -> None:
    cli.publish("my/v1", "one", "two")
    (blob,) = (path for path in (cli.store / "blobs").rglob("*") if path.is_file() and path.read_bytes() == b"two")
    blob.unlink()
    result = cli("restore", "my/v1")

    assert result.code == 0
    assert "kstore: warning: left out inductor/ab/ctwo.py: " in result.err
    assert "2 files, 6 B, 1 of them left out in " in result.out


def test_a_variable_of_the_users_is_pointed_out(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_TUNABLEOP_FILENAME", str(cli.folder / "mine.csv"))

    assert "warning: PYTORCH_TUNABLEOP_FILENAME is set" in cli("restore", "my/v1").err


def test_quiet_drops_the_summary_and_the_talk(cli: Cli) -> None:
    cli.publish("my/v1")
    result = cli("restore", "my/v1", "--quiet")

    assert (result.code, result.out, result.err) == (0, "", "")


def test_quiet_keeps_errors(cli: Cli) -> None:
    assert cli("restore", "my/v1", "-q", "--require").err.startswith("kstore: nothing is published")


def test_verbose_says_why_no_better_link_was_made(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    why = "no reflink: Operation not supported"
    report = RestoreReport(RestoreStatus.RESTORED, "my/v1", generation=1, link_mode=LinkMode.HARDLINK, link_why=why)
    monkeypatch.setattr(Store, "restore", lambda self, key, **choice: report)

    assert why not in cli("restore", "my/v1").err
    assert why in cli("restore", "my/v1", "-v").err


def damage_manifest(store: Path) -> None:
    """Cut every blob that is an LMDB file short."""
    for path in (store / "blobs").rglob("*"):
        if path.is_file() and path.stat().st_size > 4096:
            path.chmod(0o644)
            path.write_bytes(path.read_bytes()[:1000])
