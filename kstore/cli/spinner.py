"""A sign of life on a terminal, for work that takes more than a second."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

_PATIENCE = 1.0  # seconds


class Spinner:
    """Shows `text` on stderr from the second second of its context on."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._status: Any = None
        self._timer = threading.Timer(_PATIENCE, self._show)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves no thread behind: one that does not block signals would get those meant for the main thread."""
        self._timer.cancel()
        self._timer.join()
        if self._status:
            self._status.stop()

    def _show(self) -> None:
        from rich.console import Console
        from rich.text import Text

        self._status = Console(stderr=True).status(Text(self._text))
        self._status.start()
