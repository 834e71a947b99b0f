"""What a restore finds missing or damaged comes back with the commit of a worker that has compiled it again."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kstore.backends import PosixBackend, Stat
from kstore.backends.reading import OpenedFile
from kstore.blobs import BlobStore
from kstore.blobs.loose import blob_name
from kstore.blobs.packindex import pack_name
from kstore.damaged import set_aside_blob
from kstore.environment import Host
from kstore.errors import IntegrityError
from kstore.gc import GcStatus
from kstore.operations.copy import copy_keys
from kstore.published.refs import Refs
from kstore.report import CommitStatus, RestoreStatus
from tests.faults.reading import trouble_with
from tests.gc.stores import collect_fully, kernels, restored
from tests.test_repair import OTHER, meanwhile, rot, rot_frame
from tests.trees import KEY, Node

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
    """The size stays the same."""
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
    """Another worker, which has restored what is left."""
    other = Node(damaged.location.parent, name, layout=damaged.store.settings.layout)
    assert other.restore().skipped
    assert kernels(other) != kernels(damaged)
    return other


def test_it_is_put_back(damaged: Node, tmp_path: Path) -> None:
    other = worker(damaged)
    compile_all(other)
    assert other.commit().status is CommitStatus.COMMITTED
    assert restored(tmp_path, "third") == kernels(damaged)


def test_it_is_put_back_by_a_worker_that_restores_once_more_in_between(damaged: Node, tmp_path: Path) -> None:
    other = worker(damaged)
    compile_all(other)
    assert other.restore().status is RestoreStatus.CURRENT
    other.commit()
    assert restored(tmp_path, "third") == kernels(damaged)


def test_it_is_put_back_by_a_worker_that_commits_before(damaged: Node, tmp_path: Path) -> None:
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


def test_what_was_put_back_outlives_gc(damaged: Node, tmp_path: Path) -> None:
    other = worker(damaged)
    compile_all(other)
    other.commit()
    collect_fully(other, keep=1)
    other.store.verify(repair=True)
    assert restored(tmp_path, "third") == kernels(damaged)
    assert not other.store.verify().damage


def test_what_can_be_read_again_is_not_uploaded(damaged: Node, tmp_path: Path) -> None:
    """For example, when a server was away for a moment."""
    other = worker(damaged)
    compile_all(other)
    shutil.rmtree(other.location)
    (tmp_path / "whole").rename(other.location)
    assert other.commit().status is CommitStatus.UNCHANGED


def heal(damaged: Node, whole: Path) -> None:
    shutil.rmtree(damaged.location)
    whole.rename(damaged.location)


def compile_another_way(damaged: Node, whole: Path) -> None:
    damaged.tree.kernel(variant="another way")
    damaged.commit()


@pytest.mark.parametrize("happens", [heal, compile_another_way])
def test_what_a_restore_can_read_again_or_needs_no_more_is_no_longer_looked_for(
    damaged: Node, tmp_path: Path, happens: Callable[[Node, Path], None]
) -> None:
    other = worker(damaged)
    assert other.tree.state().load().missed
    happens(damaged, tmp_path / "whole")
    assert other.restore().status is RestoreStatus.RESTORED
    lacking = {entry.digest for path, entry in damaged.published().items() if not other.tree.has(path)}
    assert other.tree.state().load().missed <= lacking


def test_one_of_those_who_commit_at_once_puts_it_back(
    damaged: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = worker(damaged, "first"), worker(damaged, "second")
    for other in (first, second):
        compile_all(other)
    meanwhile(monkeypatch, Refs, "reserve", first.commit)
    assert second.commit().status is CommitStatus.UNCHANGED
    assert second.newest().generation == 2
    assert restored(tmp_path, "third") == kernels(damaged)


def test_a_worker_that_loses_the_race_does_not_upload_it_twice(damaged: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, layout = damaged.location.parent, damaged.store.settings.layout
    healthy, other = Node(folder, "healthy", layout=layout), Node(folder, "other", layout=layout)
    missed = len(other.restore().skipped)
    compile_all(other)
    healthy.tree.wrapper("news")
    meanwhile(monkeypatch, Refs, "publish", healthy.commit)
    assert other.commit().new_blobs <= missed + 2  # and a manifest for each attempt


def test_what_another_key_has_is_not_relied_upon(damaged: Node, tmp_path: Path) -> None:
    """Nothing keeps it for this key."""
    other = worker(damaged)
    compile_all(other)
    beside = Node(tmp_path, "beside", layout="packed")
    compile_all(beside)
    beside.commit("another/v1")
    other.commit()
    beside.store.forget("another/v1")
    collect_fully(other, keep=1)
    assert restored(tmp_path, "third") == kernels(damaged)


def test_it_is_put_back_in_a_key_that_grew_from_it(damaged: Node, tmp_path: Path) -> None:
    layout = damaged.store.settings.layout
    other, third = Node(tmp_path, "other", layout=layout), Node(tmp_path, "third")
    assert other.restore(OTHER, seed=KEY).skipped
    compile_all(other)
    other.commit(OTHER)
    assert third.restore(OTHER).skipped == ()
    assert kernels(third) == kernels(damaged)


def test_it_is_put_back_in_a_key_that_grew_from_it_though_its_file_looks_untouched(tmp_path: Path) -> None:
    """A disk may give other bytes than it was given, and an unchanged time."""
    node, other, third = (Node(tmp_path, name) for name in ("node", "other", "third"))
    names = f"{node.tree.kernel()}/__grp__k.json"  # It is read by every restore, and never linked.
    node.commit()
    then = blob(node, names).stat().st_mtime_ns
    alter(node, names)
    os.utime(blob(node, names), ns=(then, then))
    assert other.restore(OTHER, seed=KEY).skipped
    other.tree.kernel()
    other.commit(OTHER)
    assert third.restore(OTHER).skipped == ()
    assert kernels(third) == kernels(node)


def test_it_is_put_back_although_the_generation_that_the_root_grew_from_is_relied_upon(tmp_path: Path) -> None:
    """That one had it too, and has something else that the commit brings and the newest generation lacks."""
    node, rival, third = (Node(tmp_path, name) for name in ("node", "rival", "third"))
    wrapper, other = node.tree.wrapper("both have it"), node.tree.wrapper("only in the first generation")
    node.commit()
    node.store.forget(KEY)
    rival.tree.wrapper("both have it")
    assert rival.commit().generation == 3
    set_aside_blob(node.store.storage.backend, node.published()[wrapper].digest)
    copy = node.tree.put("inductor/ab/copy.py", node.tree.read(other))
    assert node.commit().new_blobs == 2  # what was lost, and the manifest
    assert third.restore().skipped == ()
    assert {path for path in (wrapper, copy) if third.tree.has(path)} == {wrapper, copy}


def test_a_damaged_blob_is_not_relied_upon_by_a_worker_that_has_not_seen_the_damage(
    damaged: Node, tmp_path: Path
) -> None:
    """For another key, whose first commit looks only whether blobs exist."""
    other, third = Node(tmp_path, "other", layout=damaged.store.settings.layout), Node(tmp_path, "third")
    compile_all(other)
    damaged.store.forget(KEY)
    other.commit(OTHER)
    assert third.restore(OTHER).skipped == ()
    assert kernels(third) == kernels(damaged)


def test_news_are_committed_although_it_cannot_even_be_looked_at(
    damaged: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = worker(damaged)
    compile_all(other)
    wrapper = other.tree.wrapper("news")
    lost = {blob_name(other.published()[path].digest) for path in kernels(damaged) if path in other.published()}
    for method in ("stat", "get"):
        real = getattr(PosixBackend, method)

        def fails(backend: PosixBackend, name: str, *rest: Any, real: Any = real) -> Any:
            if name in lost:
                raise OSError(errno.EIO, os.strerror(errno.EIO), name)
            return real(backend, name, *rest)

        monkeypatch.setattr(PosixBackend, method, fails)
    stat_many = PosixBackend.stat_many

    def fails_for_all(backend: PosixBackend, names: Sequence[str]) -> list[Stat | None]:
        if name := next(filter(lost.__contains__, names), None):
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        return stat_many(backend, names)

    monkeypatch.setattr(PosixBackend, "stat_many", fails_for_all)
    assert other.commit().status is CommitStatus.COMMITTED
    assert wrapper in other.published()


def test_it_is_put_back_although_it_cannot_be_seen_which_packs_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, layout="packed")
    kernel = compile_all(node)
    node.commit()
    rot_frame(node, f"{kernel}/k.cubin")
    other = worker(node)
    compile_all(other)
    (pack,) = node.newest().packs

    def fails(*_: object) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO), pack)

    with monkeypatch.context() as patch:
        patch.setattr(BlobStore, "has_pack", fails)
        assert other.commit().status is CommitStatus.COMMITTED
    assert pack in other.newest().packs  # It may be gone, and it may not.
    assert restored(tmp_path, "third") == kernels(node)


@pytest.mark.parametrize("layout", ["packed"])
def test_a_restore_does_not_look_through_all_packs_of_a_large_store(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker of a fleet would do so for as long as anything is lost."""
    writer = Node(tmp_path, "writer", layout=layout)
    kernel = compile_all(writer)
    writer.commit()
    rot_frame(writer, f"{kernel}/k.cubin")
    for number in range(20):
        other = Node(tmp_path, "other", layout=layout)
        other.tree.wrapper(f"{number}")
        other.commit(f"other/v{number}")
    monkeypatch.setattr("kstore.blobs.blobstore.MOST_SEARCHED", 3)
    opened: list[str] = []
    real = PosixBackend.open

    def noted(backend: PosixBackend, name: str) -> OpenedFile:
        opened.append(name)
        return real(backend, name)

    monkeypatch.setattr(PosixBackend, "open", noted)
    report = Node(tmp_path, "reader", layout=layout).restore()
    assert (report.ok, report.left_out > 0) == (True, True)
    assert len({name for name in opened if name.startswith("packs/")}) == 3 + len(writer.newest().packs)
    opened.clear()
    assert writer.store.verify().is_damaged
    assert len({name for name in opened if name.startswith("packs/")}) > 20


