"""Two stores on the command line: an image's store below the shared one."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from kstore.blobs.loose import blob_name
from kstore.digest import digest_of
from kstore.stats.record import finish
from tests.cli.commandline import Cli, compiling
from tests.faults.reading import trouble_with


@pytest.fixture
def base(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store in an image, which has `my/v1` and is named after the shared store."""
    found = cli.folder / "base"
    monkeypatch.setenv("KSTORE_ROOT", str(found))
    cli.publish("my/v1", "one", "two")
    monkeypatch.setenv("KSTORE_ROOT", f"{cli.store}:{found}")
    return found


def test_init_makes_the_first_alone(cli: Cli) -> None:
    result = cli("init", "--store", f"{cli.folder}/a:{cli.folder}/b")
    assert (result.code, str(cli.folder / "a") in result.out) == (0, True)
    assert not (cli.folder / "b").exists()


def test_a_store_without_a_path_is_a_mistake(cli: Cli) -> None:
    for text in (f"{cli.store}:", f":{cli.store}", f"{cli.store}:{cli.store}"):
        result = cli("ls", "--store", text)
        assert (result.code, "store" in result.err) == (2, True)


def test_a_command_runs_warm_and_commits_above(cli: Cli, base: Path) -> None:
    result = cli.process("exec", "my/v1", "--", "sh", "-c", compiling("three"))
    assert result.code == 0
    assert "restored my/v1 generation 1: 2 files" in result.err
    assert "committed my/v1 generation 1: 1 new file of 3" in result.err
    shutil.rmtree(cli.cache_root)
    report = cli("restore", "my/v1", "--json").json
    assert (report["files"], report["left_out"], report["store"]) == (3, 0, str(cli.store))


def test_ls_says_where_each_row_is(cli: Cli, base: Path) -> None:
    cli.publish("your/v1")
    scopes = cli("ls", "--json").json["scopes"]
    assert [(scope["key"], scope["store"]) for scope in scopes] == [("my/v1", str(base)), ("your/v1", str(cli.store))]
    heading, *rows = cli.process("ls", env=None).out.splitlines()
    assert heading.split()[-1] == "STORE"
    assert len(rows) == 2
    assert "STORE" not in cli("ls", "--store", str(base)).out


def test_show_tells_the_generations_of_each_store_apart(cli: Cli, base: Path) -> None:
    cli.publish("my/v1", "three")
    result = cli("show", "my/v1")
    assert result.code == 0
    assert [line.split()[1] for line in result.out.splitlines() if line.startswith("  store ")] == [
        str(cli.store),
        str(base),
    ]
    assert f"leans on     {base}" in result.out
    scopes = cli("show", "my/v1", "--json").json["scopes"]
    assert [(scope["store"], len(scope["generations"])) for scope in scopes] == [(str(cli.store), 1), (str(base), 1)]


def test_files_says_what_a_generation_left_below(cli: Cli, base: Path) -> None:
    cli.publish("my/v1", "three")
    lines = [line.split("\t") for line in cli("files", "my/v1").out.splitlines()]
    assert [(path.rpartition("/")[2], stored) for path, _, stored, *_ in lines] == [
        ("cone.py", "below"),
        ("cthree.py", "loose"),
        ("ctwo.py", "below"),
    ]


def test_files_finds_what_only_the_image_has(cli: Cli, base: Path) -> None:
    content = cli("files", "my/v1", "--json").json
    assert content["store"] == str(base)
    assert [file["stored"] for file in content["artifacts"]] == ["loose", "loose"]


def test_verify_says_what_only_the_image_has(cli: Cli, base: Path) -> None:
    cli.publish("my/v1", "three")
    assert cli("verify").code == 0
    result = cli("verify", "--store", str(cli.store))
    assert result.code == 0
    assert "2 files of generation 1 of my/v1" in result.err and str(base) in result.err
    (away,) = cli("verify", "--store", str(cli.store), "--json").json["elsewhere"]
    assert (away["store"], len(away["paths"])) == (str(base), 2)


def test_verify_does_not_ask_for_an_image_that_has_lost_what_is_needed(cli: Cli, base: Path) -> None:
    cli.publish("my/v1", "three")
    for kind in ("blobs", "packs"):
        shutil.rmtree(base / kind, ignore_errors=True)
    result = cli("verify")
    assert "2 files of generation 1 of my/v1" in result.err
    assert f"not checked: {base} had them, and has them no more; the next worker" in result.err
    assert "add it to --store" not in result.err


def test_export_and_copy_name_the_image_that_they_need(cli: Cli, base: Path) -> None:
    cli.publish("my/v1", "three")
    both = f"{cli.store}:{base}"
    for command in (
        ["export", "my/v1", "--store", str(cli.store), "-o", str(cli.folder / "x.tar")],
        ["copy", str(cli.store), str(cli.folder / "copy")],
    ):
        result = cli(*command)
        assert (result.code, result.err.endswith(f"name it too, as in {both}\n"), result.out) == (1, True, "")
    assert cli("copy", both, str(cli.folder / "copy")).code == 0


@pytest.mark.parametrize("command", ["du", "stats"])
def test_what_is_counted_is_of_the_first_alone(cli: Cli, base: Path, command: str) -> None:
    cli.publish("your/v1")
    result = cli(command, "my/v1")
    assert (result.code, result.out) == (3, "")
    assert f"{cli.store} holds nothing of my/v1, which is in {base}" in result.err and "name that store" in result.err
    assert cli(command, "my/v1", "--store", str(base)).code == 0
    assert "`kstore ls` lists what is" in cli(command, "their/v1").err


