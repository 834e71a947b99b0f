from __future__ import annotations

import random
import shutil
from collections.abc import Mapping

import pytest

from kstore.backends import PosixBackend
from kstore.blobs.loose import blob_name
from kstore.blobs.packreader import PackReader
from kstore.digest import digest_of
from tests.cli.commandline import Cli
from tests.cli.test_diff import HOSTILE, commit
from tests.cli.test_hidden_keys import raising


def damage(cli: Cli, content: str = "one") -> None:
    """Write through a link, as root may."""
    (path,) = (
        path for path in (cli.store / "blobs").rglob("*") if path.is_file() and path.read_bytes() == content.encode()
    )
    path.chmod(0o644)
    path.write_bytes(content.encode()[::-1])


def test_a_whole_store_is_said_to_be_whole(cli: Cli) -> None:
    cli.publish("my/v1", "one", "two")
    result = cli("verify")

    assert result.code == 0
    assert result.out.startswith("3 blobs of 1 generation, ") and "everything is intact" in result.out


def test_damage_is_named_with_the_keys_it_touches(cli: Cli) -> None:
    cli.publish("my/v1", "one", "two")
    cli.publish("my/v2", "two")
    damage(cli)
    result = cli("verify")

    assert result.code == 4
    assert "generation 1 of my/v1" in result.out and "cone.py" in result.out
    assert "my/v2" not in result.out
    assert "3 of 4 blobs of 2 generations" in result.out
    assert "kstore verify --repair" in result.err


def test_a_name_that_is_lost_cannot_forge_a_line(cli: Cli) -> None:
    commit(cli, "my/v1", lambda tree: tree.put(f"inductor/{HOSTILE}.py", b"x"))
    (cli.store / blob_name(digest_of(b"x"))).unlink()
    lines = cli("verify").out.splitlines()

    assert any("has lost inductor/evil" in line for line in lines)
    assert not any(line.startswith("- forged") for line in lines)


def test_after_a_repair_the_next_commit_puts_it_back(cli: Cli) -> None:
    cli.publish("my/v1", "one", "two")
    damage(cli)

    assert cli("verify", "--repair").code == 4
    assert cli("verify").code == 4
    cli.publish("my/v1", "one", "two")
    assert cli("verify").code == 0


@pytest.mark.parametrize("layout", ["loose", "packed"])
def test_what_a_repair_cannot_mend_any_further_is_for_a_commit(layout: str, cli: Cli) -> None:
    for name in ("one", "two"):
        cli.write(f"inductor/ab/c{name}.py", name)
    cli("commit", "my/v1", "--layout", layout)
    if layout == "loose":
        damage(cli)
    else:
        (pack,) = (cli.store / "packs").iterdir()
        pack.chmod(0o644)
        pack.write_bytes(pack.read_bytes().replace(b"one", b"eno"))
    assert "what could be saved is" in cli("verify", "--repair").err
    for result in (cli("verify"), cli("verify", "--repair")):
        assert result.code == 4
        assert "commit from a worker that has the files" in result.err
        assert "kstore gc --keep 1" in result.err
        assert "--repair" not in result.err
        assert "what could be saved is" not in result.err


