"""Filesystems that are full or read-only: the job goes on, and says why it is cold."""

from __future__ import annotations

import errno
import logging
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.backends import PosixBackend
from kstore.backends.publishing import CannotPublish
from kstore.blobs import Layout
from kstore.blobs.loose import ASIDE, blob_name
from kstore.condemned import fences, take_down_fence, write_lists
from kstore.digest import digest_of
from kstore.errors import CacheRootError, StoreUnavailable
from kstore.gc import GcStatus
from kstore.gc.room import Room, full
from kstore.report import CommitStatus, RestoreStatus
from kstore.storage import reporting_trouble
from kstore.store import Store
from tests.gc.stores import collect, pass_time, stored
from tests.trees import ENVIRONMENT, GPU, SUFFIXES, Node, Tree, contents

SCOPE = {"gpu": GPU, "environment": ENVIRONMENT}


def mount(target: Path, options: str) -> None:
    target.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", target], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A small filesystem of its own."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    path = tmp_path / "volume"
    mount(path, "size=2m")
    yield path
    subprocess.run(["umount", path], check=True)


def remount(volume: Path, options: str) -> None:
    """A leader may be writing its lease just now: then the kernel refuses to remount."""
    for _ in range(100):
        done = subprocess.run(["mount", "-o", f"remount,{options}", volume], capture_output=True, text=True)
        if "busy" not in done.stderr:
            break
        time.sleep(0.1)
    assert done.returncode == 0, done.stderr


