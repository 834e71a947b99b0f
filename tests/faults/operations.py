"""The operations that faults strike, each with what happens before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kstore
from kstore.report import CommitReport, RestoreReport
from tests.trees import ENVIRONMENT, GPU, KEY, Node, Tree

Report = CommitReport | RestoreReport


@dataclass
class Scene:
    """A store, and the worker whose operation is struck."""

    folder: Path
    layout: str
    tree: Tree
    """The worker's cache root."""
    published: Tree | None = None
    """The cache root of a worker that has published everything."""
    before: dict[str, bytes] = field(default_factory=dict)
    """What was in the worker's cache root before."""

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def settings(self, root: Path) -> dict[str, Any]:
        # The counting of restores is struck by itself: see tests/stats.
        own = {"store": self.store, "cache_root": root, "layout": self.layout, "stats": False}
        return own | {"gpu": GPU, "environment": ENVIRONMENT, "environ": {}}

    def commit(self) -> CommitReport:
        return kstore.commit(KEY, **self.settings(self.tree.root))

    def restore(self, name: str = "") -> RestoreReport:
        """Into the worker's root, or into a fresh one."""
        return kstore.restore(KEY, **self.settings(self.folder / name if name else self.tree.root))


@dataclass(frozen=True)
class Operation:
    """One more entry here is one more operation that every fault strikes."""

    name: str
    publish: Callable[[Path, str], None]
    """What others have published, the same each time: it can be copied, by whoever puts it where it was made."""
    join: Callable[[Path, str], Scene]
    """What the worker, and those who publish meanwhile, did before the operation."""
    run: Callable[[Scene], Report]

    def __str__(self) -> str:
        return self.name

    def prepare(self, folder: Path, layout: str) -> Scene:
        self.publish(folder, layout)
        return self.join(folder, layout)


def small_kernel(tree: Tree, name: str, variant: str = "") -> None:
    """A group of three files, one of which is relocated."""
    folder = f"triton/{name}"
    for suffix in ("cubin", "json"):
        tree.put(f"{folder}/k.{suffix}", f"{suffix} of {name} {variant}".encode() * 20)
    children = ", ".join(f'"k.{suffix}": "{tree.root}/{folder}/k.{suffix}"' for suffix in ("cubin", "json"))
    tree.put(f"{folder}/__grp__k.json", f'{{"child_paths": {{{children}}}}}'.encode())


def _fill(tree: Tree) -> None:
    tree.wrapper("one")
    tree.graph("fone")
    small_kernel(tree, "KERNELONE")
    tree.timings({"one": 1.0})


def add_news(tree: Tree) -> None:
    tree.wrapper("two")
    small_kernel(tree, "KERNELTWO")
    small_kernel(tree, "KERNELONE", "rebuilt")
    tree.timings({"one": 1.0, "two": 2.0})


def _nothing(folder: Path, layout: str) -> None:
    folder.mkdir(exist_ok=True)


def _one_generation(folder: Path, layout: str) -> None:
    publisher = _publisher(folder, layout)
    _fill(publisher.tree)
    publisher.commit()


def _one_of_another_key(folder: Path, layout: str) -> None:
    publisher = _publisher(folder, layout)
    _fill(publisher.tree)
    publisher.commit("other/seed")


def _publisher(folder: Path, layout: str) -> Node:
    return Node(folder, "publisher", layout=layout)


def _scene(folder: Path, layout: str) -> Scene:
    return Scene(folder, layout, Tree(folder / "worker"))


def _cold(folder: Path, layout: str) -> Scene:
    scene = _scene(folder, layout)
    _fill(scene.tree)
    return scene


def _with_news(folder: Path, layout: str) -> Scene:
    scene = _cold(folder, layout)
    assert scene.commit().ok
    add_news(scene.tree)
    return scene


def published(folder: Path, layout: str) -> Scene:
    """A worker that has nothing yet, and what there is for it."""
    _one_generation(folder, layout)
    return _empty(folder, layout)


def _empty(folder: Path, layout: str) -> Scene:
    scene = _scene(folder, layout)
    scene.published = _publisher(folder, layout).tree
    return scene


def _restored(folder: Path, layout: str) -> Scene:
    scene = _empty(folder, layout)
    assert scene.restore().ok
    return scene


def _outdated(folder: Path, layout: str) -> Scene:
    scene = _restored(folder, layout)
    publisher = _publisher(folder, layout)
    add_news(publisher.tree)
    assert publisher.commit().ok
    return scene


def _outdated_with_news(folder: Path, layout: str) -> Scene:
    scene = _outdated(folder, layout)
    assert scene.restore().ok
    small_kernel(scene.tree, "KERNELTHREE")
    scene.published = None
    return scene


def _restored_with_news(folder: Path, layout: str) -> Scene:
    scene = _restored(folder, layout)
    add_news(scene.tree)
    scene.published = None
    return scene


def _seeded(folder: Path, layout: str) -> Scene:
    """A root that grew from another key, whose packs hold most of what is about to be published."""
    scene = _scene(folder, layout)
    assert kstore.restore(KEY, seed="other/seed", **scene.settings(scene.tree.root)).ok
    add_news(scene.tree)
    return scene


OPERATIONS = [
    Operation("first commit", _nothing, _cold, Scene.commit),
    Operation("commit of news", _nothing, _with_news, Scene.commit),
    Operation("restore into an empty root", _one_generation, _empty, Scene.restore),
    Operation("restore over an older root", _one_generation, _outdated, Scene.restore),
    Operation("commit after a restore", _one_generation, _restored_with_news, Scene.commit),
    Operation("commit of a seeded root", _one_of_another_key, _seeded, Scene.commit),
]
FOLLOWING_COMMIT = Operation(
    "commit upon one that follows on another", _one_generation, _outdated_with_news, Scene.commit
)
FOLLOWING_RESTORE = Operation("restore of one that follows on another", _one_generation, _outdated, Scene.restore)
COMMITS = [operation for operation in OPERATIONS if operation.run is Scene.commit]
