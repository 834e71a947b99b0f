"""What `kstore diff` says about kernels that real compilers made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.inspect.artifact import find_artifact, read_artifact
from kstore.inspect.comparison import Change, Comparison, Field
from kstore.inspect.kinds import Kind
from kstore.report import CommitStatus
from tests.compilers.programs import PATH, PROGRAMS, Container, run_program, worker

pytestmark = pytest.mark.compiler

KERNELS = 6
COMPILE = """
import compile_kernels, pathlib, sys
sys.dont_write_bytecode = True
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.py")):
    compile_kernels.compile_kernel(path)
"""


class Triton:
    """Kernels for sm_90, which can be compiled without a GPU. Release v1 is published."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.container = Container(folder)
        self.sources = folder / "sources"
        arguments = ("--sources", self.sources, "--count", KERNELS, "--release", 1)
        self.publish("v1", lambda environ: run_program("compile_kernels", *arguments, environ=environ))

    def publish(self, key: str, build: Callable[[dict[str, str]], object]) -> None:
        environ = self.container.environ()
        store = worker(self.folder / "store", self.folder / key, environ)
        store.restore(key)
        build(environ)
        assert store.commit(key).status is CommitStatus.COMMITTED

    def edit(self, number: int, before: str, after: str) -> None:
        path = self.sources / f"kernel_{number:05d}.py"
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))

    def compile_all(self, environ: dict[str, str]) -> None:
        """Compile the sources as they are now."""
        variables = environ | {"PYTHONPATH": f"{PATH['PYTHONPATH']}:{PROGRAMS}"}
        subprocess.run([sys.executable, "-c", COMPILE, self.sources], env=variables, check=True, timeout=300)

    def compare(self) -> Comparison:
        """Compare after all sources were compiled again."""
        self.publish("v2", self.compile_all)
        return kstore.compare(worker(self.folder / "store", self.folder / "reader", {}), "v1", "v2")


@pytest.fixture
def triton(tmp_path: Path) -> Triton:
    return Triton(tmp_path)


def test_num_warps_of_a_triton_kernel_is_told_by_its_name(triton: Triton) -> None:
    warps = 8 if "'num_warps': 8" in (triton.sources / "kernel_00000.py").read_text() else 4
    triton.edit(0, f"'num_warps': {warps}", f"'num_warps': {12 - warps}")
    found = triton.compare()
    (tally,) = found.tallies
    (difference,) = found.differences

    assert (tally.kind, tally.same, tally.different[Change.CHANGED]) == (Kind.TRITON_KERNEL, KERNELS - 1, 1)
    assert difference.name.endswith("_00000")
    assert difference.fields[0] == Field("num_warps", warps, 12 - warps)
    assert difference.other_code is None
    assert found.unread == 0


def test_a_triton_kernel_that_moved_in_its_file_is_told_from_one_whose_code_changed(triton: Triton) -> None:
    triton.edit(0, "@triton.jit", "# one more line\n@triton.jit")
    triton.edit(1, "tl.program_id(0)", "(tl.program_id(0) + 1)")
    found = triton.compare().differences

    assert {difference.name[-5:]: (difference.change, difference.other_code) for difference in found} == {
        "00000": (Change.CHANGED, False),
        "00001": (Change.CHANGED, True),
    }


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Comparison]:
    """Two releases of a model: the second has one more graph, and the first one's graph was compiled again."""
    folder = tmp_path_factory.mktemp("models")
    container = Container(folder)
    for key, names in (("v1", ("mlp-a",)), ("v2", ("mlp-a", "guarded"))):
        environ = container.environ()
        store = worker(folder / "store", folder / key, environ)
        store.restore(key)
        run_program("compile_models", *names, environ=environ)
        assert store.commit(key).status is CommitStatus.COMMITTED
    return folder, kstore.compare(worker(folder / "store", folder / "reader", {}), "v1", "v2")


def changes(comparison: Comparison, kind: Kind) -> list[tuple[Change, str]]:
    return [(found.change, found.name) for found in comparison.differences if found.kind is kind]


def test_graphs_of_one_key_are_rebuilt_and_a_new_one_is_added(models: tuple[Path, Comparison]) -> None:
    for kind in (Kind.FX_GRAPH, Kind.AOT_ENTRY):
        assert sorted(change for change, _ in changes(models[1], kind)) == ["added", "rebuilt"]


def test_cpp_kernels_have_the_names_that_inductor_gave_them(models: tuple[Path, Comparison]) -> None:
    added = [name for change, name in changes(models[1], Kind.CPP_KERNEL) if change is Change.ADDED]

    assert added == ["cpp_fused__softmax_gelu_0"]


def test_modules_are_told_by_what_they_call(models: tuple[Path, Comparison]) -> None:
    calls = [found.calls for found in models[1].differences if found.kind is Kind.GENERATED_CODE]

    assert ("cpp_fused__softmax_gelu_0",) in calls


def test_a_cpp_kernels_source_is_found_by_its_name(models: tuple[Path, Comparison]) -> None:
    side = models[1].right
    source = read_artifact(side, find_artifact(side, "cpp_fused__softmax_gelu_0.main.cpp"))

    assert b'extern "C"' in source


def test_nothing_that_inductor_writes_is_of_an_unknown_kind(models: tuple[Path, Comparison]) -> None:
    kinds = {tally.kind for tally in models[1].tallies}

    assert kinds == {Kind.FX_GRAPH, Kind.AOT_ENTRY, Kind.CPP_KERNEL, Kind.GENERATED_CODE}
