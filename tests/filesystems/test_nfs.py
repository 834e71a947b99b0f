"""A store on NFS, with the kernel's own server and client. Each mount has a cache of its own, as two hosts do."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from kstore.backends import PosixBackend
from kstore.local.link import LinkMode
from kstore.report import CommitStatus, RestoreStatus
from kstore.store import Store
from tests.backends.conformance import BackendConformance
from tests.filesystems.conformance import Pair, StoreAndCacheRoot
from tests.filesystems.volumes import Volumes, nfs
from tests.fleet.roles import work
from tests.trees import Node, contents, in_processes

pytestmark = [pytest.mark.privileged, pytest.mark.slow]

REMEMBERS = 2
"""For how many seconds a host goes on listing a folder as it was."""
GRACE = 20
COMMITTERS = 4
RESTORERS = 2
SECONDS = 120.0


class TestBackend(BackendConformance):
    @pytest.fixture
    def backend(self, volumes: Volumes) -> PosixBackend:
        (folder,) = nfs(volumes)
        return PosixBackend(folder / "store")


class TestStore(StoreAndCacheRoot):
    mode = LinkMode.COPY
    why = "no reflink: Invalid cross-device link; no hardlink: Invalid cross-device link"

    @pytest.fixture
    def pair(self, volumes: Volumes) -> Pair:
        (folder,) = nfs(volumes)
        return Pair(folder, volumes.make("tmpfs"))


class TestStoreAndRoot(StoreAndCacheRoot):
    mode = LinkMode.HARDLINK
    why = "no reflink: Operation not supported"

    @pytest.fixture
    def pair(self, volumes: Volumes) -> Pair:
        (folder,) = nfs(volumes)
        return Pair(folder, folder)


@pytest.fixture
def hosts(volumes: Volumes, tmp_path: Path) -> list[Path]:
    """Folders with the same store and separate local room."""
    mounts = nfs(volumes, hosts=2, options=f",acdirmin=1,acdirmax={REMEMBERS},acregmin=1,acregmax={REMEMBERS}")
    (mounts[0] / "shared").mkdir()
    folders = [tmp_path / f"host{number}" for number in range(len(mounts))]
    for folder, mount in zip(folders, mounts, strict=True):
        folder.mkdir()
        (folder / "store").symlink_to(mount / "shared")
    return folders


def test_what_one_host_commits_another_that_has_not_looked_yet_restores(hosts: list[Path], layout: str) -> None:
    first, second = Node(hosts[0], "first", layout=layout), Node(hosts[1], "second")
    first.tree.kernel()
    assert first.commit().status is CommitStatus.COMMITTED
    assert second.restore().status is RestoreStatus.RESTORED
    assert second.tree.has("triton")


def test_a_host_that_remembers_a_miss_sees_a_commit_once_it_has_forgotten(hosts: list[Path]) -> None:
    first, second = Node(hosts[0], "first"), Node(hosts[1], "second")
    Store(first.location).create()
    assert second.restore().status is RestoreStatus.MISS
    first.tree.kernel()
    first.commit()
    until = time.monotonic() + 60
    while second.restore().status is RestoreStatus.MISS:
        assert time.monotonic() < until
        time.sleep(REMEMBERS / 4)
    assert second.tree.has("triton")


def test_a_host_that_remembers_an_older_generation_commits_upon_the_newest(hosts: list[Path], layout: str) -> None:
    nodes = [Node(host, f"node{number}", layout=layout) for number, host in enumerate(hosts)]
    for turn in range(6):
        node = nodes[turn % 2]
        node.tree.kernel(f"kernel{turn}")
        assert node.commit().status is CommitStatus.COMMITTED
    assert nodes[1].newest().generation == 6
    nodes[0].restore()
    assert len(os.listdir(nodes[0].tree.root / "triton")) == 6


def test_one_of_several_hosts_that_create_a_name_wins(hosts: list[Path]) -> None:
    def create(number: int) -> list[bool]:
        backend = PosixBackend(hosts[number % 2] / "store")
        return [backend.put_if_absent(f"refs/{name}", bytes([number])) for name in range(50)]

    found = in_processes(create, [(number,) for number in range(4)])
    assert [sum(won) for won in zip(*found, strict=True)] == [1] * 50


def test_a_reader_survives_that_another_host_replaces_what_it_reads(hosts: list[Path]) -> None:
    writer, reader = (PosixBackend(host / "store") for host in hosts)
    versions = [bytes([65 + number]) * 200_000 for number in range(4)]
    writer.put("mark", versions[0])
    stopped = threading.Event()

    def replace() -> None:
        turn = 0
        while not stopped.is_set():
            turn += 1
            writer.put("mark", versions[turn % 4])

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        assert all(reader.get("mark") in versions for _ in range(100))
    finally:
        stopped.set()
        thread.join()


def test_no_kernel_of_any_host_is_lost_beside_gc(hosts: list[Path]) -> None:
    Store(hosts[0] / "store").create(grace=GRACE)
    end = time.time() + SECONDS
    roles = ["commit"] * COMMITTERS + ["restore"] * RESTORERS + ["gc"] * len(hosts)
    jobs = [(role, hosts[number % len(hosts)], number, end) for number, role in enumerate(roles)]
    results = in_processes(work, jobs, timeout=10 * SECONDS)
    committed = {path: data for kernels in results[:COMMITTERS] for path, data in kernels.items()}

    time.sleep(REMEMBERS)
    last = Node(hosts[1], "last")
    assert last.restore().skipped == ()
    found = contents(last.tree.root)
    assert {path: found.get(path) for path in committed} == committed
    assert sum(results[-len(hosts) :]) > 0
    assert last.store.verify().ok
