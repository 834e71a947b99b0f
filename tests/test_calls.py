from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kstore import calls
from kstore.blobs.loose import blob_path, stamp
from kstore.calls import Look, NewFile, Status, native, plain
from kstore.calls.plain import call_each
from kstore.digest import digest_of
from kstore.files import write_files
from kstore.folders import make_folders
from kstore.published.manifest import Entry, Files, pack_entries
from tests.trees import in_processes, without_nameless

Way = Callable[[list[str], list[str], Iterable[Look]], memoryview]


@pytest.fixture(params=[native, plain], ids=["native", "plain"], autouse=True)
def chosen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to make the calls behave the same."""
    monkeypatch.setattr(calls, "_calls", request.param)


def make(folder: Path, *names: str) -> list[str]:
    for name in names:
        (folder / name).write_bytes(os.fsencode(name))
    return [str(folder / name) for name in names]


def test_links_are_made_until_one_cannot_be(tmp_path: Path) -> None:
    sources = make(tmp_path, "a", "b", "c")
    targets = [str(tmp_path / name) for name in ("1", "gone/2", "3")]
    assert calls.link_first(sources, targets) == (1, errno.ENOENT)
    assert os.path.samefile(sources[0], targets[0])
    assert not os.path.exists(targets[2])
    assert calls.link_first(sources[1:], [targets[0], targets[2]]) == (0, errno.EEXIST)
    assert calls.link_first(sources[2:], targets[2:]) == (1, 0)
    assert calls.link_first([], []) == (0, 0)


def test_only_what_has_not_changed_is_linked(tmp_path: Path) -> None:
    sources = make(tmp_path, "a", "bb", "c", "d")
    for path in sources:
        os.utime(path, ns=(0, 5_000_000_007))
    targets = [str(tmp_path / name) for name in ("1", "2", "gone/3", "4")]
    looks = [(1, 7, 0), (1, 7, 0), (1, 7, 0), (1, 8, 0)]
    assert list(calls.link_each(sources, targets, looks)) == [0, calls.CHANGED, errno.ENOENT, calls.CHANGED]
    assert os.path.samefile(sources[0], targets[0])
    assert not any(map(os.path.exists, targets[1:]))
    assert list(calls.link_each(sources[:2], targets[:2], [(1, 7, 0), (2, 7, 0)])) == [errno.EEXIST, 0]
    assert list(calls.link_each([], [], [])) == []


@pytest.mark.parametrize("way", [calls.link_each, calls.clone_each])
def test_a_source_that_is_not_a_file_counts_as_changed(tmp_path: Path, way: Way) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(*make(tmp_path, "a"))
    there = {name: os.lstat(tmp_path / name) for name in ("folder", "link")}
    looks = {name: (found.st_size, found.st_mtime_ns % 1_000_000_000, 0o600) for name, found in there.items()}
    looks |= {"gone": (0, 0, 0o600), "a": ((1 << 64) - 1, 0, 0o600)}
    sources = [str(tmp_path / name) for name in looks]
    targets = [f"{source}.target" for source in sources]
    assert list(way(sources, targets, looks.values())) == [calls.CHANGED] * 4
    assert not any(map(os.path.lexists, targets))


@pytest.mark.parametrize("way", [calls.link_each, calls.clone_each])
@pytest.mark.parametrize("counts", [(1, 1, 0), (1, 0, 1), (0, 1, 1), (1, 1, 2)])
def test_a_target_and_a_look_are_needed_for_each(tmp_path: Path, way: Way, counts: tuple[int, int, int]) -> None:
    sources, targets, looks = counts
    with pytest.raises(ValueError):
        way([str(tmp_path / "a")] * sources, [str(tmp_path / "b")] * targets, [(0, 0, 0)] * looks)


def rows(folder: Path, *flags: int) -> tuple[list[str], bytes]:
    """Paths and records of loose blobs in `folder`, one for each of these flags."""
    entries: Files = {}
    for number, flag in enumerate(flags):
        data = b"%d" % number
        path = Path(blob_path(str(folder), digest_of(data)))
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        os.utime(path, ns=(0, 5_000_000_000 + stamp(digest_of(data))))
        entries[f"c/{number}"] = Entry(digest_of(data), len(data), 0, 0o640, flag, 0)
    return [*entries], b"".join(pack_entries(entries.values()))


def test_only_rows_of_a_manifest_that_have_the_flags_are_linked(tmp_path: Path) -> None:
    paths, records = rows(tmp_path / "blobs", 1, 2, 3, 5, 1)
    Path(blob_path(str(tmp_path / "blobs"), digest_of(b"4"))).unlink()
    (tmp_path / "stage/c").mkdir(parents=True)
    found = calls.link_rows(
        paths, records, str(tmp_path / "blobs"), str(tmp_path / "stage"), needed=1, refused=4, clones=False
    )
    assert list(found) == [0, calls.SKIPPED, 0, calls.SKIPPED, calls.CHANGED]
    assert sorted(os.listdir(tmp_path / "stage/c")) == ["0", "2"]
    for number in (0, 2):
        blob = blob_path(str(tmp_path / "blobs"), digest_of(b"%d" % number))
        assert os.path.samefile(blob, tmp_path / f"stage/c/{number}")


def test_rows_that_cannot_be_linked_say_why(tmp_path: Path) -> None:
    paths, records = rows(tmp_path / "blobs", 1, 1, 1, 1)
    os.utime(blob_path(str(tmp_path / "blobs"), digest_of(b"1")), ns=(0, 0))
    Path(blob_path(str(tmp_path / "blobs"), digest_of(b"2"))).write_bytes(b"longer")
    (tmp_path / "stage/c").mkdir(parents=True)
    paths[3] = "gone/3"
    make(tmp_path / "stage/c", "0")
    blobs, stage = str(tmp_path / "blobs"), str(tmp_path / "stage")
    found = calls.link_rows(paths, records, blobs, stage, needed=1, refused=0, clones=False)
    assert list(found) == [errno.EEXIST, calls.CHANGED, calls.CHANGED, errno.ENOENT]
    with pytest.raises(ValueError):
        calls.link_rows(paths[1:], records, blobs, stage, needed=1, refused=0, clones=False)


def test_rows_that_cannot_be_cloned_say_why(tmp_path: Path) -> None:
    """Nothing can be cloned from one filesystem to another: each row says so, and none leaves a file."""
    paths, records = rows(tmp_path / "blobs", 1, 1)
    with TemporaryDirectory(dir="/dev/shm") as memory:
        os.mkdir(f"{memory}/c")
        found = calls.link_rows(paths, records, str(tmp_path / "blobs"), memory, needed=1, refused=0, clones=True)
        assert {*found} <= {errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL}
        assert os.listdir(f"{memory}/c") == []


def test_the_contents_of_rows_are_written_with_their_modes_and_stamps(tmp_path: Path) -> None:
    paths, records = rows(tmp_path / "blobs", 1, 1, 1)
    (tmp_path / "stage/c").mkdir(parents=True)
    contents: list[bytes | memoryview] = [b"0", memoryview(b"content")[3:], bytes(5 << 20)]
    assert calls.write_rows(paths, records, contents, str(tmp_path / "stage"), second_ns=7 * 10**9) == (3, 0)
    for number, data in enumerate(contents):
        path = tmp_path / f"stage/c/{number}"
        found = path.stat()
        assert path.read_bytes() == data
        assert stat.S_IMODE(found.st_mode) == 0o640
        assert (found.st_mtime_ns, found.st_atime_ns) == (7 * 10**9 + stamp(digest_of(b"%d" % number)), 7 * 10**9)


@pytest.mark.parametrize("trouble", [errno.EEXIST, errno.ENOENT, errno.EFBIG])
def test_rows_are_written_until_one_cannot_be_which_leaves_no_file(tmp_path: Path, trouble: int) -> None:
    paths, records = rows(tmp_path / "blobs", 1, 1, 1)
    (tmp_path / "stage/c").mkdir(parents=True)
    there = make(tmp_path / "stage/c", "1") if trouble == errno.EEXIST else []
    paths[1] = "gone/1" if trouble == errno.ENOENT else paths[1]
    limits, stage = resource.getrlimit(resource.RLIMIT_FSIZE), str(tmp_path / "stage")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # A full disk looks the same.
    try:
        found = calls.write_rows(paths, records, [b"0", bytes(2000), b"2"], stage, second_ns=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert found == (1, trouble)
    assert sorted(os.listdir(tmp_path / "stage/c")) == ["0", "1"][: 1 + len(there)]
    assert all(Path(path).read_text() == "1" for path in there)


def test_contents_and_a_record_are_needed_for_each_row(tmp_path: Path) -> None:
    paths, records = rows(tmp_path / "blobs", 1, 1)
    stage = str(tmp_path)
    for columns in ((paths, records, [b"0"]), (paths[1:], records, [b"0", b"1"]), (paths, records[:52], [b"0", b"1"])):
        with pytest.raises(ValueError):
            calls.write_rows(*columns, stage, second_ns=0)
    (tmp_path / "c").mkdir()
    with pytest.raises(TypeError):
        calls.write_rows(paths, records, ["0", "1"], stage, second_ns=0)  # type: ignore[list-item]
    assert os.listdir(tmp_path / "c") == []
    assert calls.write_rows([], b"", [], stage, second_ns=0) == (0, 0)


def test_each_clone_has_its_error_and_a_failed_one_leaves_no_file(tmp_path: Path) -> None:
    """Nothing can be cloned into memory, nor from one filesystem to another."""
    sources = make(tmp_path, "a", "bb", "c", "d")
    for path in sources:
        os.utime(path, ns=(0, 5_000_000_007))
    with TemporaryDirectory(dir="/dev/shm") as memory:
        targets = [f"{memory}/{name}" for name in ("1", "2", "gone/3", "there")]
        Path(targets[3]).write_text("this one stays")
        errors = list(calls.clone_each(sources, targets, [(1, 7, 0o600), (1, 7, 0o600), (1, 7, 0o600), (1, 7, 0o600)]))
        assert errors[1:] == [calls.CHANGED, errno.ENOENT, errno.EEXIST]
        assert errors[0] in (errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL)
        assert os.listdir(memory) == ["there"]


def test_a_source_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (source,) = make(tmp_path, "a")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        errors = list(calls.clone_each([source], [f"{source}.target"], [(1, 0, 0o600)]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert errors == [errno.EMFILE]


def test_each_folder_has_its_error(tmp_path: Path) -> None:
    make(tmp_path, "file")
    paths = [str(tmp_path / name) for name in ("a", "gone/b", "file", "file/c", "a/d")]
    assert list(calls.mkdir_each(paths)) == [0, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, 0]
    assert os.path.isdir(paths[-1])


def test_folders_are_listed_with_what_is_in_them(tmp_path: Path) -> None:
    names = ["a", "b b", os.fsdecode(b"\xff"), "é", *(f"{number:0200}" for number in range(300))]
    make(tmp_path, *names)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "dangling").symlink_to("gone")
    paths = [str(tmp_path), str(tmp_path / "gone"), str(tmp_path / "a"), str(tmp_path / "link")]
    whole, gone, file, link = calls.list_each(paths)
    assert (whole.status, link.status) == (Status.of(os.stat(tmp_path)), Status.of(os.stat(tmp_path / "folder")))
    found = dict(whole.entries())
    assert found == {name: Status.of(os.lstat(tmp_path / name)) for name in os.listdir(tmp_path)}
    assert found.keys() == {*names, "folder", "link", "dangling"}
    assert (gone.status.error, file.status.error) == (errno.ENOENT, errno.ENOTDIR)
    assert [list(listing.entries()) for listing in (gone, file, link)] == [[], [], []]
    assert calls.list_each([]) == []


def test_each_name_is_removed_separately(tmp_path: Path) -> None:
    paths = [*make(tmp_path, "a"), str(tmp_path / "gone"), *make(tmp_path, "b")]
    assert list(calls.unlink_each(paths)) == [0, errno.ENOENT, 0]
    assert not any(tmp_path.iterdir())


def test_files_of_known_sizes_are_read(tmp_path: Path) -> None:
    contents = [b"", b"a", b"more" * 1000, bytes(5 << 20)]
    paths = [str(tmp_path / str(number)) for number in range(4)]
    for path, data in zip(paths, contents, strict=True):
        Path(path).write_bytes(data)
        os.utime(path, ns=(1, 5))
    read, statuses = calls.read_each(paths, [*map(len, contents)])
    assert read == contents
    assert statuses == [Status.of(os.stat(path)) for path in paths]
    assert {os.stat(path).st_atime_ns for path in paths} == {1}  # the reads went unnoticed
    assert calls.read_each([], []) == ([], [])


def test_a_file_that_is_not_as_expected_has_an_error_instead(tmp_path: Path) -> None:
    (there,) = make(tmp_path, "there")
    (tmp_path / "link").symlink_to("there")
    os.mkfifo(tmp_path / "pipe")
    names = {"there": 5, "link": 5, "pipe": 0, "gone": 1, ".": 4096}
    paths = [str(tmp_path / name) for name in names]
    contents, statuses = calls.read_each(paths, [*names.values()])
    whole, link, pipe, gone, folder = (status.error for status in statuses)
    assert contents == [b"there", b"", b"", b"", b""]
    assert (whole, link, gone) == (0, errno.ELOOP, errno.ENOENT)
    assert pipe and folder
    assert [status.error for status in calls.read_each([there] * 3, [4, 6, 0])[1]] == [errno.EAGAIN] * 3


def test_a_file_that_changes_while_it_is_read_is_not_taken(tmp_path: Path) -> None:
    """Somebody writes to it all the time."""
    path = tmp_path / "growing"
    path.write_bytes(bytes(1 << 20))
    with open(path, "r+b") as file:
        done = threading.Event()

        def write() -> None:
            while not done.is_set():
                file.seek(0)
                file.write(os.urandom(1) * (1 << 20))
                file.flush()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            errors = (status.error for _ in range(10_000) for status in calls.read_each([str(path)], [1 << 20])[1])
            assert errno.EAGAIN in errors
        finally:
            done.set()
            writer.join()


@pytest.mark.parametrize("mtime_ns", [1, 1_700_000_000_123_456_789, -1, -1_500_000_000])
def test_times_are_set_to_the_nanosecond(tmp_path: Path, mtime_ns: int) -> None:
    (path,) = make(tmp_path, "a")
    assert list(calls.utime_each([path, str(tmp_path / "gone")], 7, mtime_ns)) == [0, errno.ENOENT]
    found = os.stat(path)
    assert (found.st_atime_ns, found.st_mtime_ns) == (7, mtime_ns)
    (status,) = calls.stat_each([path])
    assert status.mtime_ns == mtime_ns


def test_a_time_beyond_64_bits_of_nanoseconds_is_the_last_of_them(tmp_path: Path) -> None:
    (path,) = make(tmp_path, "a")
    os.utime(path, (0, 13_569_465_600))
    if os.stat(path).st_mtime != 13_569_465_600:
        pytest.skip("this filesystem has no times of the year 2400")
    (status,), (_, (read,)) = calls.stat_each([path]), calls.read_each([path], [1])
    assert status == read == Status.of(os.stat(path))
    assert status.mtime_ns == (1 << 63) - 1


def test_each_status_is_what_the_system_says(tmp_path: Path) -> None:
    paths = make(tmp_path, "a", "longer", "\udcff")
    (tmp_path / "link").symlink_to("longer")
    link = str(tmp_path / "link")
    every = [*paths, link, str(tmp_path), str(tmp_path / "gone")]
    *statuses, gone = calls.stat_each(every)
    for path, status in zip(every, statuses, strict=False):
        found = os.lstat(path)
        assert status == Status.of(found)
    assert gone.error == errno.ENOENT
    (followed,) = calls.stat_each([link], follows=True)
    assert stat.S_ISREG(followed.mode) and followed.size == len("longer")


def test_times_are_those_of_the_statuses_and_all_or_none(tmp_path: Path) -> None:
    make(tmp_path, "a", "b")
    (tmp_path / "link").symlink_to("a")
    fd = os.open(tmp_path, os.O_PATH)
    try:
        names = ["a", "b", "link", "."]
        for follows in (False, True):
            statuses = calls.stat_each([str(tmp_path / name) for name in names], follows=follows)
            expected = [time for status in statuses for time in (status.mtime_ns, status.ctime_ns)]
            found = calls.times_below("\0".join(names).encode(), fd, follows=follows)
            assert found and list(found) == expected
        assert calls.times_below(b"a\0gone", fd) is None
        assert calls.times_below(b"", fd) is None
    finally:
        os.close(fd)


@pytest.mark.parametrize("data", [b"content", memoryview(b"content")[2:], b"", bytes(5 << 20)])
def test_a_new_file_has_its_bytes_mode_and_time(tmp_path: Path, data: bytes | memoryview) -> None:
    stamped, plain_file = str(tmp_path / "a"), str(tmp_path / "b")
    assert calls.write_first([NewFile(stamped, data, 0o444, 10**18 + 5), NewFile(plain_file, data, 0o755, None)]) == (
        2,
        0,
    )
    found = os.stat(stamped)
    assert Path(stamped).read_bytes() == Path(plain_file).read_bytes() == bytes(data)
    assert (stat.S_IMODE(found.st_mode), stat.S_IMODE(os.stat(plain_file).st_mode)) == (0o444, 0o755)
    # If the stamp were the access time, it would look like a read.
    assert (found.st_mtime_ns, found.st_atime_ns) == (10**18 + 5, 10**18)


def test_a_file_that_exists_is_not_written(tmp_path: Path) -> None:
    (there,) = make(tmp_path, "there")
    with pytest.raises(FileExistsError) as caught:
        calls.write_first([NewFile(str(tmp_path / "a"), b"a", 0o644, None), NewFile(there, b"b", 0o644, None)])
    assert caught.value.filename == there
    assert Path(there).read_text() == "there"


def needs_nameless(folder: Path) -> None:
    """Only for the compiled calls, where there are files without a name."""
    if calls._calls is plain:
        assert calls.publish_first("/", []) == (memoryview(b"").cast("i"), errno.EOPNOTSUPP)
        pytest.skip("plain.py makes no files without a name")
    if reason := without_nameless(folder):
        pytest.skip(reason)


def test_what_is_published_is_there_with_all_that_it_has(tmp_path: Path) -> None:
    needs_nameless(tmp_path)
    (taken,) = make(tmp_path, "taken")
    files = [
        NewFile(str(tmp_path / "a"), b"content", 0o444, 10**18 + 5),
        NewFile(taken, b"other", 0o444, None),
        NewFile(str(tmp_path / "new/b"), memoryview(bytes(5 << 20)), 0o400, None),
    ]
    answers, error = calls.publish_first(str(tmp_path), files)
    assert (list(answers), error) == ([0, errno.EEXIST, 0], 0)
    found = os.stat(files[0].path)
    assert (found.st_mtime_ns, found.st_atime_ns, stat.S_IMODE(found.st_mode)) == (10**18 + 5, 10**18, 0o444)
    assert [Path(file.path).read_bytes() for file in files] == [b"content", b"taken", bytes(5 << 20)]
    assert sorted(os.listdir(tmp_path)) == ["a", "new", "taken"]


def test_publishing_ends_with_what_cannot_be(tmp_path: Path) -> None:
    needs_nameless(tmp_path)
    files = [NewFile(str(tmp_path / name), b"", 0o444, None) for name in ("a", "two/missing/folders", "b")]
    answers, error = calls.publish_first(str(tmp_path), files)
    assert (list(answers), error) == ([0], errno.ENOENT)
    assert calls.publish_first(str(tmp_path / "missing"), files)[1] == errno.ENOENT
    assert os.listdir(tmp_path) == ["a"]
    with pytest.raises(TypeError):
        calls.publish_first(str(tmp_path), [("b", "text", 0o444, None)])  # type: ignore[list-item]


def test_no_file_is_published_if_one_of_them_cannot_be_written(tmp_path: Path) -> None:
    """On a full disk they give back the space that they took."""
    needs_nameless(tmp_path)
    sizes = [*range(40), 2000, 1]
    files = [NewFile(str(tmp_path / str(at)), bytes(size), 0o444, None) for at, size in enumerate(sizes)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        answers, error = calls.publish_first(str(tmp_path), files)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (list(answers), error) == ([0] * 32, errno.EFBIG)
    assert {*os.listdir(tmp_path)} == {str(number) for number in range(32)}


def test_as_many_are_published_at_a_time_as_there_are_descriptors(tmp_path: Path) -> None:
    """In a process of its own, where no other test's thread has any descriptors."""
    needs_nameless(tmp_path)
    files = [NewFile(str(tmp_path / str(number)), b"content", 0o444, None) for number in range(20)]

    def publish() -> list[tuple[int, int]]:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = [os.dup(0) for _ in range(5)]  # They need not be consecutive.
        for descriptor in lowest:
            os.close(descriptor)
        found = list[tuple[int, int]]()
        try:
            for free in (1, 2, 5):
                resource.setrlimit(resource.RLIMIT_NOFILE, (lowest[free - 1] + 1, hard))
                answers, error = calls.publish_first(str(tmp_path), files)
                found.append((len(answers), error))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return found

    assert in_processes(publish, [()]) == [[(0, errno.EMFILE), (20, 0), (20, 0)]]
    assert len(os.listdir(tmp_path)) == 20


