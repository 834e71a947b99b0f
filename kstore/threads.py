"""Threads that neither keep the interpreter from ending nor fail at its end."""

from __future__ import annotations

import _thread
import atexit
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any, TypeVar

from kstore.deadline import block_signals, check_may_start

Answer = TypeVar("Answer")
Item = TypeVar("Item")

_PATIENCE = 5.0
"""Seconds for threads to begin: all that they need for it is the interpreter."""
_starting: set[_thread.LockType] = set()
"""A lock for each thread that was started and has not begun to run; the thread releases it when it does."""
_is_ending = Event()
"""Whether the interpreter is about to end."""


class Pool(Executor):
    """A ThreadPoolExecutor whose threads Python does not join at exit: one may hang in a dead mount for ever."""

    def __init__(self, size: int) -> None:
        """`size` is the number of threads."""
        self._size = size
        self._threads: list[_thread.LockType] = []
        """A lock for each thread that was started, which it releases when it ends."""
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(self, function: Callable[..., Answer], /, *arguments: Any, **options: Any) -> Future[Answer]:
        """Have it done by a thread.

        Raises:
            RuntimeError: no thread can be started.
        """
        if len(self._threads) < self._size:
            self._threads.append(_start(self._work))
        answer: Future[Answer] = Future()
        self._work.put(partial(_answer, answer, partial(function, *arguments, **options)))
        return answer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads once everything is done, or with `cancel_futures` once what has begun is done."""
        with suppress(Empty):
            while cancel_futures:
                self._work.get_nowait()  # Its threads take from it too.
        self._work.put(None)
        while wait and self._threads:
            self._threads.pop().acquire()


def map_ahead(
    function: Callable[[Item], Answer], items: Iterable[Item], ahead: int = 1, threads: int = 1, *, waits: bool = True
) -> Iterator[Answer]:
    """What `function` returns for each item, in order. While the caller uses one answer, this many `threads` find
    the next ones; at most `ahead` of them are held.

    In the end it waits for the threads, which may still be finding answers that nobody wants any more, unless it is
    told not to.
    """
    pool = Pool(threads)
    asked: deque[Future[Answer]] = deque()
    try:
        for item in items:
            asked.append(submit(pool, function, item))
            if len(asked) > ahead:
                yield asked.popleft().result()
        while asked:
            yield asked.popleft().result()
    finally:
        pool.shutdown(wait=waits, cancel_futures=True)


def submit(pool: Executor, function: Callable[..., Answer], *arguments: Any) -> Future[Answer]:
    """As `pool.submit`, also in an atexit handler (a worker may commit in one): there the work is done at once."""
    try:
        return pool.submit(function, *arguments)
    except RuntimeError:
        return answer_now(partial(function, *arguments))


def answer_now(function: Callable[[], Answer]) -> Future[Answer]:
    """A future that is done: `function` is called at once, and may fail."""
    answer: Future[Answer] = Future()
    _answer(answer, function)
    return answer


def begin(function: Callable[..., Answer], *arguments: Any) -> Future[Answer]:
    """Call `function` in a thread of its own that nobody has to wait for: it may hang in a dead mount."""
    pool = Pool(1)
    answer = submit(pool, function, *arguments)
    pool.shutdown(wait=False)
    return answer


def _start(queue: SimpleQueue[Callable[[], None] | None]) -> _thread.LockType:
    """Start a thread that does the work in a queue; returns a lock that it releases when it ends.

    `Thread.start` would wait until the new thread runs, which then keeps the interpreter for up to 5 ms, with work that
    is not urgent. Without that wait a small model is restored in a tenth less time.

    Raises:
        RuntimeError: it cannot be started.
    """
    check_may_start()
    has_begun, has_ended = _locked(), _locked()
    _starting.add(has_begun)
    try:
        _thread.start_new_thread(_run, (queue, has_begun, has_ended))
    except BaseException:  # such as what a signal handler raises
        _starting.discard(has_begun)
        raise
    if _is_ending.is_set():
        _await_begun()
    return has_ended


@atexit.register
def _await_begun() -> None:
    """A thread that begins when the interpreter has just ended takes the process down: no memory is left for it."""
    _is_ending.set()
    until = time.monotonic() + _PATIENCE
    for has_begun in tuple(_starting):
        if has_begun.acquire(timeout=max(until - time.monotonic(), 0.0)):
            has_begun.release()  # Another thread may wait for it.


# A forked child has none of these threads.
os.register_at_fork(after_in_child=_starting.clear)


def _locked() -> _thread.LockType:
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


def _run(
    queue: SimpleQueue[Callable[[], None] | None], has_begun: _thread.LockType, has_ended: _thread.LockType
) -> None:
    try:
        _starting.discard(has_begun)
        has_begun.release()
        _work_off(queue)
    finally:
        has_ended.release()


def _work_off(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    block_signals()
    while work := queue.get():
        work()
        del work  # or what it works on would be held until there is more to do
    # For the next thread: how many there are is uncertain, as a signal handler may raise while one is started.
    queue.put(None)


def _answer(answer: Future[Answer], function: Callable[[], Answer]) -> None:
    try:
        answer.set_result(function())
    except BaseException as error:
        if answer.done():  # It was given, and a signal handler has raised since.
            raise
        answer.set_exception(error)
    finally:
        del answer, function  # An error refers to this frame: they would hold each other, and all that was being done.
