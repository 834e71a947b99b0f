"""What is to be done at the end of this process, however that ends but by a signal."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_WITH_FINALIZERS = ("multiprocessing.util", "billiard.util")
"""Of those that end their children by os._exit, which calls nothing of atexit's. billiard is Celery's."""


class AtEnd:
    """Calls a function at the end, until it is called off. It may be called twice."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._finalizers: list[Any] = []
        atexit.register(function)
        for name in _WITH_FINALIZERS:
            if (found := sys.modules.get(name)) is not None:  # as it is in each of their children
                self._finalizers.append(found.Finalize(None, function, exitpriority=0))

    def cancel(self) -> None:
        """It is done already, or not wanted any more."""
        atexit.unregister(self._function)
        for finalizer in self._finalizers:
            with suppress(Exception):
                finalizer.cancel()
