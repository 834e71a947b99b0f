"""A group of commands, each in a module of its own that is imported when the command runs."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import ClassVar

import click

_CLOSE = 0.7
"""How similar an option must be to one of the group's own, by `difflib`: --json is less so to --version."""


class CommandTable(click.Group):
    """Knows its commands from a table, and imports the one that runs."""

    commands_in: ClassVar[str]
    """The package of their modules."""
    table: ClassVar[Mapping[str, str]]
    """Name → what the command does."""
    sections: ClassVar[Mapping[str, Mapping[str, str]]]
    """The same, under the headings of the help."""
    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Name → its module, if no module can have that name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first word names; for any other word, an error suggests what may have been meant."""
        name = args[0]
        if not (name in self.table or name.startswith("-") or ctx.resilient_parsing):
            meant = get_close_matches(name, self.table)
            ctx.fail(f"No such command {name!r}" + (f"; did you mean {' or '.join(meant)}?" if meant else ""))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Options of the group itself; for any other one, an error says where a command's options go."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name
            own = [option for param in self.get_params(ctx) for option in param.opts]
            meant = get_close_matches(name, own, cutoff=_CLOSE)
            after = f"a command's options come after it, as in `{ctx.command_path} COMMAND {name}`"
            hint = f"did you mean {' or '.join(meant)}?" if meant else after
            ctx.fail(f"No such option {name!r} before the command; {hint}")

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
        """Write the commands from the table: click would import every command to do so."""
        width = max(map(len, self.table))  # The descriptions begin at one column in all sections.
        for heading, section in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in section.items()])
