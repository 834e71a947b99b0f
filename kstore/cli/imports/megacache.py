"""`kstore import megacache`."""

from __future__ import annotations

from dataclasses import asdict

import click

from kstore.bundles.spool import STDIN
from kstore.cli.options import ERROR, INTEGRITY, Command, Invocation, key_argument, on_importer
from kstore.cli.termination import terminable
from kstore.errors import FileError
from kstore.words import files


@click.command("megacache", cls=Command, exit_codes=ERROR | INTEGRITY)
@click.argument("path", metavar="FILE")
@key_argument
@on_importer
def command(invocation: Invocation, path: str, key: str) -> None:
    """Publish under KEY what torch.compiler.save_cache_artifacts wrote to FILE.

    What is already published stays, and what FILE has for the same graphs is then not needed. FILE is `-` for
    standard input. Needs torch.

    A mega-cache is pickled data: whoever restores KEY runs the code of whoever wrote FILE. Nothing of it runs now.
    """
    from kstore.cli.imports.target import check_mode
    from kstore.cli.sentences import committed, tell_trouble
    from kstore.integrations.megacache import bring_in

    output, store = invocation.output, invocation.store()
    check_mode(store)
    name = "stdin" if path == STDIN else path
    with terminable(), output.working(f"importing {name}"):
        imported = bring_in(store, _read(path, name), key, name)
    tell_trouble(output, imported.committed)
    if output.json:
        output.document(
            {"archive": name, **imported.committed.as_json(), "entries": dict(imported.entries)}
            | {"left_out": [asdict(left) for left in imported.left_out]}
        )
        return
    for left in imported.left_out:
        output.warn(f"left out {left}")
    output.summary(committed(store, imported.committed))
    held = ", ".join(f"{count} {kind}" for kind, count in imported.entries.items())
    output.say(f"it held {held or 'no entries'}")
    if imported.committed.declined:
        output.say(f"{files(imported.committed.declined)} answer the same as published ones, which stay")


def _read(path: str, name: str) -> bytes:
    try:
        with open(0 if path == STDIN else path, "rb", closefd=path != STDIN) as file:
            return file.read()
    except OSError as error:
        raise FileError(f"cannot read {name}: {error.strerror}") from error
