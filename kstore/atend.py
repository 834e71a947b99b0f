"""What is to be done at the end of this process, unless a signal or os._exit ends it."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from typing import Any


class AtEnd:
    """Calls a function at the end, until it is called off. It may be called twice."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        atexit.register(function)
        # Children of multiprocessing end by os._exit, and have it imported; to do so here takes milliseconds.
        finalize = getattr(sys.modules.get("multiprocessing.util"), "Finalize", None)
        self._finalizer: Any = finalize and finalize(None, function, exitpriority=0)

    def cancel(self) -> None:
        """It is done already, or not wanted any more."""
        atexit.unregister(self._function)
        if self._finalizer:
            self._finalizer.cancel()
