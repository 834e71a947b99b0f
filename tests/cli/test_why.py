from __future__ import annotations

import json
import os
import shutil

import pytest

from kstore.files import read_whole
from kstore.why import find
from tests.cli.commandline import TICK, Cli, Result
from tests.why.entries import entry

GRAPHS = '"$TORCHINDUCTOR_CACHE_DIR/fxgraph/ab/fkey"'


def compiling(cli: Cli, name: str, data: bytes) -> str:
    """A shell command that leaves a graph as the compiler would."""
    (cli.folder / name).write_bytes(data)
    return f"{TICK} && mkdir -p {GRAPHS}-{name} && cp {cli.folder / name} {GRAPHS}-{name}/{name}"


def run(cli: Cli, name: str, data: bytes, *, more: str = "") -> Result:
    result = cli.process("exec", "my/v1", "--", "sh", "-ec", compiling(cli, name, data) + more)
    assert result.code == 0
    return result


def test_it_names_what_differs_and_what_sets_it(cli: Cli) -> None:
    run(cli, "one", entry(inductor_config__max_autotune="False"))
    run(cli, "two", entry(inductor_config__max_autotune="True"))
    result = cli("why", "my/v1")

    assert result.code == 0
    assert result.out.splitlines() == [
        "1 graph: as stored, except for",
        "  inductor_config.max_autotune: False → True",
        "      (torch.compile(mode=…), TORCHINDUCTOR_MAX_AUTOTUNE)",
        "1 graph (1 entry) compiled anew after generation 1 was restored",
    ]


def test_a_setting_of_inductor_may_come_from_a_variable_of_another_name(cli: Cli) -> None:
    """This one from ENABLE_PERSISTENT_TMA_MATMUL."""
    setting = "inductor_config__triton.enable_persistent_tma_matmul"
    run(cli, "one", entry(**{setting: "False"}))
    run(cli, "two", entry(**{setting: "True"}))

    assert "(torch._inductor.config, or a variable, mostly TORCHINDUCTOR_…)" in cli("why", "my/v1").out


def test_the_key_of_a_seed_is_named(cli: Cli) -> None:
    """A generation of that number may be there of either key."""
    run(cli, "one", entry())
    job = compiling(cli, "two", entry("b"))
    assert cli.process("exec", "my/v2", "--seed", "my/v1", "--", "sh", "-ec", job).code == 0

    assert "1 graph (1 entry) compiled anew after generation 1 of my/v1 was restored" in cli("why", "my/v2").out
    assert cli("why", "my/v2", "--json").json["seed"] == "my/v1"


def test_a_graph_in_two_entries_is_explained_once_and_counted_as_exec_counts(cli: Cli) -> None:
    autograd = '"$TORCHINDUCTOR_CACHE_DIR/aotautograd/akey"'
    run(cli, "one", entry(default_dtype="a"))
    used = run(cli, "two", entry(default_dtype="b"), more=f" && mkdir -p {autograd} && cp {cli.folder}/two {autograd}")

    assert "inductor 0 of 1 entry, 2 compiled anew" in used.err
    report = cli("why", "my/v1", "--json").json
    assert (len(report["graphs"]), report["entries"]) == (1, 2)
    assert "1 graph (2 entries) compiled anew after generation 1 was restored" in cli("why", "my/v1").out


def test_code_is_shown_as_a_difference_and_hostile_text_is_harmless(cli: Cli) -> None:
    run(cli, "one", entry("a = 1\nb = 2"))
    run(cli, "two", entry("a = 1\nb = \x1b[31m3"))
    lines = cli("why", "my/v1").out.splitlines()

    assert lines[:4] == [
        "1 graph: the code is new; the stored graph most like it differs in",
        "  the code  (the graph: the model's code, dtypes, dynamic shapes, autocast, torch.no_grad())",
        "    -b = 2",
        "    +b = \ufffd[31m3",
    ]


def kernel(cli: Cli, folder: str, warps: int, name: str = "triton_poi_0") -> None:
    """A kernel in the cache root, as Triton would leave it."""
    metadata = {"num_warps": warps, "triton_version": "3.7.1", "hash": folder, "shared": warps * 1024}
    files = {f"{name}.json": json.dumps(metadata), f"{name}.source": "code"}
    written = {file: str(cli.write(f"triton/{folder}/{file}", content)) for file, content in files.items()}
    cli.write(f"triton/{folder}/__grp__{name}.json", json.dumps({"child_paths": written}))


