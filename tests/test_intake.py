"""A key's first commit uploads files while it reads them."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kstore.backends import Backend, PosixBackend, StagingLost
from kstore.blobs.loose import LooseBlobs, blob_name
from kstore.blobs.writers import LooseBlobWriter, PackedBlobWriter
from kstore.calls import plain
from kstore.condemned import Condemned, write_lists
from kstore.digest import digest_of
from kstore.errors import StoreUnavailable
from kstore.intake import _ROOM, _SMALL, Intake
from kstore.local import reading
from kstore.operations.commit import _Commit
from kstore.published.ref import folder_of
from kstore.report import CommitStatus
from tests.gc.stores import collect, pass_time
from tests.trees import KEY, Node, before_each_read, contents


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, layout="packed")


def in_packs(node: Node) -> set[bytes]:
    blobs = node.store.storage.blobs
    return blobs.digests_in(blobs.packs())


def needed(node: Node) -> set[bytes]:
    return {entry.digest for entry in node.published().values()} | node.newest().stored.keys()


@pytest.mark.parametrize("layout", ["packed", "loose"])
def test_each_file_is_read_once(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, layout=layout)
    node.tree.kernel()
    node.tree.put("inductor/ab/clarge.py", b"#" * (5 << 20))  # more than a frame of a pack
    opened = list[str]()
    real = os.open
    monkeypatch.setattr("kstore.calls._calls", plain)
    monkeypatch.setattr(os, "open", lambda path, *rest, **options: opened.append(path) or real(path, *rest, **options))
    node.commit()
    inside = [path for path in opened if str(path).startswith(f"{node.tree.root}/") and ".kstore" not in path]
    read = [path for path in inside if os.path.isfile(path)]  # Folders are read again once everything is old.
    assert len(read) == len(set(read)) == len(node.published()) == 9
    monkeypatch.undo()
    other = Node(tmp_path, "other")
    other.restore()
    assert contents(other.tree.root).keys() == contents(node.tree.root).keys()
    assert needed(node) == (in_packs(node) if layout == "packed" else loose(node))


def loose(node: Node) -> set[bytes]:
    return {digest for folder in node.store.storage.blobs.loose.folders() for digest in folder}


def while_reading(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Something happens once the first file is uploaded."""
    read = list[str]()

    def note(path: str) -> None:
        read.append(path)
        if len(read) == 2:
            happens()

    before_each_read(monkeypatch, note)


def with_a_kernel_each(node: Node, folder: Path) -> Node:
    """Another worker that has compiled the same kernel."""
    other = Node(folder, "other", layout="packed")
    for each in (node, other):
        each.tree.kernel()
    return other


