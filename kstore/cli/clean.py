"""`kstore clean`."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kstore.cli.options import ERROR, Command, Invocation, on_store, optional_key_argument
from kstore.errors import KstoreError
from kstore.words import plural, size

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.local.numbered import Owner


@dataclass(frozen=True, slots=True)
class _Root:
    """A numbered cache root that may be removed."""

    path: Path
    owner: Owner
    bytes: int


@click.command("clean", cls=Command, exit_codes=ERROR)
@optional_key_argument
@click.option("--all", "every", is_flag=True, help="Those of every key and store.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
@on_store
def command(invocation: Invocation, key: str, every: bool, dry_run: bool, yes: bool) -> int:
    """Remove local cache roots.

    Those below /tmp/kstore that belong to this user, for KEY of this store or for --all. What was compiled in
    them and not committed is lost. A root that kstore is restoring into or committing from is left alone, but
    kstore cannot see whether a program is still using one, so stop it first.
    """
    from kstore.scope import check_key

    if every and key:
        raise click.UsageError(f"--all is for every key: leave it out to clean {key} alone")
    if not (every or key):
        raise click.UsageError("name a KEY, or give --all")
    if key:
        check_key(key)
    output = invocation.output
    store = None if every else invocation.store().location
    roots = list(_find(key or None, store))
    if roots and not dry_run and not yes and not _confirmed(output, roots):
        output.say("nothing is removed")
        removed, kept = list[_Root](), roots
    else:
        removed, kept = (roots, []) if dry_run else _remove_all(output, roots)
    if output.json:
        gone, left = list(map(_describe, removed)), list(map(_describe, kept))
        output.document({"dry_run": dry_run, "removed": gone, "kept": left})
    else:
        _tell(output, removed, dry_run)
        if not (removed or kept):
            output.summary(f"there is no cache root{f' of {key} with {store}' if store else ''} to remove")
    return 1 if kept else 0


def _find(key: str | None, store: str | None) -> Iterator[_Root]:
    from kstore.local import numbered

    for path, owner in chain.from_iterable(map(numbered.claimed_roots, numbered.numbered_bases())):
        wanted = owner and key in (None, owner.key) and store in (None, owner.store)
        if owner and wanted and owner.uid == os.geteuid() and _is_own(path):
            yield _Root(path, owner, _size_of(path))


def _is_own(path: Path) -> bool:
    """Whether the folder is this user's, by its own status: the writer of the claim could have put any number in it."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return True
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _size_of(path: Path) -> int:
    """Size in bytes; a file that disappears meanwhile counts as none."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _confirmed(output: Output, roots: list[_Root]) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on; give --yes, or --dry-run to see what would go")
    for root in roots:
        output.say(f"{root.path}  {root.owner.key}  {size(root.bytes)}")
    return click.confirm(f"kstore: remove {plural(len(roots), 'cache root')}?", err=True)


def _remove_all(output: Output, roots: list[_Root]) -> tuple[list[_Root], list[_Root]]:
    """Remove cache roots; returns those that were removed and those that stay."""
    removed: list[_Root] = []
    kept: list[_Root] = []
    for root in roots:
        try:
            _remove(root.path)
            removed.append(root)
        except (KstoreError, OSError) as error:
            output.warn(f"{root.path} stays: {error}")
            kept.append(root)
    return removed, kept


def _remove(path: Path) -> None:
    """Remove the folder, then the claim on it: without a claim nobody would find what is left of the folder."""
    from kstore.local.cacheroot import CacheRoot
    from kstore.local.numbered import release_root
    from kstore.local.state import StateFolder

    if path.exists():
        with StateFolder(CacheRoot(str(path), {}, {}), rules="").locked(timeout=0):
            shutil.rmtree(path)
    release_root(path)


def _describe(root: _Root) -> dict[str, object]:
    owner = root.owner
    return {"cache_root": str(root.path), "key": owner.key, "store": owner.store, "gpu": owner.gpu, "bytes": root.bytes}


def _tell(output: Output, removed: list[_Root], dry_run: bool) -> None:
    verb = "would remove" if dry_run else "removed"
    for root in removed:
        output.summary(f"{verb} {root.path} of {root.owner.key}, {size(root.bytes)}")
