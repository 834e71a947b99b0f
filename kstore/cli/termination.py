"""Signals that end a command which has no child to pass them on to yet."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_TERMINATIONS = (signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """A signal that ends this process has arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block, unless whoever started us ignores them.

    Process 1 of a container gets no signal that it has no handler for; and only a process that lives on gives up its
    lease.

    Raises:
        Terminated: one has arrived.
    """
    is_first = threading.current_thread() is threading.main_thread()  # Other threads may not set handlers.
    handled = [number for number in _TERMINATIONS if is_first and signal.getsignal(number) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, _terminate)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated(number)
