from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from kstore.blobs.loose import stamp
from kstore.digest import digest_of
from kstore.local.link import Link, Linker, LinkMode, probe
from kstore.published.manifest import Entry

pytestmark = pytest.mark.usefixtures("plain_calls")


@pytest.fixture
def blob(tmp_path: Path) -> Path:
    path = tmp_path / "blob"
    path.write_bytes(b"content")
    path.chmod(0o444)
    os.utime(path, ns=(0, 1_700_000_000_000_000_000 + stamp(digest_of(b"content"))))
    return path


def link_to(target: Path, blob: Path, mode: int = 0o644) -> Link:
    return Link(str(blob), str(target), Entry(digest_of(b"content"), len(b"content"), 0, mode, 0, 0))


def link(linker: Linker, blob: Path, target: Path, mode: int = 0o644) -> LinkMode:
    (way,) = linker.link_many([link_to(target, blob, mode)])
    return way


def refuse_clones(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def ioctl(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "ioctl", ioctl)


def refuse_links(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def link(source: str, target: str) -> None:
        raise OSError(code, os.strerror(code), target)

    monkeypatch.setattr(os, "link", link)


def test_without_clones_a_file_is_linked(blob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_clones(monkeypatch, errno.EOPNOTSUPP)
    linker = Linker()
    assert link(linker, blob, tmp_path / "target") is LinkMode.HARDLINK
    assert (tmp_path / "target").samefile(blob)
    assert linker.mode is LinkMode.HARDLINK
    assert linker.why == "no reflink: Operation not supported"


@pytest.mark.parametrize("code", [errno.EXDEV, errno.ENOTSUP, errno.ENOSYS, errno.ENOTTY, errno.EINVAL])
def test_what_cannot_work_here_is_tried_once(
    blob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_clones(monkeypatch, code)
    refuse_links(monkeypatch, code)
    linker = Linker()
    assert link(linker, blob, tmp_path / "target") is LinkMode.COPY
    assert linker.mode is LinkMode.COPY
    assert os.strerror(code) in linker.why
    monkeypatch.undo()
    assert link(linker, blob, tmp_path / "target") is LinkMode.COPY
    assert not (tmp_path / "target").exists()


OF_ONE_FILE = [
    errno.EMLINK, errno.EPERM, errno.EACCES, errno.EAGAIN, errno.ETXTBSY, errno.ENOENT, errno.ESTALE, errno.EIO,
    errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN,
]  # fmt: skip


@pytest.mark.parametrize("code", OF_ONE_FILE)
def test_what_concerns_one_file_costs_it_a_copy(
    blob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    linker = Linker(LinkMode.HARDLINK)
    with pytest.MonkeyPatch.context() as once:
        refuse_links(once, code)
        assert link(linker, blob, tmp_path / "one") is LinkMode.COPY
    assert linker.why == f"no hardlink of some files: {os.strerror(code)}"
    assert link(linker, blob, tmp_path / "two") is LinkMode.HARDLINK


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_what_a_copy_would_not_survive_either_is_raised(
    blob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_links(monkeypatch, code)
    with pytest.raises(OSError) as caught:
        link(Linker(LinkMode.HARDLINK), blob, tmp_path / "target")
    assert caught.value.errno == code


@pytest.mark.parametrize("best", LinkMode)
@pytest.mark.parametrize("failing", [0, 3, 9])
def test_only_files_in_trouble_are_copied(
    blob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best: LinkMode, failing: int
) -> None:
    """Each target exists if and only if it was linked."""
    refuse_clones(monkeypatch, errno.EOPNOTSUPP)
    targets = [tmp_path / f"target{number}" for number in range(10)]
    real = os.link

    def refuse_one(source: str, target: str) -> None:
        if target == str(targets[failing]):
            raise OSError(errno.EMLINK, "too many links", target)
        real(source, target)

    monkeypatch.setattr(os, "link", refuse_one)
    modes = Linker(best).link_many([link_to(target, blob) for target in targets])
    linked = LinkMode.COPY if best is LinkMode.COPY else LinkMode.HARDLINK
    assert modes == [LinkMode.COPY if number == failing else linked for number in range(10)]
    assert [os.path.exists(target) for target in targets] == [mode is not LinkMode.COPY for mode in modes]


def test_a_way_that_stops_working_is_given_up_in_the_middle(
    blob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [tmp_path / f"target{number}" for number in range(6)]
    real = os.link

    def cross_device(source: str, target: str) -> None:
        if Path(target) in targets[4:]:
            raise OSError(errno.EXDEV, "cross-device", target)
        real(source, target)

    monkeypatch.setattr(os, "link", cross_device)
    linker = Linker(LinkMode.HARDLINK)
    modes = linker.link_many([link_to(target, blob) for target in targets])
    assert modes == [LinkMode.HARDLINK] * 4 + [LinkMode.COPY] * 2
    assert linker.mode is LinkMode.COPY


def test_a_failed_clone_leaves_no_file(blob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_clones(monkeypatch, errno.EAGAIN)
    assert link(Linker(), blob, tmp_path / "target") is LinkMode.COPY
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_clone_that_cannot_be_opened_for_lack_of_a_descriptor_becomes_a_copy(
    blob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        raise OSError(code, os.strerror(code), path)

    linker = Linker()
    with pytest.MonkeyPatch.context() as once:
        once.setattr(os, "open", refuse)
        assert link(linker, blob, tmp_path / "one") is LinkMode.COPY
    assert linker.why == f"no reflink of some files: {os.strerror(code)}"
    monkeypatch.setattr(fcntl, "ioctl", lambda *arguments: 0)
    assert link(linker, blob, tmp_path / "two") is LinkMode.REFLINK


def test_a_failed_clone_that_somebody_has_removed_becomes_a_copy(
    blob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove_and_refuse(*arguments: object) -> None:
        (tmp_path / "target").unlink()
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(fcntl, "ioctl", remove_and_refuse)
    assert link(Linker(), blob, tmp_path / "target") is LinkMode.COPY


def test_a_clone_has_the_mode_asked_for_and_the_blobs_time(
    blob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the filesystem cannot clone, an ioctl that claims to have cloned shows what kstore does then."""
    monkeypatch.setattr(fcntl, "ioctl", lambda *arguments: 0)
    assert link(Linker(), blob, tmp_path / "target", 0o600) is LinkMode.REFLINK
    status = (tmp_path / "target").stat()
    assert status.st_mode & 0o777 == 0o600
    assert status.st_mtime_ns == blob.stat().st_mtime_ns


def test_a_probe_leaves_no_file(blob: Path, tmp_path: Path) -> None:
    assert probe(str(blob), str(tmp_path / "target")).mode in (LinkMode.REFLINK, LinkMode.HARDLINK)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("best", [LinkMode.REFLINK, LinkMode.HARDLINK])
def test_a_blob_that_was_altered_in_place_is_not_linked(
    blob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best: LinkMode
) -> None:
    monkeypatch.setattr(fcntl, "ioctl", lambda *arguments: 0)
    mtime_ns = blob.stat().st_mtime_ns
    linker = Linker(best)
    for content, time_ns in ((b"CONTENT", mtime_ns + 1), (b"longer content", mtime_ns), (b"CONTENT", 0)):
        blob.chmod(0o644)
        blob.write_bytes(content)
        os.utime(blob, ns=(0, time_ns))
        assert link(linker, blob, tmp_path / "target") is LinkMode.COPY
    assert linker.why == "", "others are linked as well as before"
    assert link(linker, tmp_path / "gone", tmp_path / "target") is LinkMode.COPY
    assert not (tmp_path / "target").exists()
    assert linker.mode is best


@pytest.mark.parametrize("best", [LinkMode.REFLINK, LinkMode.HARDLINK])
def test_a_blob_that_lost_its_stamp_is_linked_once_it_was_read(
    blob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best: LinkMode
) -> None:
    """For example in copied stores, and on filesystems with coarse times. Blobs beside it are linked as well."""
    monkeypatch.setattr(fcntl, "ioctl", lambda *arguments: 0)
    stamped = tmp_path / "stamped"
    stamped.write_bytes(blob.read_bytes())
    os.utime(stamped, ns=(0, blob.stat().st_mtime_ns))
    os.utime(blob, ns=(0, 0))
    sources = [stamped, blob, stamped, blob, blob, stamped]
    links = [link_to(tmp_path / str(number), source) for number, source in enumerate(sources)]
    assert Linker(best).link_many(links) == [best] * 6
    assert all((tmp_path / str(number)).exists() for number in range(6))


@pytest.mark.parametrize("best", [LinkMode.REFLINK, LinkMode.HARDLINK])
def test_what_a_symbolic_link_leads_to_is_copied(blob: Path, tmp_path: Path, best: LinkMode) -> None:
    (tmp_path / "link").symlink_to(blob)
    assert link(Linker(best), tmp_path / "link", tmp_path / "target") is LinkMode.COPY
