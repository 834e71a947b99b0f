"""kill -9 at random moments: everything in the store is whole, and so is every group in a cache root."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.gc import Policy
from kstore.report import CommitStatus
from kstore.store import Store
from tests.gc.stores import pass_time
from tests.trees import SUFFIXES, Node, contents

KILLS = 15
"""Upon each store; every one of them comes with a verify of all that is there."""
STORES = 2
"""Of each layout: sixty kills in all, at other moments in each run."""
pytestmark = pytest.mark.slow


def killed(run: Callable[[], object], longest: float) -> bool:
    """Run in a process and kill it at some moment. Returns whether it was killed before its end."""
    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    time.sleep(random.uniform(0, longest))
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return process.exitcode == -signal.SIGKILL


def duration(run: Callable[[], object]) -> float:
    """How many seconds it takes, in a process of its own as above."""
    started = time.monotonic()
    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    return time.monotonic() - started


def check_groups(node: Node) -> None:
    """Every kernel folder has all of its files, or none."""
    for folder in node.tree.root.glob("triton/*"):
        assert {path.name for path in folder.iterdir()} == {f"k.{suffix}" for suffix in SUFFIXES} | {"__grp__k.json"}


class Victims:
    """The operations that are killed. Each call does something that the previous one did not."""

    def __init__(self, folder: Path, layout: str) -> None:
        self.folder = folder
        self.layout = layout
        self.number = 0

    def next(self, role: str) -> Node:
        self.number += 1
        return Node(self.folder, f"{role}-{self.number}", layout=self.layout)

    def commit(self) -> Callable[[], object]:
        node = self.next("committer")
        for kernel in range(3):
            node.tree.kernel(f"kernel-{self.number}-{kernel}")
        return node.commit

    def restore(self) -> Callable[[], object]:
        node = self.next("restorer")
        return lambda: node.restore(generation=self.filled)

    def gc(self) -> Callable[[], object]:
        node = self.next("gc")
        pass_time(node)
        return lambda: node.store.gc(Policy(keep=2))

    def fill(self) -> None:
        """Add something to restore that takes a while."""
        node = self.next("first")
        for kernel in range(20):
            node.tree.kernel(f"kernel-{kernel}")
        self.filled = node.commit().generation
        node.store.pin("model/v1", self.filled)


@pytest.mark.parametrize("layout", ["loose", "packed"])
def test_nothing_breaks_whenever_a_process_is_killed(tmp_path: Path, layout: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"random seed {seed}")
    random.seed(seed)
    for number in range(STORES):
        kill_often(tmp_path / str(number), layout)


def kill_often(folder: Path, layout: str) -> None:
    folder.mkdir()
    Store(folder / "store").create()
    victims = Victims(folder, layout)
    victims.fill()
    roles = (victims.commit, victims.restore, victims.gc)
    longest = {role: 1.2 * duration(role()) for role in roles}
    number = hits = 0
    while hits < KILLS:
        number += 1
        role = roles[number % len(roles)]
        is_hit = killed(role(), longest[role])
        hits += is_hit
        longest[role] *= 1.05 if is_hit else 0.8  # the machine's speed varies
        if not is_hit:
            continue
        survivor = Node(folder, f"survivor-{number}", layout=layout)
        assert survivor.store.verify().ok
        for root in folder.glob(f"restorer-{victims.number}"):
            check_groups(Node(folder, root.name))
        survivor.tree.kernel(f"survivor-{number}")
        assert survivor.commit().status is CommitStatus.COMMITTED
        mine = contents(survivor.tree.root)
        assert survivor.restore().skipped == ()
        assert mine.items() <= contents(survivor.tree.root).items()
