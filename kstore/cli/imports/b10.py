"""`kstore import b10`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from kstore.cli.options import (
    ERROR,
    INTEGRITY,
    MISSING,
    Command,
    Invocation,
    layout_option,
    output_options,
    pass_invocation,
    scope_options,
)
from kstore.cli.termination import terminable
from kstore.errors import KstoreError, MissError

_PATH = click.Path(path_type=Path)


@click.command("b10", cls=Command, exit_codes=ERROR | MISSING | INTEGRITY)
@click.argument("source", metavar="[FOLDER]", required=False, type=_PATH)
@click.option("--key", metavar="KEY", help="The key to publish under; else what the integration uses for FOLDER.")
@click.option("--vllm", is_flag=True, help="It is from a vLLM server: VLLM_CACHE_ROOT, not TORCHINDUCTOR_CACHE_DIR.")
@click.option("--built-under", metavar="DIR", type=_PATH, help="Where FOLDER was; else what the variable says here.")
@click.option("--store", metavar="DIR", help="The store; else KSTORE_ROOT, else the folder `kstore` in FOLDER.")
@scope_options
@layout_option
@output_options
@pass_invocation
def command(
    invocation: Invocation,
    source: Path | None,
    key: str | None,
    vllm: bool,
    built_under: Path | None,
    store: str | None,
) -> None:
    """Publish what an archive of Baseten's b10-transfer holds.

    FOLDER, else B10FS_CACHE_DIR, holds archives that are named for a GPU and a CUDA version; the one for this worker's
    is taken. Name a file instead to take that one, with --gpu and --environment if it is another worker's.

    What is already published stays, and so does the archive.
    """
    from kstore.cli.imports.target import check_target
    from kstore.cli.sentences import committed, tell_trouble
    from kstore.integrations.archives import adopt
    from kstore.integrations.b10.variables import Variables, key_of, store_location

    output, variables = invocation.output, Variables(os.environ)
    source = Path(os.path.abspath(source)) if source else variables.volume
    folder = source.parent if source.is_file() else source
    archive = _find(source)
    invocation.settings["store"] = store or store_location(folder)
    opened = invocation.store()
    check_target(opened)
    with terminable(), output.working(f"importing {archive}", opened.progress):
        report = adopt(
            opened, key or key_of(folder), archive, component="vllm" if vllm else "inductor",
            built_under=built_under or (variables.vllm_cache_root if vllm else variables.torch_cache_dir),
        )  # fmt: skip
    tell_trouble(output, report)
    if output.json:
        output.document({"archive": str(archive), **report.as_json()})
    else:
        output.summary(committed(opened, report))


def _find(source: Path) -> Path:
    """The archive that was named, or the one in the folder for this worker's hardware."""
    from kstore.integrations.b10.archives import find_archives, own_archive

    if not source.exists():
        raise KstoreError(f"there is no folder or file {source}; check whether it is mounted, or name another")
    if source.is_file():
        return source
    if archive := own_archive(source):
        return archive
    others = [path.name for path in find_archives(source)]
    hint = f"name one of {', '.join(others)}, with --gpu and --environment" if others else "name the folder, or a file"
    raise MissError(f"{source} holds no archive of b10-transfer for this worker's GPU and CUDA version; {hint}")
