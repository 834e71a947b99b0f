from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from kstore.environment import Host
from tests.cli.commandline import ENVIRONMENT, GPU, Cli, on_terminal
from tests.inspect.caches import put_choice, put_cpp, put_kernel, put_module
from tests.trees import Tree, shared_object

HOSTILE = "evil\x1b[31mred\n- forged line\u202e"
Fill = Callable[[Tree], object]


def commit(cli: Cli, key: str, fill: Fill, *options: str) -> None:
    """Publish what `fill` writes, from a cache root of the key's own."""
    root = cli.folder / "builders" / key / "".join(options)
    fill(Tree(root))
    result = cli("commit", key, "--cache-root", str(root), "--layout", "loose", *options)
    assert result.code == 0, result.err


def two_releases(cli: Cli) -> None:
    """A kernel with other options, one that was removed, one that is new, and one that stayed."""

    def first(tree: Tree) -> None:
        put_kernel(tree, "triton_poi_fused_add_3", num_warps=4)
        put_kernel(tree, "triton_red_old_1")
        put_kernel(tree, "triton_same_0")
        tree.graph("fgraph", "one")

    def second(tree: Tree) -> None:
        put_kernel(tree, "triton_poi_fused_add_3", num_warps=8)
        put_kernel(tree, "triton_red_new_2", num_warps=16)
        put_kernel(tree, "triton_same_0")
        tree.graph("fgraph", "two")

    commit(cli, "my/v1", first)
    commit(cli, "my/v2", second)


def test_it_shows_what_changed_by_name(cli: Cli) -> None:
    two_releases(cli)
    result = cli("diff", "my/v1", "my/v2")

    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[3:16] == [
        "COMPONENT  KIND            SAME  CHANGED  REMOVED  ADDED  REBUILT",
        "inductor   FX graphs          0        0        0      0        1",
        "triton     Triton kernels     1        1        1      1        0",
        "",
        "FX graphs",
        "  = 1 with the same key, but other bytes; -v lists them",
        "",
        "Triton kernels",
        "  ~ triton_poi_fused_add_3  num_warps 4 → 8",
        "  - triton_red_old_1  num_warps 4, num_stages 2, num_ctas 1",
        "  + triton_red_new_2  num_warps 16, num_stages 2, num_ctas 1",
        "",
        "environment",
    ]
    assert re.match(r"- my/v1@1  19 files, .* kB\n\+ my/v2@1  19 files, .* kB\n\n", result.out)
    assert re.search(r"\nbytes: .* kB in common, .* kB only in my/v1@1, .* kB only in my/v2@1\n$", result.out)


def test_stat_has_the_numbers_alone(cli: Cli) -> None:
    two_releases(cli)
    result = cli("diff", "my/v1", "my/v2", "--stat")

    assert "triton     Triton kernels     1        1        1      1        0" in result.out
    assert "triton_" not in result.out
    assert "bytes: " in result.out


def test_name_only_has_the_names_alone(cli: Cli) -> None:
    two_releases(cli)

    assert cli("diff", "my/v1", "my/v2", "--name-only").out.splitlines() == [
        "fgraph",
        "triton_poi_fused_add_3",
        "triton_red_old_1",
        "triton_red_new_2",
    ]


def test_json_has_everything(cli: Cli) -> None:
    two_releases(cli)
    content = cli("diff", "my/v1", "my/v2", "--json").json

    assert content["differ"] is True
    assert (content["left"]["label"], content["left"]["generation"], content["left"]["gpu"]) == ("my/v1@1", 1, GPU)
    assert content["summary"][1] == {
        "component": "triton", "kind": "triton-kernel", "same": 1,
        "changed": 1, "removed": 1, "added": 1, "moved": 0, "rebuilt": 0,
    }  # fmt: skip
    assert [(found["change"], found["name"]) for found in content["differences"]] == [
        ("rebuilt", "fgraph"),
        ("changed", "triton_poi_fused_add_3"),
        ("removed", "triton_red_old_1"),
        ("added", "triton_red_new_2"),
    ]
    assert content["differences"][1]["fields"] == [{"name": "num_warps", "left": 4, "right": 8}]
    assert content["bytes"]["shared"] > 0


def test_the_exit_code_tells_whether_anything_differs_only_if_asked(cli: Cli) -> None:
    two_releases(cli)

    assert cli("diff", "my/v1", "my/v2").code == 0
    assert cli("diff", "my/v1", "my/v2", "--exit-code").code == 6
    assert cli("diff", "my/v1", "my/v2", "--exit-code", "--name-only").code == 6
    assert cli("diff", "my/v1", "my/v1", "--exit-code").code == 0
    assert cli("diff", "my/v1", "my/v2", "--path", "triton_same_0.ptx", "--exit-code").code == 0
    assert cli("diff", "my/v1", "my/v2", "--path", "triton_poi_fused_add_3.ptx", "--exit-code").code == 6


