"""torch.compile on the CPU: what one process compiled is found by another, which compiles nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from kstore.environment import Host
from kstore.report import CommitStatus, RestoreStatus
from tests.compilers.programs import (
    PROGRAMS,
    TIMEOUT,
    Container,
    compiled_graphs,
    fingerprint,
    finish_program,
    run_program,
    start_program,
    stored_bytes,
    worker,
)

pytestmark = pytest.mark.compiler

MODELS = ("transformer", "convolution", "dynamic")
LAYOUTS = ("loose", "packed")
TORCH = tuple(map(int, metadata.version("torch").split(".")[:2]))


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    return Container(tmp_path_factory.mktemp("container"), as_shipped=True)


@pytest.fixture
def quick(tmp_path: Path) -> Container:
    return Container(tmp_path)


class Compiled:
    """Three models, compiled cold once and committed to a store of each layout."""

    def __init__(self, folder: Path, container: Container) -> None:
        self.folder = folder
        self.root = folder / "root"
        environ = container.environ()
        for layout in LAYOUTS:
            assert worker(self.store(layout), self.root, environ, layout).restore("m/v1").status is RestoreStatus.MISS
        self.report = run_program("compile_models", *MODELS, environ=environ)
        self.commits = {
            layout: worker(self.store(layout), self.root, environ, layout).commit("m/v1") for layout in LAYOUTS
        }
        self.tree = fingerprint(self.root)
        self.container = container
        shutil.rmtree(self.root)

    def store(self, layout: str) -> Path:
        return self.folder / f"store-{layout}"

    def run(self, *models: str, environ: dict[str, str]) -> dict[str, Any]:
        return run_program("compile_models", *models, environ=environ)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory, container: Container) -> Compiled:
    return Compiled(tmp_path_factory.mktemp("compiled"), container)


@pytest.fixture(autouse=True)
def no_root_left(compiled: Compiled) -> None:
    shutil.rmtree(compiled.root, ignore_errors=True)


def test_the_cold_process_compiles(compiled: Compiled) -> None:
    assert compiled_graphs(compiled.report)["fxgraph_cache_miss"] >= len(MODELS)
    assert all(commit.status is CommitStatus.COMMITTED for commit in compiled.commits.values())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_restored_process_compiles_nothing_writes_nothing_and_computes_the_same(
    compiled: Compiled, layout: str
) -> None:
    environ = compiled.container.environ()
    restored = worker(compiled.store(layout), compiled.root, environ, layout).restore("m/v1")
    before = fingerprint(compiled.root)

    report = compiled.run(*MODELS, environ=environ)

    assert restored.status is RestoreStatus.RESTORED
    assert before.keys() == compiled.tree.keys()
    assert compiled_graphs(report) == {}
    assert fingerprint(compiled.root) == before
    assert report["outputs"] == compiled.report["outputs"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_commit_after_a_run_that_compiled_nothing_writes_nothing(compiled: Compiled, layout: str) -> None:
    environ = compiled.container.environ()
    node = worker(compiled.store(layout), compiled.root, environ, layout)
    node.restore("m/v1")
    before = fingerprint(compiled.store(layout))

    assert node.commit("m/v1").status is CommitStatus.UNCHANGED
    assert fingerprint(compiled.store(layout)) == before


def test_another_host_gets_no_shared_objects_and_computes_the_same(
    compiled: Compiled, quick: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host("another-host", {}))
    environ = quick.environ()
    report = worker(compiled.store("loose"), compiled.root, environ).restore("m/v1")
    suffixes = {path.suffix for path in compiled.root.rglob("*") if path.is_file()}

    assert report.status is RestoreStatus.RESTORED
    assert ".so" not in suffixes
    assert ".py" in suffixes
    assert compiled.run("convolution", environ=environ)["outputs"].items() <= compiled.report["outputs"].items()


def test_another_environment_is_a_miss(compiled: Compiled) -> None:
    environ = compiled.container.environ() | {"KSTORE_ENVIRONMENT": "torch9.9.9-other"}
    report = worker(compiled.store("loose"), compiled.root, environ).restore("m/v1")

    assert report.status is RestoreStatus.MISS
    assert list(compiled.root.rglob("*.py")) == []


def test_two_cold_processes_with_different_graphs_lose_nothing(tmp_path: Path, quick: Container) -> None:
    environs = [quick.environ(), quick.environ()]
    nodes = [worker(tmp_path / "store", tmp_path / f"root{i}", environ) for i, environ in enumerate(environs)]
    for node in nodes:
        assert node.restore("m").status is RestoreStatus.MISS
    started = [start_program("compile_models", f"mlp-{i}", environ=environ) for i, environ in enumerate(environs)]
    cold = [finish_program(process) for process in started]
    assert [node.commit("m").generation for node in nodes] == [1, 2]

    environ = quick.environ()
    worker(tmp_path / "store", tmp_path / "root2", environ).restore("m")
    report = run_program("compile_models", "mlp-0", "mlp-1", environ=environ)

    assert compiled_graphs(report) == {}
    assert report["outputs"] == cold[0]["outputs"] | cold[1]["outputs"]


@pytest.mark.skipif(TORCH < (2, 8), reason="C++ code holds the path of the cache root")
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_cold_workers_that_compile_the_same_take_the_room_of_one(count: int, tmp_path: Path, quick: Container) -> None:
    workers = []
    for number in range(count):
        environ = quick.environ()
        nodes = [worker(tmp_path / layout, tmp_path / f"root{number}", environ, layout) for layout in LAYOUTS]
        assert [node.restore("m").status for node in nodes] == [RestoreStatus.MISS] * 2
        workers.append((environ, nodes))
    started = [start_program("compile_models", "mlp-x", environ=environ) for environ, _ in workers]
    assert all(compiled_graphs(finish_program(process)) for process in started)

    sizes = [[(node.commit("m"), stored_bytes(node))[1] for node in nodes] for _, nodes in workers]

    for one, all_of_them in zip(sizes[0], sizes[-1], strict=True):
        assert 0 < one <= all_of_them <= (1 + 0.1 * (count - 1) / 3) * one


IN_ONE_PROCESS = """
import runpy, sys, kstore
program, store, root, *sys.argv[1:] = sys.argv[1:]
with kstore.synchronized("m/v1", store=store, cache_root=root, gpu="nvidia-test-sm90") as cache:
    assert "torch" not in sys.modules
    runpy.run_path(program, run_name="__main__")
assert cache.restored.ok and cache.committed.status == "unchanged", cache.committed
"""


def test_synchronized_restores_before_torch_is_imported(compiled: Compiled) -> None:
    program = PROGRAMS / "compile_models.py"
    arguments = [program, compiled.store("loose"), compiled.root, "transformer"]
    done = subprocess.run(
        [sys.executable, "-c", IN_ONE_PROCESS, *map(str, arguments)],
        env=compiled.container.environ(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])

    assert compiled_graphs(report) == {}
    assert report["outputs"].items() <= compiled.report["outputs"].items()
