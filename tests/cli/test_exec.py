from __future__ import annotations

import errno
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from typing import Any

import psutil
import pytest

from kstore.components.variables import MANAGED
from tests.cli.commandline import ENVIRONMENT, GPU, REPOSITORY, TICK, Cli, compiling, is_held, read_terminal

SIGNALS = [
    *("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGCONT", "SIGWINCH", "SIGALRM", "SIGXCPU"),
    *("SIGPWR", "SIGIO", "SIGPROF", "SIGRTMIN", "SIGRTMAX"),
]
COUNT_SIGNALS = f"""
import os, pathlib, signal, sys, time

received = []
for name in {[*SIGNALS, "SIGTSTP"]}:
    signal.signal(signal.Signals[name], lambda number, frame: received.append(signal.Signals(number).name))
print("ready", flush=True)
deadline = time.monotonic() + 60
while not received and time.monotonic() < deadline:
    time.sleep(0.01)
time.sleep(0.3)  # for one that should not come
folder = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], "ab")
folder.mkdir(parents=True)
(folder / "clate.py").write_text("compiled before the end")
print(*received, flush=True)
sys.exit(len(received) + 40)
"""


def newest_files(cli: Cli, key: str = "my/v1") -> int:
    (scope,) = cli("ls", key, "--json").json["scopes"]
    return int(scope["files"])


def test_it_restores_runs_and_commits(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    show = 'cat "$TORCHINDUCTOR_CACHE_DIR/ab/cone.py"'
    result = cli.process("exec", "my/v1", "--", "sh", "-ec", f"{show}; {compiling('two')}")
    lines = result.err.splitlines()

    assert (result.code, result.out) == (0, "one")
    assert lines[0].startswith("kstore: restored my/v1 generation 1: 1 file, 3 B in ")
    assert lines[1].startswith("kstore: committed my/v1 generation 2: 1 new file of 2, ")
    assert newest_files(cli) == 2


def test_the_first_run_of_a_key_starts_cold_and_commits(cli: Cli) -> None:
    result = cli.process("exec", "my/v1", "--", "sh", "-ec", compiling("one"))

    assert result.code == 0
    assert "kstore: nothing is published for my/v1" in result.err
    assert newest_files(cli) == 1


def with_watchdog(cli: Cli, code: str) -> dict[str, Any]:
    """A process in which this is what is imported for commits while the command runs."""
    (cli.folder / "watchdog.py").write_text(code)
    return {"env": {**os.environ, "PYTHONPATH": f"{cli.folder}:{REPOSITORY}"}}


def test_the_command_begins_before_what_only_commits_need_is_imported(cli: Cli) -> None:
    """That waits for what the command makes, and the command for that."""
    begun, imported = cli.folder / "begun", cli.folder / "imported"
    waiting = f"import os, time\nwhile not os.path.exists({str(begun)!r}): time.sleep(0.01)\n"
    waiting += f"open({str(imported)!r}, 'x').close()"
    command = f"touch {begun}; until test -e {imported}; do sleep 0.01; done"

    assert cli.process("exec", "my/v1", "--", "sh", "-c", command, **with_watchdog(cli, waiting)).code == 0


def test_a_command_whose_commits_cannot_begin_is_waited_for_and_committed(cli: Cli) -> None:
    broken = with_watchdog(cli, "raise RuntimeError('no such luck')")
    result = cli.process("exec", "my/v1", "--", "sh", "-ec", f"{compiling('one')}; exit 7", **broken)

    assert (result.code, newest_files(cli)) == (7, 1)
    assert "nothing is committed while the command runs: no such luck" in result.err


def test_the_exit_code_is_the_commands(cli: Cli) -> None:
    result = cli.process("exec", "my/v1", "--", "sh", "-c", f"{compiling('one')}; exit 7")

    assert result.code == 7
    assert newest_files(cli) == 1


BLOCK_OF_ANOTHER_KEY = """
import os, pathlib, kstore

def compile_kernel(name):
    folder = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], "ab")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"c{name}.py").write_text(name)

compile_kernel("before")
with kstore.synchronized("another/v1", cache_root=os.environ["KSTORE_CACHE_ROOT"] + "-of-another"):
    compile_kernel("inside")
compile_kernel("after")
"""


def test_what_the_command_compiles_after_a_block_of_another_key_is_committed(cli: Cli) -> None:
    result = cli.process("exec", "my/v1", "--", sys.executable, "-c", BLOCK_OF_ANOTHER_KEY)

    assert result.code == 0, result.err
    assert (newest_files(cli), newest_files(cli, "another/v1")) == (2, 1)


def test_a_command_that_restores_another_key_by_hand_is_told_whose_kernels_it_takes(cli: Cli) -> None:
    restore = f"import kstore; kstore.restore('another/v1', cache_root={str(cli.folder / 'another')!r})"
    result = cli.process("exec", "my/v1", "--", sys.executable, "-c", restore)

    assert "not into that of my/v1, which is in use" in result.err


def test_a_command_that_uses_its_cache_root_for_another_key_is_warned(cli: Cli) -> None:
    """`--cache-root` is what the command has as KSTORE_CACHE_ROOT. Nothing of either key is published yet."""
    block = "import kstore\nwith kstore.synchronized('another/v1'): pass"
    result = cli.process("exec", "my/v1", "--cache-root", str(cli.folder / "own"), "--", sys.executable, "-c", block)

    assert "own is in use for my/v1, and is used for another/v1 as well" in result.err
    assert "give each key a cache root of its own" in result.err


def test_a_command_that_is_run_for_the_key_of_its_cache_root_is_not_warned(cli: Cli) -> None:
    block = "import kstore\nwith kstore.synchronized('my/v1'): pass"
    result = cli.process("exec", "my/v1", "--cache-root", str(cli.folder / "own"), "--", sys.executable, "-c", block)

    assert "in use for" not in result.err


@pytest.mark.parametrize(("outlived", "why"), [(60.0, "the command was told to end"), (0.0, "")])
def test_a_signal_that_the_command_has_outlived_did_not_end_it(cli: Cli, outlived: float, why: str) -> None:
    """Its last commit has as much time as it needs, and whether the restored files were used is told."""
    patched = f"import sys, kstore.cli.exec as e; e._OUTLIVED = {outlived}; from kstore.cli import main; main()"
    deaf = f"trap '' INT; kill -INT $PPID; sleep 0.2; {compiling('one')}"
    command = [sys.executable, "-c", patched, "exec", "my/v1", "--json", "--", "sh", "-ec", deaf]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)

    report = json.loads(done.stderr.splitlines()[-1])
    assert (done.returncode, report["commit"]["new_files"]) == (0, 1)
    assert report["usage"]["why_unknown"] == why


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGRTMIN + 3, f"signal {signal.SIGRTMIN + 3}")]
)
def test_a_command_that_has_become_another_user_is_waited_for(cli: Cli, number: int, name: str) -> None:
    """As sudo does: kstore cannot send it signals any more."""
    if os.geteuid() or not shutil.which("setpriv"):
        pytest.skip("becoming another user needs root, and setpriv")
    become = "exec setpriv --reuid=65534 --clear-groups sh -c 'echo ready; sleep 1; exit 7'"
    command = [sys.executable, "-m", "kstore", "exec", "my/v1", "--", "sh", "-ec", f"{compiling('one')}; {become}"]
    process = subprocess.Popen(
        ["setpriv", "--bounding-set=-kill", *command],  # otherwise root could
        cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)

    assert process.returncode == 7, err
    assert f"{name} cannot be passed on" in err
    assert newest_files(cli) == 1