def test_nothing_differs(cli: Cli) -> None:
    two_releases(cli)
    result = cli("diff", "my/v1", "my/v1")

    assert result.out.splitlines()[-1].startswith("nothing differs: ")
    assert cli("diff", "my/v1", "my/v1", "--name-only").out == ""


def test_long_lists_are_cut_and_whole_with_verbose(cli: Cli) -> None:
    commit(cli, "my/v1", lambda tree: put_kernel(tree, "one"))
    commit(cli, "my/v2", lambda tree: [put_kernel(tree, f"kernel_{number}") for number in range(30)])

    assert "and 11 more; -v lists all" in cli("diff", "my/v1", "my/v2").out
    assert cli("diff", "my/v1", "my/v2", "-v").out.count("+ kernel_") == 30


def test_equal_lines_are_counted(cli: Cli) -> None:
    commit(cli, "my/v1", lambda tree: put_kernel(tree, "one"))
    commit(cli, "my/v2", lambda tree: [put_kernel(tree, "triton_mm", shared=number) for number in range(5)])

    assert "+ triton_mm (×5)  num_warps 4" in cli("diff", "my/v1", "my/v2").out  # noqa: RUF001


@pytest.mark.parametrize("arguments", [(), ("--stat",), ("-v",)])
def test_it_fits_a_terminal_and_a_pipe_gets_every_name_whole(cli: Cli, arguments: tuple[str, ...]) -> None:
    name = "triton_red_fused__unsafe_view_add_mul_native_layer_norm_native_layer_norm_backward_sum_view_17"
    commit(cli, "my/v1", lambda tree: put_kernel(tree, name, num_warps=4, num_stages=1, shared=1, maxnreg=255))
    commit(cli, "my/v2", lambda tree: put_kernel(tree, name, num_warps=8, num_stages=2, shared=999_999, maxnreg=None))
    lines = on_terminal("diff", "my/v1", "my/v2", *arguments, NO_COLOR="1").splitlines()

    # Only a path can be longer: it must stay whole to be of any use.
    assert max(len(line) for line in lines if str(cli.folder) not in line) <= 80
    assert (name in cli("diff", "my/v1", "my/v2", *arguments).out) is (arguments != ("--stat",))


def test_generations_of_one_key_are_compared(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    cli.publish("my/v1", "one", "two")

    assert cli("diff", "my/v1@1", "my/v1@2", "--name-only").out == "inductor/ab/ctwo.py\n"
    assert cli("diff", "my/v1@2", "my/v1", "--exit-code").code == 0


def test_a_key_is_compared_with_the_cache_root(cli: Cli) -> None:
    cli.write("inductor/ab/cone.py", "one")
    cli("commit", "my/v1")
    cli.write("inductor/ab/ctwo.py", "two")
    result = cli("diff", "my/v1")

    assert f"+ {cli.cache_root}  2 files" in result.out
    assert "  + inductor/ab/ctwo.py\n" in result.out


def test_without_a_cache_root_it_says_what_to_do(cli: Cli) -> None:
    cli.publish("my/v1")
    result = cli("diff", "my/v1")

    assert result.code == 3
    assert "there is no cache root of my/v1 here; give two keys" in result.err
    assert not cli.cache_root.exists()


def test_files_of_the_cache_root_that_are_not_finished_are_left_out(cli: Cli) -> None:
    cli.write("inductor/ab/cone.py", "one")
    cli("commit", "my/v1")
    cli.write("inductor/ab/ctwo.py", "")
    result = cli("diff", "my/v1")

    assert "nothing differs" in result.out
    assert "1 artifact of the cache root left out" in result.err


def test_gpus_are_compared_with_an_option_for_each_side(cli: Cli) -> None:
    commit(cli, "my/v1", lambda tree: put_kernel(tree, "triton_add", num_warps=4), "--gpu", "gpu-a")
    commit(cli, "my/v1", lambda tree: put_kernel(tree, "triton_add", num_warps=8), "--gpu", "gpu-b")
    result = cli("diff", "my/v1", "my/v1", "--gpu1", "gpu-a", "--gpu2", "gpu-b")

    assert "triton_add  num_warps 4 → 8" in result.out
    assert "  GPU  gpu-a → gpu-b\n" in result.out
    assert "the two are for different GPUs or environments" in result.err


def test_where_several_could_be_meant_they_are_listed(cli: Cli) -> None:
    for gpu in ("gpu-a", "gpu-b"):
        commit(cli, "my/v1", lambda tree: tree.wrapper(), "--gpu", gpu)
        commit(cli, "my/v2", lambda tree: tree.wrapper(), "--gpu", gpu)
    result = cli("diff", "my/v1", "my/v2")

    assert result.code == 2
    assert f"--gpu1 gpu-a --environment1 {ENVIRONMENT}; --gpu1 gpu-b" in result.err
    assert cli("diff", "my/v1", "my/v2", "--gpu", "gpu-b").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("no/key", "my/v1"), 3, "nothing is published for no/key in"),
        (("my/v1", "no/key"), 3, "nothing is published for no/key in"),
        (("my/v1@9", "my/v1"), 3, "my/v1 has no generation 9; `kstore show my/v1`"),
        (("my/v1@x", "my/v1"), 2, "not a KEY@GENERATION such as"),
        (("/", "my/v1"), 2, "is not made of parts"),
        (("my/v1", "my/v1", "--gpu", "x"), 3, "my/v1 is not published for x; choose: --gpu1"),
        (("my/v1", "my/v1", "--stat", "--name-only"), 2, "exclude each other"),
        (("my/v1", "my/v1", "--path", "nothing"), 3, "my/v1@1 has no artifact 'nothing'"),
    ],
)
def test_a_mistake_says_what_is_wrong(cli: Cli, arguments: tuple[str, ...], code: int, message: str) -> None:
    cli.publish("my/v1")
    result = cli("diff", *arguments)

    assert (result.code, result.out) == (code, "")
    assert message in result.err


