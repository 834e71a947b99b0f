"""A process that becomes the command. It is made before the store is touched, so it has none of the store's files open.

Whoever runs another program closes what is not for that, and FUSE asks its mount at each close. Where the mount hangs,
nothing can interrupt it: a process that is made then never gets as far as the command.
"""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import signal
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NoReturn

from kstore.deadline import signals_blocked

_SHELL = "/bin/sh"
_NOT_AS_PYTHON = signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD
"""Signals that Python, or who started us, has ignored; a command would inherit that."""


class Launcher:
    """A process for one command. If this one ends before it has named the command, that one ends as well."""

    def __init__(self) -> None:
        """Make the process.

        Raises:
            OSError: it cannot be made.
        """
        orders, self._orders = os.pipe()
        self._failures, failures = os.pipe()
        with signals_blocked():  # It is to live until this process says what becomes of it.
            self._process = os.fork()
            if not self._process:
                os.close(self._orders)
                os.close(self._failures)
                _become_command(orders, failures)
        os.close(orders)
        os.close(failures)

    def run(self, command: Sequence[str], environ: Mapping[str, str], blocked: AbstractSet[int]) -> int:
        """Have it become `command`, with these signals blocked; returns its process id.

        Raises:
            OSError: that cannot be run.
        """
        with open(self._orders, "wb") as orders:
            pickle.dump((list(command), dict(environ), set(blocked)), orders)
        with open(self._failures, "rb") as failures:
            failure = failures.read()
        if failure:
            os.waitpid(self._process, 0)
            raise OSError(int(failure), os.strerror(int(failure)))
        return self._process


def _become_command(orders: int, failures: int) -> NoReturn:
    """Wait for it. Without an order the other process has ended."""
    try:
        with open(orders, "rb") as file:
            order = file.read()
        if order:
            os.write(failures, str(_run(*pickle.loads(order)).errno).encode())
    finally:
        os._exit(1)


def _run(command: list[str], environ: Mapping[str, str], blocked: AbstractSet[int]) -> OSError:
    """Returns why it cannot be run. A script without `#!` is for the shell, as execvp(3) has it, and `env` with it."""
    for number in _NOT_AS_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own would run here.
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        script = shutil.which(command[0])
        if error.errno != errno.ENOEXEC or script is None:
            return error
    try:
        os.execve(_SHELL, [_SHELL, script, *command[1:]], environ)
    except OSError as error:
        return error
