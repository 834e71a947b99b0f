"""A group of commands, each in a module of its own that is imported when the command is run."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import ClassVar

import click


class CommandTable(click.Group):
    """Knows its commands from a table, and imports the one that runs."""

    commands_in: ClassVar[str]
    """The package of their modules."""
    table: ClassVar[Mapping[str, str]]
    """Name → what it does."""
    heading: ClassVar[str] = "Commands"
    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Name → module, where that cannot have the name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the help."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in self.table:
            return None
        command: click.Command = import_module(f"{self.commands_in}.{self.elsewhere.get(cmd_name, cmd_name)}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Written from the table: click would import every command for it."""
        with formatter.section(self.heading):
            formatter.write_dl(list(self.table.items()))
