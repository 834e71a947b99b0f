"""`kstore import`: one module for each kind of source."""

from __future__ import annotations

from typing import ClassVar

import click

from kstore.cli.group import CommandTable

SOURCES: dict[str, str] = {
    "bundle": "Publish what a bundle holds; `kstore import FILE` is short for it.",
    "fal": "The zips that fal.toolkit keeps of Inductor's cache.",
    "b10": "An archive that Baseten's b10-transfer has saved.",
    "megacache": "Publish under KEY what torch.compiler.save_cache_artifacts wrote to FILE.",
}
"""Name → what it brings in."""


class Sources(CommandTable):
    """Takes `kstore import FILE` for a bundle."""

    commands_in = "kstore.cli.imports"
    table = SOURCES
    sections: ClassVar[dict[str, dict[str, str]]] = {"Sources": SOURCES}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A first word that does not name a source is a bundle's file, or an option of the `bundle` command."""
        if not args and not ctx.resilient_parsing:
            ctx.fail(f"name the FILE of a bundle, or another source: {', '.join(SOURCES)}")
        if args and args[0] not in {*SOURCES, *ctx.help_option_names}:
            args = ["bundle", *args]
        return super().parse_args(ctx, args)


@click.group("import", cls=Sources)
def command() -> None:
    """Bring in what another store or another cache holds. Each source has a --help with its exit codes."""
