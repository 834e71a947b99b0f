"""What is to be done at the end of this process, unless a signal or os._exit ends it."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from typing import Any


class AtEnd:
    """Calls a function at the end of the process, unless `cancel` came first. The function may be called twice."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        atexit.register(function)
        # A child of multiprocessing ends by os._exit, which calls nothing that atexit knows about. It has imported
        # multiprocessing.util; importing that everywhere would take milliseconds.
        finalize = getattr(sys.modules.get("multiprocessing.util"), "Finalize", None)
        self._finalizer: Any = finalize and finalize(None, function, exitpriority=0)

    def cancel(self) -> None:
        """Do not call the function: its work is done already, or no longer wanted."""
        atexit.unregister(self._function)
        if self._finalizer:
            self._finalizer.cancel()
