from __future__ import annotations

import errno
import fcntl
import gc
import os
import struct
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import pytest

from kstore import folders
from kstore.blobs.loose import stamp
from kstore.calls import Listing, list_each
from kstore.components import load_table
from kstore.digest import digest_of
from kstore.local import clocks, scan
from kstore.local.finished import Unfinished, check_whole_object
from kstore.local.found import Listed, Part
from kstore.local.index import Index
from kstore.local.unread import Offer, StoreEach, Unread
from kstore.published.manifest import Flag
from tests.trees import HOUR, Tree, before_each_read, shared_object

GROUP_FILES = 8
TICK = 0.15
"""Seconds after which a time is trusted."""


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "root")


def test_an_empty_root_has_nothing(tree: Tree) -> None:
    assert tree.scan().files == {}


def test_files_are_found_by_component_and_path(tree: Tree) -> None:
    wrapper = tree.wrapper()
    entry = tree.scan().files[wrapper]
    assert entry.digest == digest_of(tree.read(wrapper))
    assert entry.size == len(tree.read(wrapper))
    assert entry.mode == 0o644
    assert entry.mtime_ns == (tree.root / wrapper).stat().st_mtime_ns
    assert Flag(entry.flags) == Flag.LINK


def test_names_that_are_not_text_are_found(tree: Tree) -> None:
    name = os.fsdecode(b"inductor/ab/caf\xe9.py")
    tree.put(name, b"code")
    assert list(tree.scan().files) == [name]


def test_executables_are_never_linked(tree: Tree) -> None:
    path = tree.put("inductor/ab/c.py", b"code", mode=0o755)
    assert not tree.scan().files[path].flags & Flag.LINK


def test_kstores_own_folder_is_not_scanned(tree: Tree) -> None:
    for folder in ("inductor", "inductor/ab", "inductor/new\nline"):
        tree.put(f"{folder}/.kstore/stage/c.py", b"code")
    tree.put(".kstore/base", b"state")
    assert tree.scan().files == {}


def test_ignored_files_and_folders_are_left_out(tree: Tree) -> None:
    for path in ("inductor/locks/c.lock", "inductor/ab/.1.2.tmp", "inductor/torch_cutlass/x.py", "triton/K/k.lock"):
        tree.put(path, b"junk")
    assert tree.scan().files == {}


# ---- Groups: all or nothing


def test_a_kernel_is_a_group(tree: Tree) -> None:
    kernel = tree.kernel()
    found = tree.scan()
    assert len(found.files) == GROUP_FILES
    assert {(Flag(entry.flags) & Flag.GROUP, entry.unit) for entry in found.files.values()} == {(Flag.GROUP, 2)}
    assert found.files[f"{kernel}/__grp__k.json"].flags & Flag.RELOCATE


def test_equal_kernels_in_different_places_have_equal_digests(tree: Tree, tmp_path: Path) -> None:
    other = Tree(tmp_path / "another/root")
    for each in (tree, other):
        each.kernel()
    digests = [{path: entry.digest for path, entry in each.scan().files.items()} for each in (tree, other)]
    assert digests[0] == digests[1]


def paths_in_order(tree: Tree, offer: Offer, read: list[bytes]) -> list[str]:
    """The files of four kernels as they were read, without the lists; `offer` notes the digests of what was `read`."""
    for number in range(4):
        tree.kernel(f"kernel {number}")
    files = scan.scan(tree.cacheroot(), load_table(), Index(), dict, offer=offer).files
    paths = {entry.digest: path for path, entry in files.items()}
    assert len(paths) == len(read) == 4 * GROUP_FILES
    return [paths[digest] for digest in read if "__grp__" not in paths[digest]]


def test_what_is_stored_by_itself_is_read_folder_by_folder(tree: Tree) -> None:
    read: list[bytes] = []

    def store(blobs: Sequence[tuple[bytes, bytes]]) -> None:
        read.extend(digest for digest, _ in blobs)

    def offer(blobs: Sequence[tuple[bytes, bytes]], _: int) -> StoreEach:
        store(blobs)
        return store

    folders = [path.rpartition("/")[0] for path in paths_in_order(tree, offer, read)]
    assert len([*groupby(folders)]) == 4


