"""Ranks of a job, each a thread with an environment of its own, on nodes that share a store."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from kstore.report import RestoreReport
from tests.compilers.programs import PATH
from tests.trees import ENVIRONMENT, GPU, KEY, Node

Answer = TypeVar("Answer")


def at_once(works: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Run all of them at the same time."""
    with ThreadPoolExecutor(len(works)) as pool:
        return [answer.result(60) for answer in [pool.submit(work) for work in works]]


def outcome(work: Callable[[], Answer]) -> Answer | Exception:
    """What the work returns, or the error that it raises."""
    try:
        return work()
    except Exception as error:
        return error


class Job:
    """A job of several ranks. `nodes` names each rank's node, and so its cache root."""

    def __init__(self, folder: Path, nodes: Sequence[str], port: int = 29500, **settings: Any) -> None:
        self.ranks = [Node(folder, name, **settings) for name in nodes]
        for number, rank in enumerate(self.ranks):
            rank.environ |= {"RANK": str(number), "WORLD_SIZE": str(len(nodes))}
            rank.environ |= {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": str(port)}

    def restore(self, key: str = KEY, **choice: Any) -> list[RestoreReport | Exception]:
        """Restore on all ranks. Returns what each rank returns or raises."""
        works = [partial(rank.restore, key, group=True, **choice) for rank in self.ranks]
        return at_once([partial(outcome, work) for work in works])


def free_ports(count: int) -> list[int]:
    """Ports of this host on which nobody listens."""
    with ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in sockets]


def environ_of(folder: Path) -> dict[str, str]:
    """The environment of a process that is to use the store in `folder`, with none of the user's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KSTORE_", "TORCH", "TRITON_"))}
    store = {"KSTORE_ROOT": str(folder / "store"), "KSTORE_GPU": GPU, "KSTORE_ENVIRONMENT": ENVIRONMENT}
    return kept | store | PATH


def publish(folder: Path, *kernels: str, key: str = KEY, name: str = "publisher") -> Node:
    """Commit kernels from a worker that is in no job."""
    node = Node(folder, name)
    for kernel in kernels:
        node.tree.kernel(kernel)
    assert node.commit(key).ok
    return node
