"""Real filesystems of a test's own, on loop devices or in memory, mounted below its folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

MIB = 1 << 20
NFS_SERVER = Path("/proc/fs/nfsd/threads")
"""How many threads serve; 0 for none."""
_SERVER = "127.0.0.1"


@dataclass
class Volumes:
    """Mounts filesystems below `folder`. Closing `finalizers` unmounts them, which frees their loop devices."""

    folder: Path
    finalizers: ExitStack
    _made: list[Path] = field(default_factory=list)

    def make(self, kind: str) -> Path:
        """A new filesystem of one of the `KINDS`."""
        return KINDS[kind](self)

    def mount(self, *arguments: object) -> Path:
        """Mount something on a new folder: the arguments are those of mount(8), without the target."""
        target = self.folder / f"volume{len(self._made)}"
        self._made.append(target)
        return self.mount_on(target, *arguments)

    def mount_on(self, target: Path, *arguments: object) -> Path:
        """As `mount`, on a folder that is made for it."""
        if os.geteuid():
            pytest.skip("mounting needs root")
        target.mkdir(parents=True)
        _run("mount", *arguments, target)
        self.finalizers.callback(_unmount, target)
        return target

    def on_loop(self, size: int, program: str, *options: str, mount_options: str = "noatime") -> Path:
        """A filesystem in a sparse file of `size` bytes."""
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
        image = self.folder / f"image{len(self._made)}"
        with open(image, "wb") as file:
            file.truncate(size)
        _run(program, *options, image)
        return self.mount("-o", f"loop,{mount_options}", image)


def ext4(volumes: Volumes, *options: str, mount_options: str = "noatime") -> Path:
    return volumes.on_loop(64 * MIB, "mkfs.ext4", "-q", *options, mount_options=mount_options)


def _overlay(volumes: Volumes) -> Path:
    """On a filesystem of its own: a test that fills it must not fill the machine."""
    lower = ext4(volumes) / "lower"
    lower.mkdir()
    return overlay(volumes, lower)


def overlay(volumes: Volumes, lower: Path) -> Path:
    """A container of the image `lower`, whose overlay moves no folder of the image."""
    above = ext4(volumes)
    upper, work = above / "upper", above / "work"
    upper.mkdir()
    work.mkdir()
    return volumes.mount(
        "-t", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work},redirect_dir=off", "overlay"
    )


def nfs(volumes: Volumes, hosts: int = 1, options: str = "") -> list[Path]:
    """One folder as each of several hosts sees it: mounts of a server on this machine, each with a cache of its own."""
    if not NFS_SERVER.exists() or NFS_SERVER.read_text() == "0\n":
        pytest.skip("no NFS server runs here (tools/nfs starts a machine that has one)")
    export = f"{_SERVER}:{ext4(volumes)}"
    # As the root of all exports: the folders above it need not be on a filesystem that can be exported.
    _run("exportfs", "-o", "rw,no_root_squash,insecure,no_subtree_check,fsid=0", export)
    volumes.finalizers.callback(_run, "exportfs", "-u", export)
    return [volumes.mount("-t", "nfs4", "-o", f"nosharecache{options}", f"{_SERVER}:/") for _ in range(hosts)]


KINDS: dict[str, Callable[[Volumes], Path]] = {
    "ext4": ext4,
    # Inodes of 128 bytes have no room for fractions of a second.
    "ext4 with coarse times": lambda volumes: ext4(volumes, "-I", "128"),
    "xfs": lambda volumes: volumes.on_loop(320 * MIB, "mkfs.xfs", "-q", "-m", "reflink=1"),
    # Room is free again once a transaction is over, which takes half a minute by default.
    "btrfs": lambda volumes: volumes.on_loop(128 * MIB, "mkfs.btrfs", "-q", mount_options="noatime,commit=1"),
    "tmpfs": lambda volumes: volumes.mount("-t", "tmpfs", "-o", "size=64m", "tmpfs"),
    "overlay": _overlay,
}


def remount(volume: Path, options: str) -> None:
    _run("mount", "-o", f"remount,{options}", volume)


def corrupt(file: Path) -> None:
    """Damage the record that an ext4 on a loop device has of a file: whoever opens the file gets an error."""
    if shutil.which("debugfs") is None:
        pytest.skip("debugfs is not installed")
    (volume,) = (folder for folder in file.parents if os.path.ismount(folder) and folder.name.startswith("volume"))
    image, record = volume.with_name(volume.name.replace("volume", "image")), file.stat().st_ino
    _unmount(volume)
    _run("debugfs", "-w", "-R", f"set_inode_field <{record}> checksum 0x1234", image)
    _run("mount", "-o", "loop,noatime", image, volume)


def fill(volume: Path) -> Path:
    """Take all space that is left, without writing it. Only for small volumes, never for the machine's own disk."""
    found = os.statvfs(volume)
    assert found.f_blocks * found.f_frsize < 1 << 30 and os.path.ismount(volume)
    filler = volume / "filler"
    with open(filler, "wb", buffering=0) as file:
        size, at = 64 * MIB, 0
        while size >= 4096:
            try:
                os.posix_fallocate(file.fileno(), at, size)
                at += size
            except OSError:
                size //= 2
        os.lseek(file.fileno(), at, os.SEEK_SET)
        with pytest.raises(OSError):
            while True:
                file.write(bytes(512))
    return filler


def make_room(filler: Path) -> None:
    """Remove what took all space, and wait until the space is free: an NFS server keeps a file open for a while."""
    size = filler.stat().st_size
    filler.unlink()
    until = time.monotonic() + 60
    while (found := os.statvfs(filler.parent)).f_bavail * found.f_frsize < size / 2:
        assert time.monotonic() < until
        time.sleep(0.1)


def _unmount(volume: Path) -> None:
    """Unmount, once nothing goes on there: a thread may still look for something ahead, for which nobody waits."""
    until = time.monotonic() + 30
    while (done := _execute("umount", volume)).returncode:
        if "busy" not in done.stderr or time.monotonic() > until:
            raise RuntimeError(f"umount {volume}: {done.stderr.strip()}")
        time.sleep(0.1)


def _run(*command: object) -> None:
    done = _execute(*command)
    if done.returncode:
        pytest.skip(f"cannot be made here: {' '.join(map(str, command[:4]))}: {done.stderr.strip()}")


def _execute(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, check=False)
