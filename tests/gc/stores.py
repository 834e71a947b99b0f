"""Looks into stores, and lets time pass in them."""

from __future__ import annotations

import os
from pathlib import Path

from kstore.gc import GcReport, Policy
from tests.trees import Node, contents, without_relocated

HOUR = 3600.0
_SECOND = 1_000_000_000


def pass_time(node: Node, seconds: float = 2 * HOUR) -> None:
    """Make everything in the store older, as its own clock shows it."""
    for path in list((node.location / "quarantine").glob("*.*.*")):
        what, since, nonce = path.name.split(".")
        path.rename(path.with_name(f"{what}.{int(since, 16) - int(seconds * _SECOND):x}.{nonce}"))
    for folder in ("refs", "gc", "used", "leases", "groups", "tmp"):
        for path in (node.location / folder).rglob("*"):
            if path.is_file():
                then = path.stat().st_mtime_ns - int(seconds * _SECOND)
                os.utime(path, ns=(then, then))


def collect(node: Node, *, dry_run: bool = False, **policy: object) -> GcReport:
    return node.store.gc(Policy(**policy), dry_run=dry_run)  # type: ignore[arg-type]


def collect_fully(node: Node, **policy: object) -> GcReport:
    """Both phases, a grace apart, after a grace."""
    pass_time(node)
    collect(node, **policy)
    pass_time(node)
    return collect(node, **policy)


def stored(node: Node) -> set[str]:
    """Names of all packs and loose blobs."""
    return {name for name in contents(node.location) if name.startswith(("blobs/", "packs/"))}


def generations(node: Node) -> list[int]:
    return node.store.storage.refs.generations(node.store.scope("model/v1"))


def restored(folder: Path, name: str) -> dict[str, bytes]:
    """What a fresh worker gets: path → bytes, without relocated files."""
    other = Node(folder, name, layout=None)
    report = other.restore()
    assert report.skipped == ()
    return without_relocated(contents(other.tree.root))


def kernels(node: Node) -> dict[str, bytes]:
    """What a worker has: path → bytes, without relocated files."""
    return without_relocated(contents(node.tree.root))
