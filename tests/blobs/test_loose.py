from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstore.backends import Child, PosixBackend
from kstore.blobs.loose import ASIDE, LooseBlobs, bears_stamp, blob_name, blob_path, is_published, stamp
from kstore.digest import digest_of
from tests.faults.reading import raising, unlistable

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


TROUBLES = [OSError(errno.EIO, os.strerror(errno.EIO)), MemoryError()]


@pytest.mark.parametrize("trouble", TROUBLES, ids=repr)
def test_trouble_with_an_empty_blob_is_reported(
    backend: PosixBackend, loose: LooseBlobs, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    """It has no bytes that would tell that it was not read."""
    loose.put_many([(digest_of(b""), b"")])
    monkeypatch.setattr(PosixBackend, "get_many", raising(trouble))
    monkeypatch.setattr(PosixBackend, "get", raising(trouble))
    troubles: list[Exception] = []
    assert list(loose.fetch({digest_of(b""): 0}, troubles)) == []
    assert troubles == [trouble]
    assert loose.unreliable({digest_of(b""): 0}) == ({}, set())  # Its time is right, so it is not read.
    os.utime(path_of(backend, b""), (1, 1))
    assert loose.unreliable({digest_of(b""): 0}) == ({}, {digest_of(b"")})


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


def test_a_blob_that_was_cut_short_is_not_here_whatever_its_time(backend: PosixBackend, loose: LooseBlobs) -> None:
    digest = digest_of(b"one")
    loose.put_many([(digest, b"one")])
    moment = path_of(backend, b"one").stat().st_mtime_ns
    alter(path_of(backend, b"one"), b"o")
    os.utime(path_of(backend, b"one"), ns=(moment, moment))
    assert loose.unreliable({digest: 3}) == ({digest: 3}, set())


@pytest.mark.parametrize("size", [0, 2, 4, 1 << 40])
def test_a_blob_that_is_wanted_with_another_size_is_left_out(loose: LooseBlobs, size: int) -> None:
    loose.put_many([(digest_of(b"one"), b"one")])
    assert list(loose.fetch({digest_of(b"one"): size})) == []


def test_a_blob_with_more_behind_it_is_damaged_and_no_more_than_that_is_read(
    backend: PosixBackend, loose: LooseBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths, get = list[int](), backend.get
    monkeypatch.setattr(backend, "get", lambda name, *part: lengths.append(part[1]) or get(name, *part))
    digest = digest_of(b"one")
    loose.put_many([(digest, b"one")])
    alter(path_of(backend, b"one"), b"one" * 1000)
    assert list(loose.fetch({digest: 3})) == []
    backend.move(blob_name(digest), f"{ASIDE}/{digest.hex()}.1")
    assert list(loose.fetch({digest: 3})) == []
    assert set(lengths) == {4}


def test_blobs_are_read_a_megabyte_at_a_time(
    backend: PosixBackend, loose: LooseBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = [os.urandom(300_000) for _ in range(8)] + [os.urandom(2 << 20)]
    asked, get_many = list[int](), backend.get_many
    loose.put_many([(digest_of(data), data) for data in contents])
    monkeypatch.setattr(
        backend, "get_many", lambda wanted: asked.append(sum(size for _, size in wanted)) or get_many(wanted)
    )
    assert [bytes(data) for _, data in loose.fetch({digest_of(data): len(data) for data in contents})] == contents
    assert asked == [900_000, 900_000, 600_000]


@pytest.mark.parametrize("returns", [False, True])
def test_a_blob_that_gc_has_put_aside_for_a_moment_is_fetched(
    backend: PosixBackend, loose: LooseBlobs, monkeypatch: pytest.MonkeyPatch, returns: bool
) -> None:
    digest, listed = digest_of(b"one"), backend.list
    loose.put_many([(digest, b"one")])
    backend.move(blob_name(digest), aside := f"{ASIDE}/{digest.hex()}.1")
    assert next(iter(loose.folders())) == [digest]

    def put_back(folder: str) -> Iterator[Child]:
        backend.move(aside, blob_name(digest))
        return listed(folder)

    if returns:
        monkeypatch.setattr(backend, "list", put_back)
    assert [bytes(data) for _, data in loose.fetch({digest: 3})] == [b"one"]


def test_a_folder_that_cannot_be_listed_is_an_error_unless_somebody_passes_over_it(
    backend: PosixBackend, loose: LooseBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = [digest_of(data) for data in (b"one", b"two")]
    loose.put_many([(digests[0], b"one"), (digests[1], b"two")])
    for name in ("README", "ab", digests[0].hex()[:-1]):
        backend.put(f"blobs/{digests[0].hex()[:2]}/{name}", b"")
    assert sorted(digest for folder in loose.folders() for digest in folder) == sorted(digests)
    bad = f"blobs/{digests[1].hex()[:2]}"
    unlistable(monkeypatch, bad)
    with pytest.raises(OSError, match="Input/output error"):
        list(loose.folders())
    passed = list[str]()
    found = [digest for folder in loose.folders(lambda folder, error: passed.append(folder)) for digest in folder]
    assert (found, passed) == ([digests[0]], [bad])


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


@pytest.mark.parametrize("trouble", TROUBLES, ids=repr)
def test_a_file_that_cannot_be_read_is_not_known_to_be_as_it_was_published(
    backend: PosixBackend, loose: LooseBlobs, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    loose.put_many([(digest_of(b"one"), b"one")])
    before = os.listdir("/proc/self/fd")
    assert is_published(str(path_of(backend, b"one")), digest_of(b"one"), 3)
    monkeypatch.setattr("kstore.blobs.loose.read_all", raising(trouble))
    assert not is_published(str(path_of(backend, b"one")), digest_of(b"one"), 3)
    assert len(os.listdir("/proc/self/fd")) == len(before)


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
