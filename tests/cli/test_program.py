from __future__ import annotations

import json
import logging
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kstore.cli import spinner
from kstore.cli.output import Output
from kstore.errors import CacheRootError, IntegrityError, KstoreError, MissError, StoreFormatError, WaitTimeout
from kstore.store import Store
from tests.cli.commandline import FULL, REPOSITORY, Cli, on_terminal, read_terminal


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def restore(self: Store, key: str, **choice: object) -> None:
        raise error

    monkeypatch.setattr(Store, "restore", restore)


@pytest.mark.parametrize(
    ("kind", "code"),
    [(StoreFormatError, 1), (CacheRootError, 1), (MissError, 3), (IntegrityError, 4), (WaitTimeout, 5)],
)
def test_each_kind_of_error_has_its_exit_code(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, kind: type[KstoreError], code: int
) -> None:
    fail_with(monkeypatch, kind("it is broken"))
    result = cli("restore", "my/v1")

    assert (result.code, result.out, result.err) == (code, "", "kstore: it is broken\n")


def test_an_error_is_json_if_that_was_asked_for(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, IntegrityError("it is broken"))
    result = cli("restore", "my/v1", "--json")

    assert result.json == {
        "schema": 1, "command": "restore", "error": {"type": "IntegrityError", "message": "it is broken"}
    }  # fmt: skip
    assert result.err == "kstore: it is broken\n"


def test_an_unforeseen_error_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, ZeroDivisionError("by nothing"))
    result = cli("restore", "my/v1")

    assert (result.code, result.out) == (1, "")
    assert result.err == "kstore: ZeroDivisionError: by nothing; -v shows where\n"


@pytest.mark.parametrize("options", [(), ("-v",)])
@pytest.mark.parametrize("kind", [IntegrityError, ZeroDivisionError])
def test_text_of_others_in_an_error_cannot_forge_a_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], options: tuple[str, ...]
) -> None:
    fail_with(monkeypatch, kind("a file called x\nkstore: all is \x1b[32mwell"))
    lines = cli("restore", "my/v1", *options).err.splitlines()

    assert lines[-1].startswith(
        ("kstore: a file called x\ufffdkstore: ", "kstore: ZeroDivisionError: a file called x\ufffd")
    )
    assert all(line.startswith("kstore: ") and "\x1b" not in line for line in lines)


@pytest.mark.parametrize("error", [None, ValueError("because\n\x1b[2J")])
def test_text_of_others_in_the_log_cannot_forge_a_line(
    capsys: pytest.CaptureFixture[str], error: Exception | None
) -> None:
    with logging_kept():
        Output().log()
        logging.getLogger("kstore.x").warning("left out: %s", "x\nkstore: all is \x1b[32mwell", exc_info=error)
    first, *others = capsys.readouterr().err.splitlines()

    assert first == "kstore: left out: x\ufffdkstore: all is \ufffd[32mwell"
    assert bool(others) == bool(error) and not any("\x1b" in line for line in others)


@contextmanager
def logging_kept() -> Iterator[None]:
    """Afterwards the library's log goes where it went before."""
    logger = logging.getLogger("kstore")
    before = logger.handlers, logger.level
    try:
        yield
    finally:
        logger.handlers, logger.level = before


def test_verbose_shows_where_an_unforeseen_error_came_from(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, ZeroDivisionError("by nothing"))
    lines = cli("restore", "my/v1", "-v").err.splitlines()

    assert lines[0] == "kstore: Traceback (most recent call last):"
    assert all(line.startswith("kstore: ") for line in lines)
    assert lines[-1] == "kstore: ZeroDivisionError: by nothing"


