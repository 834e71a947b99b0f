from __future__ import annotations

import subprocess
import sys

import pytest
from blake3 import blake3

from kstore.blobs.loose import LooseBlobs
from tests.cli.commandline import ENVIRONMENT, GPU, REPOSITORY, Cli, Result, on_terminal
from tests.cli.test_diff import HOSTILE, commit
from tests.cli.test_show import publish_hostile
from tests.inspect.caches import put_cpp, put_kernel, put_module
from tests.trees import Tree, shared_object


def paths(result: Result) -> list[str]:
    assert (result.code, result.err) == (0, "")
    return [line.partition("\t")[0] for line in result.out.splitlines()]


def test_it_lists_path_bytes_place_host_and_digest_with_tabs_between(cli: Cli) -> None:
    cli.publish("my/v1", "three", "one")

    assert cli("files", "my/v1") == Result(
        0,
        f"inductor/ab/cone.py\t3\tloose\tany\t{blake3(b'one').hexdigest()}\n"
        f"inductor/ab/cthree.py\t5\tloose\tany\t{blake3(b'three').hexdigest()}\n",
        "",
    )


def test_cat_takes_the_paths_that_it_lists(cli: Cli) -> None:
    cli.publish("my/v1", "one", "two")

    assert [cli("cat", "my/v1", path).out for path in paths(cli("files", "my/v1"))] == ["one", "two"]


def test_a_generation_can_be_named(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    cli.publish("my/v1", "one", "two")

    assert len(paths(cli("files", "my/v1@1"))) == 1
    assert cli("files", "my/v1@2").out == cli("files", "my/v1").out
    assert cli("files", "my/v1@3").code == 3
    assert cli("files", "my/v1@1", "-v").err == f"kstore: my/v1 ({GPU}, {ENVIRONMENT}) generation 1\n"


def test_it_says_what_is_packed_and_what_is_nowhere(cli: Cli) -> None:
    cli.publish("my/v1", "one", "two")
    cli.write("inductor/ab/cthree.py", "three")
    assert cli("commit", "my/v1", "--layout", "packed").code == 0
    digest = blake3(b"two").hexdigest()
    (cli.store / "blobs" / digest[:2] / digest).unlink()

    stored = [line.split("\t")[2] for line in cli("files", "my/v1").out.splitlines()]
    assert stored == ["loose", "packed", "-"]
    assert [file["stored"] for file in cli("files", "my/v1", "--json").json["artifacts"]] == ["loose", "packed", None]


def test_a_file_that_is_bound_to_a_host_names_it(cli: Cli) -> None:
    commit(cli, "my/v1", lambda tree: tree.put("inductor/ab/cone.main.so", shared_object()))
    (host,) = cli("show", "my/v1", "--json").json["scopes"][0]["hosts"]

    assert cli("files", "my/v1").out.split("\t")[3] == host


def test_json_has_everything(cli: Cli) -> None:
    cli.publish("my/v1")
    content = cli("files", "my/v1", "--json").json

    assert (content["store"], content["key"], content["generation"]) == (str(cli.store), "my/v1", 1)
    assert (content["gpu"], content["environment"], content["state"]) == (GPU, ENVIRONMENT, "live")
    assert content["artifacts"] == [
        {
            "path": "inductor/ab/cone.py", "host": None, "bytes": 3, "digest": blake3(b"one").hexdigest(),
            "mode": "0644", "stored": "loose",
        }
    ]  # fmt: skip


def test_a_path_limits_it_to_a_folder_the_end_of_a_path_or_a_kernel(cli: Cli) -> None:
    def fill(tree: Tree) -> None:
        for name in "triton_add", "triton_mul":
            put_kernel(tree, name)
        put_module(tree, {"cpp_fused_add_0": "out[0] = 1;"})
        put_cpp(tree, "out[0] = 1;")

    commit(cli, "my/v1", fill)

    assert len(paths(cli("files", "my/v1"))) == 14
    assert len(paths(cli("files", "my/v1", "triton"))) == len(paths(cli("files", "my/v1", "triton/"))) == 12
    assert len(paths(cli("files", "my/v1", ".ptx"))) == 2
    assert {path.rpartition("triton_")[2] for path in paths(cli("files", "my/v1", "triton_add"))} >= {"add.ptx"}
    assert len(paths(cli("files", "my/v1", "triton_add"))) == 6
    assert [path.endswith(".main.cpp") for path in paths(cli("files", "my/v1", "cpp_fused_add_0"))] == [True]


def test_a_path_that_means_nothing_is_a_miss(cli: Cli) -> None:
    cli.publish("my/v1")
    result = cli("files", "my/v1", "con.py")

    assert (result.code, result.out) == (3, "")
    assert "my/v1@1 has no artifact 'con.py'; there is cone.py" in result.err


def test_a_line_is_printed_as_soon_as_its_file_was_looked_for(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.publish("my/v1", "one", "two")
    has = LooseBlobs.has

    def away_after_the_first(self: LooseBlobs, digest: bytes, size: int) -> bool:
        if digest != blake3(b"one").digest():
            raise OSError("the server went away")
        return has(self, digest, size)

    monkeypatch.setattr(LooseBlobs, "has", away_after_the_first)
    result = cli("files", "my/v1")

    assert (result.code, result.out.partition("\t")[0]) == (1, "inductor/ab/cone.py")
    assert f"cannot read the store at {cli.store}: the server went away" in result.err


def test_a_terminal_gets_a_table_that_fits(cli: Cli) -> None:
    cli.publish("my/v1", "one" * 30, "two")
    heading, first, second = on_terminal("files", "my/v1").splitlines()

    assert heading.split() == ["PATH", "SIZE", "STORED", "HOST", "DIGEST"]
    assert len(first) <= 80 and "…" in first.split()[0] and first.split()[1:5] == ["90", "B", "loose", "any"]
    assert second.startswith("inductor/ab/ctwo.py ")


def test_no_table_is_built_of_them(cli: Cli) -> None:
    cli.publish("my/v1")
    program = "import sys\nfrom kstore.cli.program import run\nrun(['files', 'my/v1'])\nsys.exit('rich' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=False, timeout=60).returncode == 0


def test_a_name_cannot_steer_a_terminal_or_forge_a_line(cli: Cli) -> None:
    commit(cli, "my/v1", lambda tree: tree.put(f"inductor/{HOSTILE}.py", b"x"))

    assert "\x1b" not in on_terminal("files", "my/v1")
    (line,) = cli("files", "my/v1").out.splitlines()
    assert "\x1b" not in line and len(line.split("\t")) == 5


def test_a_host_cannot_steer_a_terminal_or_forge_a_line(cli: Cli) -> None:
    publish_hostile(cli)

    (line,) = cli("files", "my/v1").out.splitlines()
    assert "\x1b" not in line and len(line.split("\t")) == 5
    assert len(on_terminal("files", "my/v1").splitlines()) == 2


def test_a_generation_without_files_says_why(cli: Cli) -> None:
    cli.publish("my/v1")
    cli("quarantine", "my/v1")
    result = cli("files", "my/v1")

    assert (result.code, result.out) == (0, "")
    assert "my/v1@2 holds no files: it is quarantined" in result.err
