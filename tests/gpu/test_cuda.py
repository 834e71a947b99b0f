"""torch.compile and Triton on a real GPU: what one process compiled is found by another, which compiles nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstore.environment import gpu_slug
from kstore.report import RestoreStatus
from kstore.store import Store
from tests.compilers.programs import Container, compiled_graphs, fingerprint, run_program

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(not gpu_slug().startswith("nvidia-"), reason="there is no NVIDIA GPU here"),
]

MODES: dict[str, tuple[str, ...]] = {
    "default": ("own-kernels", "transformer", "convolution", "dynamic"),
    "max-autotune": ("own-kernels", "feed-forward"),
}
"""Mode → parts. max-autotune compiles dozens of kernels for each product of matrices."""
LAYOUTS = ("loose", "packed")
Told = Callable[[str, object], None]


class Fleet:
    """One process compiled everything cold and committed it to a store of each layout."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.folder = folder
        self.mode = mode
        environ = self.environ()
        workers = [
            Store(self.store(layout), cache_root=folder / "root", layout=layout, environ=environ) for layout in LAYOUTS
        ]
        for store in workers:
            assert store.restore("m/v1").status is RestoreStatus.MISS
        self.cold = run_program("compile_cuda", "--mode", mode, *MODES[mode], environ=environ)
        self.commits = [store.commit("m/v1") for store in workers]
        shutil.rmtree(folder / "root")

    def environ(self) -> dict[str, str]:
        """With as many compile processes as torch chooses: hundreds of kernels are tried."""
        found = Container(self.folder).environ()
        del found["TORCHINDUCTOR_COMPILE_THREADS"]
        return found

    def store(self, layout: str) -> Path:
        return self.folder / f"store-{layout}"

    def run(self, layout: str, root: str) -> dict[str, Any]:
        """Another process, whose cache root was empty before the restore."""
        environ = self.environ()
        shutil.rmtree(self.folder / root, ignore_errors=True)
        restored = Store(self.store(layout), cache_root=self.folder / root, environ=environ).restore("m/v1")
        assert restored.status is RestoreStatus.RESTORED
        self.restore_seconds = restored.seconds
        before = fingerprint(self.folder / root)
        report = run_program("compile_cuda", "--mode", self.mode, *MODES[self.mode], environ=environ)
        self.changed = {path for path, seen in fingerprint(self.folder / root).items() if before.get(path) != seen}
        return report

    def expect_nothing_compiled(self, warm: dict[str, Any]) -> None:
        assert compiled_graphs(warm) == {}
        if self.mode == "default":
            assert warm["triton"]["compiled"] == 0
            assert warm["outputs"] == self.cold["outputs"]
            # Each process leaves entries under names of its own in the driver's cache.
            assert {path for path in self.changed if not path.startswith("cuda/")} == set()
        # max-autotune goes on from a kernel's best configuration step by step, and torch looks for what it found only
        # if there were several to begin with (recheck_autotune_cache): the others go this way in every process.


@pytest.fixture(scope="module", params=MODES)
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp(request.param), request.param)


def test_the_cold_process_compiles(fleet: Fleet) -> None:
    assert compiled_graphs(fleet.cold)["fxgraph_cache_miss"] >= len(MODES[fleet.mode])
    assert fleet.cold["triton"]["compiled"] > 0
    assert all(commit.ok and not commit.skipped for commit in fleet.commits)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_second_process_compiles_nothing(fleet: Fleet, layout: str, record_property: Told) -> None:
    warm = fleet.run(layout, "root")

    fleet.expect_nothing_compiled(warm)
    record_property(
        "told",
        f"{gpu_slug()}, {fleet.mode}, {layout}: {fleet.cold['seconds']} s cold, "
        f"{warm['seconds']} s after a restore of {fleet.restore_seconds:.3f} s",
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_process_with_another_cache_root_compiles_nothing(fleet: Fleet, layout: str) -> None:
    fleet.expect_nothing_compiled(fleet.run(layout, "elsewhere"))


def test_the_gpu_has_one_name_with_torch_and_without(fleet: Fleet) -> None:
    program = (
        "import sys; from kstore.environment import gpu_slug; print(gpu_slug()); assert 'torch' not in sys.modules"
    )
    without = subprocess.run([sys.executable, "-c", program], env=fleet.environ(), stdout=subprocess.PIPE, text=True)

    assert (without.returncode, without.stdout.strip()) == (0, fleet.cold["slug"])