def test_what_another_worker_publishes_meanwhile_is_not_stored_twice(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = with_a_kernel_each(node, tmp_path)
    wrapper = node.tree.wrapper()
    while_reading(monkeypatch, other.commit)
    report = node.commit()
    assert (report.generation, report.new_files, report.new_blobs) == (2, 1, 2)  # the wrapper, and the manifest
    assert wrapper in node.published()
    assert in_packs(node) == needed(node) | other.store.storage.refs.get(node.newest().scope, 1).stored.keys()


def test_a_file_that_changes_while_it_is_read_leaves_its_kernel_out(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, wrapper = node.tree.kernel(), node.tree.wrapper()
    while_reading(monkeypatch, (node.tree.root / kernel / "k.ptx").unlink)
    report = node.commit()
    assert list(node.published()) == [wrapper]
    assert [skipped.path for skipped in report.skipped] == [kernel]


@pytest.mark.parametrize(("missing", "more"), [("__grp__k.json", 0), ("k.cubin", 1)])
def test_at_most_its_list_is_uploaded_of_a_kernel_that_is_not_complete(node: Node, missing: str, more: int) -> None:
    kernel = node.tree.kernel()
    (node.tree.root / kernel / missing).unlink()
    node.tree.wrapper()
    node.commit()
    assert len(in_packs(node) - needed(node)) == more


def test_a_pack_that_was_begun_in_vain_leaves_nothing(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = with_a_kernel_each(node, tmp_path)
    while_reading(monkeypatch, other.commit)
    assert node.commit().new_files == 0
    assert in_packs(node) == needed(node)
    assert not any((node.location / "tmp").iterdir())


def test_loose_blobs_that_were_stored_in_vain_leave_no_place_reserved(
    linked: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Node(tmp_path, "other", layout="loose")
    for each in (linked, other):
        each.tree.kernel("new")
    while_reading(monkeypatch, other.commit)
    assert linked.commit().status is CommitStatus.UNCHANGED
    assert not any((linked.location / "tmp").iterdir())


def test_a_place_is_reserved_before_loose_blobs_are_stored(linked: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise gc would not know of this writer."""
    reserved, put = list[bool](), LooseBlobs.put_many

    def note_put(self: LooseBlobs, blobs: Sequence[tuple[bytes, bytes | memoryview]]) -> list[bool]:
        reserved.append(any((linked.location / "tmp").iterdir()))
        return put(self, blobs)

    monkeypatch.setattr(LooseBlobs, "put_many", note_put)
    linked.tree.kernel("new")
    linked.commit()
    assert reserved and all(reserved)


def test_what_several_files_hold_is_in_a_pack_once(node: Node) -> None:
    node.tree.kernel()
    for name in "abc":
        node.tree.put(f"inductor/{name}b/c{name}.py", b"the same")
    node.commit()
    (pack,) = node.store.storage.blobs.packs()
    assert [*node.store.storage.blobs.pack(pack).index.digests].count(digest_of(b"the same")) == 1


def test_small_files_are_kept_as_long_as_there_is_room(node: Node) -> None:
    node.commit()
    with Intake(node.store.worker(KEY, before_import=False)) as intake:
        for number in range(500):
            data = b"%d" % number + bytes(_SMALL - 10)
            intake.offer([(digest_of(data), data), (bytes(32), bytes(_SMALL + 1))], 0)
        assert bytes(32) not in intake.kept
        assert _ROOM - _SMALL < sum(map(len, intake.kept.values())) <= _ROOM


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_trouble_with_a_pack_that_is_not_needed_does_not_count(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Node(tmp_path, "other", layout="packed")
    for each in (node, other):
        each.tree.kernel()
    while_reading(monkeypatch, lambda: (other.commit(), monkeypatch.setattr(PackedBlobWriter, "put", full)))
    assert node.commit().status is CommitStatus.UNCHANGED
    assert not any((node.location / "tmp").iterdir())


def test_what_was_read_for_a_store_that_is_full_is_remembered(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.tree.kernel()
    wrapper = node.tree.wrapper()
    read = list[str]()
    before_each_read(monkeypatch, read.append)
    with monkeypatch.context() as patch:
        patch.setattr(PackedBlobWriter, "put", full)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="No space left"):
                node.commit()
    assert len(read) == 9 + 1  # a kernel's list is read whenever its folder is looked at
    node.commit()
    assert wrapper in node.published()


@pytest.fixture
def linked(tmp_path: Path) -> Node:
    """A worker that stores loose blobs, in a store that another key has been committed to."""
    before = Node(tmp_path, "before", layout="loose")
    before.tree.kernel("before")
    before.tree.wrapper("before")
    before.commit("before/v1")
    return Node(tmp_path, layout="loose")


def test_a_loose_blob_that_exists_is_not_stored_again(linked: Node) -> None:
    there = loose(linked)
    linked.tree.kernel("before")
    wrapper = linked.tree.wrapper("new")
    assert linked.commit().new_blobs == 2  # the wrapper, and the manifest
    assert loose(linked) - there == {linked.published()[wrapper].digest, linked.newest().manifest}


def test_a_loose_blob_is_stored_by_the_thread_that_has_read_it(linked: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = dict[str, int]()
    read, put = reading.read_each, LooseBlobs.put_many

    def note_read(paths: Sequence[str], sizes: Sequence[int]) -> Any:
        threads.update((os.path.basename(path), threading.get_ident()) for path in paths)
        return read(paths, sizes)

    def note_put(self: LooseBlobs, blobs: Sequence[tuple[bytes, bytes | memoryview]]) -> list[bool]:
        threads.update((digest.hex(), threading.get_ident()) for digest, _ in blobs)
        return put(self, blobs)

    monkeypatch.setattr(reading, "read_each", note_read)
    monkeypatch.setattr(LooseBlobs, "put_many", note_put)
    kernel, wrapper = linked.tree.kernel(), linked.tree.wrapper()
    linked.commit()
    published = {os.path.basename(path): entry.digest.hex() for path, entry in linked.published().items()}
    for name in ("k.cubin", os.path.basename(wrapper)):
        assert threads[name] == threads[published[name]]
    assert f"{kernel}/__grp__k.json" in linked.published()  # which is stored in another form


def test_what_several_files_hold_is_stored_once(linked: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = list[bytes]()
    put = LooseBlobs.put_many

    def note_put(self: LooseBlobs, blobs: Sequence[tuple[bytes, bytes | memoryview]]) -> list[bool]:
        stored.extend(digest for digest, _ in blobs)
        return put(self, blobs)

    monkeypatch.setattr(LooseBlobs, "put_many", note_put)
    linked.tree.kernel()
    for name in "abc":
        linked.tree.put(f"inductor/{name}b/c{name}.py", b"the same")
    linked.commit()
    assert stored.count(digest_of(b"the same")) == 1


@pytest.mark.parametrize("has_room_again", [False, True])
def test_what_no_such_thread_can_store_is_stored_later_or_said(
    has_room_again: bool, linked: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked.tree.kernel()
    wrapper = linked.tree.wrapper("new")
    real, wanted = LooseBlobs.put_many, digest_of(linked.tree.read(wrapper))
    failed = list[int]()

    def put_many(self: LooseBlobs, blobs: Sequence[tuple[bytes, bytes | memoryview]]) -> list[bool]:
        if wanted in dict(blobs) and not (failed and has_room_again):
            failed.append(threading.get_ident())
            full()
        return real(self, blobs)

    monkeypatch.setattr(LooseBlobs, "put_many", put_many)
    if not has_room_again:
        with pytest.raises(StoreUnavailable, match="No space left"):
            linked.commit()
        monkeypatch.undo()
    assert linked.commit().status is CommitStatus.COMMITTED
    other = Node(tmp_path, "other", layout="loose")
    other.restore()
    assert contents(other.tree.root).keys() == contents(linked.tree.root).keys()
    assert contents(other.tree.root)[wrapper] == contents(linked.tree.root)[wrapper]


def test_a_full_store_is_not_asked_again_for_each_file(linked: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each error holds what could not be stored: the whole root would be in memory."""
    asked = list[int]()
    monkeypatch.setattr(LooseBlobs, "put_many", lambda self, blobs: asked.append(len(blobs)) or full())
    monkeypatch.setattr(reading, "_COUNT", 1)
    linked.tree.kernel()
    for name in "abcdefghijklmnopqrstuvwxyz":
        linked.tree.wrapper(name)
    with pytest.raises(StoreUnavailable, match="No space left"):
        linked.commit()
    assert len(asked) < 6  # a list, one file of each thread, and all again, at most 128 at a time


def test_a_blob_that_somebody_has_changed_is_not_relied_upon(linked: Node, tmp_path: Path) -> None:
    wrapper = linked.tree.wrapper("before")
    for blob in (linked.location / "blobs").glob("*/*"):
        blob.chmod(0o644)
        blob.write_bytes(bytes(blob.stat().st_size))
    linked.commit()
    assert linked.published()[wrapper].digest in in_packs(linked)
    other = Node(tmp_path, "other", layout="loose")
    other.restore()
    assert contents(other.tree.root)[wrapper] == contents(linked.tree.root)[wrapper]


def test_no_name_is_taken_that_gc_has_condemned(linked: Node) -> None:
    linked.store.forget("before/v1")
    pass_time(linked)
    assert collect(linked, keep=1).condemned.files
    there = loose(linked)
    wrapper = linked.tree.wrapper("before")
    linked.commit()
    assert linked.published()[wrapper].digest in in_packs(linked) & there


@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_gc_condemns_while_files_are_read_is_not_relied_upon(
    linked: Node, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    linked.tree.kernel("new")
    backend, settle, stored = linked.store.storage.backend, LooseBlobWriter.settle, set[bytes]()

    def condemn(self: LooseBlobWriter) -> None:
        settle(self)
        stored.update(loose(linked))
        found = [(digest, backend.stat(blob_name(digest))) for digest in stored]
        write_lists(backend, [Condemned(False, digest, at.inode, at.mtime_ns, at.size) for digest, at in found])
        if is_damaged:
            backend.put("gc/condemned/list", b"garbage")

    monkeypatch.setattr(LooseBlobWriter, "settle", condemn)
    linked.commit()
    assert {entry.digest for entry in linked.published().values()} <= stored & in_packs(linked)


def test_a_commit_that_is_taken_for_dead_while_files_are_read_begins_again(
    linked: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked.tree.kernel("new")

    def gc_ends_writers() -> None:
        for staged in (linked.location / "tmp").iterdir():
            staged.unlink()

    while_reading(monkeypatch, gc_ends_writers)
    assert linked.commit().status is CommitStatus.COMMITTED
    assert needed(linked) <= loose(linked)
    assert not any((linked.location / "tmp").iterdir())


def test_a_blob_that_was_taken_from_who_seemed_dead_is_stored_again(
    linked: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where files have names before they are stored, as the files of a batch of loose blobs do."""
    linked.tree.kernel("new")
    all_is_merged, lost = threading.Event(), set[bytes]()
    real, settle = LooseBlobs.put_many, LooseBlobWriter.settle

    def put_many(self: LooseBlobs, blobs: Sequence[tuple[bytes, bytes | memoryview]]) -> list[bool]:
        if not lost and (found := {digest for digest, data in blobs if b"child_paths" in bytes(data)}):
            lost.update(found)
            all_is_merged.wait(60)
            raise StagingLost(errno.ENOENT, "gc took this writer for dead", "blobs")
        return real(self, blobs)

    monkeypatch.setattr(LooseBlobs, "put_many", put_many)
    monkeypatch.setattr(LooseBlobWriter, "settle", lambda self: all_is_merged.set() or settle(self))
    assert linked.commit().status is CommitStatus.COMMITTED
    assert lost
    assert lost <= needed(linked) <= loose(linked)


def test_an_empty_root_makes_no_store(node: Node) -> None:
    node.tree.root.mkdir()
    node.commit()
    assert not node.location.exists()


@pytest.mark.parametrize("layout", ["packed", "loose"])
def test_folders_are_made_while_a_keys_first_commit_reads(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far away, that takes as long as the upload."""
    made = list[str]()
    monkeypatch.setattr(PosixBackend, "make_ahead", lambda self, folder: made.append(folder) or (lambda: None))
    node = Node(tmp_path, layout=layout)
    assert node.commit().status is CommitStatus.UNCHANGED
    assert made == []
    for name in ("first", "second"):
        node.tree.kernel(name)
        assert node.commit().status is CommitStatus.COMMITTED
    assert made == [folder_of(node.store.scope(KEY)), *(["packs"] if layout == "packed" else [])]


@pytest.mark.parametrize("layout", ["packed", "loose"])
def test_what_was_read_is_stored_while_it_is_merged(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far away, what a merge asks the store for takes as long as compressing a model."""
    node, told = Node(tmp_path, layout=layout), list[str]()

    def tell(owner: type, name: str) -> None:
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *arguments: told.append(name) or real(*arguments))

    node.tree.kernel()
    tell(PackedBlobWriter if layout == "packed" else LooseBlobWriter, "flush")
    tell(_Commit, "run")
    assert node.commit().status is CommitStatus.COMMITTED
    assert told[:2] == ["flush", "run"]
    assert needed(node) == (in_packs(node) if layout == "packed" else loose(node))


@pytest.mark.parametrize("beside", [False, True])
def test_a_key_that_was_alone_does_not_look_for_keys_beside_it_again(
    beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is beside a key must be looked up again once a place for its ref is reserved, if any of it is relied on."""
    node, listed = Node(tmp_path, layout="packed"), list[str]()
    node.tree.kernel()
    if beside:
        other = Node(tmp_path, "other", layout="packed")
        other.tree.kernel()
        other.store.commit("model/before")
    real = PosixBackend.list
    monkeypatch.setattr(PosixBackend, "list", lambda self, folder: listed.append(folder) or real(self, folder))
    node.store.commit("model/after")
    parent, _, _ = folder_of(node.store.scope("model/after")).partition("/after/")
    assert (listed.count(parent) > 1) is beside


def test_nothing_is_written_once_a_commit_has_failed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store may be unmounted by then."""
    made = list[str]()

    def make_slowly(folder: str) -> None:
        time.sleep(0.2)
        made.append(folder)

    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    node.store.create()
    monkeypatch.setattr("kstore.backends.posix.make_folder", make_slowly)
    monkeypatch.setattr(PosixBackend, "upload", refuse)
    node.tree.kernel()
    with pytest.raises(StoreUnavailable):
        node.commit()
    assert sorted(made) == sorted(str(node.location / name) for name in (folder_of(node.store.scope(KEY)), "packs"))


def test_a_large_pack_is_compressed_less_for_it_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for limit_below in (0, 1):
        node = Node(tmp_path / str(limit_below), layout="packed")
        for name in "ab":
            node.tree.put(f"inductor/{name}b/c{name}.py", b"".join(b"%x\n" % (n * n) for n in range(ord(name), 20_000)))
        total = sum(path.stat().st_size for path in node.tree.root.rglob("*.py"))
        monkeypatch.setattr("kstore.blobs.packwriter._LARGE", total - limit_below)
        assert node.commit().new_files == 2
        (pack,) = node.store.storage.blobs.packs()
        sizes.append(node.store.storage.blobs.pack(pack).size)
    assert sizes[0] < sizes[1]


def test_of_a_pack_is_expected_what_it_will_hold_if_anybody_knows(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list[int]()
    real = PackedBlobWriter.__init__

    def note(self: PackedBlobWriter, backend: Backend, size: int = 0) -> None:
        expected.append(size)
        real(self, backend, size)

    monkeypatch.setattr(PackedBlobWriter, "__init__", note)
    node.tree.kernel("shared")
    node.commit()
    assert max(expected) == sum(len(content) for content in contents(node.tree.root).values())
    expected.clear()
    node.tree.put("inductor/ab/clater.py", b"#" * 1000)
    node.commit()
    assert max(expected) == 1000
    expected.clear()
    other = Node(tmp_path, "other", layout="packed")
    other.tree.kernel("shared")
    other.commit("model/v2")
    assert max(expected) == 0  # because the first key has much of it


@pytest.mark.parametrize("layout", ["packed", "loose"])
def test_there_is_a_folder_for_refs_before_anything_is_stored(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise gc, to which that is a server's denial, would fail beside a first commit, and after a killed one."""
    node = Node(tmp_path, layout=layout)
    node.tree.kernel()
    make_folder, there = PosixBackend.make_folder, list[bool]()

    def make_late(backend: PosixBackend, path: str) -> None:
        if "/refs/" in path:
            time.sleep(0.3)
        make_folder(backend, path)

    monkeypatch.setattr(PosixBackend, "make_folder", make_late)
    for owner, name in ((PosixBackend, "put_many"), (PosixBackend, "publish")):
        real = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *given, real=real: there.append((node.location / "refs").is_dir()) or real(*given)
        )
    assert node.commit().status is CommitStatus.COMMITTED
    assert there and all(there)
