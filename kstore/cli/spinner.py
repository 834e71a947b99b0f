"""A progress bar on a terminal, for work that takes more than a second."""

from __future__ import annotations

import threading
from contextlib import suppress

from kstore.progress import Progress
from kstore.words import printable, waiting

_PATIENCE = 1.0
"""Seconds before anything is shown."""
_PERIOD = 0.1
"""Seconds between looks."""


class Spinner:
    """Shows `text` on stderr, and a bar if the work says how far it is, once its block has taken a second."""

    def __init__(self, text: str, progress: Progress | None = None) -> None:
        self._text = text
        self._progress = progress or Progress()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        with suppress(RuntimeError):  # A process at its limits works without it.
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        """Leave no thread behind: it could get a signal that the main thread then blocks and waits for."""
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        if not self._done.wait(_PATIENCE):
            self._show()

    def _show(self) -> None:
        """Draw until the work is done, without rich's own display thread, which would outlive it."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as Display

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        with Display(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as display:
            task = display.add_task(self._text, total=None)
            while not self._done.wait(_PERIOD):
                awaited = self._progress.awaited
                text = f"{self._text}: {printable(waiting(awaited))}" if awaited else self._text
                done, total = self._progress.done, self._progress.total or None
                display.update(task, description=text, completed=done, total=total)
                display.refresh()
