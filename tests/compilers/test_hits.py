"""Whether what was restored was used, in the way that real compilers use it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kstore.store import Store
from tests.compilers.programs import GPU, PROGRAMS, TIMEOUT, Container, run_program

pytestmark = pytest.mark.compiler

MODEL = "mlp-hits"
ANOTHER_KEY = {"TORCH_COMPILE_CACHE_KEY_TAG": "another", "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING": "1"}
"""Changes every graph's key."""


class Job:
    """Runs of one model, each in a process of its own whose cache root was empty before."""

    def __init__(self, container: Container, root: Path, store: Path) -> None:
        self.container = container
        self.root = root
        self.store = store

    def environ(self, **variables: str) -> dict[str, str]:
        settings = {"KSTORE_ROOT": str(self.store), "KSTORE_CACHE_ROOT": str(self.root), "KSTORE_GPU": GPU}
        return self.container.environ() | settings | variables

    def exec(self, *options: str, **variables: str) -> tuple[int, dict[str, Any]]:
        """Returns the exit code and the report."""
        shutil.rmtree(self.root, ignore_errors=True)
        program = [sys.executable, str(PROGRAMS / "compile_models.py"), MODEL]
        done = subprocess.run(
            [sys.executable, "-m", "kstore", "exec", "m/v1", *options, "--json", "-v", "--", *program],
            env=self.environ(**variables), capture_output=True, text=True, timeout=TIMEOUT,
        )  # fmt: skip
        report: dict[str, Any] = json.loads(next(line for line in done.stderr.splitlines() if line.startswith("{")))
        return done.returncode, report

    def within(self, *options: str, **variables: str) -> dict[str, Any]:
        shutil.rmtree(self.root, ignore_errors=True)
        return run_program("synchronized_models", "m/v1", MODEL, *options, environ=self.environ(**variables))

    def why(self) -> dict[str, Any]:
        command = [sys.executable, "-m", "kstore", "why", "m/v1", "--json"]
        done = subprocess.run(command, env=self.environ(), capture_output=True, text=True, timeout=TIMEOUT)
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def on(self, store: Path) -> Job:
        return Job(self.container, self.root, store)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A model that was compiled cold and committed to a store of each layout."""
    folder = tmp_path_factory.mktemp("hits")
    job = Job(Container(folder), folder / "root", folder / "loose")
    code, report = job.exec("--layout", "loose")
    usage = report["usage"]["components"]["inductor"]
    assert (code, usage["restored"], usage["hits"]) == (0, 0, 0)
    assert usage["misses"] > 0 and not report["usage"]["unused"]
    Store(folder / "packed", cache_root=job.root, layout="packed", gpu=GPU, environ=job.environ()).commit("m/v1")
    return job


@pytest.fixture(params=["loose", pytest.param("packed", marks=pytest.mark.exhaustive)])
def job(request: pytest.FixtureRequest, compiled: Job) -> Job:
    return compiled.on(compiled.store.with_name(request.param))


@pytest.fixture
def copy(compiled: Job, tmp_path: Path) -> Job:
    """For tests that commit: the others see the store as it was."""
    shutil.copytree(compiled.store, tmp_path / "store", symlinks=True)
    return compiled.on(tmp_path / "store")


def test_exec_sees_that_all_was_used(job: Job) -> None:
    code, report = job.exec("--require-hits")
    usage = report["usage"]["components"]["inductor"]
    why = job.why()

    assert (code, report["usage"]["missed"], report["usage"]["unused"]) == (0, 0, [])
    assert usage["hits"] > 0
    assert (usage["misses"], usage["compiled"], usage["counted"]) == (0, 0, False)
    assert (why["graphs"], why["others"]) == ([], 0)


def test_synchronized_counts_what_hit(compiled: Job) -> None:
    report = compiled.within("--strict-hits")
    usage = report["usage"]["components"]["inductor"]

    assert (report["restored"], report["committed"], report["error"]) == ("restored", "unchanged", "")
    assert usage["hits"] > 0
    assert (usage["misses"], usage["compiled"], usage["counted"]) == (0, 0, True)
    assert report["usage"]["unused"] == []


def test_exec_fails_if_nothing_hit_and_commits_all_the_same(copy: Job) -> None:
    code, report = copy.exec("--require-hits", **ANOTHER_KEY)
    usage = report["usage"]["components"]["inductor"]

    assert (code, report["exit_code"]) == (3, 0)
    assert usage["restored"] > 0 and usage["hits"] == 0 and usage["misses"] > 0
    assert report["usage"]["unused"] == ["inductor"]
    assert report["commit"]["status"] in ("committed", "unchanged") and report["commit"]["generation"] > 1

    (graph,) = copy.why()["graphs"]
    assert graph["reason"] == "differs"
    assert {difference["name"]: (difference["stored"], difference["fresh"]) for difference in graph["differences"]} == {
        "cache_key_tag": ("", "another"),
        "inductor_config.coordinate_descent_tuning": ("False", "True"),
    }


@pytest.mark.exhaustive
def test_synchronized_raises_if_something_was_compiled_anew(copy: Job) -> None:
    report = copy.within("--strict-hits", **ANOTHER_KEY)
    usage = report["usage"]["components"]["inductor"]

    assert "compiled anew" in report["error"]
    assert (usage["hits"], report["committed"]) == (0, "committed")
    assert usage["misses"] > 0 and report["usage"]["unused"] == ["inductor"]


@pytest.mark.exhaustive
def test_without_strict_hits_the_job_goes_on(copy: Job) -> None:
    report = copy.within(**ANOTHER_KEY)

    assert report["error"] == ""
    assert report["usage"]["missed"] > 0


def test_strict_hits_wants_something_to_hit(compiled: Job, tmp_path: Path) -> None:
    report = compiled.on(tmp_path / "store").within("--strict-hits")

    assert "nothing is restored" in report["error"]
    assert not any(compiled.root.glob("inductor/fxgraph"))


def test_why_knows_that_only_autograd_asked_for_another_key(copy: Job) -> None:
    """`CI` sets `torch._functorch.config.error_on_custom_op_aliasing`, which is not in the keys of graphs."""
    _, report = copy.exec(CI="true")
    assert report["usage"]["missed"] == 1

    (entry,) = copy.why()["graphs"]
    assert entry["reason"] == "autograd"
    assert "aotautograd" in entry["path"]
