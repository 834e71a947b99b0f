from __future__ import annotations

from tests.cli.commandline import Cli
from tests.why.entries import entry

GRAPHS = '"$TORCHINDUCTOR_CACHE_DIR/fxgraph/ab/fkey"'


def compiling(cli: Cli, name: str, data: bytes) -> str:
    """A shell command that leaves a graph as the compiler would."""
    (cli.folder / name).write_bytes(data)
    return f"mkdir -p {GRAPHS}-{name} && cp {cli.folder / name} {GRAPHS}-{name}/{name}"


def run(cli: Cli, name: str, data: bytes) -> None:
    assert cli.process("exec", "my/v1", "--", "sh", "-ec", compiling(cli, name, data)).code == 0


def test_it_names_what_differs_and_what_sets_it(cli: Cli) -> None:
    run(cli, "one", entry(inductor_config__max_autotune="False"))
    run(cli, "two", entry(inductor_config__max_autotune="True"))
    result = cli("why", "my/v1")

    assert result.code == 0
    assert result.out.splitlines() == [
        "1 entry: as stored, but for",
        "  inductor_config.max_autotune: False → True  (torch.compile(mode=…), TORCHINDUCTOR_MAX_AUTOTUNE)",
        "1 entry compiled anew after generation 1 was restored",
    ]


def test_code_is_shown_as_a_difference_and_hostile_text_is_harmless(cli: Cli) -> None:
    run(cli, "one", entry("a = 1\nb = 2"))
    run(cli, "two", entry("a = 1\nb = \x1b[31m3"))
    lines = cli("why", "my/v1").out.splitlines()

    assert lines[:4] == [
        "1 entry: the code is new; the stored graph most like it differs in",
        "  the code  (the model's code)",
        "    -b = 2",
        "    +b = \ufffd[31m3",
    ]


def test_json_has_it_all(cli: Cli) -> None:
    run(cli, "one", entry(default_dtype="a"))
    run(cli, "two", entry(default_dtype="b"))
    (graph,) = cli("why", "my/v1", "--json").json["graphs"]

    assert graph["reason"] == "differs"
    assert graph["differences"] == [{"name": "default_dtype", "stored": "a", "fresh": "b"}]


def test_a_run_that_hit_has_no_reasons(cli: Cli) -> None:
    run(cli, "one", entry())
    assert cli.process("exec", "my/v1", "--", "true").code == 0
    result = cli("why", "my/v1")

    assert result.out == "0 entries compiled anew after generation 1 was restored\n"
    assert "kstore doctor my/v1" in result.err


def test_where_nothing_was_restored_it_says_what_to_do(cli: Cli) -> None:
    run(cli, "one", entry())
    assert "there was nothing to restore" in cli("why", "my/v1").err

    other = cli("why", "other/v1", "--cache-root", str(cli.folder / "elsewhere"))
    assert other.code == 3
    assert "kstore exec other/v1" in other.err
