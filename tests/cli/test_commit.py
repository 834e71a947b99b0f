from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.commandline import Cli
from tests.components.serving_trees import Sglang, Vllm

OLD = {
    "Vllm": {"VLLM_CACHE_ROOT": "vllm", "DG_JIT_CACHE_DIR": "vllm/deep_gemm", "TRITON_CACHE_DIR": "triton"},
    "Sglang": {
        "SGLANG_CACHE_DIR": "sglang", "TRITON_CACHE_DIR": "sglang/triton", "TORCHINDUCTOR_CACHE_DIR": "sglang/inductor",
        "TILELANG_CACHE_DIR": "sglang/tilelang", "FLASHINFER_WORKSPACE_BASE": "sglang",
    },
}  # fmt: skip
"""As described in docs/migrating.md."""


def test_it_commits_and_says_what(cli: Cli) -> None:
    cli.write("inductor/ab/cone.py", "one")
    result = cli("commit", "my/v1")

    assert result.code == 0
    assert result.out.startswith("committed my/v1 generation 1: 1 new file of 1, ")
    assert str(cli.cache_root) in result.out
    assert "inductor    1 file, 3 B" in result.out


def test_nothing_new_is_no_new_generation(cli: Cli) -> None:
    cli.write("inductor/ab/cone.py")
    cli("commit", "my/v1")

    assert cli("commit", "my/v1").out.startswith("nothing new for my/v1: generation 1 has everything (")


def test_a_worker_that_compiled_another_answer_is_told_that_the_published_one_stays(cli: Cli) -> None:
    cli.write("inductor/ab/cone.py", "first")
    cli("commit", "my/v1")
    (cli.cache_root / ".kstore").rename(cli.folder / "forgotten")
    cli.write("inductor/ab/cone.py", "another")

    assert "generation 1 has everything, except 1 file published in another version, or taken out (" in (
        cli("commit", "my/v1").out
    )


def test_an_empty_cache_root_leads_to_the_variables(cli: Cli) -> None:
    result = cli("commit", "my/v1")

    assert result.code == 0
    assert result.out.startswith(f"nothing to commit to my/v1: there are no finished files in {cli.cache_root}")
    assert "kstore env my/v1" in result.err


def test_folders_that_are_moved_to_where_env_says_are_committed_from_there(cli: Cli) -> None:
    """As described in docs/migrating.md."""
    warm = cli.folder / "warm"
    module = cli.folder / "old/ab/cone.py"
    module.parent.mkdir(parents=True)
    module.write_text("one")
    assert f"TORCHINDUCTOR_CACHE_DIR={warm}/inductor\n" in cli("env", "my/v1", "--cache-root", str(warm)).out
    warm.mkdir(exist_ok=True)
    (cli.folder / "old").rename(warm / "inductor")

    assert "1 new file of 1" in cli("commit", "my/v1", "--cache-root", str(warm)).out


def test_an_empty_cache_root_leads_to_the_variables_whatever_is_published(cli: Cli) -> None:
    cli.publish("my/v1")
    for _ in range(2):
        result = cli("commit", "my/v1")
        assert (result.code, cli("commit", "my/v1", "--json").json["found"]) == (0, 0)
        assert result.out == f"nothing to commit to my/v1: there are no finished files in {cli.cache_root}\n"
        assert "kstore env my/v1" in result.err


def test_json_is_the_report(cli: Cli) -> None:
    cli.write("inductor/ab/cone.py")
    result = cli("commit", "my/v1", "--json")

    assert result.err == ""
    assert (result.json["command"], result.json["status"], result.json["new_files"]) == ("commit", "committed", 1)


def test_json_has_the_same_types_whatever_became_of_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = cli("commit", "my/v1", "--json").json
    cli.write("inductor/ab/cone.py")
    committed = cli("commit", "my/v1", "--json").json
    monkeypatch.setenv("KSTORE_MODE", "read")
    refused = cli("commit", "my/v1", "--json").json

    assert [done["ok"] for done in (empty, committed, refused)] == [True, True, False]
    counted = {"inductor": {"files": 1, "bytes": 7}}
    assert [done["components"] for done in (empty, committed, refused)] == [{}, counted, {}]


@pytest.mark.parametrize("layout", ["loose", "packed"])
def test_the_layout_can_be_chosen(cli: Cli, layout: str) -> None:
    cli.write("inductor/ab/cone.py")

    assert cli("commit", "my/v1", "--layout", layout, "--json").json["layout"] == layout


def test_an_unknown_layout_is_a_usage_error(cli: Cli) -> None:
    assert cli("commit", "my/v1", "--layout", "sideways").code == 2


def test_a_read_only_worker_says_so(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSTORE_MODE", "read")
    cli.write("inductor/ab/cone.py")
    result = cli("commit", "my/v1")

    assert (result.code, result.out) == (0, "nothing is committed to my/v1: the mode is read\n")
    assert not cli.store.exists()


def test_a_store_that_cannot_be_written_is_an_error(cli: Cli) -> None:
    cli.write("inductor/ab/cone.py")
    cli.store.write_text("no folder")
    result = cli("commit", "my/v1", "--json")

    assert result.code == 1
    assert result.json["error"]["type"] == "StoreUnavailable"


def test_unfinished_files_are_pointed_out_a_few_at_a_time(cli: Cli) -> None:
    for number in range(6):
        unfinished_kernel(cli.cache_root, number)
    few, all_of_them = cli("commit", "my/v1"), cli("commit", "my/v1", "-v")

    assert few.err.count("warning: left out triton/") == 3
    assert "warning: left out 3 more; -v names them" in few.err
    assert all_of_them.err.count("warning: left out triton/") == 6


def unfinished_kernel(root: Path, number: int) -> None:
    """A Triton kernel whose group file, which is written last, does not exist yet."""
    folder = root / "triton" / f"{'K' * 51}{number}"
    folder.mkdir(parents=True)
    (folder / "k.cubin").write_text("cubin")


@pytest.mark.parametrize(("engine", "layout"), [(Vllm, "whole"), (Vllm, "classic"), (Sglang, "piecewise")])
def test_the_folder_of_an_engine_from_before_is_brought_along(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: type[Vllm | Sglang], layout: str
) -> None:
    old = {name: f"{tmp_path}/home/{folder}" for name, folder in OLD[engine.__name__].items()}
    variable = next(iter(old))
    before = engine(Path(old[variable]), dict(old))
    assert before.serve(layout)
    before.beside()
    with monkeypatch.context() as given:
        given.delenv("KSTORE_CACHE_ROOT")
        for name, value in old.items():
            given.setenv(name, value)
        assert cli("commit", "my/v1").code == 0

    name = engine.__name__
    program = (
        f"import os; from pathlib import Path; from tests.components.serving_trees import {name}; "
        f"print({name}(Path(os.environ['{variable}']), os.environ).serve('{layout}'))"
    )
    result = cli.process("exec", "my/v1", "--", sys.executable, "-c", program)
    assert (result.code, result.out) == (0, "[]\n"), result.err
    assert cli.cache_root.is_dir()


def test_a_commit_that_makes_the_store_says_so_to_who_asks_for_more(cli: Cli) -> None:
    cli.publish("my/v0")
    root = str(cli.folder / "builders" / "my/v0")
    first = cli("commit", "my/v1", "--cache-root", root, "--store", str(cli.folder / "typo"), "-v")
    second = cli("commit", "my/v2", "--cache-root", root, "-v")

    assert f"kstore: made a store in {cli.folder / 'typo'}\n" in first.err
    assert "made a store" not in second.err