def test_what_only_earlier_generations_have_lost_is_left_to_gc(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    damage(cli)
    cli("forget", "my/v1")
    result = cli("verify")

    assert result.code == 4
    assert "--repair" not in result.err
    assert "a pinned one once it is unpinned, or sooner: kstore gc --keep 1" in result.err


def test_what_keeps_gc_from_deleting_anything_is_to_be_repaired_first(cli: Cli) -> None:
    for name in ("one", "two"):
        cli.publish("my/v1", name)
    cli("pin", "my/v1", "1")
    (ref,) = cli.store.glob("refs/*/my/v1/*/1")
    ref.chmod(0o644)
    ref.write_bytes(b"damaged")
    said = cli("verify").err
    assert "next: kstore verify --repair" in said and "kstore gc" not in said
    done = "what could not be read at all is removed, and gc deletes again; what else is damaged: kstore verify"
    assert cli("verify", "--repair").err == f"kstore: {done}\n"
    assert cli("verify").code == 0
    assert list(cli.store.rglob("*.pin")) == []


def test_a_file_that_was_altered_in_the_cache_root_is_named_and_removed_by_a_repair(cli: Cli) -> None:
    altered = cli.write("inductor/ab/cone.py", "one")
    cli("commit", "my/v1", "--layout", "packed")
    shutil.rmtree(cli.cache_root)
    cli("restore", "my/v1")
    altered.write_text("eno")
    found = cli("verify", "my/v1")
    assert found.code == 4
    assert found.out.startswith("inductor/ab/cone.py in the local cache root was altered in place\n")
    assert found.err == "kstore: next: kstore verify my/v1 --repair\n"

    assert cli("verify", "my/v1", "--repair").err == (
        "kstore: what was altered in the cache root is removed; the next restore, or the compiler, makes it anew\n"
    )
    assert not altered.exists()
    assert cli("verify", "my/v1").code == 0


def test_a_pack_that_was_moved_aside_is_not_reported_again_but_what_an_earlier_generation_has_lost(cli: Cli) -> None:
    cli.write("inductor/ab/cone.py", "one")
    cli("commit", "my/v1", "--layout", "packed")
    (pack,) = (cli.store / "packs").iterdir()
    pack.chmod(0o644)
    data = pack.read_bytes()
    pack.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    assert "kstore verify --repair" in cli("verify").err
    cli("verify", "--repair")
    cli("commit", "my/v1", "--layout", "packed")
    result = cli("verify")

    assert result.code == 4
    assert "generation 2 of my/v1" in result.out and "has lost inductor/ab/cone.py" in result.out
    assert pack.name not in result.out
    assert "--repair" not in result.err

    assert cli("verify", "--repair").err.endswith("earlier generations is; what else is damaged: kstore verify\n")
    assert cli("verify").code == 0


def test_what_to_do_next_is_for_the_same_store_and_key(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.publish("my/v1", "one")
    damage(cli)
    monkeypatch.delenv("KSTORE_ROOT")
    result = cli("verify", "my/v1", "--store", str(cli.store))

    assert f"next: kstore verify my/v1 --repair --store {cli.store}\n" in result.err


def test_what_to_do_next_can_be_copied_for_a_key_that_looks_like_an_option(cli: Cli) -> None:
    cli.write("inductor/ab/cone.py", "one")
    cli("commit", "--layout", "loose", "--", "-v1")
    damage(cli)
    (line,) = cli("verify", "--", "-v1").err.splitlines()

    assert line == "kstore: next: kstore verify --repair -- -v1"
    assert "what could be saved is" in cli(*line.removeprefix("kstore: next: kstore ").split()).err


def test_json_lists_what_is_lost(cli: Cli) -> None:
    cli.publish("my/v1", "one", "two")
    damage(cli)
    content = cli("verify", "my/v1", "--json").json

    assert content["ok"] is False
    assert content["damage"][0]["paths"] == ["inductor/ab/cone.py"]


def test_a_key_that_does_not_exist_is_a_miss(cli: Cli) -> None:
    cli.publish("my/v1")

    assert cli("verify", "your/v1").code == 3


def test_what_cannot_be_read_is_named_and_is_not_damage(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(loose: object, blobs: Mapping[bytes, int]) -> tuple[set[bytes], dict[bytes, str]]:
        return set(), {digest: f"blob {digest.hex()}: Permission denied" for digest in blobs}

    cli.publish("my/v1", "one", "two", "three", "four")
    with monkeypatch.context() as patch:
        patch.setattr("kstore.operations.verify._read", forbidden)
        result = cli("verify", "--repair")

    assert result.code == 4
    assert result.out.count("cannot be read just now: blob ") == 3
    assert "cannot be read just now: 2 more; -v names them" in result.out
    assert "not everything could be read" in result.out
    assert result.err == (
        "kstore: what cannot be read may be whole, and stays; if nothing else is said, check the mount and its "
        "permissions; then verify again\n"
    )
    assert cli("verify").code == 0


def test_a_lost_pack_is_told_though_loose_blobs_are_hidden(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        cli.write(f"inductor/ab/c{name}.py", name)
        cli("commit", "my/v1", "--layout", "packed")
    first = min((cli.store / "packs").iterdir(), key=lambda pack: pack.stat().st_mtime_ns)
    first.unlink()
    monkeypatch.setattr("kstore.backends.PosixBackend.stat_many", raising(PermissionError(13, "denied")))
    found = cli("verify", "--json").json
    assert found["packs"] == [first.name]


def test_a_pack_that_cannot_be_read_is_warned_of_once(cli: Cli) -> None:
    for name, layout in (("one", "packed"), ("two", "loose")):
        cli.write(f"inductor/ab/c{name}.py", name)
        cli("commit", "my/v1", "--layout", layout)
    next((cli.store / "packs").iterdir()).unlink()
    assert cli("verify").err.count("cannot be read in full") == 1


def test_generations_in_a_row_that_have_lost_the_same_are_told_in_one_line(cli: Cli) -> None:
    for names in (("one",), ("one", "two"), ("one", "two", "three"), ("one", "two", "three", "four")):
        cli.publish("my/v1", *names)
    cli.publish("my/v2", "one")
    cli("pin", "my/v1", "1")
    damage(cli)
    lines = cli("verify").out.splitlines()

    assert [line.partition(" (")[0] for line in lines[:-1]] == ["generations 1 to 4 of my/v1", "generation 1 of my/v2"]
    assert lines[0].endswith(" have lost inductor/ab/cone.py") and lines[1].endswith(" has lost inductor/ab/cone.py")
    assert len(cli("verify", "--json").json["damage"]) == 5


def test_generations_between_which_one_is_whole_are_told_apart(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    cli("forget", "my/v1")
    cli("rollback", "my/v1")
    damage(cli)
    lines = cli("verify").out.splitlines()

    assert [line.partition(" of ")[0] for line in lines[:-1]] == ["generation 1", "generation 3"]


def test_what_keeps_frames_of_a_pack_from_being_read_is_told_once(cli: Cli) -> None:
    for number in range(4):
        cli.write(f"inductor/ab/c{number}.py", random.Random(number).randbytes(2 << 20).hex())
    cli("commit", "my/v1", "--layout", "packed")
    (pack,) = (cli.store / "packs").iterdir()
    index = PackReader(PosixBackend(cli.store), pack.name).index
    frames = [frame for frame in index.frames if frame.size > 1 << 20]
    assert len(frames) >= 3
    pack.chmod(0o644)
    with pack.open("r+b") as file:
        for frame in frames:
            file.seek(frame.offset)
            file.write(bytes(8))
    result = cli("verify", "--repair")
    said = result.err.splitlines()

    assert f"pack {pack.name} is damaged" in result.out.splitlines()
    assert len(said) == len(set(said))
    assert any("a frame of" in line for line in said)
