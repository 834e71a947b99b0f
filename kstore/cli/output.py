"""Everything that the command line prints. Data goes to stdout, talk to stderr; `--json` makes the data one object."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from kstore.cli.columns import Column, render
from kstore.cli.streams import writing_stdout
from kstore.errors import FileError, reason_of
from kstore.progress import Progress
from kstore.words import in_line, printable, waiting

SCHEMA = 1
"""Version of the JSON form; fields are added, never changed."""
PREFIX = "kstore: "
Item = TypeVar("Item")

_LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}


@dataclass(slots=True)
class Output:
    """Where one command's words go."""

    command: str = ""
    json: bool = False
    verbosity: int = 0
    """-1 for errors only, 0, 1 for information, 2 for debugging."""
    stdout_is_lent: bool = False
    """Whether stdout belongs to a child, or to the file that a command writes: then everything else goes to stderr."""

    def document(self, content: Mapping[str, Any]) -> None:
        """The command's data for machines: the only line on stdout. If stdout is lent, it goes to stderr after a line
        break, because the child's last line there might lack one.
        """
        with suppress(OSError) if self.stdout_is_lent else writing_stdout():
            told = {"schema": SCHEMA, "command": self.command, **_as_json(content)}
            click.echo("\n" * self.stdout_is_lent + json.dumps(told), err=self.stdout_is_lent)

    def line(self, text: str = "", color: str = "") -> None:
        """Data for people: what was requested. Coloured only on a terminal, and not with NO_COLOR."""
        text = in_line(text)
        with writing_stdout():
            click.echo(click.style(text, fg=color) if color and not os.environ.get("NO_COLOR") else text)

    def exact(self, text: bytes) -> None:
        """Data for another program, to the byte."""
        with writing_stdout():
            click.echo(text, nl=False)

    def summary(self, text: str) -> None:
        """What a command did; the only data that --quiet drops. It becomes talk if something else has stdout."""
        if self.stdout_is_lent:
            self.say(text)
        elif self.verbosity >= 0:
            self.line(text)

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[str]], indent: int = 0) -> None:
        """Rows under headings."""
        with writing_stdout():
            for line in render(columns, [[in_line(cell) for cell in row] for row in rows], indent):
                click.echo(line)

    def some(self, items: Sequence[Item], most: int) -> tuple[Sequence[Item], int]:
        """The first few, or all with --verbose; and how many more there are."""
        shown = items if self.verbosity > 0 else items[:most]
        return shown, len(items) - len(shown)

    def say(self, text: str) -> None:
        """Talk."""
        if self.verbosity >= 0 and not self.json:
            self._talk(text)

    def detail(self, text: str) -> None:
        """Talk for users who asked for more."""
        if self.verbosity > 0:
            self._talk(text)

    def warn(self, text: str) -> None:
        """Report that something went wrong and the command goes on."""
        if self.verbosity >= 0:
            self._talk(f"warning: {text}")

    def error(self, error: BaseException, message: str = "") -> None:
        """Say why the command failed."""
        message = message or reason_of(error)
        self._talk(message)
        if self.json:
            with suppress(OSError, FileError):
                self.document({"error": {"type": type(error).__name__, "message": message}})

    def unexpected(self, error: Exception) -> None:
        """Report an unforeseen failure, most likely an operating system's error."""
        if self.verbosity > 0:
            for line in "".join(traceback.format_exception(error)).rstrip().split("\n"):
                self._talk(line)
        hint = "" if self.verbosity > 0 else "; -v shows where"
        self.error(error, f"{type(error).__name__}: {error}{hint}")

    def working(self, text: str, progress: Progress | None = None) -> AbstractContextManager[object]:
        """Shows on a terminal that something takes time; elsewhere one line says who is being waited for."""
        if self.json or self.verbosity < 0:
            return nullcontext()
        if not sys.stderr.isatty():
            if progress:
                progress.on_wait = lambda awaited: self.say(waiting(awaited))
            return nullcontext()
        from kstore.cli.spinner import Spinner

        return Spinner(text, progress)

    def log(self) -> None:
        """Send the library's log to stderr, as much of it as was requested."""
        handler = logging.StreamHandler()
        handler.setFormatter(_Formatter())
        logger = logging.getLogger("kstore")
        logger.handlers = [handler]
        logger.setLevel(_LEVELS.get(self.verbosity, logging.DEBUG))

    def _talk(self, text: str) -> None:
        """Print talk. If nobody listens, that is no reason to fail."""
        with suppress(OSError):
            click.echo(f"{PREFIX}{in_line(text)}", err=True)


class _Formatter(logging.Formatter):
    """Formats the library's log as talk."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return f"{PREFIX}{in_line(record.message)}"

    def formatException(self, ei: Any) -> str:
        return printable(super().formatException(ei))


def _as_json(content: Any) -> Any:
    """The content without empty `error` fields: a reader who looks for one finds it only if there was an error. And
    without what is no number: Python would write it as no JSON has it.
    """
    if isinstance(content, Mapping):
        return {name: _as_json(value) for name, value in content.items() if (name, value) != ("error", "")}
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    return [_as_json(value) for value in content] if isinstance(content, list | tuple) else content
