"""What is found out once, when it is first needed."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from kstore.lazy import cached_property
from kstore.published.manifest import Manifest
from kstore.report import RestoreStatus
from tests.trees import Node

PATIENCE = 60


def test_a_child_that_is_forked_while_a_thread_reads_a_manifest_can_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As beside live commits. The child has no such thread that would release what it held."""
    node, other = Node(tmp_path), Node(tmp_path, "other")
    node.tree.wrapper()
    node.commit()
    parent, load = os.getpid(), Manifest.load
    is_reading, may_go_on = threading.Event(), threading.Event()

    def load_slowly(*arguments: object) -> Manifest:
        if os.getpid() == parent:
            is_reading.set()
            may_go_on.wait(PATIENCE)
        return load(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Manifest, "load", load_slowly)
    thread = threading.Thread(target=Node(tmp_path, "third").restore)
    thread.start()
    assert is_reading.wait(PATIENCE)
    child = os.fork()
    if not child:
        signal.alarm(PATIENCE)
        os._exit(other.restore().status is not RestoreStatus.RESTORED)
    ended = os.waitpid(child, 0)[1]
    may_go_on.set()
    thread.join(PATIENCE)
    assert ended == 0


class Slow:
    def __init__(self) -> None:
        self.both = threading.Barrier(2)

    @cached_property
    def found(self) -> object:
        """A different object each time."""
        self.both.wait(PATIENCE)
        return object()


def test_threads_that_ask_at_once_all_get_what_one_of_them_has_found() -> None:
    slow, found = Slow(), list[object]()
    threads = [threading.Thread(target=lambda: found.append(slow.found)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == [slow.found] * 2
