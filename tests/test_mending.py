"""What a restore finds missing or damaged comes back with the commit of a worker that has compiled it again."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.blobs.loose import blob_name
from kstore.environment import Host
from kstore.report import CommitStatus, RestoreStatus
from tests.gc.stores import collect_fully, kernels, restored
from tests.test_repair import rot_frame
from tests.trees import Node

Damage = Callable[[Node, str], None]


@pytest.fixture(autouse=True)
def known(host: Host) -> None:
    """A host that is known without running the compiler."""


def blob(node: Node, path: str) -> Path:
    """The file of a loose blob."""
    return node.location / blob_name(node.published()[path].digest)


def lose(node: Node, path: str) -> None:
    blob(node, path).unlink()


def cut(node: Node, path: str) -> None:
    blob(node, path).chmod(0o644)
    blob(node, path).write_bytes(b"cut short")


def alter(node: Node, path: str) -> None:
    """Its size stays."""
    data = blob(node, path).read_bytes()
    blob(node, path).chmod(0o644)
    blob(node, path).write_bytes(data[:-1] + b"!")


DAMAGE = {"loose, gone": lose, "loose, cut": cut, "loose, altered": alter, "packed, rotten": rot_frame}


def compile_all(node: Node) -> str:
    """Returns the kernel that will be damaged; the large file is in another frame of a pack."""
    node.tree.put("inductor/ab/clarge.py", random.Random(1).randbytes(5 << 20))
    node.tree.kernel("another")
    return node.tree.kernel()


@pytest.fixture(params=DAMAGE)
def damage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def damaged(damage: str, tmp_path: Path) -> Node:
    """A worker in a store that has lost a part of a kernel."""
    node = Node(tmp_path, layout=damage.partition(",")[0])
    kernel = compile_all(node)
    node.commit()
    shutil.copytree(node.location, tmp_path / "whole")
    DAMAGE[damage](node, f"{kernel}/k.cubin")
    return node


def worker(damaged: Node, name: str = "worker") -> Node:
    """Another one, who has restored what is left."""
    other = Node(damaged.location.parent, name, layout=damaged.store.settings.layout)
    assert other.restore().skipped
    assert kernels(other) != kernels(damaged)
    return other


def test_it_is_put_back(damaged: Node, tmp_path: Path) -> None:
    other = worker(damaged)
    compile_all(other)
    assert other.commit().status is CommitStatus.COMMITTED
    assert restored(tmp_path, "third") == kernels(damaged)


def test_it_is_put_back_by_who_restores_once_more_in_between(damaged: Node, tmp_path: Path) -> None:
    other = worker(damaged)
    compile_all(other)
    assert other.restore().status is RestoreStatus.CURRENT
    other.commit()
    assert restored(tmp_path, "third") == kernels(damaged)


def test_it_is_put_back_by_who_commits_before(damaged: Node, tmp_path: Path) -> None:
    other = worker(damaged)
    assert other.commit().status is CommitStatus.UNCHANGED
    other.tree.wrapper()
    other.commit()
    compile_all(other)
    other.commit()
    assert restored(tmp_path, "third") == kernels(damaged) | kernels(other)


def test_it_is_put_back_once(damaged: Node) -> None:
    first, second = worker(damaged, "first"), worker(damaged, "second")
    for other in (first, second):
        compile_all(other)
    assert first.commit().status is CommitStatus.COMMITTED
    assert second.commit().status is CommitStatus.UNCHANGED
    assert first.commit().status is CommitStatus.UNCHANGED


def test_it_outlives_gc(damaged: Node, tmp_path: Path) -> None:
    other = worker(damaged)
    compile_all(other)
    other.commit()
    collect_fully(other, keep=1)
    other.store.verify(repair=True)
    assert restored(tmp_path, "third") == kernels(damaged)
    assert not other.store.verify().damage


def test_what_can_be_read_again_is_not_uploaded(damaged: Node, tmp_path: Path) -> None:
    """As when a server was away for a moment."""
    other = worker(damaged)
    compile_all(other)
    shutil.rmtree(other.location)
    (tmp_path / "whole").rename(other.location)
    assert other.commit().status is CommitStatus.UNCHANGED