def test_what_goes_into_a_pack_is_read_by_similarity(tree: Tree) -> None:
    read: list[bytes] = []
    paths = paths_in_order(tree, lambda blobs, _: read.extend(digest for digest, _ in blobs), read)
    assert len([*groupby(path.rpartition(".")[2] for path in paths)]) == GROUP_FILES - 1


@pytest.mark.parametrize("layout", ["packed", "loose"])
def test_few_of_the_files_to_read_are_in_memory(tree: Tree, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """There may be a hundred thousand. What goes into a pack is sorted, and let go of when it was read."""
    left: list[int] = []

    def count(_: str) -> None:
        left.append(sum(isinstance(one, Unread) for one in gc.get_objects()))

    before_each_read(monkeypatch, count)
    for number in range(4):
        tree.kernel(f"kernel {number}")
    tree.scan(offer=lambda *_: (lambda _: None) if layout == "loose" else None)
    assert len(left) == 4 * GROUP_FILES
    on_their_way = 5
    assert left[-1] <= on_their_way
    assert layout == "packed" or max(left[4:]) <= on_their_way


def leave_out(tree: Tree, kernel: str, name: str) -> None:
    (tree.root / kernel / name).unlink()


def test_a_kernel_without_its_list_is_not_finished(tree: Tree) -> None:
    kernel = tree.kernel()
    leave_out(tree, kernel, "__grp__k.json")
    found = tree.scan()
    assert found.files == {}
    assert [tuple(skip) for skip in found.skipped] == [(kernel, "it is not finished")]


def test_a_kernel_that_lacks_a_listed_file_is_left_out(tree: Tree) -> None:
    kernel = tree.kernel()
    leave_out(tree, kernel, "k.cubin")
    found = tree.scan()
    assert found.files == {}
    assert "k.cubin, which does not exist" in found.skipped[0].reason


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"child_paths": {"a/b": "/x"}}', b'{"child_paths": 5}'])
def test_a_kernel_whose_list_is_garbage_is_left_out(tree: Tree, text: bytes) -> None:
    kernel = tree.kernel()
    tree.put(f"{kernel}/__grp__k.json", text)
    found = tree.scan()
    assert found.files == {}
    assert [skip.path for skip in found.skipped] == [kernel]


@pytest.mark.parametrize("name", ["tmp.pid_12_3f/k.ptx", "k.ptx.tmp.pid_12_3f"])
def test_a_kernel_that_is_being_written_is_busy(tree: Tree, name: str) -> None:
    kernel, other = tree.kernel("one"), tree.kernel("two")
    tree.put(f"{kernel}/{name}", b"half", age=1)
    found = tree.scan()
    assert found.busy == {kernel}
    assert {path.rpartition("/")[0] for path in found.files} == {other}


def test_what_is_ignored_in_the_folder_of_a_kernel_does_not_keep_it_waiting(tree: Tree) -> None:
    tree.put(f"{tree.kernel()}/k.lock", b"", age=1)
    assert len(tree.scan().files) == GROUP_FILES


def test_an_unfinished_kernel_is_busy_until_its_writer_must_be_gone(tree: Tree) -> None:
    kernel = tree.kernel()
    leave_out(tree, kernel, "__grp__k.json")
    assert tree.scan().busy == {kernel}
    os.utime(tree.root / kernel, (0, 0))
    assert tree.scan().busy == set()


