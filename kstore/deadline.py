"""A limit to how long a job waits for its cache.

Nothing can interrupt a system call on a mount whose server is gone. So a restore or commit runs in a thread of its
own, and whoever stops waiting leaves it behind. It may wake up at any time: before it does anything that the job can
see, it asks whether somebody still waits.
"""

from __future__ import annotations

import _thread
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

from kstore.errors import WaitTimeout

Result = TypeVar("Result")

_LOOK = 0.1
"""Seconds between two checks whether haste is called for."""
_LATE = 1.0
"""Seconds: a wait that ends this much too late was suspended with its process."""
_MORE = 10.0
"""Seconds for which a suspended wait goes on, at most."""
_OF_A_THREAD = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
"""Signals that a thread gets for what it does itself, such as reading memory that is not there."""
_ADVICE = "check whether it hangs, or allow it more time: KSTORE_TIMEOUT, and after a signal the grace period"


class Abandoned(Exception):
    """Nobody waits any more for what was to be done."""


class Waiting:
    """Whether somebody still waits for an operation, and for how long at most."""

    def __init__(self, limit: float = 0.0) -> None:
        """`limit` is in seconds; 0 for none."""
        self._limit = limit
        self._lock = threading.Lock()
        self._is_over = False
        self._held_up = ""

    @contextmanager
    def held_up(self, what: str) -> Iterator[None]:
        """Name what the operation waits for in the block: if it is late there, this is what has taken too long."""
        self._held_up = what
        try:
            yield
        finally:
            self._held_up = ""

    def describe(self, what: str) -> str:
        """What is being done: `what`, unless something holds it up."""
        return self._held_up or what

    @contextmanager
    def visible(self) -> Iterator[None]:
        """Do something that the job can see. Whoever gives up meanwhile waits until it is done.

        Raises:
            Abandoned: somebody has given up before.
        """
        with self._lock:
            if self._is_over:
                raise Abandoned
            yield

    def check(self) -> None:
        """Go no further if nobody waits any more.

        Raises:
            Abandoned: somebody has given up before.
        """
        with self.visible():
            pass

    def give_up(self) -> None:
        """Wait no longer: from now on nothing visible happens."""
        with self._lock:
            self._is_over = True

    def within(self, what: str, work: Callable[[], Result], *, beside: float = 0.0) -> Result:
        """`within` that limit, and the seconds that `work` may wait for another worker `beside` it."""
        return within(self._limit and self._limit + beside, self, what, work)


class Haste(NamedTuple):
    """What shortens a limit while somebody waits."""

    is_called_for: Callable[[], bool]
    """Asked every so often."""
    seconds: float
    """At most this many are left from then on."""


class Answer(Generic[Result]):
    """What a thread answers to another one that waits for it.

    Unlike with a `Future`, the waiting thread holds no lock that the answering thread needs: a signal handler that
    interrupts it may wait for the same thread.
    """

    def __init__(self) -> None:
        self._pending = _thread.allocate_lock()
        self._pending.acquire()
        self._given: Callable[[], Result] | None = None

    @property
    def is_there(self) -> bool:
        """Whether the answer was given."""
        return self._given is not None

    def give(self, result: Result) -> None:
        """Answer, once."""
        self._give(lambda: result)

    def fail(self, error: BaseException) -> None:
        """The same, with an error."""

        def fail() -> Result:
            raise error

        self._give(fail)

    def _give(self, given: Callable[[], Result]) -> None:
        self._given = given
        self._pending.release()

    def wait(self, seconds: float | None) -> bool:
        """Whether the answer is there within this many seconds; None is no limit."""
        if not self.is_there and self._pending.acquire(timeout=-1 if seconds is None else seconds):
            self._pending.release()
        return self.is_there

    def result(self) -> Result:
        """What was given, or raise it."""
        assert self._given
        return self._given()


def within(
    seconds: float, waiting: Waiting, what: str, work: Callable[[], Result], haste: Haste | None = None
) -> Result:
    """Return what `work` returns, or raise what it raises. 0 seconds mean no limit. `what` is for the error.

    Raises:
        WaitTimeout: it has taken longer; `work` goes on in a thread that the interpreter's end does not wait for.
    """
    answer = Answer[Result]()
    thread = threading.Thread(target=_run, args=(work, answer), name="kstore", daemon=True)
    try:
        start(thread)
    except RuntimeError:  # At the end of the interpreter no thread can be started.
        with _being_ours():
            return work()
    except BaseException:  # `Thread.start` waits until the thread runs: a signal handler has raised meanwhile.
        waiting.give_up()
        with _noting_interruption():
            raise
    result = answer_within(seconds, waiting, what, answer, haste)
    with _noting_interruption():
        thread.join()
    return result


