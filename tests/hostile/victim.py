"""A store that holds one of everything, how it is harmed, and what must be true all the same."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.blobs.loose import blob_name
from kstore.blobs.packindex import pack_name
from kstore.errors import KstoreError
from kstore.published.manifest import Flag, unit_of
from kstore.published.ref import load_ref, ref_name
from kstore.stats.record import finish
from tests.trees import ENVIRONMENT, GPU, KEY, Node, contents, listing


class Victim:
    """Two generations, written by `writer`; `reader` has restored the first one and has news of its own."""

    def __init__(self, folder: Path, layout: str) -> None:
        self.folder = folder
        self.layout = layout
        self.outside = folder / "outside"
        self.outside.mkdir(parents=True)
        self.writer = Node(folder, "writer", layout=layout)
        self.reader = Node(folder, "reader", layout=layout)
        self.single = self.writer.tree.wrapper()
        self.group = self.writer.tree.kernel()
        self.writer.tree.timings({"one": 0.5})
        self.writer.commit()
        self.reader.restore()
        self.writer.tree.graph()
        self.writer.commit()
        self.news = self.reader.tree.wrapper("news")
        self.store = self.writer.location
        self.published = self.writer.published()
        self.truth = {**relocated(self.writer.tree.root), **relocated(self.reader.tree.root)}

    # ---- The files that can be harmed

    def ref(self, generation: int = 2) -> Path:
        return self.store / ref_name(self.writer.newest().scope, generation)

    def blob(self, path: str) -> Path:
        return self.store / blob_name(self.published[path].digest)

    def manifest(self, generation: int = 2) -> Path:
        digest = json.loads(self.ref(generation).read_bytes())["manifest"]["digest"]
        return self.store / blob_name(bytes.fromhex(digest))

    def stored(self, number: int, generation: int = 2) -> Path:
        """The blobs that a manifest is read from: the one that it follows on, and what it adds to that one."""
        digest = list(load_ref(self.writer.newest().scope, generation, self.ref(generation).read_bytes()).stored)[
            number
        ]
        return self.store / blob_name(digest)

    def pack(self, number: int = 0) -> Path:
        """The packs, newest first."""
        return self.store / pack_name(self.writer.newest().packs[number])

    def state(self, node: Node, name: str) -> Path:
        (found,) = (node.tree.root / ".kstore").glob(name)
        return found

    # ---- What must be true

    def check_restore(self) -> kstore.RestoreReport | KstoreError:
        """A restore into an empty root: a typed error, or nothing but the truth."""
        node = Node(self.folder, "fresh", layout=self.layout)
        with self.nothing_outside():
            answer = attempt(node.restore)
        self.check_root(node)
        if not isinstance(answer, KstoreError):
            assert answer.placed == len(contents(node.tree.root))
        shutil.rmtree(node.tree.root)
        return answer

    def check_commit(self) -> kstore.CommitReport | KstoreError:
        """A commit of news: a typed error, or a generation that holds nothing but the truth."""
        node = Node(self.folder, "reader", layout=self.layout)
        with self.nothing_outside():
            answer = attempt(node.commit)
        self.check_root(node)
        self.check_restore()
        return answer

    def check_functions(self, caplog: pytest.LogCaptureFixture) -> None:
        """Neither `kstore.restore` nor `kstore.commit` raises; a failure or omitted files are reported in one line."""
        for function, root in ((kstore.restore, "fresh"), (kstore.commit, "reader")):
            caplog.clear()
            with self.nothing_outside():
                report: Any = function(KEY, **self.settings(root))
            lines = [r for r in caplog.records if r.name == "kstore" and r.levelno >= logging.WARNING]
            is_told = report.status == "failed" or bool(getattr(report, "left_out", 0))
            assert [record.exc_info for record in lines] == [None] * is_told
            assert all("\n" not in record.getMessage() for record in lines)
            assert bool(report.error) == (report.status == "failed")
        shutil.rmtree(self.folder / "fresh", ignore_errors=True)

    def settings(self, root: str) -> dict[str, Any]:
        where = {"store": self.store, "cache_root": self.folder / root, "layout": self.layout}
        return {**where, "gpu": GPU, "environment": ENVIRONMENT}

    def check_root(self, node: Node) -> None:
        found = relocated(node.tree.root)
        assert {path: data for path, data in found.items() if self.truth.get(path) != data} == {}
        assert [path for path in node.tree.root.rglob("*") if path.is_symlink()] == []
        for unit in {unit_of(path, entry) for path, entry in self.published.items() if entry.flags & Flag.GROUP}:
            members = {path for path in self.truth if path.startswith(f"{unit}/")}
            assert found.keys() & members in (set(), members)

    @contextmanager
    def nothing_outside(self) -> Iterator[None]:
        before = listing(self.outside), set(os.listdir(self.folder))
        yield
        assert listing(self.outside) == before[0]
        assert set(os.listdir(self.folder)) - before[1] <= {"fresh"}

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Afterwards everything is as it was, whatever files were made, replaced or removed in between."""
        kept = self.folder.with_name("kept")
        shutil.copytree(self.folder, kept, symlinks=True, copy_function=os.link)
        try:
            yield
        finally:
            finish(10)  # Otherwise the last restore might still be counted in the store that is removed.
            shutil.rmtree(self.folder)
            kept.rename(self.folder)


def attempt(function: Callable[[], Any]) -> Any:
    """Returns what it returns, or the typed error that it raises. No other error may come out of it."""
    try:
        return function()
    except KstoreError as error:
        assert str(error)
        return error


def relocated(root: Path) -> dict[str, bytes]:
    """What is in a root, except for its own path. Measurements are merged: only their keys say anything about them."""
    found = {path: data.replace(bytes(root), b"ROOT") for path, data in contents(root).items()}
    return {path: data for path, data in found.items() if not path.startswith("inductor/cache/")}


@contextmanager
def replaced(path: Path, data: bytes) -> Iterator[None]:
    """`path` is another file for a while. Changing the file in place would change it in every root that links it."""
    before = path.with_name("before")
    path.rename(before)
    path.write_bytes(data)
    try:
        yield
    finally:
        before.replace(path)