def fill(volume: Path) -> None:
    with open(volume / "filler", "wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(64 << 10))


def test_a_full_store_costs_the_commit_and_not_the_job(
    volume: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tree = Tree(tmp_path / "root")
    tree.kernel("one")
    store = volume / "store"
    kstore.Store(store).create()
    fill(volume)
    with caplog.at_level(logging.WARNING):
        report = kstore.commit("m", store=store, cache_root=tree.root, layout="packed", **SCOPE)

    assert report.status is CommitStatus.FAILED
    assert "No space left" in report.error
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with pytest.raises(kstore.StoreUnavailable, match="space"):
        kstore.Store(store, cache_root=tree.root, **SCOPE).commit("m")

    (volume / "filler").unlink()
    assert kstore.commit("m", store=store, cache_root=tree.root, **SCOPE).status is CommitStatus.COMMITTED


def test_commits_that_a_full_store_refuses_leave_nothing_there(volume: Path, tmp_path: Path) -> None:
    """A job that runs on tries again for as long as the store is full."""
    tree, store = Tree(tmp_path / "root"), volume / "store"
    tree.kernel("one")
    kstore.Store(store).create()
    fill(volume)
    for _ in range(2):
        assert kstore.commit("m", store=store, cache_root=tree.root, **SCOPE).status is CommitStatus.FAILED
    assert not any((store / "tmp").iterdir())


def out_of_inodes(volume: Path) -> None:
    found = os.statvfs(volume)
    remount(volume, f"nr_inodes={found.f_files - found.f_ffree}")


@pytest.mark.parametrize("use_up", [fill, out_of_inodes], ids=["space", "inodes"])
@pytest.mark.parametrize("chosen", ["loose", "packed", None])
def test_a_full_cache_root_costs_the_commit_its_memory_and_no_kernel(
    volume: Path, tmp_path: Path, chosen: str | None, use_up: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """What filled it up may be the very kernels that are to be saved."""
    node = Node(tmp_path, volume.name, layout=chosen)
    node.tree.kernel("one")
    node.commit()
    node.tree.kernel("two")
    use_up(volume)
    with caplog.at_level(logging.WARNING):
        report = node.commit()
        assert report.status is CommitStatus.COMMITTED
        assert report.new_files == len(SUFFIXES) + 1
        assert node.commit().status is CommitStatus.UNCHANGED, "nothing is published twice for want of memory"
    assert [record.levelname for record in caplog.records] == ["WARNING"], "a live job is told once"
    assert "No space left" in caplog.text and "may read all of" in caplog.text

    (volume / "filler").unlink(missing_ok=True)
    other = Node(tmp_path, "other")
    other.restore()
    assert len(contents(other.tree.root)) == len(contents(node.tree.root)) == 2 * report.new_files


@pytest.fixture
def crowded(volume: Path, layout: str) -> Node:
    """A store with half a megabyte that nobody needs any more and that a gc has condemned."""
    node = Node(volume, layout=layout)
    for generation in (1, 2):
        for number in range(10):
            node.tree.put(f"inductor/ab/c{number}.py", random.Random(100 * generation + number).randbytes(50_000))
        node.commit()
    pass_time(node)
    assert collect(node, keep=1).condemned.files
    return node


@pytest.mark.parametrize("use_up", [fill, out_of_inodes], ids=["space", "inodes"])
def test_a_full_store_is_emptied_by_gc(crowded: Node, volume: Path, use_up: Callable[[Path], None]) -> None:
    pass_time(crowded)
    use_up(volume)
    with pytest.raises(kstore.StoreUnavailable, match="No space left"):
        crowded.store.forget("model/v1")

    report = collect(crowded, keep=1)
    assert report.status is GcStatus.COLLECTED
    assert report.deleted.bytes > 500_000
    crowded.store.forget("model/v1")
    assert crowded.store.verify().ok


@pytest.mark.parametrize("layout", ["loose"])
def test_a_full_store_is_emptied_though_there_is_no_room_to_mend_what_a_killed_gc_left(
    crowded: Node, volume: Path
) -> None:
    pass_time(crowded)
    backend = crowded.store.storage.backend
    fenced = {*fences(backend)}
    write_lists(backend, ())
    for name in {*fences(backend)} - fenced:
        take_down_fence(backend, name)
    blob = crowded.location / blob_name(next(iter(crowded.published().values())).digest)
    aside = crowded.location / ASIDE / f"{blob.name}.0123456789abcdef"
    aside.parent.mkdir()
    blob.rename(aside)
    fill(volume)

    assert collect(crowded, keep=1).deleted.bytes > 500_000
    collect(crowded, keep=1)
    assert blob.exists()
    assert len(fences(backend)) == 1


@pytest.mark.parametrize("layout", ["loose"])
def test_loose_blobs_that_a_full_store_cannot_move_keep_no_pack(crowded: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*names: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with crowded.store.storage.blobs.writer(Layout.PACKED) as writer:
        writer.put(digest_of(b"of no use"), b"of no use")
        packs = writer.finish()
    collect(crowded)
    pass_time(crowded)
    before = stored(crowded)
    monkeypatch.setattr(PosixBackend, "move", refuse)
    report = collect(crowded, keep=1)
    assert before - stored(crowded) == {f"packs/{pack}" for pack in packs}
    assert (report.deleted.files, report.no_room) == (1, "No space left on device")


def test_in_a_store_too_full_to_tell_the_time_it_is_when_something_was_published_last(
    crowded: Node, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(backend: PosixBackend) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    pass_time(crowded)
    crowded.commit("model/v2")
    out_of_inodes(volume)
    monkeypatch.setattr(PosixBackend, "clock", refuse)
    assert collect(crowded, keep=1).deleted.bytes > 500_000


@pytest.mark.parametrize("use_up", [fill, out_of_inodes], ids=["space", "inodes"])
def test_a_full_store_of_which_nothing_may_go_says_what_to_do(
    crowded: Node, volume: Path, use_up: Callable[[Path], None]
) -> None:
    use_up(volume)
    before = stored(crowded)
    with pytest.raises(kstore.StoreUnavailable, match=r"a gc that runs 1 h after that; .* add --offline"):
        collect(crowded, keep=1)
    assert stored(crowded) == before
    assert collect(crowded, keep=1, offline=True).deleted.bytes > 500_000


def test_a_full_store_of_which_nothing_is_condemned_says_what_to_do(volume: Path, layout: str) -> None:
    node = Node(volume, layout=layout)
    for content in ("one", "two"):
        node.tree.timings({content: 1})
        node.commit()
    pass_time(node)
    fill(volume)
    out_of_inodes(volume)
    with pytest.raises(kstore.StoreUnavailable, match=r"it 1 h later: make room .*, and once more 1 h after that$"):
        collect(node, keep=1)
    with pytest.raises(kstore.StoreUnavailable, match=r"delete: make room .*, and run gc$"):
        collect(node, keep=1, offline=True)


def test_a_read_only_store_restores_and_refuses_commits(volume: Path, tmp_path: Path) -> None:
    writer = Node(tmp_path, "writer")
    writer.tree.kernel("one")
    store = volume / "store"
    kstore.Store(store, cache_root=writer.tree.root, **SCOPE).commit("m")
    remount(volume, "ro")
    root = tmp_path / "reader"

    assert kstore.restore("m", store=store, cache_root=root, **SCOPE).status is RestoreStatus.RESTORED
    Tree(root).kernel("two")
    report = kstore.commit("m", store=store, cache_root=root, **SCOPE)
    assert report.status is CommitStatus.FAILED
    assert "Read-only file system" in report.error


def test_a_read_only_store_is_waited_for_and_nobody_leads(
    volume: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = volume / "store"
    settings: dict[str, Any] = {"store": store, **SCOPE}
    assert kstore.restore("held", wait=60, cache_root=tmp_path / "leader", **settings).leads
    remount(volume, "ro")
    for key in ("held", "free"):
        report = kstore.restore(key, wait=0.2, cache_root=tmp_path / key, strict=True, **settings)
        assert (report.status, report.leads) == (RestoreStatus.MISS, False)
        told = (
            f"cannot write to the store at {store} (Read-only file system): it waits for another one to compile {key}"
        )
        assert told in caplog.text
    remount(volume, "rw")
    kstore.commit("held", cache_root=tmp_path / "leader", **settings)


def test_a_full_store_keeps_nobody_from_its_seed(
    volume: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that would wait, and compile for others, cannot say so."""
    node = Node(volume, "builder")
    node.tree.kernel("one")
    node.commit("seed")
    out_of_inodes(volume)
    settings: dict[str, Any] = {"store": node.location, "cache_root": tmp_path / "root", "strict": True, **SCOPE}
    report = kstore.restore("new", seed="seed", wait=600, **settings)
    assert (report.status, report.leads) == (RestoreStatus.SEEDED, False)
    assert "the lease of new cannot be written" in caplog.text


def test_a_full_cache_root_places_nothing_and_the_job_runs_cold(volume: Path, tmp_path: Path) -> None:
    writer = Node(tmp_path, "writer", layout="packed")
    for number in range(40):
        writer.tree.kernel(f"kernel{number}")
        writer.tree.put(f"inductor/aa/c{number}.py", bytes(60 << 10))
    writer.commit("m")
    fill(volume)
    root = volume / "root"
    report = kstore.restore("m", store=writer.location, cache_root=root, **SCOPE)

    assert report.status is RestoreStatus.FAILED
    assert "cache root" in report.error
    assert [path for path in root.rglob("*") if path.is_file() and path.parent.name != ".kstore"] == []


def test_a_full_folder_that_a_variable_names_is_what_is_blamed(volume: Path, tmp_path: Path) -> None:
    builder = Node(tmp_path, "builder")
    builder.tree.kernel()
    builder.commit()
    chosen = volume / "triton"
    chosen.mkdir()
    fill(volume)

    full = Node(tmp_path, "here", environ={"TRITON_CACHE_DIR": str(chosen)})
    with pytest.raises(CacheRootError, match=f"permissions of {chosen}, or set TRITON_CACHE_DIR to another") as caught:
        full.restore()
    assert str(full.tree.root) not in str(caught.value)


@pytest.mark.parametrize("left", [0, 8192])
def test_no_compiler_is_led_to_a_full_cache_root(volume: Path, tmp_path: Path, left: int) -> None:
    os.makedirs(volume / "root")
    fill(volume)
    os.truncate(volume / "filler", (volume / "filler").stat().st_size - left)
    environ: dict[str, str] = {}
    node = Node(tmp_path, "worker", environ=environ)
    with pytest.raises(CacheRootError, match="No space left on device; set KSTORE_CACHE_ROOT"):
        Store(node.location, cache_root=volume / "root", environ=environ, **SCOPE).restore("m")

    assert not [name for name in environ if name.endswith("CACHE_DIR")]


def test_a_commit_with_nothing_new_needs_no_room_in_the_cache_root(volume: Path, layout: str, tmp_path: Path) -> None:
    tree = Tree(volume / "root")
    tree.kernel("one")
    store = Store(tmp_path / "store", cache_root=tree.root, layout=layout, environ={}, **SCOPE)
    assert store.commit("m").status is CommitStatus.COMMITTED
    fill(volume)
    assert store.commit("m").status is CommitStatus.UNCHANGED


@pytest.mark.parametrize("record", ["index", "base", "sync.json"])
def test_a_cache_root_without_room_for_what_is_remembered_is_restored(
    record: str, layout: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = (Node(tmp_path, name, layout=layout) for name in ("first", "second", "third"))
    first.tree.kernel("one")
    first.tree.timings({"one": 1})
    first.commit()
    third.restore()
    (remembered,) = (third.tree.root / ".kstore").glob(f"{record}*")
    hindrance = second.tree.root / ".kstore" / f"{remembered.name}.new"
    hindrance.mkdir(parents=True)

    report = second.restore()
    assert (report.status, report.left_out) == (RestoreStatus.RESTORED, 0)
    assert contents(second.tree.root).keys() == contents(first.tree.root).keys()
    (warning,) = caplog.messages
    assert str(hindrance).removesuffix(".new") in warning

    hindrance.rmdir()
    third.tree.kernel("one", "of other sources")
    third.tree.kernel("two")
    third.commit()
    second.tree.kernel("three")
    assert second.commit().new_files == len(SUFFIXES) + 1
    assert second.restore().left_out == 0
    assert second.commit().status is CommitStatus.UNCHANGED


def test_a_read_only_cache_root_is_left_and_no_variable_points_at_it(
    volume: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    remount(volume, "ro")
    report = kstore.restore("m", store=tmp_path / "store", cache_root=volume / "root", **SCOPE)

    assert report.status is RestoreStatus.FAILED
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_a_copy_needs_no_folder_but_the_store_it_writes(volume: Path) -> None:
    """In a container whose root filesystem is read-only, with a writable store: there is no place to link to."""
    source = Node(volume / "source", layout="packed")
    source.tree.kernel()
    source.commit()
    read_only = ["unshare", "--mount", "sh", "-c", 'mount -o remount,ro,bind / && exec "$@"', "sh"]
    command = [sys.executable, "-m", "kstore", "copy", source.location, volume / "target"]
    done = subprocess.run([*read_only, *command], capture_output=True, text=True, env={**os.environ, "TMPDIR": volume})

    assert done.returncode == 0, done.stderr
    assert list((volume / "target/packs").iterdir())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.EACCES, "Permission denied", "tmp/one", None, "packs/two"),
            "denied (packs/two); check the mount",
        ),
        (OSError(errno.ENOSPC, "No space left", "tmp/one"), "left (tmp/one); check the mount, its space"),
        (CannotPublish(errno.EPERM, "no hard link", "refs/one"), "link (refs/one); put the store on a filesystem"),
        (CannotPublish(errno.EIO, "no hard link", "refs/one"), "(refs/one); check the mount, its space and its perm"),
        (OSError(errno.EBADMSG, "Bad message", "refs/one"), "message (refs/one); check its filesystem (fsck)"),
        (OSError(errno.EMFILE, "Too many open files"), "open files; check the limits of this process"),
    ],
    ids=[
        "a name that cannot be linked",
        "a full disk",
        "a filesystem without links",
        "a server that may be away",
        "a corrupt file",
        "a limit of the process",
    ],
)
def test_trouble_with_a_store_names_what_is_to_be_looked_at(error: OSError, said: str) -> None:
    with pytest.raises(StoreUnavailable, match=re.escape(said)), reporting_trouble("/data/kstore", "commit to"):
        raise error


def test_a_component_whose_folder_cannot_be_made_costs_itself(tmp_path: Path, layout: str) -> None:
    builder, node = Node(tmp_path, "builder", layout=layout), Node(tmp_path, layout=layout)
    builder.tree.kernel()
    wrapper = builder.tree.wrapper()
    builder.commit()
    (tmp_path / "file").touch()
    node.environ["TRITON_CACHE_DIR"] = f"{tmp_path}/file/triton"
    for placed in (1, 0):
        report = node.restore()
        assert (report.placed, report.left_out) == (placed, 8)
        assert report.skipped == (("triton", f"{tmp_path}/file/triton cannot be written: Not a directory"),)
    assert contents(node.tree.root).keys() == {wrapper}


def test_a_full_store_that_offline_cannot_empty_is_not_told_to_use_offline(crowded: Node) -> None:
    room = Room()
    room.lacking = "No space left on device"
    report = collect(crowded, keep=1, dry_run=True)
    assert report.waiting.files
    report = replace(report, grace=0.0)
    assert re.search(r"delete: make room .*, and run gc$", str(full(crowded.store.storage, room, report)))
