"""Why a real Triton kernel was compiled although it was restored, and that it was compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstore.hits import usage_of
from kstore.store import Store
from kstore.why.find import find_reasons
from kstore.why.kernels import KernelExplanation
from tests.compilers.programs import Container, run_program, worker

pytestmark = pytest.mark.compiler


class Fleet:
    """Workers that compile one kernel, each in a cache root of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.container = Container(folder)

    def compile(self, name: str, *arguments: object, **variables: str) -> Store:
        """Restore, then compile."""
        environ = self.container.environ()
        node = worker(self.folder / "store", self.folder / name, environ)
        node.restore("k")
        run_program("compile_one_kernel", self.folder / "kernel.py", *arguments, environ=environ | variables)
        return node

    def why(self, name: str, *arguments: object, **variables: str) -> KernelExplanation:
        (kernel,) = find_reasons(self.compile(name, *arguments, **variables), "k", str).kernels
        assert kernel.name == "scaled"
        return kernel


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    fleet = Fleet(tmp_path_factory.mktemp("why"))
    fleet.compile("builder").commit("k")
    return fleet


def test_a_kernel_that_hits_has_no_reason(fleet: Fleet) -> None:
    node = fleet.compile("same")

    assert find_reasons(node, "k", str).kernels == ()
    assert usage_of(node, "k").components["triton"].hits == 1


def test_options_and_variables_are_named(fleet: Fleet) -> None:
    found = fleet.why("options", "--warps", 8, TRITON_DISABLE_LINE_INFO="1")

    assert found.reason == "options"
    assert set(found.differences) == {("num_warps", "4", "8"), ("TRITON_DISABLE_LINE_INFO", None, "true")}


def test_a_kernel_that_only_moved_is_told_from_one_that_changed(fleet: Fleet) -> None:
    assert (fleet.why("moved", "--line", 3).reason, fleet.why("changed", "--scale", 3).reason) == ("place", "code")


def test_a_kernel_that_is_always_compiled_did_not_hit(fleet: Fleet) -> None:
    assert fleet.why("always", TRITON_ALWAYS_COMPILE="1").reason == "replaced"

    node = worker(fleet.folder / "store", fleet.folder / "always", fleet.container.environ())
    found = usage_of(node, "k")
    assert (found.components["triton"].hits, found.missed) == (0, 1)
