"""The contract of a backend. A test class per backend inherits it and offers a `backend` fixture."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from kstore.backends import Backend, Child, NewObject, StagingLost
from kstore.backends.base import STAGING, is_staged
from kstore.errors import UsageError
from tests.trees import in_processes

BAD_NAMES = ["", "/etc/passwd", "../x", "a/../../b", "a/../b", "a//b", "./a", "a/.", "a/", "a\0b"]


class BackendConformance:
    def test_put_many_creates_what_is_absent_and_leaves_what_is_there(self, backend: Backend) -> None:
        backend.put_if_absent("folder/two", b"first")
        objects = [NewObject(f"folder/{name}", name.encode()) for name in ("one", "two", "three")]
        assert backend.put_many(objects) == [True, False, True]
        assert [backend.get(item.name) for item in objects] == [b"one", b"first", b"three"]

    def test_what_was_put_is_got(self, backend: Backend) -> None:
        backend.put("folder/name", b"content")
        assert backend.get("folder/name") == b"content"

    def test_an_empty_object_is_an_object(self, backend: Backend) -> None:
        backend.put("empty", b"")
        assert backend.get("empty") == b""
        assert backend.stat("empty").size == 0

    @pytest.mark.parametrize(
        ("offset", "length", "expected"),
        [
            (0, 3, b"012"),
            (4, 3, b"456"),
            (8, 5, b"89"),
            (10, 1, b""),
            (99, 1, b""),
            (3, None, b"3456789"),
            (99, None, b""),
            (2, 0, b""),
            (4, 1 << 60, b"456789"),
        ],
    )
    def test_a_part_is_got_and_ends_with_the_object(
        self, backend: Backend, offset: int, length: int | None, expected: bytes
    ) -> None:
        backend.put("digits", b"0123456789")
        assert backend.get("digits", offset, length) == expected

    def test_many_whole_objects_are_got_by_their_sizes(self, backend: Backend) -> None:
        objects = {"folder/one": b"1", "folder/empty": b"", "two": b"22" * 5000}
        for name, data in objects.items():
            backend.put(name, data)
        assert backend.get_many([(name, len(data)) for name, data in objects.items()]) == [*objects.values()]
        assert backend.get_many([]) == []

    def test_many_are_got_without_objects_of_another_size_or_missing_ones(self, backend: Backend) -> None:
        backend.put("folder/name", b"content")
        wanted = [("folder/name", 6), ("folder/name", 8), ("missing", 0), ("folder", 0), ("folder/name", 7)]
        assert backend.get_many(wanted) == [None, None, None, None, b"content"]

    def test_parts_of_an_opened_object_are_read(self, backend: Backend) -> None:
        backend.put("folder/digits", b"0123456789")
        opened = backend.open("folder/digits")
        assert opened.size == 10
        assert [opened.read(*part) for part in ((0, 3), (4, 3), (8, 5), (10, 1), (99, 1), (2, 0), (4, 1 << 60))] == [
            b"012", b"456", b"89", b"", b"", b"", b"456789",
        ]  # fmt: skip

    def test_an_opened_object_stays_as_it_was(self, backend: Backend) -> None:
        backend.put("name", b"before")
        opened = backend.open("name")
        backend.put("name", b"after it")
        assert (opened.size, opened.read(0, 99)) == (6, b"before")
        backend.delete("name")
        assert opened.read(2, 2) == b"fo"

    def test_a_missing_object_cannot_be_opened(self, backend: Backend) -> None:
        backend.put("folder/name", b"")
        for name in ("missing", "folder", "folder/missing"):
            with pytest.raises(FileNotFoundError):
                backend.open(name)

    def test_an_object_that_is_written_out_is_as_it_was(self, backend: Backend) -> None:
        backend.write_out("folder/name")
        assert not [*backend.list("folder")]
        backend.put("folder/name", b"data")
        before = backend.stat("folder/name")
        backend.write_out("folder/name")
        assert (backend.get("folder/name"), backend.stat("folder/name")) == (b"data", before)

    def test_an_object_is_touched_by_the_storages_clock(self, backend: Backend) -> None:
        assert not backend.touch("folder/name")
        backend.put("folder/name", b"content")
        before = backend.stat("folder/name")
        time.sleep(0.05)
        assert backend.touch("folder/name")
        assert before.mtime_ns <= backend.stat("folder/name").mtime_ns <= backend.clock()
        assert backend.get("folder/name") == b"content"

    def test_whatever_is_looked_for_ahead_is_found_afterwards(self, backend: Backend) -> None:
        backend.look_ahead(["folder/name", "folder", "missing"])
        backend.put("folder/name", b"content")
        backend.look_ahead(["folder/name", "folder", "missing"])
        assert backend.get("folder/name") == b"content"
        assert [child.name for child in backend.list("folder")] == ["name"]

    def test_a_folder_that_is_made_ahead_holds_nothing_until_something_is_put_there(self, backend: Backend) -> None:
        for _ in range(2):
            backend.make_ahead("folder/inner")()
            assert list(backend.list("folder/inner")) == []
        backend.put("folder/inner/name", b"content")
        backend.make_ahead("folder/inner")
        assert backend.get("folder/inner/name") == b"content"

    def test_a_missing_object_is_not_found(self, backend: Backend) -> None:
        backend.put("folder/name", b"")
        for name in ("missing", "folder/missing", "no/such/folder"):
            with pytest.raises(FileNotFoundError):
                backend.get(name)
            with pytest.raises(FileNotFoundError):
                backend.stat(name)

    def test_a_folder_is_no_object(self, backend: Backend) -> None:
        backend.put("folder/name", b"")
        with pytest.raises(FileNotFoundError):
            backend.stat("folder")
        with pytest.raises(OSError):
            backend.get("folder")

    def test_put_replaces(self, backend: Backend) -> None:
        backend.put("mark", b"first and longer")
        backend.put("mark", b"second")
        assert backend.get("mark") == b"second"

    def test_put_if_absent_keeps_the_first(self, backend: Backend) -> None:
        assert backend.put_if_absent("refs/1", b"first")
        assert not backend.put_if_absent("refs/1", b"second")
        assert backend.get("refs/1") == b"first"

    def test_one_of_eight_threads_wins_a_name(self, backend: Backend) -> None:
        for attempt in range(20):
            together = Barrier(8)

            def write(number: int, attempt: int = attempt, together: Barrier = together) -> bool:
                together.wait()
                return backend.put_if_absent(f"race/{attempt}", f"{number}".encode())

            with ThreadPoolExecutor(8) as threads:
                won = list(threads.map(write, range(8)))
            assert won.count(True) == 1
            assert backend.get(f"race/{attempt}") == f"{won.index(True)}".encode()

    def test_one_of_four_processes_wins_each_name(self, backend: Backend) -> None:
        def write(number: int) -> list[bool]:
            return [backend.put_if_absent(f"race/{name}", f"{number}".encode()) for name in range(50)]

        won = in_processes(write, [(number,) for number in range(4)])
        for name, winners in enumerate(zip(*won, strict=True)):
            assert winners.count(True) == 1
            assert backend.get(f"race/{name}") == f"{winners.index(True)}".encode()

    def test_an_upload_appears_when_it_is_published(self, backend: Backend) -> None:
        with backend.upload() as upload:
            upload.write(b"one ")
            upload.write(memoryview(b"two"))
            assert list(backend.list("packs")) == []
            assert upload.publish("packs/id")
            assert backend.get("packs/id") == b"one two"
        assert backend.get("packs/id") == b"one two"

    def test_an_upload_that_is_not_published_leaves_nothing(self, backend: Backend) -> None:
        with backend.upload() as upload:
            upload.write(b"never")
        with pytest.raises(KeyError), backend.upload() as upload:
            upload.write(b"never")
            raise KeyError
        assert list(backend.list("tmp")) == []

    def test_an_upload_does_not_replace(self, backend: Backend) -> None:
        backend.put("packs/id", b"first")
        with backend.upload() as upload:
            upload.write(b"second")
            assert not upload.publish("packs/id")
        assert backend.get("packs/id") == b"first"

    def test_list_shows_the_direct_children(self, backend: Backend) -> None:
        for name in ("refs/a", "refs/sub/b", "refs/sub/deep/c", "other"):
            backend.put(name, b"")
        assert set(backend.list("refs")) == {Child("a", False), Child("sub", True)}
        assert {child.name for child in backend.list("")} >= {"refs", "other"}

    def test_a_missing_folder_has_no_children(self, backend: Backend) -> None:
        assert list(backend.list("nothing/here")) == []

    def test_an_object_has_no_children(self, backend: Backend) -> None:
        backend.put("file", b"")
        assert list(backend.list("file")) == []

    def test_names_with_a_leading_dot_are_not_listed(self, backend: Backend) -> None:
        backend.put("refs/.nfs0001", b"")
        backend.put("refs/1", b"")
        assert list(backend.list("refs")) == [Child("1", False)]

    def test_delete_removes_and_may_be_repeated(self, backend: Backend) -> None:
        backend.put("folder/name", b"")
        backend.delete("folder/name")
        backend.delete("folder/name")
        backend.delete("never/was")
        with pytest.raises(FileNotFoundError):
            backend.get("folder/name")

    def test_a_deleted_name_may_be_put_again(self, backend: Backend) -> None:
        backend.put_if_absent("name", b"first")
        backend.delete("name")
        assert backend.put_if_absent("name", b"second")
        assert backend.get("name") == b"second"

    def test_an_upload_is_staged_from_its_beginning_and_without_that_gets_no_name(self, backend: Backend) -> None:
        with backend.upload() as upload:
            upload.write(b"content")
            (staged,) = backend.list(STAGING)
            assert is_staged(staged.name)
            backend.delete(f"{STAGING}/{staged.name}")
            with pytest.raises(StagingLost):
                upload.publish("refs/1")
        assert list(backend.list("refs")) == []
        assert list(backend.list(STAGING)) == []

    def test_a_moved_object_has_its_new_name_only(self, backend: Backend) -> None:
        backend.put_if_absent("blobs/ab/name", b"content")
        backend.move("blobs/ab/name", "gc/aside/name")
        assert backend.get("gc/aside/name") == b"content"
        with pytest.raises(FileNotFoundError):
            backend.stat("blobs/ab/name")
        with pytest.raises(FileNotFoundError):
            backend.move("blobs/ab/name", "gc/aside/again")

    def test_an_object_that_took_the_name_of_one_still_there_differs_from_it(self, backend: Backend) -> None:
        backend.put_if_absent("name", b"same")
        first = backend.stat("name").inode
        backend.move("name", "aside")
        backend.put_if_absent("name", b"same")
        assert first == backend.stat("aside").inode != backend.stat("name").inode

    def test_stat_tells_size_and_time(self, backend: Backend) -> None:
        before = time.time_ns()
        backend.put("name", b"12345")
        found = backend.stat("name")
        assert found.size == 5
        assert abs(found.mtime_ns - before) < 60 * 10**9

    def test_many_objects_are_looked_at_at_once(self, backend: Backend) -> None:
        backend.put("folder/name", b"12345")
        backend.put("other", b"")
        found = backend.stat_many(["folder/name", "missing", "folder", "folder/missing", "other"])
        assert found == [backend.stat("folder/name"), None, None, None, backend.stat("other")]
        assert backend.stat_many([]) == []

    def test_the_clock_is_that_of_new_objects(self, backend: Backend) -> None:
        backend.put("before", b"")
        now = backend.clock()
        backend.put("after", b"")
        assert backend.stat("before").mtime_ns <= now <= backend.stat("after").mtime_ns

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_a_name_that_leaves_the_store_is_refused(self, backend: Backend, name: str) -> None:
        uses = [backend.get, backend.stat, backend.delete, lambda name: backend.put(name, b"never")]
        uses.append(lambda name: backend.stat_many([name]))
        uses.append(lambda name: backend.put_if_absent(name, b"never"))
        for use in uses:
            with pytest.raises(UsageError):
                use(name)

    @pytest.mark.parametrize("name", BAD_NAMES)
    @pytest.mark.parametrize("at", range(3))
    def test_nothing_is_done_with_many_names_if_one_of_them_leaves_the_store(
        self, backend: Backend, name: str, at: int
    ) -> None:
        names = ["folder/one", "two"]
        names.insert(at, name)
        uses = [backend.stat_many, lambda names: backend.get_many([(name, 1) for name in names])]
        uses.append(lambda names: backend.put_many([NewObject(name, b"never") for name in names]))
        for use in uses:
            with pytest.raises(UsageError, match="is not a relative name"):
                use(names)
        assert backend.stat_many(["folder/one", "two"]) == [None, None]

    @pytest.mark.parametrize("name", BAD_NAMES[1:])
    def test_a_folder_outside_the_store_is_not_listed(self, backend: Backend, name: str) -> None:
        with pytest.raises(UsageError):
            list(backend.list(name))

    def test_a_big_object_comes_back_whole(self, backend: Backend) -> None:
        data = os.urandom(1 << 20) * 40
        assert backend.put_if_absent("big", data)
        assert backend.stat("big").size == len(data)
        assert backend.get("big") == data
        assert backend.get("big", 30 << 20, 1 << 20) == data[: 1 << 20]

    def test_writers_in_many_processes_do_not_disturb_each_other(self, backend: Backend) -> None:
        def write(number: int) -> bool:
            names = [f"blobs/{name % 7}/{number}-{name}" for name in range(40)]
            return all(backend.put_if_absent(name, name.encode() * 100) for name in names)

        assert in_processes(write, [(number,) for number in range(4)]) == [True] * 4
        for number in range(4):
            for name in (f"blobs/{name % 7}/{number}-{name}" for name in range(40)):
                assert backend.get(name) == name.encode() * 100
        assert list(backend.list("tmp")) == []

    def test_readers_never_see_half_of_a_replacement(self, backend: Backend) -> None:
        versions = [bytes([65 + number]) * 200_000 for number in range(4)]
        backend.put("mark", versions[0])

        def work(number: int) -> bool:
            if number:
                return all(backend.get("mark") in versions for _ in range(150))
            for turn in range(60):
                backend.put("mark", versions[turn % 4])
            return True

        assert in_processes(work, [(number,) for number in range(3)]) == [True] * 3
