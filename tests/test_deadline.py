"""Waiting for something that may hang, and what it may do when nobody waits for it any more."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import pytest

from kstore.deadline import Abandoned, Answer, Haste, Waiting, block_signals, is_interruption, signals_blocked, within
from kstore.errors import WaitTimeout

SHORT = 0.01


class Mount:
    """Something that hangs until it is released."""

    def __init__(self) -> None:
        self._released = threading.Event()
        self._done = threading.Event()
        self.outcome = ""

    def work(self, step: Callable[[], object]) -> None:
        self._released.wait(60)
        try:
            step()
            self.outcome = "done"
        except Abandoned:
            self.outcome = "abandoned"
        self._done.set()

    def release(self) -> str:
        self._released.set()
        assert self._done.wait(60)
        return self.outcome


@pytest.mark.parametrize("seconds", [0, 60])
def test_what_is_in_time_is_returned(seconds: float) -> None:
    assert within(seconds, Waiting(), "work", lambda: "answer") == "answer"


def test_what_is_raised_is_raised_here() -> None:
    def fail() -> None:
        raise TimeoutError("of a system call")

    with pytest.raises(TimeoutError, match="of a system call"):
        within(60, Waiting(), "work", fail)


def test_what_hangs_is_left_behind_and_shows_nothing_later() -> None:
    mount, waiting = Mount(), Waiting()

    def step() -> None:
        with waiting.visible():
            pytest.fail("it was to be abandoned")

    with pytest.raises(WaitTimeout, match=r"reading has taken more than 0\.01 s"):
        within(SHORT, waiting, "reading", lambda: mount.work(step))
    assert mount.release() == "abandoned"


def test_whoever_is_interrupted_waits_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    waiting = Waiting()
    monkeypatch.setattr(Answer, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        within(60, waiting, "work", lambda: None)
    with pytest.raises(Abandoned), waiting.visible():
        pass


def test_whoever_is_interrupted_before_the_work_begins_is_known_and_waits_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where other threads of the job compute, a new thread may take long to begin."""

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise TimeoutError("of the job")

    mount, waiting, start = Mount(), Waiting(), threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(TimeoutError, match="of the job") as raised:
        within(60, waiting, "work", lambda: mount.work(waiting.check))
    assert is_interruption(raised.value)
    assert mount.release() == "abandoned"


def test_what_a_signals_handler_raises_is_known_from_what_the_work_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise TimeoutError("of the job")

    def fail() -> None:
        raise TimeoutError("of a system call")

    with pytest.raises(TimeoutError) as raised:
        within(60, Waiting(), "work", fail)
    assert not is_interruption(raised.value)
    monkeypatch.setattr(Answer, "wait", interrupted)
    with pytest.raises(TimeoutError) as raised:
        within(60, Waiting(), "work", lambda: None)
    assert is_interruption(raised.value)


def test_a_process_that_was_suspended_beyond_its_time_waits_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = [0.0], list[float | None]()

    def suspended(answer: Answer[str], seconds: float | None) -> bool:
        waits.append(seconds)
        if len(waits) == 1:
            now[0] += 3600
            return False
        return wait(answer, 60)

    wait = Answer.wait
    monkeypatch.setattr(Answer, "wait", suspended)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert within(4, Waiting(), "work", lambda: "answer") == "answer"
    assert waits == [4, 4]


def test_giving_up_while_something_is_shown_waits_for_its_end() -> None:
    waiting, shown = Waiting(), []
    with waiting.visible():
        giving_up = threading.Thread(target=lambda: (waiting.give_up(), shown.append("given up")))
        giving_up.start()
        shown += ["one", "two"]
    giving_up.join(60)
    assert shown == ["one", "two", "given up"]


def test_where_no_thread_can_be_started_the_work_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert within(SHORT, Waiting(), "work", threading.get_ident) == threading.get_ident()


def test_a_limit_can_be_shortened_while_it_is_waited_for() -> None:
    mount, called_for = Mount(), iter([False, True])

    with pytest.raises(WaitTimeout, match="reading has taken more than"):
        within(3600, Waiting(), "reading", lambda: mount.work(int), Haste(lambda: next(called_for), SHORT))
    assert mount.release() == "done"


@pytest.mark.parametrize("is_called_for", [False, True])
def test_what_is_in_time_has_nothing_of_it(is_called_for: bool) -> None:
    assert within(0, Waiting(), "work", lambda: "answer", Haste(lambda: is_called_for, 60)) == "answer"


def test_signals_are_blocked_in_threads_of_kstores_and_never_in_the_jobs_first() -> None:
    """Where gevent has patched Python, that thread is the only one: the job would get no signal any more."""
    masks = [signal.pthread_sigmask(signal.SIG_BLOCK, ())]

    def block() -> None:
        block_signals()
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    block()
    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    before, in_the_first, in_another = masks
    assert in_the_first == before
    assert {signal.SIGTERM, signal.SIGCHLD} <= in_another


def test_a_handler_that_raises_as_signals_are_blocked_leaves_none_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that arrived just before is handled in the call that blocks signals."""
    call, before = signal.pthread_sigmask, signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def interrupted(how: int, mask: set[int]) -> set[int]:
        found = call(how, mask)
        if how == signal.SIG_BLOCK and mask:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(signal, "pthread_sigmask", interrupted)
    with pytest.raises(KeyboardInterrupt), signals_blocked():
        pass
    after = call(signal.SIG_SETMASK, before)
    assert after == before
