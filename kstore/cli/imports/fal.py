"""`kstore import fal`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from kstore.cli.options import ERROR, Command, Invocation, on_importer
from kstore.cli.termination import terminable
from kstore.errors import ArchiveError, FileError, KstoreError, MissError
from kstore.words import plural

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.report import CommitReport
    from kstore.store import Store

_EXIT_CODES = ERROR | {
    "3": "there is no zip for this GPU in the folder",
    "4": "a zip is damaged or refused; the others are imported",
}


class Zip(NamedTuple):
    """One of fal's archives, and the key that it belongs to."""

    path: Path
    key: str


@click.command("fal", cls=Command, exit_codes=_EXIT_CODES)
@click.argument("folder", default="/data/inductor-caches", type=click.Path(file_okay=False, path_type=Path))
@click.option("--gpu-folder", metavar="NAME", help="The folder of this GPU's zips in FOLDER; else as fal names it.")
@on_importer
def command(invocation: Invocation, folder: Path, gpu_folder: str | None) -> int:
    """Import the zips that fal.toolkit keeps in FOLDER, by default /data/inductor-caches.

    Each becomes the key that it is named for, for this worker's GPU and software. Those of other GPUs are left to
    a worker that has one. What is already published stays; a zip can be imported again.
    """
    from kstore.cli.imports.target import check_target
    from kstore.integrations.fal import old_gpu_type

    output, store = invocation.output, invocation.store()
    check_target(store)
    if not folder.is_dir():
        raise KstoreError(f"there is no folder {folder}; check whether it is mounted, or name another")
    zips, others, failed = find_zips(folder, gpu_folder or old_gpu_type())
    names = sorted({path.relative_to(folder).parts[0] for path in others})
    if not zips and not failed:
        there = f", only for {', '.join(names)}; --gpu-folder chooses one" if names else ""
        raise MissError(f"there is no zip for this GPU in {folder}{there}")
    for error in failed.values():
        output.warn(str(error))
    imported: dict[Path, CommitReport] = {}
    for zip in zips:
        try:
            imported[zip.path] = _import(output, store, zip)
        except (ArchiveError, FileError) as trouble:
            failed[zip.path] = trouble
            output.warn(str(trouble))
    if output.json:
        output.document(_describe(store, imported, failed, others))
    elif names:
        output.say(f"the zips for {', '.join(names)} are left: import them on workers with these GPUs")
    return max((error.exit_code for error in failed.values()), default=0)


def find_zips(folder: Path, gpu_folder: str) -> tuple[list[Zip], list[Path], dict[Path, KstoreError]]:
    """The zips of one GPU and those that fal's earlier versions kept without a GPU, those of other GPUs, and the
    folders that cannot be listed and may hold more for this one.

    A key may begin like the name of a GPU's folder; if it could be either, it is taken for a GPU's.
    """
    own, old, others = [], [], []
    unlisted: list[OSError] = []
    for path in sorted(_files(folder, unlisted)):
        first, *rest = path.relative_to(folder).with_suffix("").parts
        if rest and first == gpu_folder:
            own.append(Zip(path, "/".join(rest)))
        elif rest and _is_gpu_folder(first):
            others.append(path)
        else:
            old.append(Zip(path, "/".join((first, *rest))))
    return own + old, others, dict(_may_be_ours(unlisted, folder, gpu_folder))


def _may_be_ours(unlisted: list[OSError], folder: Path, gpu_folder: str) -> Iterator[tuple[Path, KstoreError]]:
    for error in unlisted:
        path = Path(error.filename)
        first, *_ = path.relative_to(folder).parts or [gpu_folder]
        if first == gpu_folder or not _is_gpu_folder(first):
            yield path, FileError(f"{path} cannot be listed: {error.strerror}; what it holds is not imported")


def _files(folder: Path, unlisted: list[OSError]) -> Iterator[Path]:
    """Whatever is named like a zip and is no folder: a key's own folder may end in .zip."""
    for top, _, names in os.walk(folder, onerror=unlisted.append):
        yield from (Path(top, name) for name in names if name.endswith(".zip"))


def _is_gpu_folder(name: str) -> bool:
    return bool(re.fullmatch("[A-Z][A-Za-z0-9]*", name))


def _import(output: Output, store: Store, zip: Zip) -> CommitReport:
    from kstore.cli.sentences import committed
    from kstore.integrations.fal import adopt_old, store_key

    key = store_key(zip.key)
    with terminable(), output.working(f"importing {zip.path}", store.progress):
        report = adopt_old(store, key, zip.path)
    if not output.json:
        output.summary(committed(store, report))
    if report.skipped:
        output.say(f"{plural(len(report.skipped), 'file')} of {zip.path} left out; -v names them")
    for skipped in report.skipped:
        output.detail(f"left out {skipped.path}: {skipped.reason}")
    return report


def _describe(
    store: Store, imported: dict[Path, CommitReport], failed: dict[Path, KstoreError], others: list[Path]
) -> dict[str, object]:
    return {
        "store": store.location,
        "imported": [{"archive": str(path), **report.as_json()} for path, report in imported.items()],
        "failed": [{"archive": str(path), "error": str(error)} for path, error in failed.items()],
        "left": [str(path) for path in others],
    }