def test_kernels_are_compared_with_stored_ones_of_the_same_name(cli: Cli) -> None:
    kernel(cli, "A", 4)
    kernel(cli, "B", 4, "triton_red_1")
    assert cli("commit", "my/v1").code == 0
    assert cli.process("exec", "my/v1", "--", "true").code == 0
    kernel(cli, "C", 8)
    kernel(cli, "D", 8, "triton_red_1")
    kernel(cli, "E", 4)
    kernel(cli, "F", 4, "other")

    assert cli("why", "my/v1").out.splitlines() == [
        "2 kernels: stored with another configuration",
        "  triton_poi_0, triton_red_1",
        "  num_warps: 4 → 8",
        "1 kernel: same configuration and code as stored; its line, ptxas or libdevice differs",
        "  triton_poi_0",
        "1 kernel: none of that name was restored",
        "  other",
        "0 graphs and 4 kernels compiled anew after generation 1 was restored",
    ]
    first = cli("why", "my/v1", "--json").json["kernels"][0]
    assert first == {
        "name": "triton_poi_0",
        "path": "triton/C/triton_poi_0.json",
        "reason": "options",
        "closest": "triton/A/triton_poi_0.json",
        "differences": [{"name": "num_warps", "stored": "4", "fresh": "8"}],
    }


def test_names_and_values_of_any_length_fit_the_screen(cli: Cli) -> None:
    run(cli, "one", entry(**{"a" * 500: "\x1b[2J" * 99, "system_info__x": str({"b\nkstore: fake": 1})}))
    run(cli, "two", entry(**{"a" * 500: "\x1b[3J" * 99, "system_info__x": str({"b\nkstore: fake": 2})}))
    out = cli("why", "my/v1").out

    assert "\x1b" not in out
    assert all(len(line) <= 80 and not line.startswith("kstore") for line in out.splitlines())


def test_no_cache_root_is_made_to_look_into(cli: Cli) -> None:
    cli.publish("my/v1")
    result = cli("why", "my/v1", "--cache-root", str(cli.folder / "elsewhere"))

    assert (result.code, (cli.folder / "elsewhere").exists()) == (3, False)


def test_json_has_it_all(cli: Cli) -> None:
    run(cli, "one", entry(default_dtype="a"))
    run(cli, "two", entry(default_dtype="b"))
    report = cli("why", "my/v1", "--json").json
    (graph,) = report.pop("graphs")

    assert graph["reason"] == "differs"
    assert graph["differences"] == [{"name": "default_dtype", "stored": "a", "fresh": "b"}]
    counted = {"generation": 1, "entries": 1, "kernels": [], "others": 0, "compared": 1, "bypassed": False}
    assert report.items() >= counted.items()


def test_what_came_besides_graphs_and_kernels_is_counted(cli: Cli) -> None:
    run(cli, "one", entry(default_dtype="a"))
    code = " && mkdir $TORCHINDUCTOR_CACHE_DIR/ab && echo pass > $TORCHINDUCTOR_CACHE_DIR/ab/cone.py"
    run(cli, "two", entry(default_dtype="b"), more=code)

    assert "1 graph (1 entry) compiled anew after generation 1 was restored, and 1 other artifact with them" in (
        cli("why", "my/v1").out
    )


def test_an_entry_that_is_too_large_to_read_is_said_to_tell_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    run(cli, "one", entry(default_dtype="a"))
    run(cli, "two", entry(default_dtype="b"))
    monkeypatch.setattr(find, "_MAX_ENTRY", 10)

    assert [graph["reason"] for graph in cli("why", "my/v1", "--json").json["graphs"]] == ["unreadable"]


