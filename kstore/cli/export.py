"""`kstore export`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from kstore.cli.options import ERROR, INTEGRITY, MISSING, Command, Invocation, key_or_generation_argument, on_scope
from kstore.cli.streams import STDOUT, is_stdout, open_target
from kstore.cli.termination import terminable
from kstore.errors import AmbiguousScopeError, IntegrityError, MissError, UsageError
from kstore.words import amount, size

if TYPE_CHECKING:
    from kstore.bundles.writer import Exported
    from kstore.cli.output import Output
    from kstore.inspect.choice import Wanted
    from kstore.published.ref import Ref
    from kstore.report import Written
    from kstore.scope import Scope
    from kstore.store import Store

_OTHER_HOSTS = "they run only on hosts like their builder's; --host HOST adds those of one that `kstore show KEY` lists"


@dataclass(frozen=True, slots=True)
class Format:
    """How a generation is written."""

    suffixes: tuple[str, ...]
    """A file whose name ends in one of these is of this format."""
    writer: str = ""
    """`module:function`, imported when the format is chosen: (store, ref, stream) → `Written`. Empty for a bundle,
    which may hold several generations.
    """
    takes: tuple[str, ...] = ()
    """The options, `under` or `host`, that the function takes as arguments."""


_ARCHIVES = "kstore.bundles.archives"
FORMATS = {
    "kstore": Format((".kstore",)),
    "tar": Format((".tar",), f"{_ARCHIVES}:export_tar", ("under", "host")),
    "tar.zst": Format((".tar.zst", ".tzst"), f"{_ARCHIVES}:export_compressed_tar", ("under", "host")),
    "zip": Format((".zip",), f"{_ARCHIVES}:export_zip", ("under", "host")),
    "megacache": Format((".megacache",), "kstore.integrations.megacache:export"),
}


@click.command("export", cls=Command, exit_codes=ERROR | MISSING | INTEGRITY)
@key_or_generation_argument
@click.option("-o", "path", metavar="FILE", required=True, help="The file to write; - is stdout.")
@click.option("--format", "name", type=click.Choice(list(FORMATS)), help="By default, what FILE's name ends in.")
@click.option("--under", metavar="DIR", help="Where an archive will be unpacked; else the cache root it was built in.")
@click.option("--host", metavar="HOST", help="The host whose C++ objects an archive gets; none by default.")
@on_scope
def command(invocation: Invocation, key: str, path: str, name: str | None, under: str | None, host: str | None) -> int:
    """Write KEY to a file.

    A bundle (.kstore) is for `kstore import` into another store. It holds the newest generation of each GPU and
    environment, or of the one that is named. An archive (.tar, .tar.zst, .zip) has the files of one as they are below a
    cache root, for programs that know nothing of kstore. A mega-cache (.megacache) is what
    torch.compiler.load_cache_artifacts takes: it needs torch, and what it cannot hold is named.

    Give --under for an archive of files that were built in folders that you named by variables: the cache root never
    held them.

    All of these are code: whoever loads one runs what the publishers of KEY have built. A mega-cache is pickled data.
    """
    output, store = invocation.output, invocation.store()
    name = name or _format_of(path)
    options = {option: value for option, value in (("under", under), ("host", host)) if value is not None}
    for option in options.keys() - set(FORMATS[name].takes):
        raise UsageError(f"--{option} does not apply to the format {name}")
    output.stdout_is_lent = is_stdout(path)
    refs, damaged = _choose(store, invocation.wanted(key))
    written: Written | None = None
    with terminable(), output.working(f"exporting {key}", store.progress):
        if FORMATS[name].writer:
            exported, written = _export_one(store, refs, path, FORMATS[name], options)
        else:
            exported = _export_bundle(store, refs, path)
    for reason in damaged:
        output.warn(reason)
    if written:
        _tell_left_out(output, written)
    if output.json:
        output.document(_describe(store, path, name, exported, written) | {"damaged": damaged})
    else:
        _tell(output, exported, path)
    return IntegrityError.exit_code if damaged else 0


def _format_of(path: str) -> str:
    for name, found in FORMATS.items():
        if path.endswith(found.suffixes):
            return name
    raise UsageError(f"the name {path!r} does not say which format; choose one with --format: {', '.join(FORMATS)}")


def _choose(store: Store, wanted: Wanted) -> tuple[list[Ref], list[str]]:
    """The generations that are meant, each of a different scope, and the damaged ones that were passed over."""
    from kstore.operations.copy import newest_live
    from kstore.published.layers import ref_of
    from kstore.published.scopes import scopes_of
    from kstore.storage import reporting_trouble

    key = wanted.key
    scopes = scopes_of(store.storage, key, wanted.gpu, wanted.environment)
    with reporting_trouble(store.location, "read"):
        if wanted.generation:
            _check_alone(scopes)
            return [_with_files(ref_of(store.storage, scopes[0], wanted.generation))], []
        found = [newest_live(store.storage, scope) for scope in scopes]
    refs = [snapshot.ref for snapshot, _ in found if snapshot]
    if not refs:
        raise MissError(
            f"{key} was forgotten or quarantined, or a repair found nothing left of it; name a generation that "
            f"`kstore show {key}` lists"
        )
    return refs, [passed_over for _, passed_over in found if passed_over]


def _with_files(ref: Ref) -> Ref:
    """The ref itself. Raises MissError if it holds no files and only says that its key was withdrawn."""
    from kstore.published.ref import RefState

    if ref.state is RefState.LIVE:
        return ref
    key = ref.scope.key
    raise MissError(
        f"generation {ref.generation} of {ref.scope} holds nothing: with it {key} was {ref.state}; "
        f"`kstore show {key}` lists the others"
    )


def _check_alone(scopes: Sequence[Scope]) -> None:
    """Raises AmbiguousScopeError if there are several."""
    from kstore.scope import choices

    if len(scopes) > 1:
        raise AmbiguousScopeError(f"{scopes[0].key} has been committed under several scopes; choose: {choices(scopes)}")


def _export_bundle(store: Store, refs: list[Ref], path: str) -> Exported:
    from kstore.bundles.writer import BundleWriter

    writer = BundleWriter(store.storage, [store.snapshot(ref) for ref in refs], store.progress)
    with open_target(path, resumable=True) as file:
        return writer.resume(file) if file.readable() else writer.write(file)


def _export_one(
    store: Store, refs: list[Ref], path: str, chosen: Format, options: dict[str, str]
) -> tuple[Exported, Written]:
    from kstore.bundles.writer import Exported

    _check_alone([ref.scope for ref in refs])
    (ref,) = refs
    module, _, function = chosen.writer.partition(":")
    write: Callable[..., Written] = getattr(import_module(module), function)
    with open_target(path) as file:
        written = write(store, ref, file, **options)
    held = replace(ref, files=written.held.files, size=written.held.bytes)
    return Exported((held,), bytes=os.path.getsize(path) if os.path.isfile(path) else 0), written


def _tell_left_out(output: Output, written: Written) -> None:
    for kind in written.left_out:
        output.warn(f"left out {kind}")
    if written.other_hosts:
        from kstore.cli.sentences import tell_left_out

        tell_left_out(output, written.other_hosts)
        output.warn(_OTHER_HOSTS)


def _tell(output: Output, exported: Exported, path: str) -> None:
    if exported.resumed:
        output.summary(f"continued {path}.partial, of which {size(exported.resumed)} were whole")
    for ref in exported.refs:
        output.summary(f"exported {ref.scope} generation {ref.generation}: {amount(ref.files, ref.size)}")
    if exported.bytes:
        what = f"{path} has {size(exported.bytes)}" if path != STDOUT else f"{size(exported.bytes)} went to stdout"
        output.summary(what)


def _describe(store: Store, path: str, name: str, exported: Exported, written: Written | None) -> dict[str, Any]:
    kinds, other_hosts = (written.left_out, written.other_hosts) if written else ((), ())
    return {
        "store": store.location,
        "file": path,
        "format": name,
        "bytes": exported.bytes,
        "resumed": exported.resumed,
        "exported": [ref.describe() for ref in exported.refs],
        "left_out": [*other_hosts, *map(str, kinds)],
        "left_out_kinds": [*map(asdict, kinds)],
    }