def test_a_damaged_manifest_is_reported(cli: Cli) -> None:
    from tests.cli.test_restore import damage_manifest

    cli.publish("my/v1")
    damage_manifest(cli.store)

    assert cli("diff", "my/v1", "my/v1").code == 4


def test_broken_metadata_is_a_warning(cli: Cli) -> None:
    commit(cli, "my/v1", lambda tree: put_kernel(tree, "triton_add", metadata=b"{"))
    commit(cli, "my/v2", lambda tree: put_kernel(tree, "triton_add", num_warps=8))
    result = cli("diff", "my/v1", "my/v2")

    assert "~ triton_add" in result.out
    assert "warning: nothing more is known about 1 item" in result.err


# ---- One artifact


def code(cli: Cli) -> None:
    commit(cli, "my/v1", lambda tree: put_kernel(tree, "triton_add", code="add\ttwo"))
    commit(cli, "my/v2", lambda tree: put_kernel(tree, "triton_add", code="sub\ttwo"))


def test_one_artifact_is_compared_by_lines(cli: Cli) -> None:
    code(cli)
    lines = cli("diff", "my/v1", "my/v2", "--path", "triton_add.ttir").out.splitlines()

    assert lines[0].startswith("--- my/v1@1 triton/") and lines[1].startswith("+++ my/v2@1 triton/")
    assert "-  add  two loc(#loc1)" in lines
    assert "+  sub  two loc(#loc1)" in lines


def test_a_path_of_one_side_finds_what_it_is_compared_with(cli: Cli) -> None:
    code(cli)
    folder = cli("diff", "my/v1", "my/v2", "--json").json["differences"][0]
    for side in ("left", "right"):
        out = cli("diff", "my/v1", "my/v2", "--path", f"{folder[side]}/triton_add.ttir").out

        assert "-  add  two loc(#loc1)\n+  sub  two loc(#loc1)\n" in out


def test_a_cpp_kernel_without_an_object_was_not_built_otherwise(cli: Cli) -> None:
    def fill(tree: Tree, *, has_object: bool) -> None:
        put_module(tree, {"cpp_fused_0": "out[0] = 1;"})
        path = put_cpp(tree, "out[0] = 1;")
        if has_object:
            tree.put(path.replace(".cpp", ".so"), shared_object())

    commit(cli, "my/v1", partial(fill, has_object=True))
    commit(cli, "my/v2", partial(fill, has_object=False))
    out = cli("diff", "my/v1", "my/v2").out

    assert "the same source, no object on the right" in out
    assert "built differently" not in out


def test_a_cpp_kernel_is_compared_by_its_name(cli: Cli) -> None:
    for key, body in (("my/v1", "out[0] = 1;"), ("my/v2", "out[0] = 2;")):
        commit(cli, key, lambda tree, body=body: [put_module(tree, {"cpp_fused_0": body}), put_cpp(tree, body)])
    out = cli("diff", "my/v1", "my/v2", "--path", "cpp_fused_0.main.cpp").out

    assert "-    out[0] = 1;\n+    out[0] = 2;\n" in out


def test_json_is_compared_value_by_value(cli: Cli) -> None:
    two_releases(cli)
    out = cli("diff", "my/v1", "my/v2", "--path", "triton_poi_fused_add_3.json").out

    assert '- "num_warps": 4,\n+ "num_warps": 8,\n' in out