def test_the_user_nobody_may_publish() -> None:
    """Without the capability to name an open file directly."""
    needs_nameless(Path("/tmp"))
    if os.geteuid():
        pytest.skip("only root can become nobody")
    program = (
        "import os, sys; from kstore.calls import NewFile, publish_first; os.setgid(65534); os.setuid(65534);"
        "print(publish_first(sys.argv[1], [NewFile(sys.argv[1] + '/a', b'content', 0o444, None)])[1])"
    )
    with TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        answer = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True)
        assert answer.stdout == "0\n", answer.stderr
        assert (Path(folder) / "a").read_bytes() == b"content"


def test_a_file_too_large_for_its_limit_is_an_error(tmp_path: Path) -> None:
    """A full disk looks the same: a write that ends early, and then one that fails."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError) as caught:
            calls.write_first([NewFile(str(tmp_path / "a"), bytes(2000), 0o644, None)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG


def test_a_lack_of_descriptors_is_reported(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    files = [NewFile(str(tmp_path / "a"), b"a", 0o644, None)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        assert calls.write_first(files) == (0, errno.EMFILE)
        with pytest.raises(OSError, match="raise that limit"):
            write_files(files)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    write_files(files)


@pytest.mark.parametrize("wrong", [[b"\0", "a"], [None], ["a\0b"], 7])
def test_arguments_that_are_not_paths_are_refused(wrong: list[str]) -> None:
    with pytest.raises((TypeError, ValueError)):
        calls.mkdir_each(wrong)
    with pytest.raises((TypeError, ValueError)):
        calls.read_each(wrong, [1, 1])


@pytest.mark.parametrize("sizes", [[1], ["1", 1], None])
def test_arguments_that_are_not_sizes_are_refused(tmp_path: Path, sizes: list[int]) -> None:
    with pytest.raises((TypeError, ValueError)):
        native.read_each(make(tmp_path, "a", "b"), sizes)


def test_each_row_has_its_answer_or_its_error(tmp_path: Path) -> None:
    make(tmp_path, "a", "b")
    names = ["a", "gone", "also gone", "b", "gone too"]
    answers = call_each(os.path.getsize, [str(tmp_path / name) for name in names])
    assert [isinstance(answer, FileNotFoundError) for answer in answers] == [False, True, True, False, True]
    assert [answers[0], answers[3]] == [1, 1]


def test_an_error_that_is_not_of_the_system_ends_it() -> None:
    with pytest.raises(ZeroDivisionError):
        call_each(lambda number: 1 // number, [1, 0, 1])


def test_folders_are_made_where_some_are_there_already(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").touch()
    make_folders([str(tmp_path / name) for name in ("a", "a/b", "a/b/c", "a/d/e", "f")])
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_dir()} == {
        "a", "a/b", "a/b/c", "a/d", "a/d/e", "f",
    }  # fmt: skip
    assert (tmp_path / "a/b/file").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as caught:
        make_folders([str(tmp_path / "a"), str(tmp_path / "file/b"), str(tmp_path / "c")])
    assert caught.value.filename == str(tmp_path / "file/b")


def test_a_module_that_was_compiled_from_other_source_is_not_used() -> None:
    code = """
import sys, types
sys.modules["kstore.calls.native"] = types.ModuleType("kstore.calls.native")
import kstore.calls
print(kstore.calls.IS_COMPILED)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
