"""`kstore files`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from kstore.cli.columns import Column, fit, terminal_width
from kstore.cli.options import ERROR, INTEGRITY, MISSING, Command, Invocation, key_or_generation_argument, on_scope
from kstore.words import in_line, shorten, size

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.inspect.items import Artifact
    from kstore.inspect.places import Place
    from kstore.published.ref import Ref
    from kstore.store import Store

_COLUMNS = (
    Column("PATH", floor=24),
    Column("SIZE", right=True),
    Column("STORED"),
    Column("HOST"),
    Column("DIGEST"),
)
_ANY_HOST = "any"
_SHOWN = 13
"""Characters of a host or digest that are shown on a terminal."""
_GAP = "  "


@click.command("files", cls=Command, exit_codes=ERROR | MISSING | INTEGRITY)
@key_or_generation_argument
@click.argument("path", default="")
@on_scope
def command(invocation: Invocation, key: str, path: str) -> None:
    """List the files that KEY holds.

    \b
    kstore files my-model/v1
    kstore files my-model/v1@3 inductor/fxgraph
    kstore files my-model/v1 triton_poi_fused_add_3 | cut -f 1

    PATH limits the list to a folder, to what `kstore cat` takes, or to a kernel's files. A pipe gets a line for each
    file, with tabs between its path, bytes, where it is stored, the host that it is for, and its digest.
    """
    from kstore.inspect.artifact import find_artifacts
    from kstore.inspect.choice import choose_one
    from kstore.inspect.places import places_of
    from kstore.inspect.sides import published_side

    output, store = invocation.output, invocation.store()
    wanted = invocation.wanted(key)
    with output.working("reading the store"):
        ref = choose_one(store, wanted)
        side = published_side(store, ref)
        artifacts = sorted(find_artifacts(side, path) if path else side.artifacts)
    output.detail(f"{side.scope} generation {side.generation}")
    placed = places_of(store.storage, ref, artifacts)
    if output.json:
        output.document(_describe(store, ref, placed))
    elif terminal_width() is None:
        _write(output, placed)
    else:
        _print(output, artifacts, placed)
    if not side.artifacts:
        output.say(f"{side.label} holds no files: it is {ref.state}")


def _describe(store: Store, ref: Ref, placed: Iterator[tuple[Artifact, Place]]) -> dict[str, object]:
    from kstore.inspect.places import Place

    artifacts = [
        artifact.describe() | {"stored": None if place is Place.NOWHERE else place} for artifact, place in placed
    ]
    whose = ref.scope.describe() | {"generation": ref.generation, "state": ref.state}
    return {"store": store.storage.holder(ref).location, **whose, "artifacts": artifacts}


def _write(output: Output, placed: Iterator[tuple[Artifact, Place]]) -> None:
    """Print the files for a program: in full, each as soon as it is known."""
    for (path, host, entry), place in placed:
        cells = in_line(path), str(entry.size), place, in_line(host or _ANY_HOST), entry.digest.hex()
        output.exact("\t".join(cells).encode() + b"\n")


def _print(output: Output, artifacts: list[Artifact], placed: Iterator[tuple[Artifact, Place]]) -> None:
    """Print the files for people: cut to the terminal's width, and starting before all have been looked at."""
    from kstore.inspect.places import Place

    if not artifacts:
        return
    titles = [column.title for column in _COLUMNS]
    widths = fit(_COLUMNS, [_row(artifact, Place.PACKED) for artifact in artifacts], terminal_width())
    output.line(_aligned(titles, widths))
    for artifact, place in placed:
        output.line(_aligned(_row(artifact, place), widths))


def _row(artifact: Artifact, place: Place) -> list[str]:
    path, host, entry = artifact
    names = shorten(host or _ANY_HOST, _SHOWN), shorten(entry.digest.hex(), _SHOWN)
    return [path, size(entry.size), place, *names]


def _aligned(cells: list[str], widths: list[int]) -> str:
    shown = [shorten(cell, width) for cell, width in zip(cells, widths, strict=True)]
    parts = zip(shown, widths, _COLUMNS, strict=True)
    return _GAP.join(cell.rjust(n) if column.right else cell.ljust(n) for cell, n, column in parts).rstrip()
