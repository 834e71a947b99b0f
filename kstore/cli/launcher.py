"""A process that becomes the command. It is made before the store is touched, so it has none of the store's files open.

A process that runs another program first closes the files that are not meant for it, and FUSE asks its mount at each
close. If the mount hangs, nothing can interrupt that: a process made at that point never gets as far as the command.
"""

from __future__ import annotations

import errno
import marshal
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn, Self

from kstore.deadline import signals_blocked

NO_PROCESS = {errno.EAGAIN, errno.ENOMEM}
"""Errors of a user or container that may have no more processes. The command can take our own place."""
_SHELL = "/bin/sh"
_NOT_AS_PYTHON = signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD
"""Signals that Python, or whatever started us, ignores; a command would inherit that."""
_LISTENER = "LISTEN_PID"
"""Names the process that systemd's sockets are meant for: sd_listen_fds(3)."""
_PASSED_OVER = {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ESTALE, errno.ENODEV, errno.ETIMEDOUT}
"""Errors of a folder without the command, of a file that may not be executed, and of a server that has lost a folder or
does not answer.
"""
_STOPS = signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU


class Launcher:
    """A process for one command. It ends with the block that it is used in, unless it has become the command."""

    def __init__(self) -> None:
        """Make the process.

        Raises:
            OSError: the process cannot be made.
        """
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # A parent may have ignored it: then no child can be waited for.
        orders, to_orders = os.pipe()
        from_failures, failures = os.pipe()
        self._orders, self._failures = open(to_orders, "wb"), open(from_failures, "rb")
        with signals_blocked():  # It must live until this process decides its fate.
            self._process = os.fork()
            if not self._process:
                os.close(to_orders)
                os.close(from_failures)
                _become_command(orders, failures)
        os.close(orders)
        os.close(failures)
        self._is_waiting = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._orders.close()
        self._failures.close()
        if self._is_waiting:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)

    def run(self, command: Sequence[str], environ: Mapping[str, str], blocked: Iterable[int]) -> int:
        """Let the process become `command`, with these signals blocked; returns its process id.

        Raises:
            OSError: the command cannot be run.
        """
        with self._orders:
            self._orders.write(marshal.dumps((list(command), dict(environ), [*map(int, blocked)])))
        failure = self._failures.read()
        if failure:
            raise OSError(int(failure), os.strerror(int(failure)))
        self._is_waiting = False
        return self._process


def become(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Become the command in this very process; returns the number of the error if it cannot be run."""
    return _run([*command], dict(environ), signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def _become_command(orders: int, failures: int) -> NoReturn:
    """Wait for the order to become the command. If there is none, the other process has ended.

    The order is read as far as it goes, not to the pipe's end: a program that a thread of the other process has just
    started may have that open too, and hang while it closes its files.
    """
    try:
        with open(orders, "rb") as file:
            command, environ, blocked = marshal.load(file)
        if environ.get(_LISTENER) == str(os.getppid()):  # The sockets were inherited too.
            environ[_LISTENER] = str(os.getpid())
        os.write(failures, str(_run(command, environ, blocked)).encode())
    finally:
        os._exit(1)


def _run(command: list[str], environ: dict[str, str], blocked: Iterable[int]) -> int:
    """Become the command; returns the number of the error if it cannot be run."""
    for number in _NOT_AS_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler would run here.
    for number in _STOPS:
        if signal.getsignal(number) is signal.SIG_DFL:
            # A signal that came meanwhile stopped the other process, which is running again: ignoring the signal
            # discards it.
            signal.signal(number, signal.SIG_IGN)
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    try:
        return _execute(command, environ)
    except ValueError:  # a variable without a name
        return errno.EINVAL


def _execute(command: list[str], environ: dict[str, str]) -> int:
    """Become the command as execvp(3) does: a script without `#!` goes to the shell, and what cannot be executed is
    passed over in a search.
    """
    name, folders = command[0], os.get_exec_path(environ)
    failure = errno.ENOENT
    for path in [name] if "/" in name else [os.path.join(folder, name) for folder in folders]:
        try:
            os.execve(path, command, environ)
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                return _execute([_SHELL, path, *command[1:]], environ)
            if "/" in name or error.errno not in _PASSED_OVER:
                return error.errno or errno.EINVAL
            if error.errno == errno.EACCES:
                failure = errno.EACCES
    return failure
