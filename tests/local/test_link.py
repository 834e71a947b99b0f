from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from kstore.blobs.loose import BlobFile
from kstore.local.link import Link, Linker, LinkMode, probe

pytestmark = pytest.mark.usefixtures("plain_calls")


@pytest.fixture
def blob(tmp_path: Path) -> BlobFile:
    path = tmp_path / "blob"
    path.write_bytes(b"content")
    path.chmod(0o444)
    return BlobFile(str(path), path.stat().st_mtime_ns)


def link(linker: Linker, blob: BlobFile, target: str, mode: int) -> LinkMode:
    (way,) = linker.link_many([Link(blob, target, mode, "inductor/ab/c.py")])
    return way


def refuse_clones(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def ioctl(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "ioctl", ioctl)


def refuse_links(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def link(source: str, target: str) -> None:
        raise OSError(code, os.strerror(code), target)

    monkeypatch.setattr(os, "link", link)


def test_without_clones_a_file_is_linked(blob: BlobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_clones(monkeypatch, errno.EOPNOTSUPP)
    linker = Linker()
    assert link(linker, blob, str(tmp_path / "target"), 0o644) is LinkMode.HARDLINK
    assert (tmp_path / "target").samefile(blob.path)
    assert linker.mode is LinkMode.HARDLINK
    assert linker.why == "no reflink: Operation not supported"


@pytest.mark.parametrize("code", [errno.EXDEV, errno.ENOTSUP, errno.ENOSYS, errno.ENOTTY, errno.EINVAL])
def test_what_cannot_work_here_is_tried_once(
    blob: BlobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_clones(monkeypatch, code)
    refuse_links(monkeypatch, code)
    linker = Linker()
    assert link(linker, blob, str(tmp_path / "target"), 0o644) is LinkMode.COPY
    assert linker.mode is LinkMode.COPY
    assert os.strerror(code) in linker.why
    monkeypatch.undo()
    assert link(linker, blob, str(tmp_path / "target"), 0o644) is LinkMode.COPY
    assert not (tmp_path / "target").exists()


OF_ONE_FILE = [
    errno.EMLINK, errno.EPERM, errno.EACCES, errno.EAGAIN, errno.ETXTBSY, errno.ENOENT, errno.ESTALE, errno.EIO,
]  # fmt: skip


@pytest.mark.parametrize("code", OF_ONE_FILE)
def test_what_concerns_one_file_costs_it_a_copy(
    blob: BlobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    linker = Linker(LinkMode.HARDLINK)
    with pytest.MonkeyPatch.context() as once:
        refuse_links(once, code)
        assert link(linker, blob, str(tmp_path / "one"), 0o644) is LinkMode.COPY
    assert linker.why == f"no hardlink of some files: {os.strerror(code)}"
    assert link(linker, blob, str(tmp_path / "two"), 0o644) is LinkMode.HARDLINK


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_what_a_copy_would_not_survive_either_is_raised(
    blob: BlobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_links(monkeypatch, code)
    with pytest.raises(OSError) as caught:
        link(Linker(LinkMode.HARDLINK), blob, str(tmp_path / "target"), 0o644)
    assert caught.value.errno == code


@pytest.mark.parametrize("best", LinkMode)
@pytest.mark.parametrize("failing", [0, 3, 9])
def test_of_many_files_only_those_in_trouble_are_copied(
    blob: BlobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best: LinkMode, failing: int
) -> None:
    """Each target exists exactly if it was linked."""
    refuse_clones(monkeypatch, errno.EOPNOTSUPP)
    targets = [str(tmp_path / f"target{number}") for number in range(10)]
    real = os.link

    def refuse_one(source: str, target: str) -> None:
        if target == targets[failing]:
            raise OSError(errno.EMLINK, "too many links", target)
        real(source, target)

    monkeypatch.setattr(os, "link", refuse_one)
    modes = Linker(best).link_many([Link(blob, target, 0o644, "inductor/ab/c.py") for target in targets])
    linked = LinkMode.COPY if best is LinkMode.COPY else LinkMode.HARDLINK
    assert modes == [LinkMode.COPY if number == failing else linked for number in range(10)]
    assert [os.path.exists(target) for target in targets] == [mode is not LinkMode.COPY for mode in modes]


def test_a_way_that_stops_working_is_given_up_in_the_middle(
    blob: BlobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [str(tmp_path / f"target{number}") for number in range(6)]
    real = os.link

    def cross_device(source: str, target: str) -> None:
        if target in targets[4:]:
            raise OSError(errno.EXDEV, "cross-device", target)
        real(source, target)

    monkeypatch.setattr(os, "link", cross_device)
    linker = Linker(LinkMode.HARDLINK)
    modes = linker.link_many([Link(blob, target, 0o644, "inductor/ab/c.py") for target in targets])
    assert modes == [LinkMode.HARDLINK] * 4 + [LinkMode.COPY] * 2
    assert linker.mode is LinkMode.COPY


def test_a_failed_clone_leaves_no_file(blob: BlobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_clones(monkeypatch, errno.EAGAIN)
    assert link(Linker(), blob, str(tmp_path / "target"), 0o644) is LinkMode.COPY
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_clone_that_cannot_be_opened_for_want_of_a_descriptor_is_a_copy(
    blob: BlobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        raise OSError(code, os.strerror(code), path)

    linker = Linker()
    with pytest.MonkeyPatch.context() as once:
        once.setattr(os, "open", refuse)
        assert link(linker, blob, str(tmp_path / "one"), 0o644) is LinkMode.COPY
    monkeypatch.setattr(fcntl, "ioctl", lambda *arguments: 0)
    assert link(linker, blob, str(tmp_path / "two"), 0o644) is LinkMode.REFLINK


def test_a_clone_has_the_mode_asked_for_and_the_blobs_time(
    blob: BlobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the filesystem cannot clone, an ioctl that claims to have done so shows what is done about it."""
    monkeypatch.setattr(fcntl, "ioctl", lambda *arguments: 0)
    assert link(Linker(), blob, str(tmp_path / "target"), 0o600) is LinkMode.REFLINK
    status = (tmp_path / "target").stat()
    assert status.st_mode & 0o777 == 0o600
    assert status.st_mtime_ns == blob.mtime_ns


def test_a_probe_leaves_no_file(blob: BlobFile, tmp_path: Path) -> None:
    assert probe(blob.path, str(tmp_path / "target")).mode in (LinkMode.REFLINK, LinkMode.HARDLINK)
    assert not (tmp_path / "target").exists()
