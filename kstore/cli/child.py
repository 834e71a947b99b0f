"""Runs a command in our place: it gets our signals, and we outlive it."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from kstore.cli.launcher import Launcher

log = logging.getLogger(__name__)

NOT_FOUND, NOT_EXECUTABLE = 127, 126

_OUR_OWN = frozenset({
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGXFSZ,
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS, signal.SIGABRT,
})  # fmt: skip
"""Signals that are not passed on: those that cannot be caught, those that our own use of the terminal, a pipe or a file
causes (the command gets its own), and faults.
"""
_PASSED_ON = frozenset(signal.valid_signals()) - _OUR_OWN
ENDINGS = frozenset({signal.SIGTERM, signal.SIGINT})
"""Signals that tell a job to end."""
_NOT_OF_KERNEL = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH, signal.SIGXCPU})
"""Signals that are not passed on if the kernel sends them: those of the terminal go to the whole process group, and
SIGXCPU is about the CPU time that we used ourselves.
"""
_SI_KERNEL = 0x80
"""`si_code` of a signal sent by the kernel: sigaction(2)."""
_OF_THIS_THREAD = 0x20000000
"""`__WNOTHREAD` of waitpid(2): a child that another thread has started is that thread's to wait for."""


def run_child(
    launcher: Launcher,
    command: Sequence[str],
    environ: Mapping[str, str],
    begun: Callable[[], object],
    on_signal: Callable[[int], object],
) -> int:
    """Run `command` with our terminal and files, pass signals on to it, and return its exit code as a shell would.

    `begun` is called once the command runs, and must not fail. `on_signal` is called with each signal that arrives
    meanwhile, before it is passed on.
    Ctrl-C, Ctrl-\\, Ctrl-Z and terminal resizes are not passed on: the terminal sends them to the whole process group.
    SIGTSTP stops us together with the command.
    Afterwards signals stay blocked, so that what follows can finish, and returns the command's exit code: SIGINT ends
    only what is `interruptible`, and SIGTSTP stops it.

    Raises:
        OSError: the command cannot be started.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON | {signal.SIGCHLD})
    try:
        child = launcher.run(command, environ, before)
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    begun()
    code = _wait(child, on_signal)
    signal.sigtimedwait({signal.SIGINT}, 0)  # drops one more Ctrl-C, meant for the child that has just ended
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    return code if code >= 0 else 128 - code


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT end the block, once the command has ended.

    Raises:
        KeyboardInterrupt: it has arrived.
    """
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def exit_code_of(error: OSError) -> int:
    """What a shell returns for a command that cannot be started."""
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def _wait(child: int, on_signal: Callable[[int], object]) -> int:
    """Wait until the child ends, and return its exit code. Signals are blocked and waited for, because only this tells
    who sent one.
    """
    while True:
        received = signal.sigwaitinfo(_PASSED_ON | {signal.SIGCHLD})
        if received.si_signo == signal.SIGCHLD:
            code = _reap(child)
            if code is not None:
                return code
            continue
        on_signal(received.si_signo)
        if received.si_code != _SI_KERNEL or received.si_signo not in _NOT_OF_KERNEL:
            _pass_on(child, received.si_signo)
        if received.si_signo == signal.SIGTSTP:
            _stop()


def _pass_on(child: int, number: int) -> None:
    """Send a signal on to the child. A command that has become another user, as sudo does, cannot get signals from us:
    we wait for it.
    """
    try:
        os.kill(child, number)
    except PermissionError:
        log.warning("%s cannot be passed on: the command runs as another user", _name_of(number))


def _name_of(number: int) -> str:
    """The name of a signal; of those for programs' own use, only two have one."""
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _stop() -> None:
    """Stop until SIGCONT arrives, which is then passed on. An ignored SIGTSTP stops neither us nor the command."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    signal.raise_signal(signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})


def _reap(child: int) -> int | None:
    """The child's exit code if it has ended. Orphans are reaped here too if we are process 1 of a container: they then
    are children of this thread, its first one.
    """
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG | _OF_THIS_THREAD))[0]:
            if ended[0] == child:
                return os.waitstatus_to_exitcode(ended[1])
    return None
