"""`kstore cat`."""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING

import click

from kstore.cli.options import ERROR, INTEGRITY, MISSING, Command, Invocation, key_or_generation_argument, on_scope
from kstore.errors import UsageError
from kstore.words import size

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.inspect.items import Artifact


@click.command("cat", cls=Command, exit_codes=ERROR | MISSING | INTEGRITY)
@key_or_generation_argument
@click.argument("path")
@on_scope
def command(invocation: Invocation, key: str, path: str) -> None:
    """Print one artifact of KEY.

    \b
    kstore cat my-model/v1 triton_poi_fused_add_3.ptx
    kstore cat my-model/v1@3 inductor/ab/cabc….py > code.py

    PATH can be the end of its path if no other path ends like that, or KERNEL.SUFFIX. The bytes are those in the store:
    absolute paths in Triton's list of a kernel's files are replaced by a placeholder.
    """
    from kstore.inspect.artifact import find_artifact, read_artifact
    from kstore.inspect.choice import choose_one
    from kstore.inspect.sides import published_side

    output, store = invocation.output, invocation.store()
    side = published_side(store, choose_one(store, invocation.wanted(key)))
    artifact = find_artifact(side, path)
    output.detail(f"{artifact.path} of {side.scope} generation {side.generation}")
    data = read_artifact(side, artifact)
    if output.json:
        output.document(_describe(artifact, data))
    elif sys.stdout.isatty():
        _show(output, artifact, data)
    else:
        output.exact(data)


def _show(output: Output, artifact: Artifact, data: bytes) -> None:
    """Print an artifact on a terminal, which the bytes of an untrusted file must not steer."""
    from kstore.inspect.artifact import is_text

    if not is_text(data):
        raise UsageError(
            f"{artifact.path} is binary, {size(len(data))}: not printed on a terminal; write it to a file with > FILE"
        )
    for line in data.decode().removesuffix("\n").split("\n"):
        output.line(line.expandtabs())


def _describe(artifact: Artifact, data: bytes) -> dict[str, object]:
    from kstore.inspect.artifact import is_text

    content = {"text": data.decode()} if is_text(data) else {"base64": base64.b64encode(data).decode()}
    return artifact.describe() | content
