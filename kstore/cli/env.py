"""`kstore env`."""

from __future__ import annotations

import os
import shlex

import click

from kstore.cli.options import ERROR, Command, Invocation, key_argument, on_worker


@click.command("env", cls=Command, exit_codes=ERROR)
@key_argument
@click.option("--shell", type=click.Choice(["sh", "fish"]), default="sh", show_default=True, help="The shell.")
@on_worker
def command(invocation: Invocation, key: str, shell: str) -> None:
    """Print the shell lines that point compilers at the cache root of KEY.

    \b
    eval "$(kstore env my-model/v1)"
    kstore env --shell fish my-model/v1 | source

    A variable that the user has set is left out. Nothing is restored. KSTORE_MANAGED, the last line, tells a
    later `kstore commit` which of the variables are not the user's own.
    """
    from kstore.components.variables import MANAGED, set_variables

    output, environ = invocation.output, dict(os.environ)
    store = invocation.store(environ)
    root = store.worker(key, before_import=True).root
    for note in root.notes:
        output.warn(note)
    set_variables(root.variables, environ)
    variables = {name: environ[name] for name in (*root.variables, MANAGED)}
    if output.json:
        output.document({"store": store.location, "key": key, "cache_root": root.path, "variables": variables})
    else:
        line = _fish_line if shell == "fish" else _sh_line
        output.exact(os.fsencode("".join(line(name, value) for name, value in variables.items())))


def _sh_line(name: str, value: str) -> str:
    return f"export {name}={shlex.quote(value)}\n"


def _fish_line(name: str, value: str) -> str:
    """Quote for fish, which knows two escapes within single quotes."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"set -gx {name} '{escaped}'\n"