def test_an_interrupt_is_130(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    result = cli("restore", "my/v1")

    assert (result.code, result.out, result.err) == (130, "", "kstore: interrupted\n")


def test_an_interrupt_while_it_is_loaded_is_130_and_silent(cli: Cli) -> None:
    (cli.folder / "click.py").write_text("import signal; signal.raise_signal(signal.SIGINT)")
    result = cli.process("ls", env=os.environ | {"PYTHONPATH": f"{cli.folder}:{REPOSITORY}"})

    assert (result.code, result.out, result.err) == (130, "", "")


def test_a_command_does_not_look_for_unreachable_cycles_all_the_time() -> None:
    code = """
import atexit, gc
from kstore.cli import main
passes = []
gc.callbacks.append(lambda phase, info: passes.append(phase))
atexit.register(lambda: print(len(passes)))
main()
"""
    run = subprocess.run([sys.executable, "-c", code, "--help"], cwd=REPOSITORY, capture_output=True, check=True)

    assert run.stdout.splitlines()[-1] == b"0"


def test_a_closed_pipe_is_no_traceback(cli: Cli) -> None:
    cli.publish("my/v1")
    with reader_gone() as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "kstore", "ls"],
            cwd=REPOSITORY, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60, check=False, env=buffered(),
        )  # fmt: skip

    assert (done.returncode, done.stderr) == (1, "")


def buffered() -> dict[str, str]:
    """The environment of a process whose output is buffered, as it is by default: its end writes what is left."""
    return os.environ | {"PYTHONUNBUFFERED": ""}


def with_full_server(folder: Path) -> dict[str, str]:
    """The environment of a process whose stdout is on a server that has no room."""
    (folder / "sitecustomize.py").write_text(FULL)
    return buffered() | {"PYTHONPATH": f"{folder}:{REPOSITORY}"}


@contextmanager
def reader_gone() -> Iterator[int]:
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.mark.parametrize(
    "command",
    [
        ("init",),
        ("ls",),
        ("ls", "--json"),
        ("env", "my/v1"),
        ("show", "my/v1"),
        ("completion", "bash"),
        ("export", "my/v1", "-o", "-", "--format", "kstore"),
        ("export", "my/v1", "-o", "-", "--format", "tar"),
    ],
)
def test_a_full_disk_is_an_error_that_says_what_to_do(cli: Cli, command: tuple[str, ...]) -> None:
    cli.publish("my/v1")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kstore", *command],
            cwd=REPOSITORY, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False, env=buffered(),
        )  # fmt: skip

    assert done.returncode == 1
    assert done.stderr == (
        "kstore: cannot write to stdout: No space left on device; make room there, or send it elsewhere\n"
    )


@pytest.mark.parametrize("command", [("ls",), ("ls", "--json"), ("cat", "my/v1", "cone.py"), ("ls", "--help")])
def test_a_server_without_room_that_says_so_at_the_end_is_an_error(
    cli: Cli, tmp_path: Path, command: tuple[str, ...]
) -> None:
    cli.publish("my/v1")
    with (tmp_path / "out").open("w") as file:
        done = subprocess.run(
            [sys.executable, "-m", "kstore", *command], cwd=REPOSITORY, stdout=file, stderr=subprocess.PIPE, text=True,
            timeout=60, check=False, env=with_full_server(tmp_path),
        )  # fmt: skip

    assert done.returncode == 1
    assert done.stderr == (
        "kstore: cannot write to stdout: No space left on device; make room there, or send it elsewhere\n"
    )


def test_a_pipe_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    cli.publish("my/v1")
    result = cli.process("ls", env=with_full_server(tmp_path))

    assert (result.code, result.err) == (0, "")
    assert "my/v1" in result.out


def test_the_stdout_of_a_command_that_is_run_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        done = subprocess.run(
            [sys.executable, "-m", "kstore", "exec", "my/v1", "--quiet", "--", "echo", "done"], cwd=REPOSITORY,
            stdout=file, stderr=subprocess.PIPE, text=True, timeout=60, check=False, env=with_full_server(tmp_path),
        )  # fmt: skip

    assert (done.returncode, done.stderr, (tmp_path / "out").read_text()) == (0, "", "done\n")


def test_without_a_stdout_it_works(cli: Cli) -> None:
    result = cli.process("init", preexec_fn=lambda: os.close(1))

    assert (result.code, result.out) == (0, "")


