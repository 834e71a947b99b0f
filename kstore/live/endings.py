"""SIGTERM publishes what there is, and then does what it would have done."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


class OnTermination:
    """Calls `publish` when this process is told to end, before whatever handler was there.

    Only the main thread can handle signals; nothing is done in others. Nor is anything where SIGTERM is ignored, or
    handled by something that Python cannot call afterwards.
    """

    def __init__(self, publish: Callable[[], object]) -> None:
        """`publish` must not raise."""
        self._publish = publish
        self._process = os.getpid()
        self._is_active = False
        self._before: Callable[[int, FrameType | None], object] | int | None = None

    def install(self) -> None:
        """From now on."""
        before = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is threading.main_thread() and before not in (None, signal.SIG_IGN):
            self._before = before
            self._is_active = True
            signal.signal(signal.SIGTERM, self._handle)

    def remove(self) -> None:
        """Put back what was there. A handler that somebody has installed since stays, and may still call ours."""
        self._is_active = False
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # A forked child, such as a data loader's, has inherited the handler and compiles nothing of its own.
        if self._is_active and os.getpid() == self._process:
            self._publish()
        self.remove()
        if callable(self._before):
            self._before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