def test_a_command_that_a_signal_ends_counts_as_in_a_shell(cli: Cli) -> None:
    result = cli.process("exec", "my/v1", "--", "sh", "-c", f"{compiling('one')}; kill -KILL $$")

    assert result.code == 128 + signal.SIGKILL
    assert newest_files(cli) == 1


def test_a_command_that_is_not_found_is_127(cli: Cli) -> None:
    result = cli.process("exec", "my/v1", "--", "no-such-command")

    assert result.code == 127
    assert "kstore: cannot run 'no-such-command': No such file or directory" in result.err


@pytest.mark.parametrize("is_in_path", [True, False])
def test_a_script_without_a_first_line_that_says_so_is_for_the_shell(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, is_in_path: bool
) -> None:
    """As in a shell, and as under `env` and `timeout`."""
    script = cli.write("bin/warm-up", 'echo "$1, $#"; exit 3\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    result = cli.process("exec", "my/v1", "--", script.name if is_in_path else str(script), "two words", "more")
    assert (result.code, result.out) == (3, "two words, 2\n")


def test_it_is_looked_for_as_a_shell_does(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that may not be executed is passed over, and a file where a folder should be; a script without `#!` is
    not.
    """
    folders = [cli.folder / name for name in ("refused", "first", "second")]
    for folder, text in zip(folders, ("exit 1", "echo first", "#!/bin/sh\necho second"), strict=True):
        folder.mkdir()
        (folder / "tool").write_text(text)
        (folder / "tool").chmod(0o644 if text == "exit 1" else 0o755)
    monkeypatch.setenv("PATH", ":".join([*map(str, folders[:1]), __file__, *map(str, folders[1:]), os.environ["PATH"]]))

    assert cli.process("exec", "my/v1", "--", "tool").out == "first\n"


def test_a_stop_that_came_during_the_restore_does_not_stop_the_command(cli: Cli) -> None:
    cli("init")
    process = cli.start("exec", "my/v1", "--", "echo", "ran", KSTORE_TIMEOUT="2", **cli.hanging())
    while not (waiting := psutil.Process(process.pid).children()):
        assert process.poll() is None
        time.sleep(0.01)
    waiting[0].send_signal(signal.SIGTSTP)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "ran\n"), err


LEAVES_NONE = """
import ctypes, os, subprocess, sys

ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: whoever is left comes to this process
print(subprocess.run(sys.argv[1:], stderr=subprocess.DEVNULL).returncode)
try:
    print(os.waitpid(-1, 0))
except ChildProcessError:
    print("none is left")
"""


def test_no_process_is_left_where_there_is_no_command(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (sys.executable, "-m", "kstore", "exec", "my/v1", "--require", "--", "true")
    # A compiler that is asked for the host's fingerprint ends by itself, on a busy machine after kstore has ended.
    monkeypatch.setenv("CXX", str(cli.folder / "no-compiler"))
    done = subprocess.run(
        (sys.executable, "-c", LEAVES_NONE, *command), cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == "3\nnone is left\n"


@pytest.mark.parametrize("listener, expected", [("$$", "its own\n"), ("1", "another's\n")])
def test_sockets_that_systemd_made_for_us_are_for_the_command(cli: Cli, listener: str, expected: str) -> None:
    """The command takes them if it finds its own process id: sd_listen_fds(3)."""
    told = 'test $LISTEN_PID = $$ && echo its own || echo "another\'s"'
    command = (sys.executable, "-m", "kstore", "exec", "my/v1", "--", "sh", "-c", told)
    activate = ("sh", "-c", f'LISTEN_FDS=1 LISTEN_PID={listener} exec "$@"', "sh")
    done = subprocess.run((*activate, *command), cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == expected


def test_a_command_that_cannot_be_executed_is_126(cli: Cli) -> None:
    script = cli.folder / "script"
    script.write_text("#!/bin/sh\n")

    assert cli.process("exec", "my/v1", "--", str(script)).code == 126


def test_a_command_below_a_file_is_126_with_the_reason(cli: Cli) -> None:
    result = cli.process("exec", "my/v1", "--", f"{__file__}/train")

    assert result.code == 126
    assert result.err.endswith("/train': Not a directory\n")


NO_PROCESS = """
import errno, os

def refuse():
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

os.fork = refuse
"""


def test_where_no_process_can_be_made_the_command_takes_our_place_once_others_have_compiled(cli: Cli) -> None:
    assert cli("restore", "my/v1", "--wait", "5m", "--json").json["leads"]
    told = "cat $TORCHINDUCTOR_CACHE_DIR/ab/c1.py; echo $$; exit 7"
    process = without_processes(cli, told)
    assert process.stderr is not None
    said = [process.stderr.readline() for _ in range(2)]
    cli.write("inductor/ab/c1.py")
    cli("commit", "my/v1")
    out, _ = process.communicate(timeout=60)

    assert "waiting for" in said[1]
    assert (out, process.returncode) == (f"content{process.pid}\n", 7)


def test_where_no_process_can_be_made_nobody_waits_for_what_is_never_committed(cli: Cli) -> None:
    assert without_processes(cli, "echo cold").communicate(timeout=60)[0] == "cold\n"
    report = cli("restore", "my/v1", "--wait", "5m", "--json").json
    assert (report["leads"], report["waited"]) == (True, 0)


def test_where_no_process_can_be_made_the_others_wait_for_what_is_compiled_in_the_same_cache_root(cli: Cli) -> None:
    assert cli("restore", "my/v1", "--wait", "5m", "--cache-root", str(cli.folder / "new"), "--json").json["leads"]
    assert without_processes(cli, "echo cold").communicate(timeout=60)[0] == "cold\n"
    assert is_held(cli)


def test_where_no_process_can_be_made_required_hits_cannot_be_told(cli: Cli) -> None:
    """The command would have nobody beside it who looks what it has used."""
    process = without_processes(cli, "echo ran", "--require-hits")
    out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == ("", 126)
    assert "kstore: cannot run 'sh': Resource temporarily unavailable" in err


def without_processes(cli: Cli, program: str, *more: str) -> subprocess.Popen[str]:
    (cli.folder / "sitecustomize.py").write_text(NO_PROCESS)
    options = ("--wait", "5m", "--cache-root", str(cli.folder / "new"), *more)
    return cli.start("exec", "my/v1", *options, "--", "sh", "-c", program, PYTHONPATH=f"{cli.folder}:{REPOSITORY}")


def test_the_command_reads_our_input(cli: Cli) -> None:
    assert cli.process("exec", "my/v1", "--", "cat", input="text").out == "text"


def test_a_pipe_ends_when_the_command_closes_it_not_when_kstore_ends(cli: Cli) -> None:
    script = "read line; exec <&- >&-; while [ ! -e told ]; do sleep 0.02; done; exit 5"
    process = subprocess.Popen(
        [sys.executable, "-m", "kstore", "exec", "my/v1", "--", "sh", "-c", script],
        cwd=cli.folder, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin and process.stdout
    os.write(process.stdin.fileno(), b"line\n")
    output_has_ended = select.select([process.stdout], [], [], 60)[0]
    with pytest.raises(BrokenPipeError):
        os.write(process.stdin.fileno(), b"more")
    (cli.folder / "told").touch()

    assert output_has_ended
    assert process.wait(60) == 5


def test_the_commands_options_are_its_own(cli: Cli) -> None:
    result = cli.process("exec", "my/v1", "-q", "--", "echo", "--json", "-v", "--", "--help")

    assert (result.out, result.err) == ("--json -v -- --help\n", "")


@pytest.mark.parametrize("arguments", [["my/v1"], ["my/v1", "--"], ["my/v1", "echo", "hello"], ["my/v1", "--", ""]])
def test_a_command_must_be_behind_two_dashes(cli: Cli, arguments: list[str]) -> None:
    result = cli("exec", *arguments)

    assert (result.code, result.out) == (2, "")
    assert "put it after '--'" in result.err


def test_the_usage_shows_the_dashes(cli: Cli) -> None:
    assert "Usage: kstore exec [OPTIONS] KEY -- CMD..." in cli("exec", "--help").out


def test_the_command_is_told_which_variables_are_kstores(cli: Cli) -> None:
    result = cli.process("exec", "my/v1", "--", "sh", "-c", f'printf %s "${MANAGED}"')

    assert f"TRITON_CACHE_DIR={cli.cache_root}/triton" in result.out.splitlines()


def test_nothing_of_how_kstore_waits_is_inherited(cli: Cli) -> None:
    command = ("grep", "-E", "^Sig(Blk|Ign):", "/proc/self/status")
    plain = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert ordinary(cli.process("exec", "my/v1", "--", *command).out) == ordinary(plain)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTSTP], ids=lambda number: number.name)
def test_what_was_to_be_ignored_from_the_start_the_command_ignores(cli: Cli, number: signal.Signals) -> None:
    """As nohup, or a shell without job control for what runs in the background, asks for."""
    out = cli.process(
        "exec", "my/v1", "--", "grep", "-E", "^SigIgn:", "/proc/self/status",
        preexec_fn=lambda: signal.signal(number, signal.SIG_IGN),
    ).out  # fmt: skip

    assert ordinary(out)[0] & 1 << number - 1


def ordinary(masks: str) -> list[int]:
    """Signals 1 to 31: those above belong to the C library."""
    return [int(line.split()[1], 16) & 0x7FFFFFFF for line in masks.splitlines()]


USES_KSTORE = """
import kstore, os, pathlib
with kstore.synchronized("my/v1") as cache:
    folder = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], "ab")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ctwo.py").write_text("two")
