"""Where artifacts are built, and what is said where they cannot be."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kstore.local.cacheroot import CacheRoot
from kstore.local.stages import cannot_write, find_elsewhere
from kstore.mounts import Mount


def root_of(folder: Path, **folders: Path) -> CacheRoot:
    named = {name: str(path) for name, path in folders.items()}
    return CacheRoot(str(folder), {"inductor": f"{folder}/inductor", **named}, {})


def mounted(monkeypatch: pytest.MonkeyPatch, *points: Path) -> None:
    monkeypatch.setattr("kstore.local.stages.mounts", lambda: [Mount(str(point), 0, "bind") for point in points])


def test_in_the_mount_of_the_root_nothing_is_elsewhere(tmp_path: Path) -> None:
    root = root_of(tmp_path / "root", triton=tmp_path / "root/triton")
    assert find_elsewhere(root, root.folders) == set()


def test_what_is_in_a_mount_of_its_own_is_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even on the same device: a rename cannot cross a bind mount."""
    root = root_of(tmp_path / "root", triton=tmp_path / "root/triton")
    Path(root.folders["triton"]).mkdir(parents=True)
    mounted(monkeypatch, Path("/"), tmp_path / "root/triton")
    assert find_elsewhere(root, root.folders) == {"triton"}


def test_what_is_outside_the_root_is_elsewhere_though_it_is_in_the_same_mount(tmp_path: Path) -> None:
    root = root_of(tmp_path / "root", triton=tmp_path / "user/triton")
    assert find_elsewhere(root, root.folders) == {"triton"}


def test_where_the_topmost_folder_is_no_mount_nothing_is_looked_for_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a chroot."""
    mounted(monkeypatch)
    root = root_of(tmp_path / "root", triton=tmp_path / "root/triton")
    assert find_elsewhere(root, root.folders) == set()


@pytest.mark.parametrize(
    ("path", "where", "variable"),
    [
        ("root/inductor/ab/one.py", "the cache root {}/root", "KSTORE_CACHE_ROOT"),
        ("user/triton/K/k.cubin", "{}/user/triton", "TRITON_CACHE_DIR"),
        ("user/triton", "{}/user/triton", "TRITON_CACHE_DIR"),
        ("user/triton-root/k.cubin", "the cache root {}/root", "KSTORE_CACHE_ROOT"),
    ],
    ids=["in the root", "in a component's folder outside", "that folder", "in one that is only named like it"],
)
def test_it_is_said_which_folder_to_look_at_and_what_leads_elsewhere(
    tmp_path: Path, path: str, where: str, variable: str
) -> None:
    root = root_of(tmp_path / "root", triton=tmp_path / "user/triton")
    said = cannot_write(root, OSError(errno.ENOSPC, "No space left on device", str(tmp_path / path)))
    assert f"cannot write {tmp_path / path}: No space left on device" in said
    assert f"permissions of {where.format(tmp_path)}, or set {variable} to" in said


def test_where_the_error_names_no_file_it_is_the_cache_root(tmp_path: Path) -> None:
    root = root_of(tmp_path / "root")
    assert f"cannot write {root.path}: " in cannot_write(root, OSError(errno.EDQUOT, "Disk quota exceeded"))
