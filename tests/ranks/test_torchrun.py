"""Real ranks: two nodes of two ranks each, started by torchrun on one host, with a cache root for each node."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from kstore.store import Store
from tests.compilers.programs import PROGRAMS
from tests.ranks.fleet import environ_of, free_ports, publish
from tests.trees import ENVIRONMENT, GPU, KEY, Node, contents

PROGRAM = PROGRAMS / "restore_ranks.py"
NODES = ("node-0", "node-1")
RANKS_PER_NODE = 2
TIMEOUT = 240
pytestmark = [pytest.mark.slow, pytest.mark.compiler]

Answer = dict[str, Any]


@pytest.fixture(params=["gloo", "environment"])
def options(request: pytest.FixtureRequest) -> list[str]:
    return ["--gloo"] if request.param == "gloo" else []


GLOO_IS_EXHAUSTIVE = pytest.mark.parametrize(
    "options", [pytest.param("gloo", marks=pytest.mark.exhaustive), "environment"], indirect=True
)
"""The ranks of a process group all import torch, which takes most of a test's time."""


def start(folder: Path, port: int, number: int, program: Sequence[str]) -> subprocess.Popen[str]:
    """Start one node."""
    of_node = {"KSTORE_CACHE_ROOT": str(folder / NODES[number]), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environ = environ_of(folder) | of_node
    torchrun = [
        sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(NODES)}", f"--node-rank={number}",
        f"--nproc-per-node={RANKS_PER_NODE}", "--master-addr=127.0.0.1", f"--master-port={port}",
    ]  # fmt: skip
    return subprocess.Popen(
        [*torchrun, *program], env=environ, cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def torchrun(folder: Path, *program: str) -> str:
    """Run a job on all nodes; returns what it printed."""
    (port,) = free_ports(1)
    nodes = [start(folder, port, number, program) for number in range(len(NODES))]
    try:
        printed = [node.communicate(timeout=TIMEOUT)[0] for node in nodes]
    finally:
        for node in nodes:
            end(node)
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(printed)
    return "\n".join(printed)


def end(node: subprocess.Popen[str]) -> None:
    """End a node with its ranks, which torchrun starts in sessions of their own."""
    if node.poll() is None:
        ranks = psutil.Process(node.pid).children(recursive=True)
        for process in (*ranks, node):
            process.kill()
        node.wait()


def restore(folder: Path, count: int, options: Sequence[str]) -> list[Answer]:
    """What each rank reports, in the order of the ranks."""
    answers = folder / "answers"
    answers.mkdir()
    torchrun(folder, str(PROGRAM), KEY, str(answers), str(count), *options)
    return [json.loads((answers / f"{rank}.json").read_text()) for rank in range(len(NODES) * RANKS_PER_NODE)]


@contextmanager
def publishing(node: Node) -> Iterator[None]:
    """Another worker publishes one generation after the other while the context lasts."""
    done = threading.Event()

    def work() -> None:
        number = 0
        while not done.wait(0.05):
            node.tree.kernel(f"more-{number}")
            node.commit()
            number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_all_ranks_restore_one_generation_while_newer_ones_are_published(tmp_path: Path, options: list[str]) -> None:
    publisher = publish(tmp_path, "one", "two")
    with publishing(publisher):
        answers = restore(tmp_path, 3, options)
    assert {answer["torch"] for answer in answers} == {bool(options)}
    generations = [tuple(report["generation"] for report in answer["restored"]) for answer in answers]
    assert len(set(generations)) == 1
    assert 0 < generations[0][0] <= generations[0][-1] < publisher.newest().generation
    assert {report["status"] for answer in answers for report in answer["restored"]} <= {"restored", "current"}


@GLOO_IS_EXHAUSTIVE
def test_one_rank_of_each_node_places_the_artifacts(tmp_path: Path, options: list[str]) -> None:
    publisher = publish(tmp_path, "one", "two")
    answers = restore(tmp_path, 1, options)
    files = len(contents(publisher.tree.root))
    placed = [answer["restored"][0]["placed"] for answer in answers]
    assert [sorted(placed[:2]), sorted(placed[2:])] == [[0, files]] * 2
    for node in NODES:
        assert contents(tmp_path / node).keys() == contents(publisher.tree.root).keys()


@GLOO_IS_EXHAUSTIVE
def test_all_ranks_miss_and_then_publish_all_that_they_made(tmp_path: Path, options: list[str]) -> None:
    answers = restore(tmp_path, 1, [*options, "--commit"])
    assert [answer["restored"][0]["status"] for answer in answers] == ["miss"] * 4
    assert {answer["committed"]["status"] for answer in answers} <= {"committed", "unchanged"}
    last = Node(tmp_path, "last")
    assert last.restore().ok
    assert len(list((last.tree.root / "triton").iterdir())) == 4


@GLOO_IS_EXHAUSTIVE
def test_no_rank_restores_if_a_node_has_no_usable_cache_root(tmp_path: Path, options: list[str]) -> None:
    publish(tmp_path, "one")
    (tmp_path / NODES[1]).write_bytes(b"")
    answers = restore(tmp_path, 1, options)
    reports = [answer["restored"][0] for answer in answers]
    assert [report["status"] for report in reports] == ["miss"] * 2 + ["failed"] * 2
    assert all(f"the cache root {tmp_path / NODES[1]} cannot be made" in report["error"] for report in reports)
    assert contents(tmp_path / NODES[0]) == {}


def test_ranks_may_be_kstore_exec(tmp_path: Path) -> None:
    publisher = publish(tmp_path, "one")
    command = ["--module", "kstore", "exec", KEY, "--group", "-v"]
    printed = torchrun(tmp_path, *command, "--", "sh", "-c", 'echo "triton is $TRITON_CACHE_DIR"')
    for node in NODES:
        assert printed.count(f"triton is {tmp_path / node}/triton") == RANKS_PER_NODE
        assert contents(tmp_path / node).keys() == contents(publisher.tree.root).keys()
    assert printed.count(f"{KEY} generation 1") >= len(NODES) * RANKS_PER_NODE
    assert len(Store(tmp_path / "store", gpu=GPU, environment=ENVIRONMENT).generations(publisher.store.scope(KEY))) == 1