print(cache.restored.status, cache.restored.files, cache.committed.new_files, folder)
"""


def test_a_command_that_uses_kstore_itself_works_with_the_same_store_and_cache_root(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    own = {name: value for name, value in os.environ.items() if not name.startswith("KSTORE_")}
    options = (
        "--store",
        str(cli.store),
        "--cache-root",
        str(cli.cache_root),
        "--gpu",
        GPU,
        "--environment",
        ENVIRONMENT,
    )
    result = cli.process("exec", "my/v1", *options, "--", sys.executable, "-c", USES_KSTORE, env=own)

    assert result.out == f"current 1 1 {cli.cache_root}/inductor/ab\n"
    assert newest_files(cli) == 2


def test_the_command_gets_the_options_as_variables(cli: Cli) -> None:
    options = ("--store", "a:b", "--cache-root", "c", "--layout", "auto", "--lease-ttl", "90s")
    show = 'echo "$KSTORE_ROOT $KSTORE_CACHE_ROOT $KSTORE_LAYOUT $KSTORE_LEASE_TTL $KSTORE_GPU ${KSTORE_MODE-unset}"'
    result = cli.process("exec", "my/v1", *options, "--", "sh", "-c", show, cwd=cli.folder)

    here = cli.folder
    assert result.out == f"{here}/a:{here}/b {here}/c auto 90.0 {GPU} unset\n"


# ---- signals


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_reaches_the_command_once_and_what_it_compiled_is_committed(cli: Cli, name: str) -> None:
    process = cli.start("exec", "my/v1", "--", sys.executable, "-c", COUNT_SIGNALS)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.Signals[name])
    out, err = process.communicate(timeout=60)

    assert out == f"{name}\n"
    assert process.returncode == 41
    # At the end or, if the end is slow in coming, by the round that a signal asks for.
    assert re.search(r"kstore: committed my/v1 generation 1(?: while it ran)?: 1 new file", err), err


def test_no_thread_is_left_that_could_get_a_signal_instead(cli: Cli) -> None:
    cli.publish("my/v1", *map(str, range(300)))
    alone = "until [ $(ls /proc/$PPID/task | wc -l) = 1 ]; do sleep 0.1; done; echo alone"
    result = cli.process("exec", "my/v1", "--no-live", "--", "sh", "-c", alone)

    assert "kstore: restored my/v1 generation 1: 300 files" in result.err
    assert result.out.strip() == "alone"


def test_no_thread_that_commits_meanwhile_could_get_a_signal_instead(cli: Cli) -> None:
    others = 'for task in /proc/$PPID/task/*; do [ ${task##*/} = $PPID ] || grep -s SigBlk: "$task/status"; done'
    watched = f'until masks=$({others}); [ $(echo "$masks" | wc -l) -gt 2 ]; do sleep 0.1; done; echo "$masks"'
    result = cli.process("exec", "my/v1", "--settle", "1s", "--", "sh", "-c", watched)
    passed_on = sum(1 << (signal.Signals[name] - 1) for name in SIGNALS)

    masks = [int(line.split()[1], 16) for line in result.out.splitlines()]
    assert len(masks) > 2
    assert [mask for mask in masks if mask & passed_on != passed_on] == []


@pytest.mark.parametrize(("key", "name"), [(b"\x03", "SIGINT"), (b"\x1c", "SIGQUIT"), (b"\x1a", "SIGTSTP")])
def test_a_key_on_the_terminal_reaches_the_command_once(cli: Cli, key: bytes, name: str) -> None:
    code, out = on_a_terminal(["exec", "my/v1", "--", sys.executable, "-c", COUNT_SIGNALS], "ready", key)

    assert f"{name}\r\n" in out and f"{name} {name}" not in out
    assert code == 41
    assert "kstore: committed my/v1 generation 1" in out


def test_a_new_size_of_the_terminal_reaches_the_command_once(cli: Cli) -> None:
    code, out = on_a_terminal(["exec", "my/v1", "--", sys.executable, "-c", COUNT_SIGNALS], "ready", size=(30, 100))

    assert "SIGWINCH\r\n" in out and "SIGWINCH SIGWINCH" not in out
    assert code == 41


def test_it_stops_with_the_command_and_goes_on_with_it(cli: Cli) -> None:
    # In a process group of its own, as a shell starts it: otherwise nobody could let it go on.
    script = "trap 'exit 9' CONT; echo $$; while :; do sleep 0.05; done"
    process = cli.start("exec", "my/v1", "--", "sh", "-c", script, process_group=0)
    assert process.stdout is not None
    command = psutil.Process(int(process.stdout.readline()))
    process.send_signal(signal.SIGTSTP)
    wait_until_stopped(psutil.Process(process.pid), command)
    process.send_signal(signal.SIGCONT)

    assert process.wait(60) == 9
    process.communicate()


def wait_until_stopped(*processes: psutil.Process) -> None:
    end = time.monotonic() + 60
    while {process.status() for process in processes} != {psutil.STATUS_STOPPED}:
        assert time.monotonic() < end, "they were never stopped"
        time.sleep(0.01)


def test_a_command_that_is_stopped_by_a_signal_is_not_over(cli: Cli) -> None:
    is_stopped = 'grep -q "^State:.T" /proc/$$/status'
    script = f"sleep 0.3 & (until {is_stopped}; do sleep 0.05; done; kill -CONT $$) & kill -STOP $$; wait; exit 9"

    assert cli.process("exec", "my/v1", "--", "sh", "-c", script).code == 9


def test_a_parent_that_ignores_its_children_changes_nothing(cli: Cli) -> None:
    result = cli.process(
        "exec", "my/v1", "--", "grep", "-E", "^SigIgn:", "/proc/self/status", "no-such-file",
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    )  # fmt: skip

    assert result.code == 2
    assert not int(result.out.split("SigIgn:")[1].split()[0], 16) & 1 << signal.SIGCHLD - 1


def test_a_parent_that_ignores_its_children_does_not_hide_why_there_is_no_command(cli: Cli) -> None:
    result = cli.process(
        "exec", "my/v1", "--require", "--", "true", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    )

    assert result.code == 3
    assert result.err.startswith("kstore: nothing is published for my/v1")


def on_a_terminal(
    arguments: list[str], until: str, keys: bytes = b"", size: tuple[int, int] | None = None
) -> tuple[int, str]:
    """Run kstore as the foreground process of a terminal. Once it has printed `until`, type `keys`, or resize the
    terminal to `size`, rows and columns.
    """
    process, terminal = pty.fork()
    if not process:
        os.chdir(REPOSITORY)
        os.execv(sys.executable, [sys.executable, "-m", "kstore", *arguments])
    out = b""
    while chunk := read_terminal(terminal):
        out += chunk
        if until.encode() in out:
            os.write(terminal, keys)
            if size:
                termios.tcsetwinsize(terminal, size)
            keys, size = b"", None
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), out.decode()


# ---- trouble


def test_a_store_that_cannot_be_used_does_not_stop_the_command(cli: Cli) -> None:
    result = cli.process("exec", "my/v1", "--store", "/nowhere/at/all", "--", "sh", "-c", "echo ran; exit 5")

    assert (result.code, result.out) == (5, "ran\n")
    assert "kstore: warning: nothing is restored, the command runs cold: there is no store at /nowhere" in result.err
    assert "kstore: warning: nothing is committed: " in result.err
    assert "keeps trying" not in result.err


def test_a_cache_root_that_cannot_be_used_does_not_stop_the_command(cli: Cli) -> None:
    cli.cache_root.write_text("no folder")
    result = cli.process("exec", "my/v1", "--", "sh", "-c", 'echo "ran ${TRITON_CACHE_DIR-alone}"')

    assert (result.code, result.out) == (0, "ran alone\n")
    assert "kstore: warning: nothing is restored" in result.err


def test_a_failed_commit_is_a_warning(cli: Cli) -> None:
    cli("init")
    spoil = f'rm -r "{cli.store}"; touch "{cli.store}"; exit 6'
    result = cli.process("exec", "my/v1", "--", "sh", "-ec", f"{compiling('one')}; {spoil}")

    assert result.code == 6
    assert "kstore: warning: nothing is committed: " in result.err


TROUBLE = """
import os, sys
from kstore.published.refs import Refs