@pytest.fixture(params=["packed", "loose"])
def unreadable(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    """A worker that has everything of its key, whose only generation the store cannot read any more."""
    node = Node(tmp_path, layout=request.param)
    compile_all(node)
    node.commit()
    for file in [*node.location.glob("packs/*"), node.location / blob_name(node.newest().manifest)]:
        file.unlink(missing_ok=True)
    return Node(tmp_path, layout=request.param)


def test_a_generation_that_cannot_be_read_is_put_back_by_who_has_it(unreadable: Node, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="no generation"):
        unreadable.restore()
    report = unreadable.commit()
    assert (report.status, report.generation) == (CommitStatus.COMMITTED, 2)
    assert restored(tmp_path, "other") == kernels(unreadable)
    assert unreadable.commit().status is CommitStatus.UNCHANGED


def test_one_more_kernel_does_not_rely_on_it(unreadable: Node, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="no generation"):
        unreadable.restore()
    unreadable.tree.kernel("one more")
    unreadable.commit()
    assert restored(tmp_path, "other") == kernels(unreadable)


def test_what_can_be_read_again_is_published_once(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="packed")
    compile_all(node)
    node.commit()
    (pack,) = node.location.glob("packs/*")
    pack.rename(tmp_path / "away")
    node = Node(tmp_path, layout="packed")
    with pytest.raises(IntegrityError, match="no generation"):
        node.restore()
    (tmp_path / "away").rename(pack)
    node = Node(tmp_path, layout="packed")
    assert node.commit().status is CommitStatus.UNCHANGED
    node.tree.wrapper()
    assert node.commit().new_files == 1
    assert restored(tmp_path, "other") == kernels(node)


@pytest.mark.parametrize("process", ["the same", "another"])
def test_a_pack_that_is_gone_is_put_back_by_a_commit_with_nothing_new(tmp_path: Path, process: str) -> None:
    node = Node(tmp_path, layout="packed")
    compile_all(node)
    node.commit()
    (first,) = node.location.glob("packs/*")
    node.tree.wrapper()
    node.commit()
    assert node.commit().status is CommitStatus.UNCHANGED
    assert node.store.storage.blobs.digests_in([first.name])  # The same process knows what was in it.
    first.unlink()
    node = node if process == "the same" else Node(tmp_path, layout="packed")
    assert node.commit().status is CommitStatus.COMMITTED
    assert restored(tmp_path, "other") == kernels(node)


def test_what_a_pack_has_lost_outlives_gc_where_new_blobs_are_loose(tmp_path: Path) -> None:
    """The pack is still named, and has the blob in its index."""
    node = Node(tmp_path, layout="packed")
    kernel = compile_all(node)
    node.commit()
    rot_frame(node, f"{kernel}/k.cubin")
    other = Node(tmp_path, "other", layout="loose")
    assert other.restore().left_out
    compile_all(other)
    other.commit()
    collect_fully(other, keep=1)
    assert restored(tmp_path, "third") == kernels(node)


def test_what_is_noted_as_lost_is_put_back_although_its_pack_could_not_be_replaced(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="packed")
    kernel = compile_all(node)
    node.commit()
    rot_frame(node, f"{kernel}/k.cubin")
    for entry in node.published().values():
        set_aside_blob(node.store.storage.backend, entry.digest)
    assert Node(tmp_path, layout="packed").commit().status is CommitStatus.COMMITTED
    assert restored(tmp_path, "third") == kernels(node)
    assert Node(tmp_path, layout="packed").commit().status is CommitStatus.UNCHANGED


def copied_aside(node: Node) -> Node:
    """Another store with the same keys."""
    folder = node.location.parent / "aside"
    shutil.copytree(node.location, folder / node.location.name)
    return Node(folder, layout=None)


def copy_back(node: Node, aside: Node) -> CommitStatus:
    (brought,) = copy_keys(aside.store, node.store).scopes
    return brought.status


def commit_again(node: Node, aside: Node) -> CommitStatus:
    return node.commit().status


def test_a_copy_puts_back_what_a_pack_that_is_still_named_has_lost(layout: str, tmp_path: Path) -> None:
    node = Node(tmp_path, layout="packed")
    kernel = node.tree.kernel()
    node.commit()
    aside = copied_aside(node)
    rot_frame(node, f"{kernel}/k.cubin")
    for entry in node.published().values():
        set_aside_blob(node.store.storage.backend, entry.digest)
    for status, generation in ((CommitStatus.COMMITTED, 2), (CommitStatus.UNCHANGED, 2)):
        assert copy_back(Node(tmp_path, "target", layout=layout), aside) is status
        assert node.newest().generation == generation
        collect_fully(node, keep=1)
        assert restored(tmp_path, f"after {status}") == kernels(node)


@pytest.mark.parametrize("put_back", [commit_again, copy_back])
def test_what_is_noted_as_lost_is_put_back_although_its_name_is_taken_by_a_damaged_blob(
    put_back: Callable[[Node, Node], CommitStatus], tmp_path: Path
) -> None:
    node = Node(tmp_path, layout="loose")
    kernel = node.tree.kernel()
    node.commit()
    aside = copied_aside(node)
    place, digest = blob(node, f"{kernel}/k.cubin"), node.published()[f"{kernel}/k.cubin"].digest
    alter(node, f"{kernel}/k.cubin")
    damaged = place.read_bytes()
    set_aside_blob(node.store.storage.backend, digest)
    place.write_bytes(damaged)
    for status in (CommitStatus.COMMITTED, CommitStatus.UNCHANGED):
        assert put_back(Node(tmp_path, layout="loose"), aside) is status
    assert restored(tmp_path, "third") == kernels(node)


def test_a_copy_that_puts_all_back_no_longer_names_the_pack_that_is_gone(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="packed")
    for name in ("one", "two"):
        node.tree.kernel(name)
        node.commit()
    aside = copied_aside(node)
    lost = node.newest().packs[-1]
    (node.location / "packs" / lost).unlink()

    assert copy_back(Node(tmp_path, layout="packed"), aside) is CommitStatus.COMMITTED
    assert lost not in node.newest().packs


def test_a_pack_that_is_gone_holds_nothing_up_once_all_is_put_back(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="packed")
    node.tree.kernel("one")
    node.commit()
    (lost,) = node.newest().packs
    for name in ("two", "three"):
        node.tree.kernel(name)
        node.commit()
        (node.location / "packs" / lost).unlink(missing_ok=True)

    assert lost not in node.newest().packs
    assert Node(tmp_path, "reader").restore().left_out == 0
    assert collect_fully(node, keep=1).status is GcStatus.COLLECTED
    assert [ref.generation for ref in node.store.generations(node.store.scope("model/v1"))] == [3]


def test_a_pack_that_is_gone_is_not_named_for_what_takes_the_place_of_what_it_held(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="packed")
    node.tree.wrapper()
    node.tree.kernel()
    node.commit()
    (lost,) = node.newest().packs
    node.tree.kernel("another")
    node.commit()
    (node.location / "packs" / lost).unlink()
    node.tree.kernel(variant="another way")
    assert node.commit().status is CommitStatus.COMMITTED
    assert lost not in node.newest().packs
    assert restored(tmp_path, "reader") == kernels(node)


def test_a_pack_that_is_gone_is_named_until_all_is_put_back(tmp_path: Path) -> None:
    node, other = Node(tmp_path, layout="packed"), Node(tmp_path, "other", layout="packed")
    for name in ("one", "two"):
        node.tree.kernel(name)
    node.commit()
    (lost,) = node.newest().packs
    other.tree.kernel("three")
    other.commit()
    other.tree.kernel("one")
    (node.location / "packs" / lost).unlink()

    assert other.commit().status is CommitStatus.COMMITTED
    assert lost in node.newest().packs
    node.commit()
    assert lost not in node.newest().packs
    assert Node(tmp_path, "reader").restore().left_out == 0


@pytest.mark.parametrize("trouble", ["damaged", "away"])
def test_a_pack_of_the_key_that_a_root_grew_from_is_not_relied_on_if_it_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    node = Node(tmp_path, layout="packed")
    node.tree.kernel("one")
    node.commit()
    (pack,) = node.newest().packs
    with monkeypatch.context() as patch:
        if trouble == "damaged":
            rot(node.location / pack_name(pack), -1)
        else:
            trouble_with(patch, pack_name(pack))
        Node(tmp_path, layout="packed").commit(OTHER)
    assert pack not in node.newest(OTHER).packs
    assert Node(tmp_path, "reader").restore(OTHER).left_out == 0
