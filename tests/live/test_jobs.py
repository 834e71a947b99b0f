"""`kstore.watch` and `kstore.synchronized(live=True)`, however the job ends."""

from __future__ import annotations

import faulthandler
import io
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import kstore
from kstore.deadline import Answer
from kstore.live import commits, endings, imports
from kstore.report import CommitStatus
from tests.trees import ENVIRONMENT, GPU, KEY, Tree

PATIENCE = 60
REPOSITORY = Path(__file__).parents[2]
SOON: dict[str, Any] = {"settle": 0.1}
LATE: dict[str, Any] = {"settle": 3600, "every": 3600}


class Failure(Exception):
    """A failure of the warm-up."""


class Place:
    """A store, a cache root, and how much of the root is published."""

    def __init__(self, folder: Path) -> None:
        self.tree = Tree(folder / "root")
        self.settings: dict[str, Any] = {
            "store": folder / "store", "cache_root": folder / "root", "gpu": GPU, "environment": ENVIRONMENT,
        }  # fmt: skip

    def published(self) -> int:
        """How many files are published."""
        store = kstore.Store(self.settings["store"], gpu=GPU, environment=ENVIRONMENT)
        ref = store.newest(store.scope(KEY))
        return ref.files if ref else 0

    def wait_for(self, files: int) -> None:
        end = time.monotonic() + PATIENCE
        while self.published() < files:
            assert time.monotonic() < end, "it was never published"
            time.sleep(0.02)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Afterwards SIGTERM must be handled as before."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) == before


# ---- the calls


def test_a_watch_publishes_while_the_job_runs_and_what_is_left_at_its_end(place: Place) -> None:
    kstore.restore(KEY, **place.settings)
    live = kstore.watch(KEY, **SOON, **place.settings)
    place.tree.wrapper("one")
    place.wait_for(1)
    place.tree.wrapper("two")
    report = live.stop()

    assert report.ok
    assert place.published() == 2
    assert [checkpoint.generation for checkpoint in live.checkpoints] == list(range(1, report.generation + 1))


def test_the_last_report_sums_up_what_was_published(place: Place) -> None:
    live = kstore.watch(KEY, **SOON, **place.settings)
    place.tree.wrapper("one")
    place.wait_for(1)
    report = live.stop()
    assert (report.status, report.generation, report.new_files) == (CommitStatus.COMMITTED, 1, 1)
    assert report.uploaded == sum(checkpoint.uploaded for checkpoint in live.checkpoints) > 0


def test_stopping_again_returns_the_same(place: Place) -> None:
    live = kstore.watch(KEY, **LATE, **place.settings)
    place.tree.wrapper("one")
    assert live.stop() is live.stop()


def test_a_watch_is_a_context(place: Place) -> None:
    with kstore.watch(KEY, **LATE, **place.settings):
        place.tree.wrapper("one")
    assert place.published() == 1


def test_synchronized_publishes_while_its_body_runs(place: Place) -> None:
    with kstore.synchronized(KEY, live=True, **SOON, **place.settings) as cache:
        place.tree.wrapper("one")
        place.wait_for(1)
        place.tree.wrapper("two")
    assert (cache.committed.status, cache.committed.new_files) == (CommitStatus.COMMITTED, 2)
    assert cache.checkpoints
    assert place.published() == 2


def test_without_live_nothing_is_published_before_the_end(place: Place) -> None:
    with kstore.synchronized(KEY, **SOON, **place.settings) as cache:
        place.tree.wrapper("one")
        time.sleep(0.5)
        assert place.published() == 0
    assert (place.published(), cache.checkpoints) == (1, ())


def test_what_was_published_live_is_restored_by_another_worker(place: Place, tmp_path: Path) -> None:
    other = {**place.settings, "cache_root": tmp_path / "other"}
    with kstore.synchronized(KEY, live=True, **SOON, **place.settings):
        place.tree.kernel("one")
        place.wait_for(8)
        assert kstore.restore(KEY, **other).files == 8


def test_it_can_be_used_again(place: Place) -> None:
    cache = kstore.synchronized(KEY, live=True, **LATE, **place.settings)
    for number in range(2):
        with cache:
            place.tree.wrapper(str(number))
    assert (cache.committed.generation, place.published()) == (2, 2)