publish, failures = Refs.publish, iter(range({times}))

def fail_at_first(*what):
    for _ in failures:
        print("refused", file=sys.stderr, flush=True)
        raise OSError({code}, os.strerror({code}))
    return publish(*what)

Refs.publish = fail_at_first
"""


def unable_to_publish(cli: Cli, code: int, times: int) -> dict[str, str]:
    """Variables of a process that cannot publish at first."""
    folder = cli.folder / "troubled"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(TROUBLE.format(code=code, times=times))
    return {"PYTHONPATH": f"{folder}:{REPOSITORY}"}


LIVE_OR_NOT = [("--settle", "1h", "--every", "1h"), ("--no-live",)]


@pytest.mark.parametrize("options", LIVE_OR_NOT, ids=["live", "not live"])
def test_trouble_of_some_seconds_does_not_cost_the_last_commit(cli: Cli, options: tuple[str, ...]) -> None:
    cli("init")
    process = cli.start(
        "exec", "my/v1", *options, "--", "sh", "-ec", f"{compiling('one')}; exit 6",
        **unable_to_publish(cli, errno.ENOTCONN, times=1),
    )  # fmt: skip
    _, err = process.communicate(timeout=60)

    assert process.returncode == 6
    assert "kstore: warning: nothing is committed yet, kstore keeps trying for some seconds: cannot commit to" in err
    assert "kstore: committed my/v1 generation 1: 1 new file of 1" in err
    assert newest_files(cli) == 1


@pytest.mark.parametrize(
    ("code", "timeout"),
    [(errno.ENOSPC, "600"), (errno.ETIMEDOUT, "0.9")],
    ids=["does not pass by itself", "lasts longer than the job waits for its store"],
)
def test_other_trouble_is_not_waited_for(cli: Cli, code: int, timeout: str) -> None:
    cli("init")
    process = cli.start(
        "exec", "my/v1", "--no-live", "--", "sh", "-ec", compiling("one"), KSTORE_TIMEOUT=timeout,
        **unable_to_publish(cli, code, times=1),
    )  # fmt: skip
    _, err = process.communicate(timeout=60)

    assert "kstore: warning: nothing is committed: " in err
    assert "keeps trying" not in err


def until_it_keeps_trying(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    while "keeps trying" not in process.stderr.readline():
        assert process.poll() is None


@pytest.mark.parametrize("options", LIVE_OR_NOT, ids=["live", "not live"])
def test_others_wait_while_the_last_commit_is_tried_again_and_no_longer(cli: Cli, options: tuple[str, ...]) -> None:
    """Else one of them would begin to compile what is about to be published."""
    cli.process("restore", "my/v1", "--wait", "1", "--lease-ttl", "10m")  # Not taken by exec, nor released at its exit.
    process = cli.start(
        "exec", "my/v1", *options, "--", "sh", "-ec", compiling("one"),
        **unable_to_publish(cli, errno.ENOTCONN, times=100),
    )  # fmt: skip
    until_it_keeps_trying(process)
    assert is_held(cli)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert not is_held(cli)


@pytest.mark.parametrize("options", LIVE_OR_NOT, ids=["live", "not live"])
def test_others_no_longer_wait_once_it_has_succeeded(cli: Cli, options: tuple[str, ...]) -> None:
    cli.process("restore", "my/v1", "--wait", "1", "--lease-ttl", "10m")
    assert is_held(cli)
    process = cli.start(
        "exec", "my/v1", *options, "--", "sh", "-ec", compiling("one"),
        **unable_to_publish(cli, errno.ENOTCONN, times=1),
    )  # fmt: skip
    process.communicate(timeout=60)
    assert newest_files(cli) == 1
    assert not is_held(cli)


def test_a_signal_ends_the_wait_for_a_store_in_trouble_with_one_last_attempt(cli: Cli) -> None:
    cli("init")
    process = cli.start(
        "exec", "my/v1", "--no-live", "--", "sh", "-ec", compiling("one"),
        **unable_to_publish(cli, errno.ENOTCONN, times=100),
    )  # fmt: skip
    until_it_keeps_trying(process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)

    assert "nothing is committed: cannot commit to" in err
    assert 1 <= err.count("refused") < 4, "without the signal it is tried four times more"


def test_a_store_that_hangs_does_not_stop_the_command_nor_its_signals(cli: Cli) -> None:
    cli("init")
    command = (sys.executable, "-I", "-c", COUNT_SIGNALS)
    process = cli.start("exec", "my/v1", "--", *command, KSTORE_TIMEOUT="0.5", **cli.hanging())
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (41, "SIGTERM\n")
    assert "kstore: warning: nothing is restored, the command runs cold: restoring from" in err
    assert "has taken more than 0.5 s" in err
    assert "kstore: warning: nothing is committed: " in err


def test_a_closed_stderr_does_not_stop_the_command(cli: Cli) -> None:
    process = cli.start("exec", "my/v1", "--", "sh", "-ec", f"{compiling('one')}; echo ran; exit 5")
    assert process.stdout is not None and process.stderr is not None
    process.stderr.close()
    out = process.stdout.read()
    process.stdout.close()

    assert (process.wait(60), out) == (5, "ran\n")
    assert newest_files(cli) == 1


@pytest.mark.parametrize("closed", [0, 2])
def test_a_stream_that_was_never_open_does_not_stop_it(cli: Cli, closed: int) -> None:
    cli.publish("my/v1", "one")
    script = f'cat "$TORCHINDUCTOR_CACHE_DIR/ab/cone.py"; {compiling("two")}; exit 5'
    result = cli.process("exec", "my/v1", "--", "sh", "-ec", script, preexec_fn=lambda: os.close(closed))

    assert (result.code, result.out) == (5, "one")
    assert newest_files(cli) == 2


def test_json_that_cannot_be_written_leaves_the_commands_exit_code(cli: Cli) -> None:
    script = f"{compiling('one')}; exit 7"
    with open("/dev/full", "w") as full:
        result = cli.process(
            "exec", "my/v1", "--json", "--", "sh", "-ec", script, preexec_fn=lambda: os.dup2(full.fileno(), 2)
        )

    assert result.code == 7
    assert newest_files(cli) == 1


def test_with_require_a_miss_ends_it_before_the_command(cli: Cli) -> None:
    result = cli("exec", "my/v1", "--require", "--", "touch", str(cli.folder / "ran"))

    assert result.code == 3
    assert result.err.startswith("kstore: nothing is published for my/v1")
    assert not (cli.folder / "ran").exists()


def test_with_require_trouble_ends_it_before_the_command_too(cli: Cli) -> None:
    ran = cli.folder / "ran"
    result = cli("exec", "my/v1", "--require", "--store", "/nowhere/at/all", "--", "touch", str(ran))

    assert result.code == 1
    assert not ran.exists()


@pytest.mark.parametrize("arguments", [["../v1"], ["my/v1", "--seed", "/"], ["my/v1", "--gpu", "a b"]])
def test_a_mistake_of_the_caller_ends_it_before_the_command(cli: Cli, arguments: list[str]) -> None:
    result = cli("exec", *arguments, "--", "touch", str(cli.folder / "ran"))

    assert result.code == 2
    assert not (cli.folder / "ran").exists()


# ---- other options


def test_a_seed_is_what_a_new_key_starts_from(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    show = 'cat "$TORCHINDUCTOR_CACHE_DIR/ab/cone.py"'
    result = cli.process("exec", "my/v2", "--seed", "my/v1", "--require", "--", "sh", "-c", show)

    assert (result.code, result.out) == (0, "one")
    assert "kstore: restored my/v2 from seed my/v1 generation 1" in result.err


def test_the_layout_can_be_chosen(cli: Cli) -> None:
    cli.process("exec", "my/v1", "--layout", "packed", "--", "sh", "-ec", compiling("one"))

    assert len(list((cli.store / "packs").iterdir())) == 1


def test_json_is_the_last_line_on_stderr_as_stdout_is_the_commands(cli: Cli) -> None:
    script = f"echo out; {compiling('one')}; printf 'no end of line' >&2; exit 4"
    result = cli.process("exec", "my/v1", "--json", "--", "sh", "-c", script)
    told, line = result.err.splitlines()
    content = json.loads(line)

    assert (result.code, result.out, told) == (4, "out\n", "no end of line")
    assert (content["schema"], content["command"]) == (1, "exec")
    assert content["exit_code"] == content["kstore_exit_code"] == 4
    assert (content["restore"]["status"], content["commit"]["status"]) == ("miss", "committed")


def test_without_trouble_json_has_no_error(cli: Cli) -> None:
    cli.publish("my/v1")
    content = json.loads(cli.process("exec", "my/v1", "--json", "--", "true").err)

    assert "error" not in content["restore"].keys() | content["commit"].keys()
    assert "error" not in cli("restore", "my/v1", "--json").json
    assert "error" not in cli("commit", "my/v1", "--json").json


def test_the_help_says_where_json_goes(cli: Cli) -> None:
    assert "One JSON object on stderr" in cli("exec", "--help").out
    assert "One JSON object on stdout" in cli("restore", "--help").out


def test_trouble_is_in_json_too(cli: Cli) -> None:
    result = cli.process("exec", "my/v1", "--json", "--store", "/nowhere/at/all", "--", "true")
    content = json.loads(result.err.splitlines()[-1])

    assert (content["restore"]["status"], content["commit"]["status"]) == ("failed", "failed")
    assert "there is no store" in content["restore"]["error"]


def test_a_usage_error_leaves_stdout_alone(cli: Cli) -> None:
    result = cli("exec", "my/v1", "--json", "--unknown", "--", "true")

    assert (result.code, result.out) == (2, "")
    assert json.loads(result.err.splitlines()[-1])["error"]["type"] == "UsageError"


def test_what_was_restored_but_unused_is_a_warning(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    result = cli.process("exec", "my/v1", "--", "sh", "-ec", compiling("two"))

    assert result.code == 0
    assert "kstore: used of generation 1: inductor 0 of 1 entry, 1 compiled anew" in result.err
    assert "warning: inductor: restored but unused; `kstore why my/v1` says what differs" in result.err


def test_the_command_that_says_why_is_for_the_same_store_and_cache_root(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    where = ("--store", str(cli.store), "--cache-root", str(cli.folder / "another"))
    told = cli.process("exec", "my/v1", *where, "--", "sh", "-ec", compiling("two")).err
    (command,) = re.findall("`kstore (.*)` says what differs", told)
    assert command.split() == ["why", "my/v1", *where]

    assert "1 other artifact" in cli(*command.split()).out


def test_what_was_used_is_said(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    result = cli.process("exec", "my/v1", "--", "sh", "-ec", f'{TICK}; cat "$TORCHINDUCTOR_CACHE_DIR"/*/*')

    assert "kstore: used of generation 1: inductor 1 of 1 entry" in result.err
    assert "warning" not in result.err


def test_required_hits_fail_the_command_that_had_to_compile(cli: Cli) -> None:
    cold = cli.process("exec", "my/v1", "--require-hits", "--", "sh", "-ec", compiling("one"))
    assert "leave out --require-hits to start without" in cold.err
    assert cold.code == 3
    assert "nothing is published" in cold.err

    cli.publish("my/v1", "one")
    result = cli.process("exec", "my/v1", "--require-hits", "--", "sh", "-ec", compiling("two"))
    assert result.code == 3
    assert "the command succeeded, but 1 entry was compiled anew" in result.err
    assert newest_files(cli) == 2


def test_required_hits_fail_the_command_that_removed_what_was_restored(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    removing = 'rm -r "$TORCHINDUCTOR_CACHE_DIR"'
    result = cli.process("exec", "my/v1", "--require-hits", "--", "sh", "-ec", f"{TICK}; {removing}")

    assert result.code == 3
    assert "the command succeeded, but nothing is left of what was restored" in result.err


def test_required_hits_fail_the_command_that_leaves_a_kernel_unfinished(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    read = 'cat "$TORCHINDUCTOR_CACHE_DIR"/*/*'
    begin = 'mkdir -p "$TRITON_CACHE_DIR/HALF" && echo > "$TRITON_CACHE_DIR/HALF/k.ttir"'
    result = cli.process("exec", "my/v1", "--require-hits", "--", "sh", "-ec", f"{TICK}; {read}; {begin}")

    assert result.code == 3
    assert "triton 0 of 0 entries, 1 compiled anew" in result.err


def test_required_hits_that_cannot_be_told_are_doubted_aloud(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    # A blob's time, with its own fraction, may be ahead by less than a second: what is read before then is noted again.
    use = ("exec", "my/v1", "--require-hits", "--", "sh", "-ec", 'sleep 1; cat "$TORCHINDUCTOR_CACHE_DIR"/*/*')
    assert "not known" not in cli.process(*use).err

    again = cli.process("exec", "my/v1", "--require-hits", "--", "true")
    assert again.code == 0
    assert "my/v1 was expected to hit, but it is not known whether it did: some of what was restored had" in again.err


def test_a_command_that_fails_keeps_its_exit_code(cli: Cli) -> None:
    cli.publish("my/v1", "one")

    assert cli.process("exec", "my/v1", "--require-hits", "--", "sh", "-ec", f"{compiling('two')}; exit 7").code == 7
