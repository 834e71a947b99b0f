"""`kstore export`, `kstore import` and `kstore copy`."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from kstore.cli.sentences import brought_in
from kstore.operations.bring import Brought
from kstore.report import CommitStatus
from kstore.scope import Scope
from kstore.words import size
from tests.cli.commandline import ENVIRONMENT, FULL, GPU, REPOSITORY, Cli, on_terminal
from tests.trees import shared_object

KEY = "model/v1"
COMMAND = [sys.executable, "-m", "kstore", "export"]


@pytest.fixture
def bundle(cli: Cli) -> str:
    """A bundle of a key with two modules."""
    cli.publish(KEY, "one", "two")
    path = str(cli.folder / "model.kstore")
    assert cli("export", KEY, "-o", path).code == 0
    return path


@pytest.fixture
def elsewhere(cli: Cli) -> list[str]:
    return ["--store", str(cli.folder / "elsewhere")]


def test_a_key_is_carried_to_another_store(cli: Cli, bundle: str, elsewhere: list[str]) -> None:
    result = cli("import", bundle, *elsewhere)
    assert (result.code, result.err) == (0, "")
    assert f"imported {KEY} ({GPU}, {ENVIRONMENT}) generation 1: 2 new files of 2" in result.out
    assert cli("import", bundle, *elsewhere).out.startswith("nothing new for")
    restored = cli("restore", KEY, *elsewhere)
    assert restored.code == 0
    assert (cli.cache_root / "inductor/ab/ctwo.py").read_text() == "two"


def test_export_says_what_it_wrote(cli: Cli, bundle: str) -> None:
    result = cli("export", KEY, "-o", bundle)
    assert f"exported {KEY} ({GPU}, {ENVIRONMENT}) generation 1: 2 files" in result.out
    assert result.err == ""


def test_export_import_and_copy_speak_json(cli: Cli, bundle: str, elsewhere: list[str]) -> None:
    exported = cli("export", KEY, "-o", bundle, "--json").json
    assert exported["command"] == "export"
    assert (exported["format"], exported["file"], exported["left_out"]) == ("kstore", bundle, [])
    assert exported["bytes"] == os.path.getsize(bundle)
    assert [ref["generation"] for ref in exported["exported"]] == [1]

    imported = cli("import", bundle, *elsewhere, "--json").json
    assert (imported["command"], imported["key"], imported["bundle"]) == ("import", KEY, bundle)
    (scope,) = imported["scopes"]
    assert (scope["status"], scope["generation"], scope["new_files"], scope["gpu"]) == ("committed", 1, 2, GPU)

    copied = cli("copy", str(cli.store), str(cli.folder / "copy"), "--json").json
    assert (copied["command"], copied["source"], copied["store"]) == (
        "copy", str(cli.store), str(cli.folder / "copy"),
    )  # fmt: skip
    assert [scope["status"] for scope in copied["scopes"]] == ["committed"]


def test_import_by_its_full_name_and_under_another_key(cli: Cli, bundle: str, elsewhere: list[str]) -> None:
    assert cli("import", "bundle", bundle, "other/v2", *elsewhere).code == 0
    assert [scope["key"] for scope in cli("ls", *elsewhere, "--json").json["scopes"]] == ["other/v2"]


def test_an_earlier_generation_can_be_exported(cli: Cli, bundle: str, elsewhere: list[str]) -> None:
    cli.publish(KEY, "three")
    assert cli("export", f"{KEY}@1", "-o", bundle + "1.kstore").code == 0
    assert Path(bundle + "1.kstore").read_bytes() == Path(bundle).read_bytes()
    assert cli("export", f"{KEY}@9", "-o", bundle).code == 3
    assert cli("export", f"{KEY}@x", "-o", bundle).code == 2


@pytest.mark.parametrize(("verb", "was"), [("forget", "forgotten"), ("quarantine", "quarantined")])
def test_a_generation_that_only_withdraws_a_key_is_a_miss(cli: Cli, bundle: str, verb: str, was: str) -> None:
    assert cli(verb, KEY).code == 0
    assert cli("export", f"{KEY}@0", "-o", bundle).code == 2
    result = cli("export", f"{KEY}@2", "-o", bundle)
    assert (result.code, f"holds nothing: with it {KEY} was {was}" in result.err) == (3, True)
    assert f"{KEY} was forgotten or quarantined" in cli("export", KEY, "-o", bundle).err


def test_a_key_of_which_a_repair_found_nothing_left_is_a_miss_and_told_as_such(cli: Cli, bundle: str) -> None:
    for blob in cli.store.glob("blobs/*/*"):
        blob.unlink()
    cli("verify", "--repair")
    result = cli("export", KEY, "-o", bundle)
    assert (result.code, "or a repair found nothing left of it" in result.err) == (3, True)
    assert f"with it {KEY} was lost" in cli("export", f"{KEY}@2", "-o", bundle).err


def test_what_holds_no_files_is_not_said_to_be_there(cli: Cli, bundle: str) -> None:
    nothing = Brought(Scope(GPU, KEY, ENVIRONMENT), CommitStatus.UNCHANGED)
    assert brought_in("imported", nothing) == f"{nothing.scope} holds no files: nothing is imported"


@pytest.mark.parametrize("suffix", ["kstore", "tar"])
def test_a_damaged_newest_generation_is_passed_over_and_the_exit_code_is_4(cli: Cli, bundle: str, suffix: str) -> None:
    cli.publish(KEY, "three")
    (ref,) = cli.store.glob(f"refs/*/{KEY}/*/2")
    ref.chmod(0o644)
    ref.write_bytes(b"damaged")
    path = str(cli.folder / f"older.{suffix}")
    said = f"generation 2 of {Scope(GPU, KEY, ENVIRONMENT)} is damaged, and passed over"
    result = cli("export", KEY, "-o", path, "--json")
    assert (result.code, f"warning: {said}\n" in result.err) == (4, True)
    assert [ref["generation"] for ref in result.json["exported"]] == [1]
    assert result.json["damaged"] == [said]
    assert "generation 1: 2 files" in cli("export", KEY, "-o", path).out


def test_a_key_that_does_not_exist_is_a_miss(cli: Cli, bundle: str) -> None:
    result = cli("export", "missing", "-o", bundle)
    assert (result.code, "nothing is published for missing in" in result.err) == (3, True)
    assert cli("export", KEY, "--gpu", "another", "-o", bundle).code == 3


def test_a_damaged_bundle_ends_with_4(cli: Cli, bundle: str, elsewhere: list[str]) -> None:
    data = bytearray(Path(bundle).read_bytes())
    data[-200] ^= 1
    Path(bundle).write_bytes(data)
    result = cli("import", bundle, *elsewhere)
    assert result.code == 4
    assert "is not a bundle, or is damaged" in result.err
    assert not (cli.folder / "elsewhere").exists()


@pytest.mark.parametrize("file", ["-", "/dev/stdin"])
def test_a_bundle_comes_through_a_pipe(cli: Cli, bundle: str, elsewhere: list[str], file: str) -> None:
    with subprocess.Popen(["cat", bundle], stdout=subprocess.PIPE) as sent:
        result = cli.process("import", file, *elsewhere, stdin=sent.stdout)
    assert (result.code, result.err) == (0, "")
    assert "2 new files of 2" in result.out


def test_what_is_cut_short_in_a_pipe_is_damaged(cli: Cli, bundle: str, elsewhere: list[str]) -> None:
    with subprocess.Popen(["head", "-c", "-1", bundle], stdout=subprocess.PIPE) as sent:
        result = cli.process("import", "-", *elsewhere, stdin=sent.stdout)
    assert (result.code, "stdin is not a bundle, or is damaged" in result.err) == (4, True)


def test_an_export_that_goes_on_says_so(cli: Cli, bundle: str) -> None:
    os.rename(bundle, f"{bundle}.partial")
    result = cli("export", KEY, "-o", bundle)
    assert "continued " in result.out and ".partial, of which" in result.out


@pytest.mark.parametrize("suffix", ["tar", "tar.zst", "zip"])
def test_the_files_name_says_the_format(cli: Cli, bundle: str, suffix: str) -> None:
    path = str(cli.folder / f"model.{suffix}")
    result = cli("export", KEY, "-o", path, "--json").json
    assert (result["format"], result["bytes"]) == (suffix, os.path.getsize(path))
    assert not Path(path + ".partial").exists()


def test_only_what_is_in_an_archive_is_counted(cli: Cli) -> None:
    built = cli.folder / "builders" / KEY / "inductor/ab/cone.so"
    built.parent.mkdir(parents=True)
    built.write_bytes(shared_object())
    cli.publish(KEY, "one")
    path = str(cli.folder / "model.tar")
    result = cli("export", KEY, "-o", path)
    assert "generation 1: 1 file, 3 B" in result.out
    left_out, why = result.err.splitlines()[-2:]
    assert ("left out inductor/ab/cone.so" in left_out, "--host HOST adds those" in why) == (True, True)
    (held,) = cli("export", KEY, "-o", path, "--json").json["exported"]
    assert (held["files"], held["bytes"]) == (1, 3)


def test_a_name_that_says_no_format_is_a_usage_error(cli: Cli, bundle: str) -> None:
    result = cli("export", KEY, "-o", str(cli.folder / "model.bin"))
    assert (result.code, "--format" in result.err) == (2, True)
    assert cli("export", KEY, "-o", str(cli.folder / "model.bin"), "--format", "zip").code == 0
    assert cli("export", KEY, "-o", bundle, "--under", "/tmp").code == 2


def test_stdout_gets_the_file_and_nothing_else(cli: Cli, bundle: str) -> None:
    for name in ("kstore", "tar", "zip"):
        path = str(cli.folder / f"same.{name}")
        assert cli("export", KEY, "-o", path).code == 0
        process = cli.start("export", KEY, "-o", "-", "--format", name, "--json")
        out, err = process.stdout, process.stderr
        assert out and err
        data = out.buffer.read()  # type: ignore[attr-defined]
        assert data == Path(path).read_bytes()
        assert '"command": "export"' in err.read()
        assert process.wait(60) == 0


@pytest.mark.parametrize("path", ["-", "/dev/stdout"])
def test_a_terminal_gets_no_file(cli: Cli, bundle: str, path: str) -> None:
    assert on_terminal("export", KEY, "-o", path, "--format", "tar") == ""


def test_what_went_to_stdout_is_said_on_stderr(cli: Cli, bundle: str) -> None:
    result = cli.process("export", KEY, "-o", "-", "--format", "kstore", errors="replace")

    assert f" {size(os.path.getsize(bundle))} went to stdout\n" in result.err


@pytest.mark.parametrize("format", ["kstore", "tar"])
def test_stdout_may_be_a_file(cli: Cli, bundle: str, tmp_path: Path, format: str) -> None:
    """By its name in /dev, which is a link to it and stays a link."""
    name, sent = tmp_path / "stdout", tmp_path / "sent"
    name.symlink_to("/proc/self/fd/1")
    with sent.open("wb") as file:
        code = subprocess.call([*COMMAND, KEY, "-o", name, "--format", format], stdout=file, cwd=REPOSITORY)
    assert (code, name.is_symlink()) == (0, True)
    assert sent.stat().st_size > 1000 and list(tmp_path.glob("*.partial")) == []


@pytest.mark.parametrize("format", ["kstore", "tar"])
def test_a_file_behind_stdout_that_a_server_has_no_room_for_is_an_error(
    cli: Cli, bundle: str, tmp_path: Path, format: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FULL)
    with (tmp_path / "sent").open("wb") as file:
        done = subprocess.run(
            [*COMMAND, KEY, "-o", "-", "--format", format], stdout=file, stderr=subprocess.PIPE, text=True,
            cwd=REPOSITORY, env=os.environ | {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "kstore: cannot write to stdout: No space left on device; make room there, or send it elsewhere\n"
    )


def test_what_a_link_leads_to_is_written(cli: Cli, bundle: str, tmp_path: Path) -> None:
    link, file = tmp_path / "link.kstore", tmp_path / "file.kstore"
    link.symlink_to(file)
    assert cli("export", KEY, "-o", str(link)).code == 0
    assert link.is_symlink() and file.read_bytes() == Path(bundle).read_bytes()


@pytest.mark.parametrize("path", ["-", "/dev/stdout"])
def test_a_stdout_that_is_closed_takes_nothing(cli: Cli, bundle: str, path: str) -> None:
    command = shlex.join([*COMMAND, KEY, "-o", path, "--format", "tar"])
    done = subprocess.run(["sh", "-c", f"{command} >&-"], capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert (done.returncode, "exported" in done.stderr) == (1, False)


def test_an_archive_goes_through_a_pipe(cli: Cli, bundle: str) -> None:
    process = cli.start("export", KEY, "-o", "/dev/stdout", "--format", "tar", "--under", "/somewhere")
    assert process.stdout and process.stderr
    data = process.stdout.buffer.read()  # type: ignore[attr-defined]
    assert process.wait(60) == 0, process.stderr.read()
    assert len(data) % 512 == 0  # nothing else is in it
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getnames() == ["inductor/ab/cone.py", "inductor/ab/ctwo.py"]


def test_an_archive_is_of_one_scope(cli: Cli, bundle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSTORE_GPU", "another-gpu")
    cli.publish(KEY)
    path = str(cli.folder / "model.tar")
    result = cli("export", KEY, "-o", path)
    assert (result.code, "--gpu another-gpu" in result.err) == (2, True)
    assert not Path(path).exists() and not Path(path + ".partial").exists()
    assert cli("export", KEY, "-o", path, "--gpu", GPU).code == 0
    assert cli("export", f"{KEY}@1", "-o", bundle).code == 2
    assert len(cli("export", KEY, "-o", bundle, "--json").json["exported"]) == 2


def test_where_no_host_has_objects_none_can_be_chosen(cli: Cli) -> None:
    cli.publish("my/v1")
    result = cli("export", "my/v1", "-o", str(cli.folder / "one.tar"), "--host", "abc")

    assert result.code == 2
    assert "'abc' matches no host of this generation, or several; it has no C++ objects of any host" in result.err


def test_an_import_of_nothing_says_what_there_is_to_name(cli: Cli) -> None:
    result = cli("import")

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("kstore: name the FILE of a bundle, or another source: bundle, fal, b10, megacache")
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("command", [("missing",), ("bundle", "missing"), ("megacache", "missing", "my/v1")])
def test_a_file_that_is_missing_is_the_same_error_for_each_source(cli: Cli, command: tuple[str, ...]) -> None:
    result = cli("import", *command)

    assert (result.code, result.out) == (1, "")
    assert result.err == "kstore: cannot read missing: No such file or directory\n"


@pytest.mark.parametrize("words", [("fal", "/zips"), ("megacache", "saved", "my/v1")])
def test_a_source_after_an_option_is_no_missing_file(cli: Cli, words: tuple[str, ...]) -> None:
    result = cli("import", "--layout", "packed", *words)

    assert (result.code, result.out) == (2, "")
    assert f"to import from {words[0]}, put its name first, as in `kstore import {words[0]}`" in result.err


def test_a_bundle_may_have_the_name_of_a_source(
    cli: Cli, bundle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(bundle).rename("fal")

    assert cli("import", "--layout", "packed", "fal").code == 0


def test_a_mega_cache_is_no_bundle_and_its_own_command_is_named(cli: Cli) -> None:
    path = cli.folder / "saved.megacache"
    path.write_bytes(b"x" * 5000)
    result = cli("import", str(path), "my/v1")

    assert (result.code, result.out) == (2, "")
    assert f"`kstore import megacache {path} my/v1`" in result.err


def test_copy_brings_keys_to_another_store(cli: Cli, bundle: str) -> None:
    cli.publish("other/key", "three")
    target = str(cli.folder / "copy")
    result = cli("copy", str(cli.store), target, KEY)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"copied {KEY}")
    assert "other/key" not in result.out
    assert "nothing new for" in cli("copy", str(cli.store), target).out
    assert cli("restore", KEY, "--store", target).code == 0
    assert cli("copy", str(cli.store), target, "missing").code == 3
    assert cli("copy", str(cli.store), str(cli.store)).code == 2
    assert cli("copy", str(cli.folder / "none"), target).code == 1


def test_copy_leaves_what_was_quarantined(cli: Cli, bundle: str) -> None:
    target = str(cli.folder / "copy")
    cli("copy", str(cli.store), target)
    assert cli("quarantine", KEY, "--store", target).code == 0
    assert "stays so unless it is named" in cli("copy", str(cli.store), target).out


def test_copy_ends_with_4_if_something_is_damaged(cli: Cli, bundle: str) -> None:
    for path in (cli.store / "blobs").rglob("*"):
        if path.is_file() and path.read_bytes() == b"two":
            path.chmod(0o644)
            path.write_bytes(b"owt")
    result = cli("copy", str(cli.store), str(cli.folder / "copy"))
    assert (result.code, "is not copied" in result.err) == (4, True)