def test_a_kernel_that_is_replaced_while_others_are_read_is_left_out(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process compiles it too, and replaces file by file: files of two writers are never mixed."""
    kernel, wrapper = tree.kernel(), tree.wrapper()

    def replace(path: str) -> None:
        if path.endswith(".py"):
            tree.put(f"{kernel}/k.ttir", b"of another process")

    before_each_read(monkeypatch, replace)
    found = tree.scan()
    assert [tuple(skip) for skip in found.skipped] == [(kernel, "it changed while it was read")]
    assert list(found.files) == [wrapper]
    monkeypatch.undo()
    assert len(tree.scan(found.index).files) == GROUP_FILES + 1


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "new"])
def test_a_group_in_which_files_are_rewritten_while_others_are_read_is_left_out(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """The time of their folder does not tell: older versions of TileLang open the other process's files."""
    kernel = f"tilelang/{'a' * 64}"
    first, last = (tree.put(f"{kernel}/{name}", b"of one process") for name in ("host_kernel.cu", "params.pkl"))
    index = tree.scan(None, "tilelang").index if is_known else None
    new = tree.put(f"{kernel}/kernel.cubin", b"new")

    def rewrite(path: str) -> None:
        if path == (new if is_known else last):
            for file in (first, last):
                (tree.root / file).write_bytes(b"of another one")

    before_each_read(monkeypatch, rewrite)
    found = tree.scan(index, "tilelang")
    assert [tuple(skip) for skip in found.skipped] == [(kernel, "it changed while it was read")]
    assert (found.files, found.busy) == ({}, {kernel})
    monkeypatch.undo()
    assert len(tree.scan(index, "tilelang").files) == 3


def test_files_of_a_group_are_looked_at_again_only_if_others_were_read(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be ten thousand groups, and what was known when they were listed was so all at once."""
    for letter in "ab":
        tree.put(f"tilelang/{letter * 64}/host_kernel.cu", b"known")
        tree.put(f"tilelang/{letter * 64}/params.pkl", b"known")
    index = tree.scan(None, "tilelang").index
    tree.put(f"tilelang/{'a' * 64}/kernel.cubin", b"new")
    asked: list[str] = []
    stat_each = scan.stat_each
    monkeypatch.setattr(scan, "stat_each", lambda paths, **how: asked.extend(paths) or stat_each(paths, **how))

    assert len(tree.scan(index, "tilelang").files) == 5
    files = {path.rpartition("/tilelang/")[2] for path in asked if path.endswith(("host_kernel.cu", "params.pkl"))}
    assert files == {f"{'a' * 64}/{name}" for name in ("host_kernel.cu", "params.pkl")}


@pytest.mark.usefixtures("plain_calls")
def test_a_temporary_folder_that_goes_while_it_is_listed_leaves_no_kernel_out(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, real = tree.kernel(), os.listdir
    monkeypatch.setattr(
        os, "listdir", lambda path: [*real(path), *(["tmp.pid_1_ab"] if str(path).endswith(kernel) else [])]
    )
    found = tree.scan()
    assert len(found.files) == GROUP_FILES
    assert not found.skipped


def test_a_kernel_with_an_empty_file_is_left_out(tree: Tree) -> None:
    kernel = tree.kernel()
    tree.put(f"{kernel}/k.cubin", b"")
    assert tree.scan().files == {}


def test_what_torch_left_when_it_put_a_kernel_back_is_no_kernel(tree: Tree) -> None:
    kernel = tree.kernel()
    (tree.root / kernel).rename(tree.root / "triton/tmp.0f1e2d3c")
    assert tree.scan().files == {}


def test_an_empty_group_is_no_news(tree: Tree) -> None:
    (tree.root / "triton/EMPTY").mkdir(parents=True)
    assert (tree.scan().files, tree.scan().skipped) == ({}, [])


def test_one_host_bound_file_binds_its_group(tree: Tree) -> None:
    kernel = tree.kernel()
    before = tree.scan().files
    tree.put(f"{kernel}/__triton_launcher.so", shared_object())
    found = tree.scan().files
    assert all(entry.flags & Flag.HOST for entry in found.values())
    assert {path: found[path].flags & ~Flag.HOST for path in before} == {p: e.flags for p, e in before.items()}


def test_slots_are_marked(tree: Tree) -> None:
    graph, autograd = tree.graph(), tree.autograd()
    files = tree.scan().files
    assert (Flag(files[graph].flags), files[graph].unit) == (Flag.LINK | Flag.SLOT, 4)
    assert (Flag(files[autograd].flags), files[autograd].unit) == (Flag.LINK | Flag.SLOT, 3)


# ---- Shared objects


def test_a_shared_object_under_its_lock_waits(tree: Tree) -> None:
    path = tree.put("inductor/ab/cabc.main.so", shared_object())
    lock = tree.root / tree.put("inductor/locks/cabc.lock", b"")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        found = tree.scan()
        assert [tuple(skip) for skip in found.skipped] == [(path, "a compiler holds its lock")]
    assert list(tree.scan().files) == [path]


def test_a_shared_object_that_was_cut_short_is_left_out(tree: Tree) -> None:
    whole = shared_object()
    path = tree.put("inductor/ab/cabc.so", whole[: len(whole) // 2])
    found = tree.scan()
    assert [tuple(skip) for skip in found.skipped] == [(path, "it is cut short")]
    tree.put("inductor/ab/cabc.so", whole)
    assert list(tree.scan().files) == [path]


def test_no_cut_of_a_shared_object_is_taken_for_whole() -> None:
    whole = shared_object()
    check_whole_object(whole)
    for length in [*range(0, 200), *range(200, len(whole), 4093), len(whole) - 1]:
        with pytest.raises(Unfinished):
            check_whole_object(whole[:length])


# ---- What is not a plain file


def test_empty_files_are_left_out(tree: Tree) -> None:
    path = tree.put("inductor/ab/c.py", b"")
    found = tree.scan()
    assert (found.files, [tuple(skip) for skip in found.skipped]) == ({}, [(path, "it is empty")])


def test_links_pipes_and_sockets_are_left_out(tree: Tree, tmp_path: Path) -> None:
    wrapper = tree.wrapper()
    folder = tree.root / "inductor/ab"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "link.py").symlink_to(tree.root / wrapper)
    (folder / "dangling.py").symlink_to("nowhere")
    (folder / "folder").symlink_to(tree.root / "inductor")
    os.mkfifo(folder / "pipe.py")
    found = tree.scan()
    assert list(found.files) == [wrapper]
    assert {skip.reason for skip in found.skipped} == {"it is not a regular file"}


# ---- The index saves reading


def test_later_scans_read_only_what_lists_the_files_of_a_young_group(tree: Tree) -> None:
    tree.wrapper()
    tree.kernel()
    tree.graph()
    tree.timings({"a": 1})
    read: list[tuple[bytes, bytes]] = []
    first = tree.scan(offer=lambda blobs, _: read.extend(blobs))
    assert len(read) == len(first.files) == 3 + GROUP_FILES
    index = first.index
    for _ in range(2):
        read.clear()
        found = tree.scan(index, offer=lambda blobs, _: read.extend(blobs))
        assert (len(read), found.files) == (1, first.files)
        index = found.index


def test_a_settled_folder_is_not_even_listed(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = tree.wrapper()
    folder = (tree.root / wrapper).parent
    for path in (folder, tree.root / "inductor"):
        os.utime(path, ns=(1_000_000_000_000_000_001, 1_000_000_000_000_000_001))
    time.sleep(TICK)
    first = tree.scan()
    listed: list[str] = []
    monkeypatch.setattr(folders, "list_each", lambda paths: listed.extend(paths) or list_each(paths))
    second = tree.scan(first.index)
    third = tree.scan(second.index_beside_base)  # what it was told, it remembers
    assert second.files == third.files == first.files
    assert listed == []
    monkeypatch.undo()
    (folder / "cnew.py").write_bytes(b"new")
    assert len(tree.scan(first.index).files) == 2


def test_a_folder_whose_time_was_set_back_is_listed(tree: Tree) -> None:
    """As systemd-tmpfiles leaves it after it has removed a file because of its age."""
    wrapper, cubin = tree.wrapper(), f"{tree.kernel()}/k.cubin"
    time.sleep(TICK)
    first = tree.scan()
    for path in (wrapper, cubin):
        folder = (tree.root / path).parent
        before = folder.stat()
        (tree.root / path).unlink()
        os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = tree.scan(first.index)
    assert found.files == {}
    assert [skip.path for skip in found.skipped] == [os.path.dirname(cubin)]


def test_a_folder_does_not_vouch_for_a_file_that_was_left_out(tree: Tree) -> None:
    """Written to in place, it leaves the times of its folder as they were."""
    wrapper = tree.wrapper()
    unfinished = tree.put(f"{os.path.dirname(wrapper)}/cunfinished.py", b"")
    time.sleep(TICK)
    first = tree.scan()
    assert [*first.files] == [wrapper]
    (tree.root / unfinished).write_bytes(b"finished")
    assert {*tree.scan(first.index).files} == {wrapper, unfinished}


def test_what_was_restored_is_not_read_though_nothing_is_in_the_index(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tree.wrapper()
    files = tree.scan().files
    stamped = 10**18 + stamp(files[path].digest)
    os.utime(tree.root / path, ns=(stamped, stamped))
    read: list[str] = []
    before_each_read(monkeypatch, read.append)
    found = scan.scan(tree.cacheroot(), load_table(), Index(), lambda: files)
    assert ([*found.files], read) == ([path], [])


def test_the_age_of_what_is_found_is_that_before_it_was_looked_at(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that comes in the same clock tick in which its folder was listed leaves the same times on the folder."""
    path = tree.put("inductor/ab/c.best_config", b"young", age=0)
    listed = list[str]()

    def slow(paths: Sequence[str]) -> list[Listing]:
        listed.extend(paths)
        monkeypatch.setattr(clocks, "_now", lambda *_: time.time_ns() + 3_600_000_000_000)
        return list_each(paths)

    monkeypatch.setattr(folders, "list_each", slow)
    found = tree.scan()
    assert listed
    assert (list(found.files), found.unsettled) == ([path], {path})
    assert found.index == Index()


@pytest.mark.parametrize("change", ["content", "size", "replaced"])
def test_a_changed_file_is_read_again(tree: Tree, change: str) -> None:
    path = tree.put("inductor/ab/c.best_config", b"old")
    index = tree.scan().index
    if change == "content":
        (tree.root / path).write_bytes(b"new")
    elif change == "size":
        (tree.root / path).write_bytes(b"longer")
    else:
        tree.put(path, b"new")
    read: list[tuple[bytes, bytes]] = []
    found = tree.scan(index, offer=lambda blobs, _: read.extend(blobs))
    assert len(read) == 1
    assert found.files[path].digest == digest_of(tree.read(path))


@pytest.mark.parametrize("path", ["inductor/ab/c.best_config", f"tilelang/{'a' * 64}/params.pkl"])
def test_a_young_file_is_read_again(tree: Tree, path: str) -> None:
    """A change within the same clock tick leaves the same time on it."""
    component = path.partition("/")[0]
    tree.put(path, b"old", age=-10)
    status = (tree.root / path).stat()
    index = tree.scan(None, component).index
    with open(tree.root / path, "r+b") as file:
        file.write(b"new")
    os.utime(tree.root / path, ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert tree.scan(index, component).files[path].digest == digest_of(b"new")


def test_a_folder_whose_time_was_set_back_just_now_does_not_vouch(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = (tree.root / tree.wrapper()).parent
    os.utime(folder, ns=(1_000_000_000_000_000_001, 1_000_000_000_000_000_001))
    monkeypatch.setattr("kstore.local.index._TICK_NS", 3600 * 10**9)
    assert tree.scan().settled_folders == {}


def test_a_folder_does_not_vouch_for_a_file_whose_time_is_still_to_come(tree: Tree) -> None:
    """The index does not have it."""
    path = tree.put("inductor/ab/c.best_config", b"from a host whose clock is ahead", age=-HOUR)
    time.sleep(TICK)
    first = tree.scan()
    assert tree.scan(first.index).files == first.files
    assert [*first.files] == [path]


def test_a_deleted_file_is_gone(tree: Tree) -> None:
    wrapper = tree.wrapper()
    index = tree.scan().index
    (tree.root / wrapper).unlink()
    assert tree.scan(index).files == {}


def test_a_component_elsewhere_is_scanned_there(tree: Tree, tmp_path: Path) -> None:
    root = tree.cacheroot()
    assert root.local_path("triton/K/k.ptx") == f"{tree.root}/triton/K/k.ptx"
    assert root.local_path("triton") == f"{tree.root}/triton"


@pytest.mark.parametrize("lost", ["k.cubin", "__grp__k.json"])
def test_a_kernel_that_loses_a_file_after_it_was_indexed_is_left_out(tmp_path: Path, lost: str) -> None:
    """The index knows its `__grp__` file, so the files that it promises are not looked for again."""
    tree = Tree(tmp_path / "root")
    kernel = tree.kernel()
    index = tree.scan().index
    (tree.root / kernel / lost).unlink()
    found = tree.scan(index)
    assert (found.files, [skip.path for skip in found.skipped]) == ({}, [kernel])


def test_what_a_killed_writer_left_does_not_keep_its_kernel_busy_for_ever(tree: Tree) -> None:
    kernel = tree.kernel()
    left = tree.root / kernel / "tmp.pid_4_abc"
    left.mkdir()
    assert tree.scan().files == {}
    os.utime(left, (0, 0))
    assert len(tree.scan().files) == GROUP_FILES


def refuse_to_look_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat

    def refuse(path: object, *rest: object, **options: object) -> os.stat_result:
        if path == str(folder):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path, *rest, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "stat", refuse)


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize("folder", ["triton", "triton/K"])
def test_a_folder_that_cannot_be_looked_at_is_named(tree: Tree, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    tree.put("triton/K/__grp__k.json", b'{"child_paths": {}}')
    refuse_to_look_at(tree.root / folder, monkeypatch)
    found = tree.scan()
    assert found.known == {}
    assert [skip.path for skip in found.skipped] == [folder]
    assert "Input/output error" in found.skipped[0].reason


def test_a_scan_of_a_roots_own_folders_does_not_look_at_the_store(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store may hang, and files that another host has built must be taken out all the same."""
    wrapper, root = tree.wrapper(), tree.cacheroot()
    monkeypatch.setattr(os.path, "realpath", None)
    found = scan.scan(root, load_table(), Index(), dict, stores=["/mnt/hangs/kstore"])
    assert list(found.files) == [wrapper]


@pytest.mark.parametrize("folder", ["triton", "triton/K"])
def test_a_folder_that_cannot_be_listed_is_named_and_known_to_be_there(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Nothing may be moved into its place."""
    tree.put("triton/K/__grp__k.json", b'{"child_paths": {}}')
    refused = Listing(b"", struct.pack("=5qQ", errno.EACCES, 0, 0, 0, 0, 0))

    def refuse(paths: Sequence[str]) -> list[Listing]:
        both = zip(paths, list_each(paths), strict=True)
        return [refused if path == f"{tree.root}/{folder}" else found for path, found in both]

    monkeypatch.setattr(folders, "list_each", refuse)
    found = tree.scan()
    assert found.known == {}
    (skip,) = found.skipped
    assert skip.path == folder
    assert skip.reason.endswith("it cannot be read: Permission denied")
    assert folder in found.folders


def test_all_folders_are_found_however_many_there_are(tree: Tree) -> None:
    """More folders than are listed in one go, and some inside others."""
    kernels = [tree.kernel(f"K{number:04}") for number in range(600)]
    wrappers = [tree.put(f"inductor/{number % 300:03}/{number}/c.py", b"x = 1") for number in range(600)]
    first = tree.scan()
    assert len(first.files) == 600 * GROUP_FILES + 600
    assert {path.rpartition("/")[0] for path in first.files} == {*kernels, *map(os.path.dirname, wrappers)}
    (tree.root / wrappers[7]).write_bytes(b"x = 2")
    assert len(tree.scan(first.index).files) == 600 * GROUP_FILES + 600


def test_a_list_that_cannot_be_read_leaves_its_kernel_out_unread(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, other = tree.kernel(), tree.kernel("other")
    (group,) = (tree.root / kernel).glob("__grp__*")
    group.write_bytes(b"no JSON")
    os.utime(group, (0, 0))
    read: list[str] = []
    before_each_read(monkeypatch, read.append)
    found = tree.scan()
    assert {os.path.dirname(path) for path in found.files} == {other}
    assert [skip.path for skip in found.skipped] == [kernel]
    assert [path for path in read if os.path.dirname(path) == kernel] == [f"{kernel}/{group.name}"]


@pytest.mark.parametrize("children", ['["a", ["b"]]', "[null]", '[1, "x"]', "7"])
def test_a_list_that_names_no_files_leaves_its_kernel_out(tree: Tree, children: str) -> None:
    kernel, wrapper = tree.kernel(), tree.wrapper()
    (group,) = (tree.root / kernel).glob("__grp__*")
    tree.put(f"{kernel}/{group.name}", f'{{"child_paths": {children}}}'.encode())
    found = tree.scan()
    assert list(found.files) == [wrapper]
    assert [skip.path for skip in found.skipped] == [kernel]


RANK = "vllm/torch_compile_cache/h/rank_0_0"


@pytest.mark.parametrize(
    "folder", [f"{RANK}/backbone/artifact_compile_range_1_1", f"{RANK}/inductor_cache", f"{RANK}/inductor_cache/ab"]
)
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "new"])
def test_a_list_never_names_what_was_not_found(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, folder: str, is_known: bool
) -> None:
    """vLLM writes its list in place, and may have compiled one more since the folders were looked at."""
    listing = tree.put(f"{RANK}/backbone/vllm_compile_cache.py", b"{1: 'a'}")
    tree.put(f"{folder}/x.py", b"a")
    time.sleep(TICK)
    first = tree.scan(None, "vllm")
    assert len(first.files) == 2
    (tree.root / listing).write_bytes(b"{1: 'a', 2: 'b'}")

    def race(path: str) -> None:
        if path == listing:
            (tree.root / folder / "new.py").write_bytes(b"new")
            (tree.root / listing).write_bytes(b"{1: 'a', 2: 'b', 3: 'new.py'}")

    before_each_read(monkeypatch, race)
    found = tree.scan(first.index if is_known else None, "vllm")
    assert listing not in found.files
    assert [tuple(skip) for skip in found.skipped] == [(listing, "files were added to its folder meanwhile")]
    monkeypatch.undo()
    assert len(tree.scan(first.index, "vllm").files) == 3


def test_a_list_that_is_being_written_while_files_are_added_is_left_out_once(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = tree.put(f"{RANK}/backbone/vllm_compile_cache.py", b"{1: 'a'}")

    def race(path: str) -> None:
        tree.put(f"{RANK}/backbone/new.py", b"new")
        (tree.root / path).write_bytes(b"{1: 'a', 2: 'b")

    before_each_read(monkeypatch, race)
    found = tree.scan(None, "vllm")
    assert (found.files, [tuple(skip) for skip in found.skipped]) == ({}, [(listing, "it is cut short")])


# ---- Memory: a key may have a hundred thousand files


def test_a_name_that_many_folders_have_is_in_memory_once(tree: Tree) -> None:
    for kernel in "AB":
        tree.kernel(kernel)
    time.sleep(TICK)
    folders = tree.scan().settled_folders
    names = [name for folder in folders.values() for name in folder.files]
    assert len(names) == 2 * GROUP_FILES
    assert len({id(name) for name in names}) == len(set(names))


def test_no_folder_that_was_looked_at_waits_for_the_collection_of_garbage(tree: Tree) -> None:
    tree.wrapper()
    tree.kernel("whole")
    leave_out(tree, tree.kernel("unfinished"), "__grp__k.json")
    leave_out(tree, tree.kernel("lacking"), "k.cubin")
    (tree.root / "triton/empty/below").mkdir(parents=True)
    time.sleep(TICK)
    gc.collect()
    gc.disable()
    try:
        tree.scan(tree.scan().index)
        left = [one.place.path for one in gc.get_objects() if isinstance(one, Listed | Part)]
    finally:
        gc.enable()
    assert left == []
