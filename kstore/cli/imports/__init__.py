"""`kstore import`: one module for each kind of source."""

from __future__ import annotations

from importlib import import_module

import click

SOURCES: dict[str, str] = {
    "b10": "An archive that Baseten's b10-transfer has saved.",
    "fal": "The zips that fal.toolkit keeps of Inductor's cache.",
}
"""Name → what it brings in. Each has a module of its own, imported when the command is run."""


class Sources(click.Group):
    """Takes `kstore import FILE` for a bundle, and imports the one command that runs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A first word that names no source is the file of a bundle, or an option of that command."""
        if args and args[0] not in {*SOURCES, *ctx.help_option_names}:
            args = ["bundle", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the help."""
        return list(SOURCES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in SOURCES:
            return None
        command: click.Command = import_module(f"kstore.cli.imports.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Written from the table above: click would import every command for it."""
        with formatter.section("Sources"):
            formatter.write_dl(list(SOURCES.items()))


@click.group("import", cls=Sources)
def command() -> None:
    """Bring in what another store or another cache holds."""