@pytest.mark.parametrize("closed", [(0,), (2,), (0, 2), (0, 1, 2)])
def test_a_stream_that_is_closed_is_no_failure(cli: Cli, closed: tuple[int, ...]) -> None:
    cli.publish("my/v1")
    result = cli.process("ls", preexec_fn=lambda: [os.close(number) for number in closed])

    assert result.code == 0
    assert ("my/v1" in result.out) is (1 not in closed)


def test_a_locale_without_an_ellipsis_is_no_failure(cli: Cli) -> None:
    cli.write("inductor/ab/cone.py")
    cli("commit", "my/v1", "--gpu", "g" * 90)

    assert "gggg?gggg" in on_terminal("ls", PYTHONIOENCODING="latin-1")


@pytest.mark.parametrize(("option", "value"), [("--store", ("/mnt/kstore",)), ("--json", ()), ("-q", ())])
def test_of_an_option_before_the_command_it_is_said_where_it_goes(
    cli: Cli, option: str, value: tuple[str, ...]
) -> None:
    result = cli(option, *value, "ls")

    assert result.code == 2
    assert f"No such option '{option}' before the command; a command's options come after it" in result.err
    assert f"`kstore COMMAND {option}`" in result.err


def test_an_option_that_needs_no_command_is_suggested(cli: Cli) -> None:
    assert "No such option '--verion' before the command; did you mean --version?" in cli("--verion").err


def test_what_the_library_logs_goes_to_stderr(cli: Cli) -> None:
    cli.publish("my/v1")
    cli("restore", "my/v1")
    (cli.cache_root / ".kstore" / "sync.json").write_text("{")
    result = cli("restore", "my/v1", "--json")

    assert result.json["status"] == "current"
    assert result.err.startswith("kstore: what ")


def test_quiet_drops_what_the_library_warns_of(cli: Cli) -> None:
    cli.publish("my/v1")
    cli("restore", "my/v1")
    (cli.cache_root / ".kstore" / "sync.json").write_text("{")

    assert cli("restore", "my/v1", "-q").err == ""


def test_debugging_shows_the_traceback_of_trouble(cli: Cli) -> None:
    arguments = ("exec", "my/v1", "--store", "/nowhere/at/all", "--", "true")

    assert "Traceback" not in cli.process(*arguments).err
    assert "Traceback" in cli.process("exec", "-vv", *arguments[1:]).err


def test_json_stays_one_line_whatever_a_name_holds(capsys: pytest.CaptureFixture[str]) -> None:
    Output(command="ls", json=True).document({"name": "a\nb\udc80"})

    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["name"] == "a\nb\udc80"


# ---- options that exclude each other


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("ls", "-q", "-v"), "--quiet and --verbose exclude each other"),
        (("ls", "-vv", "--quiet"), "--quiet and --verbose exclude each other"),
        (("exec", "my/v1", "--no-live", "--settle", "5s", "--", "false"), "--settle is for commits while the command"),
        (("exec", "my/v1", "--no-live", "--every", "1m", "--", "false"), "--every is for commits while the command"),
        (("restore", "my/v1", "--generation", "1", "--seed", "my/v0"), "--seed is for a KEY that has nothing yet"),
        (("restore", "my/v1", "--lease-ttl", "10m"), "which it does with --wait"),
        (("restore", "my/v1", "--wait", "1", "--lease-ttl", "10m", "--require"), "without --generation and --require"),
        (("restore", "my/v1", "--wait", "1", "--lease-ttl", "10m", "--generation", "1"), "without --generation and --"),
        (("diff", "my/v1", "my/v1", "--cache-root", "/tmp"), "--cache-root is for a single KEY"),
        (("diff", "my/v1", "--gpu2", "h100"), "--gpu2 is for a second KEY"),
        (("diff", "my/v1", "--environment2", "torch"), "--environment2 is for a second KEY"),
        (("gc", "--allow-live"), "--allow-live is for --max-size"),
        (("verify", "--cache-root", "/tmp"), "--cache-root is for a KEY"),
        (("verify", "--gpu", "h100"), "--gpu is for a KEY"),
        (("verify", "--environment", "torch"), "--environment is for a KEY"),
        (("diff", "my/v1", "my/v1", "--stat", "--json"), "--stat is for people: --json has everything"),
        (("diff", "my/v1", "my/v1", "--name-only", "--json"), "--name-only is for people: --json has everything"),
    ],
)
def test_an_option_that_another_leaves_without_effect_is_a_usage_error(
    cli: Cli, arguments: tuple[str, ...], why: str
) -> None:
    cli.publish("my/v1")
    result = cli.process(*arguments)

    assert (result.code, why in result.err) == (2, True)