def start(thread: threading.Thread) -> None:
    """Start it.

    Raises:
        RuntimeError: it cannot be started.
    """
    check_may_start()
    thread.start()


def check_may_start() -> None:
    """Make sure that a thread which is started now will run.

    Raises:
        RuntimeError: it will not. At the end of the interpreter Python itself says so from version 3.12 on; before that
            `Thread.start` waits for it for ever.
    """
    if sys.is_finalizing():
        raise RuntimeError("can't start a thread: the interpreter is ending")


def answer_within(
    seconds: float, waiting: Waiting, what: str, answer: Answer[Result], haste: Haste | None = None
) -> Result:
    """As `within`, for work that another thread does.

    Raises:
        WaitTimeout: it has taken longer.
    """
    is_late = True
    try:
        with _noting_interruption():
            seconds, passed = _shortened(answer, seconds, haste) if haste else (seconds, 0.0)
            is_late = not _is_done(answer, max(0.0, seconds - passed) if seconds else None)
    finally:
        if is_late:  # Or interrupted.
            waiting.give_up()
    if is_late:
        doing = waiting.describe(what)
        raise WaitTimeout(f"{doing} has taken more than {seconds:g} s; {_ADVICE}")
    return answer.result()


def _is_done(answer: Answer[Result], seconds: float | None) -> bool:
    """Whether the work is done within this many seconds; None is no limit. If the process was suspended meanwhile, so
    was the work, and it gets a little more time.
    """
    started = time.monotonic()
    if answer.wait(seconds):
        return True
    if seconds is None or time.monotonic() - started <= seconds + _LATE:
        return False
    return answer.wait(min(seconds, _MORE))


class _Interrupted(threading.local):
    error: BaseException | None = None


_interrupted = _Interrupted()


@contextmanager
def _noting_interruption() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        _interrupted.error = error
        raise


def is_interruption(error: BaseException) -> bool:
    """Whether something else raised `error` while this thread waited, such as a signal handler that limits the time:
    the error is then the job's own. To be asked once.
    """
    found, _interrupted.error = _interrupted.error, None
    return found is error


def _shortened(answer: Answer[Result], seconds: float, haste: Haste) -> tuple[float, float]:
    """The limit, once nothing can shorten it any more, and how much of it has passed."""
    started, passed = time.monotonic(), 0.0
    while not answer.is_there and passed < (seconds or math.inf):
        if haste.is_called_for():
            return min(seconds or math.inf, round(passed + max(haste.seconds, _LOOK), 1)), passed
        answer.wait(_LOOK)
        passed = time.monotonic() - started
    return seconds, passed


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Threads that are started in the block get no signals: those are for the job's own threads."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        _block()  # A signal handler may raise in it, once they are blocked.
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Thread(threading.local):
    is_ours = False


_thread_here = _Thread()


def block_signals() -> None:
    """To be called first in a kstore thread: from now on it is known as one, and gets no signals. Those are for the
    job's own threads: a thread that hangs must not be the one to get them.
    """
    if is_apart():
        _thread_here.is_ours = True
        _block()


@contextmanager
def _being_ours() -> Iterator[None]:
    """Do in the job's thread what a kstore thread would do."""
    before, _thread_here.is_ours = _thread_here.is_ours, True
    try:
        yield
    finally:
        _thread_here.is_ours = before


def is_ours() -> bool:
    """Whether this is a kstore thread, or does the work of one. Python removes what nobody uses in whatever thread runs
    then: the end of a job's block would wait here for a lock that this thread holds.
    """
    return _thread_here.is_ours


def is_apart() -> bool:
    """Whether this is a thread other than the job's first. Where gevent or eventlet have patched Python, all threads
    are that one, by turns: setting the signals and priority of a thread would set those of the job.
    """
    return _thread.get_native_id() != os.getpid()


def _block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OF_A_THREAD)


def _run(work: Callable[[], Result], answer: Answer[Result]) -> None:
    block_signals()
    try:
        answer.give(work())
    except BaseException as error:
        answer.fail(error)