def test_an_entry_that_is_removed_meanwhile_is_not_explained(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    run(cli, "one", entry(default_dtype="a"))
    run(cli, "two", entry(default_dtype="b"))
    monkeypatch.setattr(find, "read_whole", lambda path: os.unlink(path) or read_whole(path))
    result = cli("why", "my/v1", "--json")

    assert (result.code, result.json["graphs"]) == (0, [])


def test_an_entry_that_was_removed_before_the_run_is_said_to_be_missing(cli: Cli) -> None:
    """It is compared with no other, whose differences would not be why it was compiled."""
    run(cli, "one", entry("a"))
    run(cli, "two", entry("b"))
    (cli.folder / "again").write_bytes(entry("a", noise="other bytes"))
    compiled = f'cp {cli.folder / "again"} "$TORCHINDUCTOR_CACHE_DIR/fxgraph/ab/fkey-one/again"'
    job = f"{TICK} && rm $TORCHINDUCTOR_CACHE_DIR/fxgraph/ab/fkey-one/* && {compiled}"
    assert cli.process("exec", "my/v1", "--", "sh", "-ec", job).code == 0

    assert cli("why", "my/v1").out.splitlines() == [
        "1 graph: stored, but the entry was left out of the restore, or has been removed",
        "1 graph (1 entry) compiled anew after generation 2 was restored",
    ]


def test_a_run_that_hit_has_no_reasons(cli: Cli) -> None:
    run(cli, "one", entry())
    assert cli.process("exec", "my/v1", "--", "true").code == 0
    result = cli("why", "my/v1")

    assert result.out == "0 graphs compiled anew after generation 1 was restored\n"
    assert "kstore doctor my/v1" in result.err


def test_the_command_that_checks_the_rest_is_for_the_same_store_and_cache_root(cli: Cli) -> None:
    where = ("--store", str(cli.folder / "another"), "--cache-root", str(cli.folder / "elsewhere"))
    run(cli, "one", entry())
    assert cli("copy", str(cli.store), where[1]).code == 0

    assert cli.process("exec", "my/v1", *where, "--", "true").code == 0
    assert f"`kstore doctor my/v1 {' '.join(where)}` checks the rest" in cli("why", "my/v1", *where).err
    assert cli.process("exec", "other/v1", *where, "--", "true").code == 0
    assert f"`kstore doctor other/v1 {' '.join(where)}`" in cli("why", "other/v1", *where).err
    unused = (*where[:3], str(cli.folder / "unused"))
    assert f"run `kstore exec my/v1 {' '.join(unused)} -- …`" in cli("why", "my/v1", *unused).err


def test_a_key_without_a_cache_root_was_never_restored(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("init")
    monkeypatch.delenv("KSTORE_CACHE_ROOT")
    result = cli("why", "my/v1")

    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("kstore: my/v1 has no cache root on this node, so nothing was restored into it; run ")


def test_a_store_that_is_not_there_is_reported_before_a_cache_root_that_nobody_used(cli: Cli) -> None:
    result = cli("why", "my/v1", "--store", str(cli.folder / "missing"))

    assert result.code == 1
    assert f"there is no store at {cli.folder}/missing" in result.err


def test_where_nothing_was_restored_it_says_what_to_do(cli: Cli) -> None:
    run(cli, "one", entry())
    assert "there was nothing to restore" in cli("why", "my/v1").err

    other = cli("why", "other/v1", "--cache-root", str(cli.folder / "elsewhere"))
    assert other.code == 3
    assert "kstore exec other/v1" in other.err


def test_where_the_only_restore_failed_it_does_not_say_that_there_was_nothing_to_restore(cli: Cli) -> None:
    """The root remembers the host all the same."""
    cli.write("inductor/ab/cone.py", "# built")
    assert cli("commit", "my/v1").code == 0
    root = cli.folder / "another"
    assert cli("restore", "my/v1", "--generation", "7", "--cache-root", str(root)).code == 3
    assert (root / ".kstore/restored.json").exists()

    assert "nothing was restored into this cache root" in cli("why", "my/v1", "--cache-root", str(root)).err


def test_what_a_newer_kstore_has_restored_is_not_said_to_be_nothing(cli: Cli) -> None:
    run(cli, "one", entry())
    assert cli.process("exec", "my/v1", "--", "true").code == 0
    record = cli.cache_root / ".kstore/restored.json"
    content = json.loads(record.read_text())
    newer = json.loads(content["ref"]) | {"format": 99}
    record.write_text(json.dumps(content | {"ref": json.dumps(newer)}))
    result = cli("why", "my/v1")

    assert result.code == 3
    assert f"what was restored into {cli.cache_root} cannot be read: damaged, or from a newer kstore" in result.err


def test_long_values_are_shown_where_they_differ(cli: Cli) -> None:
    same = "TensorMetadata(dtype=torch.float32, "
    run(cli, "one", entry(example_inputs__0=f"{same}shape=torch.Size([16, 48]), stride=(48, 1), layout=strided)"))
    run(cli, "two", entry(example_inputs__0=f"{same}shape=torch.Size([32, 48]), stride=(48, 1), layout=strided)"))

    out = cli("why", "my/v1").out
    assert "…ape=torch.Size([16, 48]), stride=(48, 1), layo… →" in out
    assert "…ape=torch.Size([32, 48]), stride=(48, 1), layo…\n" in out


def test_it_distinguishes_what_was_not_even_read_from_what_hit(cli: Cli) -> None:
    for path in ("ab/cone.py", "fxgraph/on/fone/entry"):
        cli.write(f"inductor/{path}", path)
    assert cli("commit", "my/v1").code == 0
    assert cli.process("exec", "my/v1", "--", "true").code == 0

    result = cli("why", "my/v1")
    assert "inductor: restored, but none of it was read" in result.err
    assert "everything hit" not in result.err
    assert cli("why", "my/v1", "--json").json["unused"] == ["inductor"]
    reading = f"{TICK} && find $TORCHINDUCTOR_CACHE_DIR -type f | xargs cat"
    assert cli.process("exec", "my/v1", "--", "sh", "-ec", reading).code == 0
    assert "everything hit" in cli("why", "my/v1").err


def test_it_does_not_say_that_all_hit_where_nothing_of_it_is_left(cli: Cli) -> None:
    """The run may have had a folder of its own for it, which a variable named."""
    run(cli, "one", entry())
    shutil.rmtree(cli.cache_root)
    theirs = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cli.folder / "theirs")}
    assert cli.process("exec", "my/v1", "--", "sh", "-ec", f"{TICK} && cat {GRAPHS}-one/* | wc", env=theirs).code == 0
    result = cli("why", "my/v1")

    assert "inductor: nothing is left of what was restored; if a variable of the run named another folder" in result.err
    assert "everything hit" not in result.err
    assert cli("why", "my/v1", "--json").json["gone"] == ["inductor"]