def test_restores_of_what_only_the_image_has_are_counted(cli: Cli, base: Path) -> None:
    cli.publish("your/v1")
    assert cli("restore", "my/v1", "--cache-root", str(cli.folder / "warm")).code == 0
    finish(10)
    for words in (["stats"], ["stats", "my/v1"]):
        result = cli(*words)
        assert (result.code, "1 hit, 0 misses, 0 seeded; 100.0 % hits" in result.out) == (0, True)
        rows = {line.split()[0]: line.split()[2:5] for line in result.out.splitlines() if line.startswith("my/")}
        assert rows == {"my/v1": ["1", "0", "0"]}
    assert "keys          1, of 1 GPU\n" in cli("stats").out


def test_gc_is_of_the_first_alone(cli: Cli, base: Path) -> None:
    cli.publish("my/v1", "three")
    before = sorted(base.rglob("*"))
    report = cli("gc", "--offline", "--json").json
    assert (report["store"], report["deleted"]["files"]) == (str(cli.store), 0)
    assert sorted(base.rglob("*")) == before


def test_forgetting_what_only_the_image_has_makes_it_miss(cli: Cli, base: Path) -> None:
    cli("init")
    assert cli("forget", "my/v1").code == 0
    assert cli("restore", "my/v1", "--json").json["status"] == "miss"
    assert cli("ls", "--json").json["scopes"] == []


def test_what_only_the_image_has_cannot_be_pinned(cli: Cli, base: Path) -> None:
    cli("init")
    result = cli("pin", "my/v1", "1")
    assert (result.code, result.out) == (3, "")
    assert f"is in {base}, which is only read" in result.err
    assert not (cli.store / "refs").exists() and list(base.rglob("*.pin")) == []
    assert cli("pin", "my/v1", "1", "--store", str(base)).code == 0


def test_without_the_shared_store_a_restore_is_warm_and_says_so(cli: Cli, base: Path) -> None:
    lost = cli.folder / "lost" / "store"
    result = cli("restore", "my/v1", "--store", f"{lost}:{base}")
    assert result.code == 0
    assert "restored my/v1 generation 1: 2 files" in result.out
    assert f"what is in {base} is restored instead" in result.err
    listed = cli("ls", "--store", f"{lost}:{base}", "--json")
    assert [scope["store"] for scope in listed.json["scopes"]] == [str(base)]


def test_env_and_watch_take_two_stores(cli: Cli, base: Path) -> None:
    assert "TORCHINDUCTOR_CACHE_DIR" in cli("env", "my/v1").out
    watching = cli.start("watch", "my/v1", "--settle", "1s")
    assert watching.stderr is not None
    assert "watching" in watching.stderr.readline()
    cli.write("inductor/ab/cnew.py", "new")
    watching.terminate()
    assert watching.wait(60) == 0
    watching.communicate()
    assert cli("ls", "--json").json["scopes"][0]["store"] == str(cli.store)


def test_a_base_is_made_out_of_a_store_by_a_restore_and_a_commit(cli: Cli) -> None:
    cli.publish("my/v1", "one", "two")
    bake = ("--cache-root", str(cli.folder / "bake"))
    baked = str(cli.folder / "baked")
    assert cli("restore", "my/v1", *bake).code == 0
    result = cli("commit", "my/v1", "--store", baked, "--layout", "packed", *bake, "--json")
    assert (result.json["files"], result.json["new_files"]) == (2, 2)
    assert cli("verify", "--store", baked).code == 0


def test_a_commit_without_the_image_lets_the_shared_store_stand_by_itself(cli: Cli, base: Path) -> None:
    cli.publish("my/v1", "three")
    cli("restore", "my/v1")
    assert cli("commit", "my/v1", "--store", str(cli.store), "--json").json["status"] == "committed"
    assert cli("verify", "--store", str(cli.store), "--json").json["elsewhere"] == []
    shutil.rmtree(cli.cache_root)
    assert cli("restore", "my/v1", "--store", str(cli.store), "--json").json["left_out"] == 0


@pytest.mark.parametrize(
    "words",
    [
        ("cat", "my/v1", "cone.py"),
        ("cat", "my/v1@1", "cone.py"),
        ("diff", "my/v1", "my/v1@1"),
        ("export", "my/v1@1", "-o", "out.tar"),
        ("rollback", "my/v1", "1"),
    ],
    ids=" ".join,
)
def test_what_only_the_store_below_has_is_found_by_every_command(cli: Cli, base: Path, words: tuple[str, ...]) -> None:
    cli("init")
    assert cli(*words).code == 0


def test_a_generation_is_that_of_the_first_store_that_has_any(cli: Cli, base: Path) -> None:
    cli.publish("my/v1", "three")
    cli.publish("my/v1", "four")
    assert cli("cat", "my/v1@2", "cfour.py").code == 0
    assert cli("cat", "my/v1@3", "cfour.py").code == 3


def test_the_way_back_that_is_named_works(cli: Cli, base: Path) -> None:
    """Only the image has an earlier generation."""
    assert cli("init", "--store", str(cli.store)).code == 0
    assert cli("quarantine", "my/v1").code == 0
    told = cli("restore", "my/v1").out
    command = shlex.split(told.partition("`kstore ")[2].partition("`")[0])

    assert command[0] == "rollback"
    assert cli(*command).code == 0
    assert "restored my/v1 generation 2: 2 files" in cli("restore", "my/v1").out


def test_what_cannot_be_read_below_is_reported_with_its_store(
    cli: Cli, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble_with(monkeypatch, blob_name(digest_of(b"one")))
    result = cli("cat", "my/v1", "cone.py")
    assert (result.code, f"cannot read the store at {base}:" in result.err) == (1, True)
