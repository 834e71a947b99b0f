"""A sign of life on a terminal, for work that takes more than a second."""

from __future__ import annotations

import threading
from types import TracebackType

_PATIENCE = 1.0  # seconds
_PERIOD = 0.1


class Spinner:
    """Shows `text` on stderr from the second second of its context on."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves no thread behind: a signal that the main thread then blocks and waits for could reach it."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        if not self._done.wait(_PATIENCE):
            self._show()

    def _show(self) -> None:
        """rich's own spinner has a thread that outlives it."""
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner
        from rich.text import Text

        console = Console(stderr=True)
        with Live(Spinner("dots", Text(self._text)), console=console, auto_refresh=False, transient=True) as live:
            while not self._done.wait(_PERIOD):
                live.refresh()
