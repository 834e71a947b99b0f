"""Fills a store with real commits: many keys that share most of their kernels, or one that grows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tools.bench.processes import environment
from tools.bench.trees import name_in_place, vary

_OWN_SHARE = 50


def fill(location: Path, root: Path, tree: Path, count: int, tell: Callable[[str], None]) -> None:
    """Commit `count` keys, `bench/key0` and so on. One kernel in fifty is the key's own."""
    shutil.copytree(tree, root, symlinks=True)
    name_in_place(root)
    own: list[Path] = []
    for number in range(count):
        originals = sorted(tree.glob("triton/*/"))[number % _OWN_SHARE :: _OWN_SHARE]
        own = _replace(own, originals, root / "triton", number)
        _commit(location, root, f"bench/key{number}")
        if number % 100 == 99:
            tell(f"keys: {number + 1} of {count}")


def grow(location: Path, root: Path, tree: Path, kernel: Path, commits: int) -> None:
    """Commit a tree as `bench/key0`, then one more kernel in each of `commits` commits."""
    shutil.copytree(tree, root, symlinks=True)
    name_in_place(root)
    _commit(location, root, "bench/key0")
    for number in range(commits):
        vary(kernel, root / "triton", 1 + number)
        _commit(location, root, "bench/key0")


def _commit(location: Path, root: Path, key: str) -> None:
    from kstore.report import CommitStatus
    from kstore.store import Store

    store = Store(location, cache_root=root, layout="packed", environ=environment({}))
    report = store.commit(key)
    if report.status is not CommitStatus.COMMITTED:
        raise RuntimeError(f"commit of {key}: {report.status}")


def _replace(own: list[Path], originals: list[Path], folder: Path, number: int) -> list[Path]:
    """Remove the last key's own kernels, and make this key's."""
    for path in own:
        shutil.rmtree(path)
    return [vary(original, folder, 1 + number) for original in originals]
