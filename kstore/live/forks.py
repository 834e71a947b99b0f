"""Signals that arrive while the job forks are handled after the fork.

While a job forks, it holds locks that a thread needs to commit, such as those of logging and of filelock: a handler
that waits for the thread would wait in vain. And what a handler raises then, Python reports and forgets.
"""

from __future__ import annotations

import os
import threading
from functools import cache

from kstore.threads import begin


class _Fork:
    """Whether the main thread, which handles all signals, is forking just now."""

    is_under_way = False

    def __init__(self) -> None:
        self.put_off: set[int] = set()
        """The signals that have arrived meanwhile."""

    def start(self) -> None:
        if _is_main():  # Another thread may fork at the same time.
            self.is_under_way = True

    def end(self) -> None:
        """Have what was put off sent again: this is still called by the fork, and they are to come after that."""
        if _is_main():
            self.is_under_way = False
            while self.put_off:
                begin(os.kill, os.getpid(), self.put_off.pop())

    def forget(self) -> None:
        """For the child: the signals are its parent's."""
        self.is_under_way = False
        self.put_off.clear()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


_fork = _Fork()


@cache
def follow_forks() -> None:
    """Know of every fork from now on. What is registered last is called first before a fork and last after it, so
    everything that a commit needs must have been imported before.
    """
    os.register_at_fork(before=_fork.start, after_in_parent=_fork.end, after_in_child=_fork.forget)


def is_put_off(number: int) -> bool:
    """Whether a signal that has just come will come again, once the job has forked."""
    if _fork.is_under_way:
        _fork.put_off.add(number)
    return _fork.is_under_way