@pytest.mark.parametrize("live", [False, True])
def test_a_worker_that_only_reads_publishes_nothing(place: Place, live: bool) -> None:
    with kstore.synchronized(KEY, live=live, mode="read", **SOON, **place.settings) as cache:
        place.tree.wrapper("one")
    assert cache.committed.status is CommitStatus.READ_ONLY
    assert not place.settings["store"].exists()


@pytest.mark.parametrize(
    "wrong", [{"settle": 0}, {"settle": "x"}, {"every": -1}, {"grace_period": float("inf")}, {"on_error": "maybe"}]
)
@pytest.mark.parametrize("call", [kstore.watch, kstore.synchronized])
def test_a_mistake_of_the_caller_is_raised(place: Place, call: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(kstore.UsageError, match=next(iter(wrong))):
        call(KEY, **wrong, **place.settings)


@pytest.mark.parametrize("call", [kstore.restore, kstore.commit, kstore.watch, kstore.synchronized])
def test_an_unknown_setting_is_raised_with_those_that_exist(place: Place, call: Any) -> None:
    with pytest.raises(kstore.UsageError, match="there is no setting stor; there are store, cache_root, layout"):
        call(KEY, stor="/mnt/kstore", **place.settings)


def test_a_store_that_cannot_be_used_is_a_status(place: Place) -> None:
    with kstore.watch(KEY, **LATE, **{**place.settings, "store": "/nowhere/at/all"}) as live:
        place.tree.wrapper("one")
    assert live.stop().status is CommitStatus.FAILED


def test_strict_raises_it(place: Place) -> None:
    live = kstore.watch(KEY, strict=True, **LATE, **{**place.settings, "store": "/nowhere/at/all"})
    with pytest.raises(kstore.StoreUnavailable):
        live.stop()


def test_nothing_is_imported_while_a_job_may_fork(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child would wait for ever for an import that another thread had begun."""
    program = START + (
        "import threading\n"
        "class Noting(threading.Thread):\n"
        "    def start(self):\n"
        "        print(*sorted({'watchdog.observers', 'kstore.operations.commit'} - set(sys.modules)), flush=True)\n"
        "        super().start()\n"
        "threading.Thread = Noting\n"
        "kstore.watch(KEY, **late, **settings).stop()"
    )
    code, out, err = run(program, place)
    assert (code, out.splitlines()[0]) == (0, ""), err


@pytest.mark.parametrize("live", [False, True])
def test_nothing_is_imported_by_a_thread_once_the_block_has_begun(place: Place, live: bool) -> None:
    """The thread would wait for ever for a job that is told to end in the middle of an import."""
    program = START + (
        "import _imp, threading\n"
        "class Noting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        in_thread = threading.current_thread() is not threading.main_thread()\n"
        "        if in_thread and _imp.lock_held(): print(name, flush=True)\n"
        "os.environ.pop('USER', None); os.environ.pop('LOGNAME', None)\n"
        f"with kstore.synchronized(KEY, live={live}, **late, **settings):\n"
        "    sys.meta_path.insert(0, Noting())\n"
        "    tree.kernel(); tree.wrapper(); tree.timings({'a': 1}); tree.put('inductor/ab/c.so', b'no object')"
    )
    code, out, err = run(program, place)
    assert (code, out) == (0, ""), err


# ---- a body that fails


@pytest.mark.parametrize("live", [False, True])
def test_what_a_failed_body_compiled_is_published(place: Place, live: bool) -> None:
    with pytest.raises(Failure), kstore.synchronized(KEY, live=live, **LATE, **place.settings) as cache:
        place.tree.wrapper("one")
        raise Failure
    assert (cache.committed.status, place.published()) == (CommitStatus.COMMITTED, 1)


@pytest.mark.parametrize("live", [False, True])
def test_what_a_failed_body_compiled_can_be_discarded(place: Place, live: bool) -> None:
    choice = {"live": live, "on_error": "discard", **LATE, **place.settings}
    with pytest.raises(Failure), kstore.synchronized(KEY, **choice) as cache:
        place.tree.wrapper("one")
        raise Failure
    assert (cache.committed.status, place.published()) == (CommitStatus.DISCARDED, 0)


def test_what_was_published_before_it_failed_stays(place: Place) -> None:
    with pytest.raises(Failure), kstore.watch(KEY, on_error="discard", **SOON, **place.settings):
        place.tree.wrapper("one")
        place.wait_for(1)
        raise Failure
    assert place.published() == 1


@pytest.mark.parametrize(("code", "published"), [(0, 1), (None, 1), (1, 0), ("trouble", 0)])
def test_an_exit_without_an_error_is_no_failure(place: Place, code: Any, published: int) -> None:
    with pytest.raises(SystemExit), kstore.synchronized(KEY, on_error="discard", **place.settings):
        place.tree.wrapper("one")
        sys.exit(code)
    assert place.published() == published


@pytest.mark.parametrize("live", [False, True])
def test_a_body_that_is_interrupted_has_the_grace_period(
    place: Place, live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    wait = Answer.wait
    monkeypatch.setattr(Answer, "wait", lambda answer, seconds: (waited.append(seconds), wait(answer, PATIENCE))[1])
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with kstore.synchronized(KEY, live=live, grace_period=7, **LATE, **place.settings):
            place.tree.wrapper("one")
            raise KeyboardInterrupt
    assert (waited[-1], place.published()) == (7, 1)


def test_a_watch_whose_beginning_is_interrupted_leaves_no_thread_behind(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Ctrl-C, which is blocked while the thread starts, and arrives once it has started."""

    def start(thread: threading.Thread) -> None:
        thread.start()
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(commits, "start", start)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        kstore.watch(KEY, **place.settings)
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
    assert set(threading.enumerate()) <= before


# ---- SIGTERM

START = """
import os, signal, sys, time, kstore
from tests.trees import KEY, Tree
folder = sys.argv[1]
tree = Tree(__import__("pathlib").Path(folder, "root"))
settings = dict(store=folder + "/store", cache_root=folder + "/root", gpu="nvidia-test-sm90", environment="torch-test")
late = dict(settle=3600, every=3600)
def wait():
    print("ready", flush=True)
    for _ in range(600): time.sleep(0.1)  # a signal that comes right before one sleep is handled after it
"""
LIVE = START + "with kstore.synchronized(KEY, live=True, **late, **settings):\n    tree.wrapper(); wait()"
PLAIN = START + "with kstore.synchronized(KEY, **settings):\n    tree.wrapper(); wait()"
WATCH = START + (
    "live = kstore.watch(KEY, **late, **settings)\n"
    "while not live._live._lookout.seen.changes: time.sleep(0.01)\n"
    "tree.wrapper(); wait()"
)
# A handler must not print() while the job does.
GRACEFUL = START + (
    "signal.signal(signal.SIGTERM, lambda *what: (os.write(1, b'handled\\n'), sys.exit(3)))\n"
    "with kstore.synchronized(KEY, live=True, **late, **settings):\n    tree.wrapper(); wait()"
)
IGNORING = START + (
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "live = kstore.watch(KEY, **late, **settings)\n"
    "assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN\n"
    "tree.wrapper(); print('ready', flush=True); sys.stdin.readline()"
)
GOING_ON = START + (
    "def told(*what):\n    global is_told; is_told = True\n"
    "is_told = False\nsignal.signal(signal.SIGTERM, told)\n"
    "with kstore.synchronized(KEY, live=True, **late, **settings) as cache:\n"
    "    tree.wrapper('one'); print('ready', flush=True)\n"
    "    while not is_told: time.sleep(0.01)\n"
    "    assert len(cache.checkpoints) == 1\n"
    "    tree.wrapper('two')"
)
CHAINED = START + (
    "def told(*what):\n    global is_told; is_told = True\n    if callable(before): before(*what)\n"
    "is_told = False\n"
    "with kstore.synchronized(KEY, live=LIVE, **late, **settings) as cache:\n"
    "    before = signal.signal(signal.SIGTERM, told)\n"
    "    tree.wrapper('one'); print('ready', flush=True)\n"
    "    while not is_told: time.sleep(0.01)\n"
    "    tree.wrapper('two')"
)
NATIVE = START + (
    "import faulthandler\n"
    "faulthandler.register(signal.SIGTERM, sys.stdout, chain=CHAIN)\n"
    "with kstore.synchronized(KEY, **settings) as cache:\n"
    "    tree.wrapper('one'); print('ready', flush=True)\n"
    "    while signal.getsignal(signal.SIGTERM) != signal.SIG_DFL: time.sleep(0.01)\n"
    "    tree.wrapper('two')"
)
COPIED = START + (
    "with kstore.synchronized(KEY, **settings):\n"
    "    signal.signal(signal.SIGUSR1, signal.getsignal(signal.SIGTERM))\n"
    "    tree.wrapper(); wait()"
)
ENDING = START + "live = kstore.watch(KEY, **late, **settings)\ntree.wrapper()"
RAISING = ENDING + "\nraise ValueError('of the job')"
FORKING = START + (
    "import warnings; warnings.simplefilter('ignore')\n"  # From 3.12 on Python warns of a fork beside threads.
    "live = kstore.watch(KEY, **late, **settings)\n"
    "tree.wrapper()\n"
    "child = os.fork()\n"
    "if not child: wait()\n"
    "code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
    "assert code == -signal.SIGTERM, code\n"
    "assert not live.checkpoints\n"
)
LEAVING = START + (
    "import warnings; warnings.simplefilter('ignore')\n"
    "with kstore.watch(KEY, strict=True, **late, **settings):\n"
    "    tree.wrapper(); child = os.fork()\n"
    "    if child: assert os.waitpid(child, 0)[1] == 0\n"
)
HANGING = START + (
    "import threading\n"
    "from kstore.backends import PosixBackend\n"
    "PosixBackend.upload = lambda *what: threading.Event().wait()\n"
    "with kstore.synchronized(KEY, live=True, grace_period=0.5, **late, **settings):\n    tree.wrapper(); wait()"
)


LOGGING = START + (
    "import logging\n"
    "class Handler(logging.Handler):\n"
    "    def emit(self, record):\n"
    "        if record.getMessage() == 'step': wait()\n"
    "        elif record.levelno > logging.DEBUG: os.write(2, record.getMessage().encode() + b'\\n')\n"
    "logging.basicConfig(level=logging.DEBUG, handlers=[Handler()])\n"
    "with kstore.synchronized(KEY, live=LIVE, grace_period=10, **late, **settings):\n"
    "    tree.wrapper(); logging.info('step')"
)
FAILING = LOGGING.replace("elif record.levelno > logging.DEBUG: ", "else: raise ConnectionError('no log server'); ")


LEADING = START + (
    "with kstore.synchronized(KEY, live=True, wait=600, **late, **settings) as cache:\n"
    "    assert cache.restored.leads; wait()"
)


IMPORTING = START + (
    "class Finder:\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name == 'nothing': os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)\n"
    "with kstore.synchronized(KEY, live=LIVE, grace_period=20, **late, **settings):\n"
    "    tree.wrapper(); sys.meta_path.insert(0, Finder())\n"
    "    import nothing"
)
UNFINISHED = {
    "a generator": "def steps():\n    with block() as cache: tree.wrapper(); yield\nrest = steps(); next(rest)",
    "one that is in a cycle": (
        "def steps():\n    with block() as cache: tree.wrapper(); yield\n"
        "rest = steps(); next(rest); cycle = [rest]; cycle.append(cycle); del rest, cycle"
    ),
    "what is never left": "cache = block(); cache.__enter__(); tree.wrapper()",
    "a daemon thread": (
        "import threading\nbegun = threading.Event()\ndef work():\n"
        "    with block(): tree.wrapper(); begun.set(); time.sleep(3600)\n"
        "threading.Thread(target=work, daemon=True).start(); begun.wait()"
    ),
    "a child of it": (
        "import warnings; warnings.simplefilter('ignore')\n"
        "cache = block(); cache.__enter__(); tree.wrapper(); child = os.fork()\n"
        "if child: assert os.waitpid(child, 0)[1] == 0 and not os.path.exists(folder + '/store/refs')"
    ),
}


def start(program: str, place: Place) -> subprocess.Popen[str]:
    command: Sequence[str] = (sys.executable, "-c", program, str(place.tree.root.parent))
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=REPOSITORY, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    return process


def run(program: str, place: Place) -> tuple[int, str, str]:
    process = start(program, place)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def end(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str, str]:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


@pytest.mark.parametrize("program", [LIVE, PLAIN, WATCH], ids=["live", "plain", "watch"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_job_that_is_told_to_end_publishes_and_dies_of_the_signal(place: Place, program: str, number: int) -> None:
    code, _, err = end(start(program, place), number)

    assert code == -number
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)
    assert place.published() == 1


@pytest.mark.parametrize("live", [False, True])
def test_a_job_that_is_told_to_end_while_it_imports_publishes(place: Place, live: bool) -> None:
    code, _, err = run(IMPORTING.replace("LIVE", str(live)), place)
    assert (code, place.published()) == (-signal.SIGTERM, 1), err


def test_a_signal_that_comes_at_the_end_of_a_watch_waits_for_nothing_that_waits_for_it(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """On whichever line it arrives."""
    waiting = ("kstore/deadline.py", "kstore/live/commits.py")
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        lines = 0
        while _stop_with_signal_at(lines, place, waiting):
            lines += 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert lines > 20
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def _stop_with_signal_at(line: int, place: Place, files: Sequence[str]) -> bool:
    """Whether this many lines of these files are run in that block."""
    left = line

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(tuple(files)):
            return None
        if event == "line":
            left -= 1
            if left == -1:
                sys.settrace(None)
                os.kill(os.getpid(), signal.SIGTERM)
        return trace

    live = kstore.watch(KEY, grace_period=20, **LATE, **place.settings)
    place.tree.wrapper(f"wrapper {line}")
    sys.settrace(trace)
    try:
        assert live.stop().ok
    finally:
        sys.settrace(None)
    return left < 0


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("body", UNFINISHED.values(), ids=UNFINISHED)
def test_a_block_that_is_still_open_at_the_end_of_the_process_is_published(place: Place, body: str, live: bool) -> None:
    program = f"def block(): return kstore.synchronized(KEY, live={live}, **late, **settings)\n"
    code, _, err = run(START + program + body, place)
    assert (code, place.published()) == (0, 1), err


@pytest.mark.parametrize("commit", ["kstore.commit, KEY, **settings", "block.__exit__, None, None, None"])
def test_a_commit_of_who_is_removed_when_the_interpreter_has_ended_holds_it_up_no_longer(
    place: Place, commit: str
) -> None:
    program = START + (
        "block = kstore.synchronized(KEY, **settings); block.__enter__(); tree.wrapper()\n"
        f"commit = __import__('functools').partial({commit})\n"
        "class Removed:\n    def __del__(self, commit=commit): commit()\n"
        "removed = Removed()"
    )
    code, _, err = run(program, place)
    assert (code, place.published()) == (0, 1), err


def test_a_subinterpreter_has_no_signals(place: Place) -> None:
    program = (
        "import importlib\n"
        "names = ('_interpreters', '_xxsubinterpreters')\n"
        "for name in names:\n"
        "    try: interpreters = importlib.import_module(name); break\n"
        "    except ImportError: continue\n"
        "else: raise SystemExit('no subinterpreters')\n"
        "code = 'from kstore.live.endings import OnTermination as End; end = End(print); end.install(); end.remove()'\n"
        "failed = interpreters.run_string(interpreters.create(), code)\n"
        "assert not failed, failed\n"
    )
    code, _, err = run(program, place)
    assert code == 0, err


def test_blocks_in_each_other_are_all_published_on_sighup(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, ended = Place(tmp_path / "inner"), list[int]()
    monkeypatch.setattr(os, "kill", lambda process, number: ended.append(number))
    with kstore.synchronized(KEY, **place.settings), kstore.synchronized(KEY, **inner.settings):
        place.tree.wrapper()
        inner.tree.wrapper()
        signal.raise_signal(signal.SIGHUP)
        assert (place.published(), inner.published(), ended) == (1, 1, [signal.SIGHUP])


def test_a_job_that_reads_its_settings_again_on_sighup_is_not_told_to_end(place: Place) -> None:
    before = signal.signal(signal.SIGHUP, lambda number, frame: reloads.append(number))
    reloads = list[int]()
    try:
        with kstore.synchronized(KEY, **place.settings):
            place.tree.wrapper()
            signal.raise_signal(signal.SIGHUP)
            assert (reloads, place.published()) == ([signal.SIGHUP], 0)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert place.published() == 1


def test_a_job_whose_sighup_python_does_not_know_of_is_not_told_to_end_by_it_either(place: Place) -> None:
    with open(place.tree.root.parent / "stacks", "w") as stacks:
        faulthandler.register(signal.SIGHUP, stacks, all_threads=False)  # Other threads' stacks change meanwhile.
        try:
            with kstore.synchronized(KEY, **place.settings):
                place.tree.wrapper()
                signal.raise_signal(signal.SIGHUP)
                assert place.published() == 0
        finally:
            faulthandler.unregister(signal.SIGHUP)
    assert place.published() == 1


def test_a_block_that_another_thread_leaves_is_published_and_its_handler_does_no_more(place: Place) -> None:
    told = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    block = kstore.synchronized(KEY, **place.settings)
    try:
        block.__enter__()
        place.tree.wrapper("one")
        with ThreadPoolExecutor(1) as others:
            others.submit(block.__exit__, None, None, None).result(PATIENCE)
        place.tree.wrapper("two")
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (place.published(), told) == (1, [signal.SIGTERM])


def test_a_handler_that_still_calls_ours_after_the_block_publishes_nothing_more(place: Place) -> None:
    """It has been installed in the block, so it stays."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever other tests have left
    try:
        with kstore.synchronized(KEY, **place.settings):
            place.tree.wrapper("one")
            signal.signal(signal.SIGTERM, partial(_call, signal.getsignal(signal.SIGTERM)))
        place.tree.wrapper("two")
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert place.published() == 1


def _call(handler: Any, number: int, frame: FrameType | None) -> None:
    handler(number, frame)


@pytest.mark.parametrize("error", [ModuleNotFoundError("there is none"), OSError("it cannot be read")], ids=str)
def test_what_cannot_be_imported_ahead_keeps_no_block_from_beginning(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def fail(module: str) -> None:
        tried.append(module)
        raise error

    monkeypatch.setattr(imports, "import_module", fail)
    imports.import_commit()
    assert tried == list(imports._MODULES)


def test_a_job_that_is_told_to_end_lets_others_compile(place: Place, tmp_path: Path) -> None:
    assert end(start(LEADING, place))[0] == -signal.SIGTERM
    report = kstore.restore(KEY, wait=600, **{**place.settings, "cache_root": tmp_path / "other", "lease_ttl": 3600})
    assert report.leads


def test_a_handler_of_the_jobs_own_is_called_after_it(place: Place) -> None:
    code, out, err = end(start(GRACEFUL, place))

    assert (code, out, err) == (3, "handled\n", "")
    assert place.published() == 1


@pytest.mark.parametrize("live", [False, True])
def test_a_job_that_is_told_to_end_while_it_writes_its_log_publishes(place: Place, live: bool) -> None:
    """It holds the lock of its log while threads of kstore's have something to log."""
    code, _, err = end(start(LOGGING.replace("LIVE", str(live)), place))

    assert (code, place.published()) == (-signal.SIGTERM, 1)
    assert re.search(f"kstore: committed {KEY} generation 1: 1 new files", err)


@pytest.mark.parametrize("where", ["", "kstore"])
def test_what_threads_log_meanwhile_waits_for_no_lock(where: str) -> None:
    """Whichever logger they log to: some loggers are made only when a commit needs them."""
    told, own = io.StringIO(), logging.getLogger("a.job")
    log, handler = logging.getLogger(where), logging.StreamHandler(told)
    thread = threading.Thread(target=logging.getLogger("kstore.made_just_now").error, args=("a thread's",), daemon=True)
    log.addHandler(handler)
    try:
        with handler.lock or pytest.fail("it has no lock"), endings._log_deferred():
            thread.start()
            thread.join(PATIENCE)
            assert not thread.is_alive()
            own.error("the job's")
            assert "a thread's" not in told.getvalue()
        assert told.getvalue().splitlines() == ["the job's", "a thread's"][bool(where) :]
    finally:
        log.removeHandler(handler)


@pytest.mark.parametrize("live", [False, True])
def test_a_log_that_cannot_be_written_does_not_keep_the_job_from_ending(place: Place, live: bool) -> None:
    code, _, err = end(start(FAILING.replace("LIVE", str(live)), place))

    assert (code, place.published()) == (-signal.SIGTERM, 1), err


def test_a_daemon_that_was_made_while_it_was_watched_is_told_that_nothing_is_committed(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = kstore.watch(KEY, **LATE, **place.settings)
    place.tree.wrapper()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        patch.setattr(os, "kill", gone)
        live._at_exit()
        assert f"nothing is committed to {KEY}: this process was forked in its block" in caplog.text
    assert live.stop().ok
    assert place.published() == 1


def test_a_daemon_that_stops_the_watch_is_told_so_too(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = kstore.watch(KEY, **LATE, **place.settings)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        patch.setattr(os, "kill", gone)
        assert "the process that it was forked from has ended; fork first" in live.stop().error
    live._live.discard()


def gone(process: int, number: int) -> None:
    raise ProcessLookupError


def test_a_job_that_goes_on_nevertheless_publishes_the_rest_at_its_end(place: Place) -> None:
    code, _, err = end(start(GOING_ON, place))

    assert (code, err) == (0, "")
    assert place.published() == 2


@pytest.mark.parametrize("live", [False, True])
def test_a_handler_that_the_job_installs_in_the_block_and_calls_ours_decides_whether_it_ends(
    place: Place, live: bool
) -> None:
    """As Lightning's trainer does: it takes what is installed for another handler, and would not call a default."""
    code, _, err = end(start(CHAINED.replace("LIVE", str(live)), place))

    assert (code, err) == (0, "")
    assert place.published() == 2


@pytest.mark.parametrize(("chain", "code", "published"), [(False, 0, 2), (True, -signal.SIGTERM, 1)])
def test_a_handler_that_python_does_not_know_of_does_what_it_would_have_done(
    place: Place, chain: bool, code: int, published: int
) -> None:
    ended, out, err = end(start(NATIVE.replace("CHAIN", str(chain)), place))

    assert (ended, err) == (code, "")
    assert "most recent call first" in out
    assert place.published() == published


def test_a_handler_that_the_job_gives_another_signal_ends_it_by_that(place: Place) -> None:
    code, _, err = end(start(COPIED, place), signal.SIGUSR1)

    assert (code, err) == (-signal.SIGUSR1, "")
    assert place.published() == 1


def test_a_signal_that_is_ignored_stays_so(place: Place) -> None:
    process = start(IGNORING, place)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate("go on\n", timeout=PATIENCE)

    assert process.returncode == 0
    assert place.published() == 1


@pytest.mark.parametrize(("program", "code"), [(ENDING, 0), (RAISING, 1)], ids=["end", "error"])
def test_a_watch_that_nobody_stops_publishes_at_the_end_of_the_process(place: Place, program: str, code: int) -> None:
    ended, _, err = run(program, place)

    assert ended == code, err
    assert place.published() == 1


def test_a_child_that_was_forked_publishes_nothing_and_dies_of_the_signal(place: Place) -> None:
    process = start(FORKING, place)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)

    assert (process.returncode, err) == (0, "")
    assert place.published() == 1


def test_a_child_that_was_forked_leaves_the_block_of_a_watch_without_a_word(place: Place) -> None:
    code, _, err = run(LEAVING, place)

    assert (code, err) == (0, "")
    assert place.published() == 1


def test_a_store_that_hangs_does_not_keep_the_job_from_ending(place: Place) -> None:
    code, _, err = end(start(HANGING, place))

    assert code == -signal.SIGTERM
    assert "has taken more than 0.5 s" in err