def test_binary_is_told_by_size_and_digest(cli: Cli) -> None:
    code(cli)
    result = cli("diff", "my/v1", "my/v2", "--path", "triton_add.cubin")
    content = cli("diff", "my/v1", "my/v2", "--path", "triton_add.cubin", "--json").json

    assert content["binary"] is True and content["lines"] is None
    assert content["left"]["digest"] in result.out and content["right"]["digest"] in result.out
    assert "they are binary" in result.err


def test_equal_parts_are_reported_as_equal(cli: Cli) -> None:
    two_releases(cli)
    result = cli("diff", "my/v1", "my/v2", "--path", "triton_same_0.ptx")

    assert (result.code, result.out) == (0, "")
    assert "is the same in both" in result.err


@pytest.mark.parametrize(("limit", "most"), [("MAX_COMPARED", 10), ("MAX_LINES", 3)])
def test_a_huge_text_is_not_compared_by_lines(cli: Cli, monkeypatch: pytest.MonkeyPatch, limit: str, most: int) -> None:
    monkeypatch.setattr(f"kstore.cli.diff_text.{limit}", most)
    code(cli)

    assert "binary or too large" in cli("diff", "my/v1", "my/v2", "--path", "triton_add.ttir").err


def test_a_text_diff_as_json(cli: Cli) -> None:
    code(cli)
    content = cli("diff", "my/v1", "my/v2", "--path", "triton_add.ttir", "--json").json

    assert content["differ"] is True
    assert "+  sub\ttwo loc(#loc1)" in content["lines"]


# ---- On a terminal


def test_a_diff_is_coloured_on_a_terminal(cli: Cli) -> None:
    code(cli)
    out = on_terminal("diff", "my/v1", "my/v2", "--path", "triton_add.ttir")

    assert "\x1b[31m-  add  two loc(#loc1)\x1b[0m" in out
    assert "\x1b[32m+  sub  two loc(#loc1)\x1b[0m" in out


def test_the_report_is_coloured_on_a_terminal(cli: Cli) -> None:
    two_releases(cli)

    assert "\x1b[33m  ~ triton_poi_fused_add_3  num_warps 4 → 8\x1b[0m" in on_terminal("diff", "my/v1", "my/v2")


@pytest.mark.parametrize("arguments", [(), ("--path", "triton_poi_fused_add_3.ptx")])
def test_no_color_is_honoured(cli: Cli, arguments: tuple[str, ...]) -> None:
    two_releases(cli)

    assert "\x1b" not in on_terminal("diff", "my/v1", "my/v2", *arguments, NO_COLOR="1")


def test_a_pipe_gets_no_colour(cli: Cli) -> None:
    two_releases(cli)

    assert "\x1b" not in cli("diff", "my/v1", "my/v2").out


@pytest.mark.parametrize(
    "arguments", [(), ("--stat",), ("--name-only",), ("--path", ".ttir"), ("--path", f"{HOSTILE}.json")]
)
def test_names_and_bytes_cannot_steer_the_terminal(
    cli: Cli, host: Host, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    def fill(tree: Tree, warps: int) -> None:
        code = f"{HOSTILE} {warps}"
        put_kernel(tree, HOSTILE, code=code, num_warps=warps, **{HOSTILE: f"{HOSTILE}{warps}"})

    commit(cli, "my/v1", lambda tree: fill(tree, 4))
    commit(cli, "my/v2", lambda tree: fill(tree, 8))
    out = on_terminal("diff", "my/v1", "my/v2", *arguments, NO_COLOR="1")

    assert out.strip()
    assert "\x1b" not in out and "\u202e" not in out
    if not arguments or arguments == ("--name-only",):
        assert "\n- forged line" not in out


def test_a_choice_that_is_new_cannot_forge_a_line(cli: Cli) -> None:
    commit(cli, "my/v1", lambda tree: put_choice(tree, "one"))
    commit(cli, "my/v2", lambda tree: put_choice(tree, "two", **{"x\n- y": 1}))
    lines = cli("diff", "my/v1", "my/v2").out.splitlines()

    assert any("x\ufffd- y 1" in line for line in lines)
    assert not any(line.startswith("- y") for line in lines)


LIST = " ".join(f"feature{number}" for number in range(20))


@pytest.mark.parametrize(
    ("left", "right", "told"),
    [
        (f"old {LIST}", f"{LIST} new", "features -(old) +(new)"),
        (f"one two {LIST}", f"two one {LIST}", "features the same words in another order"),
    ],
)
def test_of_long_lists_the_words_that_differ_are_shown(cli: Cli, left: str, right: str, told: str) -> None:
    commit(cli, "my/v1", lambda tree: put_choice(tree, "one", features=left))
    commit(cli, "my/v2", lambda tree: put_choice(tree, "one", features=right))

    assert f" {told}\n" in cli("diff", "my/v1", "my/v2").out
