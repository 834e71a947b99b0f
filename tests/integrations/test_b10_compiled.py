"""torch.compile on the CPU, shared through b10-transfer's interface."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.compilers.programs import Container, compiled_graphs, finish_program, start_program
from tests.programs.share_b10 import FREE

pytestmark = pytest.mark.compiler


class Replicas:
    """Replicas one after the other, each with empty folders at the same paths, as containers have them."""

    def __init__(self, folder: Path, container: Container) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.environ = container.environ() | FREE | {
            "HOME": str(self.home), "B10FS_CACHE_DIR": str(folder / "cache/model/server"),
            "LOCAL_WORK_DIR": str(folder / "app"), "KSTORE_CACHE_ROOT": str(self.home / "root"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.home / ".cache/torchinductor"),
        }  # fmt: skip
        (folder / "app").mkdir()

    def run(self, which: str) -> dict[str, Any]:
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir()
        program = start_program("serve_b10_model", which, self.folder, "mlp-a", environ=self.environ)
        return finish_program(program)


def statuses(report: dict[str, Any]) -> tuple[str, str]:
    return report["loaded"], report["saved"]


def test_what_the_real_package_saved_hits_and_what_it_lacks_is_added(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("b10_transfer", reason="b10-transfer is not installed: see tools/peers.txt")
    replicas = Replicas(tmp_path, Container(tmp_path_factory.mktemp("container")))
    built = replicas.run("real")
    imported = replicas.run("ours")
    restored = replicas.run("ours")

    assert statuses(built) == ("DOES_NOT_EXIST", "SUCCESS")
    assert compiled_graphs(built)
    # C++ objects of an unknown host are not imported: they are built again and saved.
    assert statuses(imported) == ("SUCCESS", "SUCCESS")
    assert statuses(restored) == ("SUCCESS", "SKIPPED")
    assert (compiled_graphs(imported), compiled_graphs(restored)) == ({}, {})
    assert built["outputs"] == imported["outputs"] == restored["outputs"]
