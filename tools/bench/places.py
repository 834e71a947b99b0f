"""Where a round works: filesystems of its own, new for each round and removed after it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from kstore.environment import gpu_slug

GLUSTER = Path(__file__).parents[1] / "gluster"
_FAR_US = 2000
"""Microseconds: what a call to a file server in a cloud takes."""
_IMAGE_BYTES = 24 << 30
_SMALL_IMAGE_BYTES = 320 << 20
"""XFS cannot be much smaller."""
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_MAKE = {
    # Nothing is left for the kernel to do in the background while something is measured.
    "ext4": ["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0,assume_storage_prezeroed=1"],
    "xfs": ["mkfs.xfs", "-q", "-m", "reflink=1"],
}


class Absent(Exception):
    """Something is not available here, for the reason given."""


@dataclass(frozen=True, slots=True)
class Place:
    """A filesystem that is shared, and one for the workers' own files."""

    filesystem: str
    """The shared filesystem, described for people."""
    mounts: tuple[Path, ...]
    """The shared filesystem as each host sees it."""
    local: Path
    """Where workers have their caches."""

    def shared(self, host: int) -> Path:
        """The shared filesystem as a host sees it. With a single mount, all hosts are the same one."""
        return self.mounts[host % len(self.mounts)]


def folder_name(column: str) -> str:
    """What something that belongs to a column of a table is called on disk."""
    return column.replace(" ", "-").replace(",", "")


@contextmanager
def open_place(kind: str, work: Path) -> Iterator[Place]:
    """A new place of a kind: `local`, `xfs`, `gluster`, or `far`, a `gluster` with slow calls. Raises Absent."""
    folder = Path(tempfile.mkdtemp(prefix="place-", dir=work))
    try:
        with _KINDS[kind](folder) as place:
            yield place
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def nvidia_gpu() -> str:
    """kstore's name for this machine's GPU; empty if it is not NVIDIA's or there is none."""
    slug = gpu_slug()
    return slug if slug.startswith("nvidia-") else ""


def can_drop() -> bool:
    """Whether the page cache can be dropped."""
    return os.access(_DROP_CACHES, os.W_OK)


def drop_page_cache() -> None:
    """Remove everything that was read or written from memory."""
    os.sync()
    _DROP_CACHES.write_text("3\n")


@contextmanager
def _local(folder: Path) -> Iterator[Place]:
    """An ext4 of its own on a loop device; without root, the folder's filesystem as it is."""
    if reason := _why_no_loop("ext4", folder.parent):
        yield Place(f"{filesystem_of(folder)} ({reason})", (_made(folder / "shared"),), _made(folder / "local"))
        return
    with _on_loop("ext4", folder) as volume:
        where = f"ext4 on a loop device on {filesystem_of(folder)}"
        yield Place(where, (_made(volume / "shared"),), _made(volume / "local"))


@contextmanager
def _xfs(folder: Path) -> Iterator[Place]:
    if reason := _why_no_loop("xfs", folder.parent):
        raise Absent(f"xfs: {reason}")
    with _on_loop("xfs", folder) as volume:
        where = f"XFS with reflinks on a loop device on {filesystem_of(folder)}"
        yield Place(where, (_made(volume / "shared"),), _made(volume / "local"))


@contextmanager
def _gluster(folder: Path, delay_us: int = 0) -> Iterator[Place]:
    """Bricks on the folder's filesystem; workers' files where a local place has them."""
    version = _gluster_version()
    volume = folder / "gluster"
    try:
        _run(str(GLUSTER), "up", str(volume), str(delay_us))
    except RuntimeError as error:
        raise Absent(str(error)) from error
    try:
        with _local(folder) as own:
            bricks = f"{version}, three replicas on loopback, bricks on {filesystem_of(folder)}, two mounts"
            bricks += f", each call to a brick {delay_us / 1000:g} ms slower" if delay_us else ""
            where = f"{bricks}; workers' files on {own.filesystem}"
            yield Place(where, (volume / "host0", volume / "host1"), own.local)
    finally:
        _run(str(GLUSTER), "down", str(volume))


_KINDS: dict[str, Callable[[Path], AbstractContextManager[Place]]] = {
    "local": _local,
    "xfs": _xfs,
    "gluster": _gluster,
    "far": partial(_gluster, delay_us=_FAR_US),
}


@cache
def _gluster_version() -> str:
    done = subprocess.run([GLUSTER, "version"], capture_output=True, text=True)
    if done.returncode:
        raise Absent(done.stderr.strip())
    return done.stdout.strip().replace("glusterfs", "GlusterFS")


@contextmanager
def _on_loop(kind: str, folder: Path, size: int = _IMAGE_BYTES) -> Iterator[Path]:
    image, volume = folder / "image", _made(folder / "volume")
    with image.open("wb") as file:
        file.truncate(size)
    _run(*_MAKE[kind], str(image))
    _run("mount", "-o", "loop,noatime", str(image), str(volume))
    try:
        yield volume
    finally:
        try:
            _run("umount", str(volume))
        except RuntimeError:  # A process still uses it: it is unmounted when that ends.
            _run("umount", "-l", str(volume))
        image.unlink()


@cache
def _why_no_loop(kind: str, work: Path) -> str:
    """Why there can be no filesystem of its own; empty if there can. Root in a container often may not mount one."""
    if os.geteuid():
        return "not root, so no filesystem of its own"
    if shutil.which(_MAKE[kind][0]) is None:
        return f"{_MAKE[kind][0]} is not installed"
    try:
        with tempfile.TemporaryDirectory(dir=work) as folder, _on_loop(kind, Path(folder), _SMALL_IMAGE_BYTES):
            return ""
    except (RuntimeError, OSError) as error:
        return f"no filesystem of its own: {error}"


@cache
def filesystem_of(path: Path) -> str:
    """The name of a filesystem's type."""
    done = subprocess.run(["stat", "-f", "-c", "%T", str(path)], capture_output=True, text=True, check=True)
    return done.stdout.strip().replace("ext2/ext3", "ext4")


def _made(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