def test_it_reports_code_of_which_torch_keeps_no_entry(cli: Cli) -> None:
    """For example, of graphs with frozen parameters: they are compiled each time, under the same names."""
    cli.publish("my/v1", "one")
    assert cli.process("exec", "my/v1", "--", "sh", "-ec", f"{TICK} && cat $TORCHINDUCTOR_CACHE_DIR/*/*").code == 0

    result = cli("why", "my/v1")
    assert "torch keeps none for what it cannot cache, as with TORCHINDUCTOR_FREEZING=1" in result.err
    assert "everything hit" not in result.err
    assert cli("why", "my/v1", "--json").json["bypassed"] is True


def made_anew(cli: Cli, name: str) -> Result:
    """What is said if a run that hits writes a module anew."""
    code = "$TORCHINDUCTOR_CACHE_DIR/ab"
    job = f"{TICK} && cat {GRAPHS}-one/* > /dev/null && mkdir -p {code} && rm -f {code}/* && echo pass > {code}/{name}"
    assert cli.process("exec", "my/v1", "--", "sh", "-ec", job, env=os.environ | {"KSTORE_MODE": "read"}).code == 0
    return cli("why", "my/v1")


def test_code_of_a_graph_that_hit_is_not_taken_for_that_of_one_without_an_entry(cli: Cli) -> None:
    """Torch writes it again from the entry if it was removed."""
    cli.write("inductor/ab/cone.py", "pass")
    run(cli, "one", entry())
    removed, new = made_anew(cli, "cone.py"), made_anew(cli, "cnew.py")

    assert removed.out == new.out
    assert "0 graphs compiled anew after generation 1 was restored, and 1 other artifact with them" in removed.out
    assert "what was removed or left out of the restore is made again" in removed.err
    assert "C++ objects that are for another kind of host; `kstore doctor my/v1` checks this one" in removed.err
    assert "torch keeps none for what it cannot cache" in new.err


def test_a_kernel_that_was_removed_is_not_said_to_be_damaged(cli: Cli) -> None:
    kernel(cli, "A", 4)
    assert cli("commit", "my/v1").code == 0
    assert cli.process("exec", "my/v1", "--", "sh", "-c", "rm -r $TRITON_CACHE_DIR/A").code == 0
    kernel(cli, "A", 4)

    assert cli("why", "my/v1").out.splitlines()[0] == (
        "1 kernel: stored under the same key, but damaged, removed or left out of the restore; or TRITON_ALWAYS_COMPILE"
    )
