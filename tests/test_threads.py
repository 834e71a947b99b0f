from __future__ import annotations

import _thread
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import pytest

from kstore import threads
from kstore.threads import Pool, answer_now, map_ahead, submit


def test_all_that_is_submitted_is_done() -> None:
    with Pool(2) as pool:
        answers = [pool.submit(divmod, number, 7) for number in range(100)]
    assert [answer.result(0) for answer in answers] == [divmod(number, 7) for number in range(100)]


def test_what_was_not_begun_is_cancelled_though_a_thread_takes_the_last_of_it_meanwhile() -> None:
    class Contended(SimpleQueue[Any]):
        def empty(self) -> bool:
            return False  # A thread was faster.

    pool = Pool(1)
    pool._work = Contended()
    begun, go_on = threading.Event(), threading.Event()
    first = pool.submit(lambda: (begun.set(), go_on.wait(60)))
    assert begun.wait(60)
    rest = [pool.submit(divmod, number, 7) for number in range(10)]
    ending = threading.Thread(target=pool.shutdown, kwargs={"cancel_futures": True}, daemon=True)
    ending.start()
    go_on.set()
    ending.join(60)
    assert not ending.is_alive()
    assert first.done() and sum(answer.done() for answer in rest) < 10


def test_two_threads_work_side_by_side() -> None:
    together = threading.Barrier(2)
    with Pool(2) as pool:
        for answer in [pool.submit(together.wait, 60) for _ in range(2)]:
            answer.result(60)


def test_answers_come_in_order_and_the_next_one_is_found_meanwhile() -> None:
    asked = [threading.Event() for _ in range(5)]

    def ask(number: int) -> int:
        asked[number].set()
        return -number

    answers = map_ahead(ask, range(4))
    assert next(answers) == 0
    assert asked[1].wait(60)
    assert list(answers) == [-1, -2, -3]
    assert list(map_ahead(ask, [])) == []


def test_two_threads_find_answers_side_by_side_and_in_order() -> None:
    together = threading.Barrier(2)

    def ask(number: int) -> int:
        together.wait(60)
        return -number

    assert list(map_ahead(ask, range(4), ahead=2, threads=2)) == [0, -1, -2, -3]


def test_no_more_is_asked_than_lies_ahead_and_nothing_once_no_answer_is_wanted() -> None:
    asked, may_go_on = list[int](), threading.Event()

    def ask(number: int) -> int:
        asked.append(number)
        if number:
            may_go_on.wait(60)
        return number

    def items() -> Iterator[int]:
        for number in range(9):
            given.append(number)
            yield number

    given = list[int]()
    answers = map_ahead(ask, items(), ahead=3)
    assert next(answers) == 0
    assert given == [0, 1, 2, 3]
    threading.Timer(0.05, may_go_on.set).start()
    answers.close()  # type: ignore[attr-defined]
    assert asked in ([0], [0, 1])


def test_an_error_of_one_answer_is_raised_in_its_turn() -> None:
    answers = map_ahead(lambda number: 1 // number, [1, 1, 0, 1])
    assert [next(answers), next(answers)] == [1, 1]
    with pytest.raises(ZeroDivisionError):
        next(answers)


def test_an_error_is_the_answer_and_the_thread_goes_on() -> None:
    with Pool(1) as pool:
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result(60)
        assert pool.submit(divmod, 1, 1).result(60) == (1, 0)


def test_an_interruption_of_a_thread_that_has_its_answer_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(answer: Future[int], result: int) -> None:
        set_result(answer, result)
        raise KeyboardInterrupt

    set_result = Future.set_result
    monkeypatch.setattr(Future, "set_result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        answer_now(lambda: 1)


def test_an_error_that_nobody_knows_any_more_holds_nothing() -> None:
    """Whatever the work had open is closed, even if no garbage is collected."""

    def fail(kept: set[int]) -> None:
        raise ValueError(len(kept))

    kept = {1}
    known = weakref.ref(kept)
    with Pool(1) as pool:
        answer = pool.submit(fail, kept)
        with suppress(ValueError):
            answer.result(60)
    del kept, answer
    assert known() is None


def test_what_has_not_begun_can_be_cancelled() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), list[int]()
    pool = Pool(1)
    pool.submit(lambda: (begun.set(), go_on.wait(60), done.append(1)))
    pool.submit(done.append, 2)
    assert begun.wait(60)
    pool.shutdown(wait=False, cancel_futures=True)
    go_on.set()
    pool.shutdown()
    assert done == [1]


def test_all_threads_end_where_a_signals_handler_raises_while_one_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, start = list[Any](), _thread.start_new_thread
    begun, go_on = threading.Event(), threading.Event()

    def interrupted(run: Any, arguments: Any) -> None:
        start(run, arguments)
        ends.append(arguments[-1])
        if len(ends) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(_thread, "start_new_thread", interrupted)
    pool = Pool(2)
    pool.submit(lambda: (begun.set(), go_on.wait(60)))
    assert begun.wait(60)
    with pytest.raises(KeyboardInterrupt):
        pool.submit(go_on.wait, 60)
    monkeypatch.undo()
    pool.shutdown(wait=False)
    assert ends[1].acquire(timeout=60), "it was idle, and nobody knows of it"
    go_on.set()
    assert ends[0].acquire(timeout=60)


def test_the_caller_does_not_wait_until_a_new_thread_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread would take the interpreter for work that is not wanted yet."""
    waiting = list[tuple[Any, Any]]()
    start = _thread.start_new_thread
    monkeypatch.setattr(_thread, "start_new_thread", lambda *thread: waiting.append(thread))
    with Pool(1) as pool:
        answer = pool.submit(divmod, 9, 7)
        assert not answer.done()
        start(*waiting.pop())
    assert answer.result(0) == (1, 2)


def test_where_no_thread_can_be_started_the_work_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    with Pool(1) as pool:
        assert submit(pool, threading.get_ident).result(0) == threading.get_ident()


def test_the_interpreter_ends_while_a_thread_hangs() -> None:
    code = "import threading; from kstore.threads import Pool; Pool(1).submit(threading.Event().wait)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


_LATE = """
import _thread, atexit, os, threading, time
from kstore import threads

class Told(set):
    def discard(self, lock):
        os.write(1, b"begun ")

start = _thread.start_new_thread

def start_late(function, arguments):
    start(lambda: (time.sleep(0.3), function(*arguments)), ())

threads._starting = Told()
_thread.start_new_thread = start_late
if "handler" in {where!r}:  # of who was there before kstore
    atexit.unregister(threads._await_begun)
    atexit.register(threads.begin, int)
    atexit.register(threads._await_begun)
else:
    threads.begin(int)
"""


@pytest.mark.parametrize("where", ["in the program", "in a handler at its end"])
def test_the_interpreter_ends_once_every_thread_has_begun(where: str) -> None:
    """A thread that begins later finds no interpreter: the process would die of SIGSEGV."""
    program = [sys.executable, "-c", _LATE.format(where=where)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "begun ", "")


def test_what_interrupts_the_start_of_a_thread_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = set(threads._starting)
    with monkeypatch.context() as patched:
        patched.setattr(_thread, "start_new_thread", interrupt)
        with pytest.raises(KeyboardInterrupt):
            threads.begin(int)
    assert threads._starting <= before
