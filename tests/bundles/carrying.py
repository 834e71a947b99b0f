"""Stores that never meet, and what travels from one to the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstore.blobs.loose import LooseBlobs
from kstore.blobs.packwriter import PackWriter
from kstore.bundles.importing import ImportReport, import_bundle
from kstore.bundles.partial import finished_as
from kstore.bundles.writer import BundleWriter, Exported
from kstore.store import Store
from tests.trees import ENVIRONMENT, GPU, KEY, Node, contents, without_relocated


def fill(node: Node, *names: str) -> Node:
    """Commit kernels, graphs and modules with these names."""
    for name in names or ("one",):
        node.tree.kernel(name)
        node.tree.wrapper(name)
        node.tree.graph(f"f{name}", name)
    node.commit()
    return node


def export(node: Node, path: Path, *others: Node) -> Exported:
    """A bundle of the first node's store: the newest generation of each node's scope."""
    snapshots = [node.store.snapshot(one.newest()) for one in (node, *others)]
    with finished_as(str(path), resumable=True) as file:
        return BundleWriter(node.store.storage, snapshots).resume(file)


def bundle_of(node: Node, folder: Path, name: str = "bundle") -> Path:
    export(node, folder / f"{name}.kstore")
    return folder / f"{name}.kstore"


def other_store(folder: Path, layout: str | None = "loose", name: str = "node", **settings: Any) -> Node:
    """A worker of a store that the others never see."""
    folder.mkdir(exist_ok=True)
    return Node(folder, name, layout=layout, **settings)


def bring(node: Node, path: Path, key: str | None = None) -> ImportReport:
    return import_bundle(node.store, str(path), key)


def restored(node: Node, name: str = "fresh", key: str = KEY) -> dict[str, bytes]:
    """What another worker of this store gets, without relocated files."""
    store = Store(
        node.location, cache_root=node.tree.root.with_name(name), gpu=GPU, environment=ENVIRONMENT, environ={}
    )
    report = store.restore(key)
    assert report.skipped == () and not report.left_out
    return without_relocated(contents(node.tree.root.with_name(name)))


class Stored:
    """The blobs that are stored from now on, in any store, whatever the layout."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.digests: list[bytes] = []
        self.limit: int | None = None
        """How many blobs may be stored; then the process is gone."""
        self.kill: Callable[[], None] = self._raise
        add, put_many = PackWriter.add, LooseBlobs.put_many

        def note(digest: bytes) -> None:
            if self.limit is not None and len(self.digests) >= self.limit:
                self.kill()
            self.digests.append(digest)

        def noting_add(writer: PackWriter, digest: bytes, data: bytes | memoryview) -> None:
            note(digest)
            add(writer, digest, data)

        def noting_put(loose: LooseBlobs, blobs: Any) -> list[bool]:
            for digest, _ in blobs:
                note(digest)
            return put_many(loose, blobs)

        patch.setattr(PackWriter, "add", noting_add)
        patch.setattr(LooseBlobs, "put_many", noting_put)

    def _raise(self) -> None:
        raise Killed


class Killed(BaseException):
    """The process is gone: nothing handles this exception."""
