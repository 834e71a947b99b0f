"""An image with a store in it, and workers that use it below a store that they share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kstore.store import Store
from tests.trees import ENVIRONMENT, GPU, Node, Tree, listing

GROUP_FILES = 8


class Worker(Node):
    """A worker with a cache root of its own; the first of `stores` is written."""

    def __init__(self, folder: Path, name: str, *stores: Path, layout: str, **settings: Any) -> None:
        self.tree = Tree(folder / name)
        self.environ: dict[str, str] = {}
        self.location = stores[0]
        chosen = {"gpu": GPU, "environment": ENVIRONMENT, "environ": self.environ, "layout": layout, **settings}
        self.store = Store(":".join(map(str, stores)), cache_root=self.tree.root, **chosen)


@dataclass
class Fleet:
    """Workers of one image, or of several images."""

    folder: Path
    layout: str
    """The layout of the store that they share."""
    layout_below: str

    @property
    def shared(self) -> Path:
        return self.folder / "data" / "store"

    @property
    def base(self) -> Path:
        """The store in the image."""
        return self.folder / "image" / "base"

    def bake(self, *names: str, base: Path | None = None) -> Path:
        """Make an image whose store has kernels with these names."""
        base = base or self.base
        base.parent.mkdir(exist_ok=True)
        self.shared.parent.mkdir(exist_ok=True)
        builder = Worker(self.folder, f"builder of {base.name}", base, layout=self.layout_below)
        for name in names:
            fill(builder, name)
        assert builder.commit().ok
        return base

    def worker(self, name: str, base: Path | None = None, **settings: Any) -> Worker:
        """A worker of an image, by default of the first."""
        return Worker(self.folder, name, self.shared, base or self.base, layout=self.layout, **settings)

    def made(self) -> Worker:
        """A worker with the image, once the shared store is made."""
        admin = self.worker("admin")
        admin.store.create()
        return admin

    def without(self, name: str) -> Worker:
        """A worker of an image that brings no store."""
        return Worker(self.folder, name, self.shared, layout=self.layout)


def fill(node: Node, name: str) -> None:
    """Make one of everything."""
    node.tree.wrapper(name)
    node.tree.graph(f"f{name}")
    node.tree.kernel(name)
    node.tree.timings({name: 0.5}, name)


def modules(worker: Node) -> set[str]:
    """The names that `fill` used in a cache root, or that a restore brought, by the modules."""
    found = (path.read_text().split()[1] for path in worker.tree.root.glob("inductor/*/c*.py"))
    return set(found)


def kernels(worker: Node) -> set[str]:
    """The same by the kernels; each group is whole."""
    whole = [path for path in worker.tree.root.glob("triton/*") if len(list(path.iterdir())) == GROUP_FILES]
    assert len(whole) == len(list(worker.tree.root.glob("triton/*")))
    return {next(path.glob("k.ptx")).read_text().split()[2] for path in whole}


def commit_each(node: Node, *names: str) -> None:
    """Commit after each name."""
    for name in names:
        fill(node, name)
        node.commit()


def has(worker: Node) -> set[str]:
    """The names of which it has both the module and the kernel."""
    assert modules(worker) == kernels(worker)
    return modules(worker)


def objects(store: Path) -> set[str]:
    """The names of stored blobs and packs."""
    return {path.name for kind in ("blobs", "packs") for path in (store / kind).rglob("*") if path.is_file()}


def fingerprint(store: Path) -> dict[str, tuple[int, ...]]:
    """The folder and everything below it, with everything that changes when they are written to."""
    return {**listing(store), "": (os.stat(store).st_mtime_ns,)}