def test_a_setting_is_no_option_that_another_leaves_without_effect(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.publish("my/v1")
    monkeypatch.setenv("KSTORE_LEASE_TTL", "600")

    assert cli("restore", "my/v1").code == 0
    assert cli("diff", "my/v1", "my/v1").code == 0  # with KSTORE_CACHE_ROOT
    assert cli("verify").code == 0  # also with KSTORE_CACHE_ROOT


# ---- no store

LOOKING_AFTER = ["verify", "gc", "stats", "report", "du"]


@pytest.mark.parametrize("command", LOOKING_AFTER)
@pytest.mark.parametrize("is_mounted", [False, True], ids=["missing", "empty"])
def test_a_command_that_looks_after_a_missing_store_is_told_so(cli: Cli, command: str, is_mounted: bool) -> None:
    if is_mounted:
        cli.store.mkdir()
    result = cli(command, "--json")

    assert result.code == 1
    assert f"there is no store at {cli.store}" in result.json["error"]["message"]
    assert not (cli.store / "kstore.json").exists()


@pytest.mark.parametrize("command", LOOKING_AFTER)
def test_a_command_that_looks_after_a_folder_of_something_else_is_told_so(cli: Cli, command: str) -> None:
    cli.store.mkdir()
    (cli.store / "thesis.tex").touch()
    result = cli(command)

    assert (result.code, result.out) == (1, "")
    assert "is not a store but holds 'thesis.tex'" in result.err


# ---- a sign of life

SHOWING = """
import time, rich.console, rich.progress  # which takes seconds where nobody has used it before
from kstore.cli import spinner
from kstore.progress import Progress
spinner._PATIENCE = 0.01
"""


def test_long_work_shows_on_a_terminal() -> None:
    code = f"{SHOWING}\nwith spinner.Spinner('restoring [it]'): time.sleep(2)"

    assert "restoring [it]" in terminal_output(code)


def test_work_that_says_how_far_it_is_shows_that() -> None:
    code = f"{SHOWING}\nwith spinner.Spinner('restoring it', Progress(3, 7)): time.sleep(2)"

    assert "3/7" in terminal_output(code)


def test_short_work_shows_nothing() -> None:
    code = "from kstore.cli import spinner\nwith spinner.Spinner('restoring it'): pass"

    assert terminal_output(code) == ""


def test_a_spinner_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spinner, "_PATIENCE", 0.0)
    before = threading.active_count()
    with spinner.Spinner("working"):
        deadline = time.monotonic() + 60
        while threading.active_count() == before and time.monotonic() < deadline:
            time.sleep(0.01)

    assert threading.active_count() == before


def test_where_no_thread_can_be_started_the_work_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []
    with spinner.Spinner("working"):
        done.append("work")

    assert done


def test_without_a_terminal_there_is_no_spinner(capsys: pytest.CaptureFixture[str]) -> None:
    assert not isinstance(Output().working("restoring it"), spinner.Spinner)


def terminal_output(code: str) -> str:
    controller, terminal = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY, stderr=terminal, stdout=subprocess.DEVNULL, timeout=60, check=True,
        env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(terminal)
    out = b""
    while chunk := read_terminal(controller):
        out += chunk
    os.close(controller)
    assert done.returncode == 0
    return out.decode()
