from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstore.local.found import Scan
from kstore.report import RestoreStatus
from kstore.worker import Worker
from tests.trees import Node, shared_object


@pytest.fixture
def builder(tmp_path: Path, layout: str) -> Node:
    """A worker that has published linked files, relocated files, and files that are changed in place."""
    node = Node(tmp_path, "builder", layout=layout)
    node.tree.wrapper()
    node.tree.graph()
    node.tree.kernel()
    node.tree.put("inductor/ab/x.cu", b"in place")
    node.tree.put("inductor/so/c.so", shared_object(), mode=0o755)
    node.tree.timings({"one": 1.0})
    node.commit()
    return node


@pytest.fixture
def node(builder: Node, tmp_path: Path, layout: str) -> Node:
    """A worker that has just restored what a module's `builder` has published."""
    node = Node(tmp_path, layout=layout)
    assert node.restore().status is RestoreStatus.RESTORED
    return node


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[Worker]:
    """The scans made since the fixtures before this one."""
    made: list[Worker] = []
    scan = Worker.scan

    def noted(worker: Worker, *rest: object) -> Scan:
        made.append(worker)
        return scan(worker, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Worker, "scan", noted)
    return made


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whenever a file is locked, a child is forked that lives on: it has a copy of the descriptor."""
    flock, copies = fcntl.flock, list[int]()

    def lock(file: int, how: int) -> None:
        flock(file, how)
        if how != fcntl.LOCK_UN:
            copies.append(os.dup(file))

    monkeypatch.setattr(fcntl, "flock", lock)
    yield
    for copy in copies:
        os.close(copy)
