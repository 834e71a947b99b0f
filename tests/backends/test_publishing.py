"""A finished file gets its name from one writer only, whatever the filesystem can do."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from kstore.backends import PosixBackend, StagingLost, posix, publishing

pytestmark = pytest.mark.usefixtures("plain_calls")


@pytest.fixture
def backend(tmp_path: Path) -> PosixBackend:
    return PosixBackend(tmp_path / "store")


def test_a_link_whose_reply_was_lost_has_succeeded(backend: PosixBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def link_and_lose_reply(source: str, target: str) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "exists", target)

    monkeypatch.setattr(os, "link", link_and_lose_reply)
    assert backend.put_if_absent("name", b"ours")
    assert backend.get("name") == b"ours"
    with pytest.MonkeyPatch.context() as plain:
        plain.setattr(os, "link", link)
        assert not backend.put_if_absent("name", b"theirs")


@pytest.mark.parametrize("is_anothers", [False, True])
@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EIO])
def test_without_hard_links_the_first_still_wins(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch, code: int, is_anothers: bool
) -> None:
    """Also where a server makes our files another user's."""

    def refuse(source: str, target: str) -> None:
        raise OSError(code, os.strerror(code), target)

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + is_anothers)
    backend.put("other", b"")
    assert backend.put_if_absent("name", b"first")
    assert not backend.put_if_absent("name", b"second")
    assert backend.put_if_absent("new/folder/name", b"third")
    assert backend.get("name") == b"first"
    assert os.listdir(backend.path("tmp")) == []


def test_where_our_files_are_another_users_they_are_linked_all_the_same(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS server may map users, and Linux lets nobody link another user's file that he may not write."""
    link, rename = os.link, publishing._rename_if_absent

    def link_ones_own(source: str, target: str) -> None:
        if not os.stat(source).st_mode & 0o200:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), source, None, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_ones_own)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(publishing, "_rename_if_absent", lambda *_: pytest.fail("it could be linked"))
    assert backend.put_if_absent("folder/name", b"first")
    assert not backend.put_if_absent("folder/name", b"second")
    assert backend.get("folder/name") == b"first"
    assert os.stat(backend.path("folder/name")).st_mode & 0o777 == 0o444
    assert os.listdir(backend.path("tmp")) == []

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), source, None, target)

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(publishing, "_rename_if_absent", rename)
    assert backend.put_if_absent("another", b"renamed")


def test_a_link_to_another_users_file_whose_reply_was_lost_has_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "staged").touch(0o444)
    link = os.link

    def lose_reply(source: str, target: str) -> None:
        if not os.stat(source).st_mode & 0o200:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), source, None, target)
        link(source, target)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), source, None, target)

    monkeypatch.setattr(os, "link", lose_reply)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert publishing.publish_file(f"{tmp_path}/staged", f"{tmp_path}/name")
    assert (tmp_path / "name").stat().st_mode & 0o777 == 0o444


def refuse_both(monkeypatch: pytest.MonkeyPatch, of_rename: int) -> None:
    """No hard link can be made, and a rename that never replaces fails with that error number."""

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), source, None, target)

    fail = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: ctypes.set_errno(of_rename) or -1)
    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(renameat2=lambda *_: fail()))


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM])
def test_where_neither_links_nor_such_renames_can_be_nothing_can_be_published(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_both(monkeypatch, code)
    with pytest.raises(publishing.CannotPublish) as caught:
        backend.put_if_absent("name", b"content")
    assert caught.value.errno == errno.EPERM  # that of the link
    assert "protected_hardlinks" not in str(caught.value)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(publishing.CannotPublish, match=f"files written here belong to user {os.getuid()}, see fs.prot"):
        backend.put_if_absent("name", b"content")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_other_trouble_with_such_a_rename_says_nothing_about_the_filesystem(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_both(monkeypatch, code)
    with pytest.raises(OSError) as caught:
        backend.put_if_absent("name", b"content")
    assert (type(caught.value), caught.value.errno) == (OSError, code)


@pytest.mark.parametrize(
    ("code", "is_gone", "raised"),
    [
        (errno.ENOENT, True, StagingLost),
        (errno.ESTALE, True, StagingLost),
        (errno.EIO, True, OSError),
        (errno.ENOENT, False, FileNotFoundError),
    ],
)
def test_only_what_is_gone_from_tmp_was_lost_there(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch, code: int, is_gone: bool, raised: type[OSError]
) -> None:
    codes = [errno.ENOENT, code]

    def fail(staged: str, target: str) -> bool:
        if is_gone and len(codes) == 1:
            os.unlink(staged)
        raise OSError(codes[0], os.strerror(codes.pop(0)), target)

    monkeypatch.setattr(posix, "publish_file", fail)
    with backend.upload() as upload, pytest.raises(OSError) as caught:
        upload.publish("folder/name")
    assert (type(caught.value), codes) == (raised, [])


def test_a_link_that_was_made_is_no_error_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "staged").touch()
    link = os.link

    def lose_reply(source: str, target: str) -> None:
        link(source, target)
        raise OSError(errno.EIO, os.strerror(errno.EIO), target)

    monkeypatch.setattr(os, "link", lose_reply)
    assert publishing.publish_file(f"{tmp_path}/staged", f"{tmp_path}/name")
    assert sorted(os.listdir(tmp_path)) == ["name", "staged"]


def test_another_error_of_a_link_is_raised(backend: PosixBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "no space", target)

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="no space"):
        backend.put_if_absent("name", b"content")
    assert os.listdir(backend.path("tmp")) == []
