from __future__ import annotations

from tests.cli.commandline import Cli, compiling


def compile_one(cli: Cli) -> None:
    """Compile into the folder where the doctor will look."""
    assert cli.process("exec", "my/v1", "--", "sh", "-ec", compiling("one")).code == 0


def test_what_prevents_hits_is_said_last_and_with_the_exit_code(cli: Cli) -> None:
    compile_one(cli)
    good, other = cli("doctor", "my/v1"), cli("doctor", "my/v2")

    assert (good.code, good.out.splitlines()[-1]) == (0, "nothing prevents hits, 0 warnings")
    assert other.code == 1
    assert "BAD  generation" in other.out
    assert "→ `kstore exec my/v2 -- …`" in other.out
    assert other.out.splitlines()[-1].startswith("1 finding prevents hits")


def test_it_fits_80_columns(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    lines = cli("doctor", "my/v1", "--cache-root", str(cli.folder / "elsewhere")).out.splitlines()

    assert any(line.startswith("warn cache root") for line in lines)
    assert all(len(line) <= 80 or "/" in line.split()[-1] for line in lines)  # a path is not cut in two


def test_quietly_it_names_only_what_is_wrong(cli: Cli) -> None:
    compile_one(cli)

    assert cli("doctor", "my/v1", "-q").out == ""
    assert cli("doctor", "my/v2", "-q").out.startswith("BAD  generation")


def test_json_has_every_check(cli: Cli) -> None:
    compile_one(cli)
    report = cli("doctor", "my/v1", "--json").json

    assert report["ok"] is True
    assert report["checks"][0] == {"name": "store", "verdict": "ok", "found": str(cli.store), "advice": ""}
