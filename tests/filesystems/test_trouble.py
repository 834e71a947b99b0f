"""Limits and rules of real filesystems: each costs what it must, and no more."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kstore
from kstore.errors import StoreUnavailable
from kstore.local.link import LinkMode
from kstore.report import CommitStatus, RestoreStatus
from tests.filesystems.conformance import SETTINGS, Pair
from tests.filesystems.volumes import Volumes, corrupt, ext4, overlay, remount
from tests.trees import KEY, SUFFIXES, contents

pytestmark = pytest.mark.privileged

EXT4_MAX_LINKS = 65000
OTHER_USER = 12345
NO_CLONES = "no reflink: Operation not supported"


def test_a_blob_without_room_for_a_link_costs_its_own_file_a_copy(volumes: Volumes) -> None:
    volume = volumes.make("ext4")
    pair = Pair(volume, volume)
    pair.publish("loose")
    (wrapper,) = volume.glob("first/inductor/*/c*.py")
    (blob,) = (path for path in pair.store.glob("blobs/*/*") if path.read_bytes() == wrapper.read_bytes())
    (volume / "links").mkdir()
    for number in range(EXT4_MAX_LINKS - blob.stat().st_nlink):
        os.link(blob, volume / "links" / str(number))

    report = pair.worker("second").restore(KEY)
    assert (report.link_mode, report.link_why) == (
        LinkMode.HARDLINK, f"{NO_CLONES}; no hardlink of some files: Too many links",
    )  # fmt: skip
    assert pair.portable("second") == pair.portable("first")
    restored = {path.name: path.stat().st_nlink for path in (volume / "second").rglob("*") if path.is_file()}
    assert restored[wrapper.name] == 1
    assert restored["k.cubin"] > 1


def restored_by_another_user(pair: Pair) -> dict[str, object]:
    """The report of a worker that may read the store but not write it."""
    (pair.local / "second").mkdir()
    os.chown(pair.local / "second", OTHER_USER, OTHER_USER)
    code = (
        "import json, sys, kstore\n"
        "store, root, key, settings = sys.argv[1:]\n"
        "report = kstore.restore(key, store=store, cache_root=root, strict=True, **json.loads(settings))\n"
        "print(json.dumps(report.as_json()))"
    )
    # By the descriptor it gets past the folders that pytest keeps private, and by the capability it finds Python.
    volume = os.open(pair.local, os.O_RDONLY)
    here = f"/proc/self/fd/{volume}"
    pass_through = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    who = ("setpriv", f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups", *pass_through, "--")
    command = [*who, sys.executable, "-c", code, f"{here}/store", f"{here}/second", KEY, json.dumps(SETTINGS)]
    environ = os.environ | {"PYTHONPATH": str(Path(kstore.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/", pass_fds=(volume,), env=environ)
    os.close(volume)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("kind", "mode"), [("ext4", LinkMode.COPY), ("tmpfs", LinkMode.COPY), ("xfs", LinkMode.REFLINK)]
)
def test_another_users_blobs_are_cloned_or_copied(volumes: Volumes, kind: str, mode: LinkMode) -> None:
    """Linux refuses hard links to files that one could not write (fs.protected_hardlinks)."""
    if Path("/proc/sys/fs/protected_hardlinks").read_text().strip() != "1":
        pytest.skip("fs.protected_hardlinks is off")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    volume = volumes.make(kind)
    pair = Pair(volume, volume)
    pair.publish("loose")
    report = restored_by_another_user(pair)
    own_path = str(report["cache_root"]).encode()
    second = {path: data.replace(own_path, b"ROOT") for path, data in contents(volume / "second").items()}
    assert second == pair.portable("first")
    assert report["link_mode"] == mode
    if mode is LinkMode.COPY:
        assert report["link_why"] == f"{NO_CLONES}; no hardlink of some files: Operation not permitted"
    assert {path.stat().st_uid for path in (volume / "second").rglob("*")} == {OTHER_USER}


@pytest.mark.parametrize(("kind", "mode"), [("ext4", LinkMode.COPY), ("xfs", LinkMode.REFLINK)])
def test_a_store_that_is_mounted_read_only_beside_the_cache_root(volumes: Volumes, kind: str, mode: LinkMode) -> None:
    """As a container gets a volume: a hard link does not reach across two mounts of one filesystem; a clone does."""
    volume = volumes.make(kind)
    Pair(volume, volume).publish("loose")
    mounted = volumes.mount("--bind", volume)
    remount(mounted, "bind,ro")
    pair = Pair(mounted, volume)
    report = pair.worker("second").restore(KEY)
    assert report.link_mode is mode
    assert pair.portable("second") == pair.portable("first")
    pair.tree("second").kernel("two")
    failed = kstore.commit(KEY, store=pair.store, cache_root=volume / "second", environ={}, **SETTINGS)
    assert failed.status is CommitStatus.FAILED
    assert os.strerror(errno.EROFS) in failed.error


def test_a_ref_whose_record_on_the_disk_is_damaged_is_passed_over(volumes: Volumes) -> None:
    pair = Pair(volumes.make("ext4"), volumes.make("tmpfs"))
    pair.publish("loose")
    before = pair.portable("first")
    pair.tree("first").kernel("two")
    pair.worker("first", "loose").commit(KEY)
    store = pair.worker("first")
    corrupt(pair.store / store.storage.refs.get(store.scope(KEY), 2).name)

    assert pair.worker("second").restore(KEY).generation == 1
    assert pair.portable("second") == before
    assert store.commit(KEY).generation == 3
    assert pair.worker("third").restore(KEY).generation == 3
    assert pair.portable("third") == pair.portable("first")
    (damage,) = store.verify().damage
    assert "generation 2 of" in damage.reason and "is corrupt on its filesystem (Bad message)" in damage.reason
    with pytest.raises(StoreUnavailable, match="check its filesystem"):
        store.gc()


def test_a_filesystem_that_turns_read_only_under_a_store(volumes: Volumes) -> None:
    """As ext4 does after an error."""
    pair = Pair(volumes.make("ext4"), volumes.make("tmpfs"))
    pair.publish()
    remount(pair.shared, "ro")
    assert pair.worker("second").restore(KEY).ok
    assert pair.portable("second") == pair.portable("first")
    assert pair.worker("second").commit(KEY).status is CommitStatus.UNCHANGED


@pytest.mark.parametrize("layout", ["loose", "packed"])
def test_a_kernel_that_came_with_the_image_is_replaced(volumes: Volumes, layout: str) -> None:
    """In a container, whose overlay refuses to move a folder of its lower layer."""
    lower = volumes.make("ext4")
    image = Pair(lower, lower)
    image.tree("first").kernel("two")
    image.publish(layout)
    image.worker("second").restore(KEY)
    kernel = image.tree("first").kernel("one", "of other sources")
    image.worker("first", layout).commit(KEY)
    container = Pair(lower, overlay(volumes, lower))
    report = container.worker("second").restore(KEY)
    assert (report.status, report.left_out) == (RestoreStatus.RESTORED, 0)
    for suffix in SUFFIXES:
        path = f"{kernel}/k.{suffix}"
        assert container.tree("second").read(path) == image.tree("first").read(path)
    assert container.worker("second").restore(KEY).status is RestoreStatus.CURRENT


@pytest.mark.parametrize("layout", ["loose", "packed"])
@pytest.mark.parametrize("mounted", ["inductor", "triton", "flashinfer"])
@pytest.mark.parametrize("kind", ["tmpfs", "the same once more"])
def test_a_component_may_have_a_mount_of_its_own_in_the_cache_root(
    volumes: Volumes, layout: str, mounted: str, kind: str
) -> None:
    """As a pod's volumes may have; they may be folders of one disk."""
    volume = volumes.make("ext4")
    pair = Pair(volume, volume)
    pair.tree("first").put("flashinfer/.cache/flashinfer/0.2/build.ninja", b"rules")
    pair.publish(layout)
    (volume / "another one").mkdir()
    how = ("-t", "tmpfs", "tmpfs") if kind == "tmpfs" else ("--bind", volume / "another one")
    volumes.mount_on(volume / "second" / mounted, *how)
    for _ in range(2):
        report = pair.worker("second").restore(KEY)
        assert (report.ok, report.left_out, report.skipped) == (True, 0, ())
        assert pair.portable("second") == pair.portable("first")
        assert not (volume / "second" / mounted / ".kstore").exists()


