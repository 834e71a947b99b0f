"""Triton kernels for sm_90, compiled by the real compiler, which needs no GPU for that."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import pytest

from kstore.components.table import Table, parse_table
from kstore.local import numbered
from kstore.report import CommitStatus, RestoreStatus
from kstore.store import Store
from tests.compilers.programs import GPU, Container, fingerprint, run_program, stored_bytes, worker

pytestmark = pytest.mark.compiler
TRITON = tuple(map(int, metadata.version("triton").split(".")[:2]))
FILES = 8 if TRITON >= (3, 4) else 7
"""Of one kernel. Older versions do not keep its `.source`."""

LAYOUTS = ("loose", "packed")
UNRELOCATED = "unrelocated"
"""The store whose groups name the files of the root that they were compiled under."""
KERNELS = 16
RELEASES = 10
KERNELS_OF_A_RELEASE = 10


class Fleet:
    """Workers that compile from the same sources, as the releases of one model do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.container = Container(folder)

    def compile(self, environ: dict[str, str], count: int = KERNELS, release: int = 1) -> dict[str, Any]:
        sources = self.folder / "sources"
        arguments = ("--sources", sources, "--count", count, "--release", release)
        return run_program("compile_kernels", *arguments, environ=environ)

    def node(self, name: str, environ: dict[str, str], store: str) -> Store:
        layout = store if store in LAYOUTS else "loose"
        return worker(self.folder / f"store-{store}", self.folder / name, environ, layout)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """Kernels that were compiled under root A, committed to a store of each layout, and deleted there."""
    fleet = Fleet(tmp_path_factory.mktemp("kernels"))
    environ = fleet.container.environ()
    nodes = [fleet.node("a", environ, layout) for layout in LAYOUTS]
    nodes[0].restore("k")
    cold = fleet.compile(environ)
    assert (cold["hits"], cold["compiled"]) == (0, KERNELS)
    assert [node.commit("k").status for node in nodes] == [CommitStatus.COMMITTED] * 2
    shutil.rmtree(fleet.folder / "a/.kstore")  # It remembers the digests of relocated files.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kstore.store.load_table", without_relocation)
        assert fleet.node("a", environ, UNRELOCATED).commit("k").status is CommitStatus.COMMITTED
    shutil.rmtree(fleet.folder / "a")
    return fleet


@functools.cache
def without_relocation() -> Table:
    text = resources.files("kstore.components").joinpath("components.toml").read_text()
    return parse_table(re.sub(r"(?m)^relocate = .*\n", "", text))


@dataclass
class Worker:
    """A worker that has restored everything under a root of its own."""

    node: Store
    root: Path
    environ: dict[str, str]


def restored(fleet: Fleet, name: str, store: str) -> Worker:
    environ = fleet.container.environ()
    node = fleet.node(name, environ, store)
    assert node.restore("k").status is RestoreStatus.RESTORED
    return Worker(node, fleet.folder / name, environ)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_kernel_hits_under_another_root(fleet: Fleet, layout: str) -> None:
    worker = restored(fleet, f"b-{layout}", layout)
    before = fingerprint(worker.root)
    report = fleet.compile(worker.environ)

    assert (report["hits"], report["compiled"]) == (KERNELS, 0)
    assert fingerprint(worker.root) == before


def test_without_relocation_every_kernel_misses(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof that the test above can fail: the stored groups name files of a root that is gone."""
    monkeypatch.setattr("kstore.store.load_table", without_relocation)
    report = fleet.compile(restored(fleet, "c", UNRELOCATED).environ)

    assert (report["hits"], report["compiled"]) == (0, KERNELS)


def test_one_more_kernel_uploads_only_its_own_blobs_the_manifest_and_a_ref(fleet: Fleet) -> None:
    worker = restored(fleet, "d", "loose")
    assert fleet.compile(worker.environ, count=KERNELS + 1)["compiled"] == 1
    before = set(fingerprint(fleet.folder / "store-loose"))

    report = worker.node.commit("k")

    created = set(fingerprint(fleet.folder / "store-loose")) - before
    assert report.new_files == FILES
    assert report.new_blobs == FILES + 1
    assert len(created) == FILES + 2
    assert worker.node.commit("k").status is CommitStatus.UNCHANGED
    assert set(fingerprint(fleet.folder / "store-loose")) == before | created


class Releases:
    """Ten releases of one model, each compiled cold in the numbered root of a fresh container."""

    def __init__(self, folder: Path) -> None:
        self.fleet = Fleet(folder)
        self.sizes: dict[str, list[int]] = {"loose": [], "packed": []}
        for release in range(1, RELEASES + 1):
            self.run(release)

    def run(self, release: int) -> None:
        shutil.rmtree(numbered.NUMBERED_ROOTS, ignore_errors=True)
        key = f"model/v{release}"
        environ = self.fleet.container.environ()
        nodes = [self.node(layout, environ) for layout in self.sizes]
        nodes[0].restore(key)
        self.fleet.compile(environ, KERNELS_OF_A_RELEASE, release)
        for node, sizes in zip(nodes, self.sizes.values(), strict=True):
            environ["TRITON_CACHE_DIR"] = f"{self.root(nodes[0], key)}/triton"
            environ.pop("KSTORE_MANAGED", None)
            assert node.commit(key).status is CommitStatus.COMMITTED
            sizes.append(stored_bytes(node))

    def root(self, node: Store, key: str) -> Path:
        return Path(node.worker(key, before_import=True).root.path)

    def node(self, layout: str, environ: dict[str, str]) -> Store:
        store = self.fleet.folder / f"store-{layout}"
        return Store(store, layout=layout, gpu=GPU, environ=environ)


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Releases]:
    folder = tmp_path_factory.mktemp("releases")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbered, "NUMBERED_ROOTS", folder / "roots")
        yield Releases(folder)


@pytest.mark.parametrize("layout", ["loose", "packed"])
def test_ten_releases_take_the_room_of_two_and_a_half(releases: Releases, layout: str) -> None:
    one, ten = releases.sizes[layout][0], releases.sizes[layout][-1]

    assert 0 < one <= ten <= 2.5 * one


@pytest.mark.parametrize("layout", ["loose", "packed"])
def test_a_release_seeded_from_the_one_before_compiles_only_what_changed(releases: Releases, layout: str) -> None:
    environ = releases.fleet.container.environ()
    shutil.rmtree(numbered.NUMBERED_ROOTS, ignore_errors=True)
    node = releases.node(layout, environ)
    seeded = node.restore("model/next", seed="model/v1")
    report = releases.fleet.compile(environ, KERNELS_OF_A_RELEASE, 2)
    before = stored_bytes(node)
    committed = node.commit("model/next")

    assert seeded.status is RestoreStatus.SEEDED
    assert (report["hits"], report["compiled"]) == (KERNELS_OF_A_RELEASE * 9 // 10, KERNELS_OF_A_RELEASE // 10)
    assert committed.status is CommitStatus.COMMITTED
    assert committed.files == (KERNELS_OF_A_RELEASE + KERNELS_OF_A_RELEASE // 10) * FILES
    # Release two is already in the store, so a seeded commit of the same kernels adds next to nothing.
    assert stored_bytes(node) <= 1.02 * before
