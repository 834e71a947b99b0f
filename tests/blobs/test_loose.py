from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from kstore.backends import PosixBackend
from kstore.blobs.loose import LooseBlobs, bears_stamp, blob_name, blob_path, is_published, stamp
from kstore.digest import digest_of

CONTENTS = [b"", b"one", os.urandom(5 << 20)]


@pytest.fixture
def backend(tmp_path: Path) -> PosixBackend:
    return PosixBackend(tmp_path / "store")


@pytest.fixture
def loose(backend: PosixBackend) -> LooseBlobs:
    return LooseBlobs(backend)


def path_of(backend: PosixBackend, data: bytes) -> Path:
    return Path(backend.path(blob_name(digest_of(data))))


def alter(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def test_trouble_with_an_empty_blob_is_reported(loose: LooseBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no bytes that would tell that it was not read."""

    def fail(*asked: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    loose.put_many([(digest_of(b""), b"")])
    monkeypatch.setattr(PosixBackend, "get_many", fail)
    monkeypatch.setattr(PosixBackend, "get", fail)
    troubles: list[Exception] = []
    assert list(loose.fetch({digest_of(b""): 0}, troubles)) == []
    assert [getattr(error, "errno", 0) for error in troubles] == [errno.EIO]


@pytest.mark.parametrize("data", CONTENTS, ids=len)
def test_what_was_put_is_fetched(loose: LooseBlobs, data: bytes) -> None:
    digest = digest_of(data)
    assert loose.put_many([(digest, data)]) == [True]
    assert loose.has(digest, len(data))
    assert [(found, bytes(content)) for found, content in loose.fetch({digest: len(data)})] == [(digest, data)]


def test_a_blob_is_a_read_only_file_of_its_digest(backend: PosixBackend, loose: LooseBlobs) -> None:
    digest = digest_of(b"one")
    loose.put_many([(digest, b"one")])
    path = backend.root / "blobs" / digest.hex()[:2] / digest.hex()
    assert path.read_bytes() == b"one"
    assert path.stat().st_mode & 0o777 == 0o444


def test_putting_again_stores_nothing(backend: PosixBackend, loose: LooseBlobs) -> None:
    assert loose.put_many([(digest_of(b"one"), b"one")]) == [True]
    before = path_of(backend, b"one").stat()
    assert loose.put_many([(digest_of(b"one"), b"one")]) == [False]
    assert path_of(backend, b"one").stat() == before


def test_a_blob_of_another_size_counts_as_missing(loose: LooseBlobs) -> None:
    loose.put_many([(digest_of(b"one"), b"one")])
    assert not loose.has(digest_of(b"one"), 4)
    assert not loose.has(digest_of(b"two"), 3)
    assert loose.lacking({digest_of(b"one"): 4}) == {digest_of(b"one"): 4}


def test_a_blob_that_was_changed_is_not_relied_upon_and_one_whose_time_alone_was_is(
    backend: PosixBackend, loose: LooseBlobs
) -> None:
    one, two, three, four = (digest_of(data) for data in (b"one", b"two", b"three", b"four"))
    loose.put_many([(one, b"one"), (two, b"two"), (three, b"three")])
    alter(path_of(backend, b"two"), b"owt")
    os.utime(path_of(backend, b"three"), (1, 1))
    assert loose.unreliable({one: 3, two: 3, three: 5, four: 4}) == ({four: 4}, {two})


def test_the_missing_ones_of_many_blobs_are_found(loose: LooseBlobs) -> None:
    blobs = [(digest_of(data), data) for data in (b"%d" % number for number in range(3000))]
    loose.put_many(blobs[::2])
    sizes = {digest: len(data) for digest, data in blobs}
    assert list(loose.lacking(sizes).items()) == [(digest, len(data)) for digest, data in blobs[1::2]]


def test_missing_and_damaged_blobs_are_left_out(backend: PosixBackend, loose: LooseBlobs) -> None:
    for data in (b"one", b"two", b"three"):
        loose.put_many([(digest_of(data), data)])
    alter(path_of(backend, b"two"), b"owt")
    wanted = {digest_of(data): len(data) for data in (b"one", b"two", b"three", b"four")}
    assert [bytes(data) for _, data in loose.fetch(wanted)] == [b"one", b"three"]


def test_a_blob_that_cannot_be_read_is_left_out(backend: PosixBackend, loose: LooseBlobs) -> None:
    for data in (b"one", b"two"):
        loose.put_many([(digest_of(data), data)])
    path = path_of(backend, b"one")
    path.unlink()
    path.mkdir()
    assert [bytes(data) for _, data in loose.fetch({digest_of(b"one"): 3, digest_of(b"two"): 3})] == [b"two"]


# ---- The stamp: one stat tells an untouched blob from an altered one.


@pytest.mark.parametrize("data", [b"", b"one", b"two"])
def test_a_blob_bears_its_stamp(backend: PosixBackend, loose: LooseBlobs, data: bytes) -> None:
    digest = digest_of(data)
    loose.put_many([(digest, data)])
    mtime_ns = path_of(backend, data).stat().st_mtime_ns
    assert mtime_ns % 1_000_000_000 == stamp(digest)
    assert bears_stamp(mtime_ns, digest)
    assert not bears_stamp(mtime_ns + 1, digest)


def test_each_of_many_blobs_bears_its_own_stamp(backend: PosixBackend, loose: LooseBlobs) -> None:
    blobs = {digest_of(data): data for data in (b"one", b"two", b"three")}
    assert loose.put_many([*blobs.items()]) == [True] * 3
    assert loose.unreliable({digest: len(data) for digest, data in blobs.items()}) == ({}, set())
    times = {digest: backend.stat(blob_name(digest)).mtime_ns for digest in blobs}
    assert [digest for digest in blobs if not bears_stamp(times[digest], digest)] == []


def test_a_blob_that_replaces_one_cut_short_by_a_crash_bears_its_stamp(
    backend: PosixBackend, loose: LooseBlobs
) -> None:
    digest = digest_of(b"one")
    loose.put_many([(digest, b"one")])
    alter(path_of(backend, b"one"), b"o")
    assert loose.put_many([(digest, b"one")]) == [True]
    assert path_of(backend, b"one").stat().st_mtime_ns % 1_000_000_000 == stamp(digest)


def test_a_stamp_is_never_zero_nor_a_second() -> None:
    """A filesystem with whole seconds must not look as if it bore a stamp."""
    for first in (b"\0\0\0\0", b"\xff\xff\xff\xff", (999_999_999).to_bytes(4, "little")):
        digest = first + bytes(28)
        assert 0 < stamp(digest) < 1_000_000_000
        assert not bears_stamp(5_000_000_000, digest)


def test_its_file_is_known_by_its_digest(backend: PosixBackend, loose: LooseBlobs) -> None:
    assert loose.folder is not None
    assert Path(blob_path(loose.folder, digest_of(b"one"))) == path_of(backend, b"one")


def test_a_file_is_read_to_tell_whether_it_is_as_it_was_published(backend: PosixBackend, loose: LooseBlobs) -> None:
    digest = digest_of(b"one")
    path = path_of(backend, b"one")
    assert not is_published(str(path), digest, 3)
    loose.put_many([(digest, b"one")])
    os.utime(path, ns=(0, 0))  # a copied store, or a filesystem whose times are coarse
    assert is_published(str(path), digest, 3)
    assert not is_published(str(path), digest, 4)
    alter(path, b"eno")
    assert not is_published(str(path), digest, 3)


def test_reading_a_blob_leaves_no_trace(backend: PosixBackend, loose: LooseBlobs) -> None:
    """Access times tell which files a compiler has read, and a hard link has the blob's access time."""
    loose.put_many([(digest_of(b"one"), b"one")])
    path = path_of(backend, b"one")
    os.utime(path, ns=(0, 0))
    assert is_published(str(path), digest_of(b"one"), 3)
    assert path.stat().st_atime_ns == 0


def test_only_a_regular_file_can_be_a_blob(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("empty")
    found = {path.name: is_published(str(path), digest_of(b""), path.stat().st_size) for path in tmp_path.iterdir()}
    assert found == {"folder": False, "pipe": False, "link": False, "empty": True}