@pytest.mark.parametrize("layout", ["loose", "packed"])
def test_a_cache_root_without_inodes_gets_nothing(volumes: Volumes, layout: str) -> None:
    pair = Pair(volumes.make("tmpfs"), ext4(volumes, "-N", "64"))
    elsewhere = Pair(pair.shared, pair.shared)
    for number in range(10):
        elsewhere.tree("first").kernel(f"kernel{number}")
    elsewhere.publish(layout)
    root = pair.local / "second"
    report = kstore.restore(KEY, store=pair.store, cache_root=root, environ={}, **SETTINGS)
    assert report.status is RestoreStatus.FAILED
    assert "check the space, inodes" in report.error
    assert contents(root) == {}
    assert [path.name for path in (root / ".kstore").iterdir() if path.name.startswith("stage")] == []


def test_a_store_without_inodes_takes_a_pack(volumes: Volumes) -> None:
    pair = Pair(ext4(volumes, "-N", "48"), volumes.make("tmpfs"))
    for number in range(10):
        pair.tree("first").kernel(f"kernel{number}")
    pair.publish("packed")
    pair.tree("first").kernel("another")
    for number in range(40):
        pair.tree("first").put(f"inductor/ab/c{number}.py", b"%d" % number)
    root = pair.local / "first"
    failed = kstore.commit(KEY, store=pair.store, cache_root=root, layout="loose", environ={}, **SETTINGS)
    assert failed.status is CommitStatus.FAILED
    assert os.strerror(errno.ENOSPC) in failed.error
    for path in pair.store.glob("blobs/*/*"):
        path.unlink()
    assert pair.worker("first", "packed").commit(KEY).status is CommitStatus.COMMITTED
    pair.worker("second").restore(KEY)
    assert pair.portable("second") == pair.portable("first")


def test_a_cache_root_that_forbids_execution_is_refused(volumes: Volumes, tmp_path: Path) -> None:
    """No compiler could load there what it builds; the job keeps the folders that it would have without kstore."""
    pair = Pair(tmp_path, tmp_path)
    pair.publish("loose")
    environ: dict[str, str] = {}
    root = ext4(volumes, mount_options="noexec") / "root"
    report = kstore.restore(KEY, store=pair.store, cache_root=root, environ=environ, **SETTINGS)
    assert report.status is RestoreStatus.FAILED
    assert "noexec" in report.error
    assert environ == {}
