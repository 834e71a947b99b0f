"""SIGTERM and SIGHUP publish what there is, and then do what they would have done."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from kstore.live.forks import follow_forks, is_put_off
from kstore.live.imports import import_commit

_ENDINGS = (signal.SIGTERM, signal.SIGHUP)
_ACTION_SIZE = 1024
"""Bytes that a C library's `struct sigaction` surely fits in."""
_LOGGERS = ("kstore", "filelock")
"""The loggers of the threads that the handler waits for."""


class OnTermination:
    """Calls `publish` when this process is told to end, before whatever handler was there.

    A handler that somebody has installed since may call ours, as that of Lightning's trainer does. It would have called
    none if there had been a default, and whether the process ends is up to it.

    Only the main thread can handle signals, so nothing is done in others. Nothing is done either if a signal is
    ignored, or handled by something that Python cannot call afterwards, or if the job has its own handler for SIGHUP,
    for example to read its settings again.
    """

    def __init__(self, publish: Callable[[], object]) -> None:
        """What `publish` raises is raised where the signal arrived, if the process goes on."""
        self._publish = publish
        self._process = os.getpid()
        self._is_active = False
        self._before: dict[int, Callable[[int, FrameType | None], object] | int] = {}
        self._native: dict[int, bytes] = {}
        """What was there, if Python knew of nothing but a default."""

    def install(self) -> None:
        """Handle the signals from now on."""
        if threading.current_thread() is not threading.main_thread():
            return
        import_commit()
        follow_forks()
        for number in _ENDINGS:
            before = signal.getsignal(number)
            is_native = before == signal.SIG_DFL and _is_caught(number)
            is_the_jobs = is_native or _is_the_jobs(before)
            if before not in (None, signal.SIG_IGN) and not (number == signal.SIGHUP and is_the_jobs):
                self._before[number] = before
                self._is_active = True
                with suppress(ValueError):  # A subinterpreter has a main thread, but no signals.
                    if is_native:
                        self._native[number] = _action(number)
                    signal.signal(number, self._handle)

    def remove(self) -> None:
        """Put back what was there. A handler that somebody has installed since stays, and may still call ours."""
        self._is_active = False
        if threading.current_thread() is not threading.main_thread():
            return
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before)
                if number in self._native:
                    _action(number, self._native[number])

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # A forked child, such as a data loader's, has inherited the handler and compiles nothing of its own.
        publishes = self._is_active and os.getpid() == self._process
        if publishes and is_put_off(number):
            return
        try:
            if publishes:
                with _log_deferred():
                    self._publish()
        finally:
            is_called_by_another = signal.getsignal(number) != self._handle
            self.remove()
            before = self._before.get(number, signal.SIG_DFL)  # Ours may have been installed for another signal, too.
            if callable(before):
                before(number, frame)
            elif not is_called_by_another:
                if number not in self._native:
                    signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)


class _Deferred(logging.Filter):
    """Holds back what kstore logs, and lets only the job's own through."""

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[int, logging.LogRecord] = {}
        """Each record once, however many handlers it reaches."""

    def filter(self, record: logging.LogRecord) -> bool:
        is_ours = _is_ours(record.name)
        if is_ours:
            self.records[id(record)] = record
        return not is_ours


@contextmanager
def _log_deferred() -> Iterator[None]:
    """Log nothing before the end of the block: a signal may have interrupted code that holds the lock of a log handler,
    and threads that wait for that lock would never finish.
    """
    deferred, handlers = _Deferred(), _handlers()
    for handler in handlers:
        handler.addFilter(deferred)  # A filter is asked before the lock is taken.
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(deferred)
        for record in deferred.records.values():
            with suppress(Exception):  # If one of the job's handlers fails, the process must end all the same.
                logging.getLogger(record.name).handle(record)


def _handlers() -> set[logging.Handler]:
    """All handlers that something logged by kstore may reach."""
    named = list(logging.root.manager.loggerDict.items())
    loggers = [log for name, log in named if _is_ours(name) and isinstance(log, logging.Logger)]
    last = [logging.lastResort] if logging.lastResort else []
    return {*last, *(handler for log in (logging.root, *loggers) for handler in log.handlers)}


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in _LOGGERS


def has_ended(process: int) -> bool:
    """Whether there is no such process any more."""
    try:
        os.kill(process, 0)
    except OSError as error:  # It may exist, and be another user's by now.
        return isinstance(error, ProcessLookupError)
    return False


def _is_caught(number: int) -> bool:
    """Whether anything handles a signal, even if it is `faulthandler` or a library of which Python knows nothing."""
    with suppress(OSError, ValueError):  # not Linux
        caught = Path("/proc/self/status").read_text("utf-8", "replace").partition("\nSigCgt:")[2]
        return bool(int(caught.partition("\n")[0], 16) >> (number - 1) & 1)
    return False


def _action(number: int, new: bytes | None = None) -> bytes:
    """What the process does on a signal, as `sigaction` tells it. With `new`, that is what it does from now on."""
    old = ctypes.create_string_buffer(_ACTION_SIZE)
    ctypes.CDLL(None).sigaction(number, new, old)
    return old.raw


def _is_the_jobs(handler: object) -> bool:
    """Whether a handler is neither a default nor that of a block around this one."""
    return callable(handler) and not isinstance(getattr(handler, "__self__", None), OnTermination)
