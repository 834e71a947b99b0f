from __future__ import annotations

import errno
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kstore.backends import PosixBackend
from kstore.blobs import BlobStore, Layout
from kstore.blobs.loose import bears_stamp, blob_path, stamp
from kstore.deadline import Abandoned, Waiting
from kstore.digest import digest_of
from kstore.errors import CacheRootError
from kstore.folders import make_folders
from kstore.local.found import Skipped
from kstore.local.index import Known
from kstore.local.link import Link, Linker, LinkMode
from kstore.local.move import Mover
from kstore.local.pathsof import Contents
from kstore.local.place import Placer
from kstore.local.placed import Brought, Placed
from kstore.local.staging import Staging
from kstore.local.state import StateFolder
from kstore.local.write import Writer
from kstore.progress import Progress
from kstore.published.manifest import Entry, Files, Flag
from tests.trees import Tree, contents

LINK, GROUP, MTIME = Flag.LINK, Flag.GROUP, Flag.MTIME


class Place:
    """A store with blobs, and an empty cache root."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.tree = Tree(folder / "root")
        self.state = self.tree.state()
        self.blobs = BlobStore(PosixBackend(folder / "store"))
        self.layout = layout
        self.packs: tuple[str, ...] = ()

    def store(self, data: bytes, flags: int = LINK, unit: int = 0, *, mode: int = 0o644) -> Entry:
        with self.blobs.writer(self.layout) as writer:
            writer.put(digest_of(data), data)
            self.packs += writer.finish()
        return Entry(digest_of(data), len(data), 1_500_000_000, mode, int(flags), unit)

    def kernel(self, name: str, *files: str) -> Files:
        return {f"triton/{name}/{file}": self.store(f"{name} {file}".encode(), LINK | GROUP, 2) for file in files}

    def place(
        self,
        wanted: Files,
        lists: Callable[[str], bool] = lambda path: False,
        below: Sequence[BlobStore] = (),
        before_move: Callable[[], None] = lambda: None,
        waiting: Waiting | None = None,
    ) -> Placed:
        root, since = self.tree.cacheroot(), time.monotonic() + 0.02  # Existing files are older than a clock's tick.
        placer = Placer(
            root, self.state, self.blobs, Linker(), Progress(), waiting or Waiting(),
            lists=lists, below=lambda: below, begun=None,
        )  # fmt: skip
        placed = placer.place(wanted, self.packs, self.tree.scan().folders, before_move, since=since, marks=False)
        assert [name for name in os.listdir(self.tree.root / ".kstore") if name.startswith("stage")] == []
        return placed


@pytest.fixture
def place(tmp_path: Path, layout: str) -> Iterator[Place]:
    yield Place(tmp_path, Layout(layout))


def test_a_fresh_root_gets_everything(place: Place) -> None:
    wanted = {
        "inductor/ab/c.py": place.store(b"code"),
        "inductor/fxgraph/bc/key/answer": place.store(b"graph"),
        "inductor/empty.bin": place.store(b"", 0),
        **place.kernel("K", "ptx", "cubin"),
    }
    placed = place.place(wanted)
    assert placed.paths == wanted.keys()
    assert {path: digest_of(data) for path, data in contents(place.tree.root).items()} == {
        path: entry.digest for path, entry in wanted.items()
    }


def test_what_is_there_stays(place: Place) -> None:
    place.tree.put("inductor/ab/mine.py", b"mine")
    place.tree.put("triton/MINE/k.ptx", b"mine")
    place.place({"inductor/ab/c.py": place.store(b"code"), **place.kernel("K", "ptx")})
    assert set(contents(place.tree.root)) == {
        "inductor/ab/mine.py",
        "inductor/ab/c.py",
        "triton/MINE/k.ptx",
        "triton/K/ptx",
    }


def test_a_file_is_replaced_by_rename(place: Place) -> None:
    path = place.tree.put("inductor/ab/c.best_config", b"old")
    with open(place.tree.root / path, "rb") as held:
        place.place({path: place.store(b"new")})
        assert held.read() == b"old"
    assert place.tree.read(path) == b"new"


def test_a_group_is_swapped_whole(place: Place) -> None:
    place.tree.put("triton/K/ptx", b"damaged")
    place.tree.put("triton/K/leftover", b"of another writer")
    place.place(place.kernel("K", "ptx", "cubin"))
    assert contents(place.tree.root) == {"triton/K/ptx": b"K ptx", "triton/K/cubin": b"K cubin"}


def test_a_group_with_folders_inside_is_swapped_whole(place: Place) -> None:
    """Although the folder that its files are in does not exist yet."""
    place.tree.put("triton/K/leftover", b"of another writer")
    place.place({"triton/K/sm_90/ptx": place.store(b"published", LINK | GROUP, 2)})
    assert contents(place.tree.root) == {"triton/K/sm_90/ptx": b"published"}


@pytest.mark.parametrize("path", ["triton/K/ptx", "triton/K/sm_90/ptx"])
def test_a_group_that_a_compiler_writes_in_place_meanwhile_stays(place: Place, path: str) -> None:
    """That does not move the time of the group's folder."""
    place.tree.put(path, b"old")

    def compile_in_place() -> None:
        time.sleep(0.04)  # until the look at the root, and a tick of the clock, are over
        (place.tree.root / path).write_bytes(b"compiled meanwhile")

    published = {f"triton/K/{name}": place.store(name.encode(), GROUP, 2) for name in ("ptx", "cubin")}
    placed = place.place(published, before_move=compile_in_place)
    assert contents(place.tree.root) == {path: b"compiled meanwhile"}
    assert placed.skipped == [Skipped("triton/K", "it was written while this was restored")]


def refuse_to_move(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    real = os.rename

    def rename(source: str, target: str) -> None:
        if source == str(folder):
            raise OSError(code, os.strerror(code), source)
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)


def test_a_group_that_cannot_be_moved_aside_is_removed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example in a container, whose overlay moves no folder that came with its image."""
    place.tree.put("triton/K/leftover", b"of another writer")
    refuse_to_move(place.tree.root / "triton/K", monkeypatch, errno.EXDEV)
    place.place(place.kernel("K", "ptx", "cubin"))
    assert contents(place.tree.root) == {"triton/K/ptx": b"K ptx", "triton/K/cubin": b"K cubin"}


def test_a_group_that_cannot_be_replaced_costs_itself(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "KL":
        place.tree.put(f"triton/{name}/ptx", b"old")
    refuse_to_move(place.tree.root / "triton/K", monkeypatch, errno.EBUSY)
    placed = place.place(place.kernel("K", "ptx") | place.kernel("L", "ptx"))
    assert contents(place.tree.root) == {"triton/K/ptx": b"old", "triton/L/ptx": b"L ptx"}
    assert (placed.paths, placed.lacking) == ({"triton/L/ptx"}, {"triton/K/ptx"})
    assert placed.skipped == [Skipped("triton/K", f"it cannot be put in its place: {os.strerror(errno.EBUSY)}")]


def test_a_blob_that_is_missing_costs_its_group(place: Place) -> None:
    lost = Entry(digest_of(b"lost"), 4, 0, 0o644, int(LINK | GROUP), 2)
    wanted = place.kernel("K", "ptx", "cubin") | {"triton/K/json": lost} | place.kernel("L", "ptx")
    placed = place.place(wanted)
    assert placed.paths == {"triton/L/ptx"}
    assert contents(place.tree.root) == {"triton/L/ptx": b"L ptx"}
    assert [skipped.path for skipped in placed.skipped] == ["triton/K/json"]


@pytest.mark.parametrize("flag", [0, Flag.BELOW])
def test_what_is_missing_is_taken_from_a_store_below(tmp_path: Path, layout: str, flag: int) -> None:
    """Whether or not it is known to be there."""
    place, other = (Place(tmp_path / name, Layout(layout)) for name in ("one", "other"))
    wanted = {f"triton/K/{name}": other.store(name.encode(), LINK | GROUP | flag, 2) for name in ("ptx", "cubin")}
    wanted["triton/K/json"] = place.store(b"json", LINK | GROUP, 2)
    placed = place.place(wanted, below=[other.blobs])
    assert placed.paths == wanted.keys() == contents(place.tree.root).keys()
    assert placed.missed == set()


def test_what_was_dropped_again_is_not_vouched_for(place: Place) -> None:
    lost = Entry(digest_of(b"lost"), 4, 0, 0o644, int(GROUP), 2)
    wanted = {"triton/K/object": place.store(b"object", GROUP, 2), "triton/L/object": place.store(b"other", GROUP, 2)}
    assert place.place({**wanted, "triton/K/lost": lost}).known.keys() == {"triton/L/object"}


def test_what_stays_out_takes_no_neighbour_with_it() -> None:
    wanted = dict.fromkeys(("inductor/ab/c.py", "inductor/abc/d.py", "inductor/ef"), Entry(b"", 0, 0, 0, 0, 0))
    placed = Placed(wanted, marked_ns=1)
    placed.forget({"inductor/ab": "something else is in its place"}, {"inductor/e": OSError(errno.EACCES, "refused")})
    assert (placed.paths, placed.occupied) == ({"inductor/abc/d.py", "inductor/ef"}, {"inductor/ab/c.py"})
    assert placed.marked_ns == 0


def test_only_a_time_that_a_later_change_moves_vouches_for_a_file() -> None:
    now, digest = time.time_ns() // 10**9 * 10**9, digest_of(b"data")
    times = {"long ago": 1, "a stamp": now + stamp(digest), "ahead": now + 10**12 + 1}
    known = {name: Known(Entry(digest, 4, mtime_ns, 0o644, 0, 0), 4, 1) for name, mtime_ns in times.items()}
    assert Placed(known=known).settled().keys() == {"long ago", "a stamp"}


def test_packs_that_cannot_be_listed_cost_what_is_missing_and_no_more(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stale(self: BlobStore) -> list[str]:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "store/packs")

    monkeypatch.setattr(BlobStore, "packs", stale)
    whole = {**place.kernel("L", "ptx", "cubin"), "inductor/ab/c.py": place.store(b"code")}
    missing = place.kernel("K", "ptx")["triton/K/ptx"]._replace(digest=digest_of(b"never stored"))
    placed = place.place({**whole, **place.kernel("K", "cubin"), "triton/K/ptx": missing})
    assert placed.paths == whole.keys() == contents(place.tree.root).keys()
    (line,) = caplog.messages
    assert "store/packs" in line


def test_what_is_found_only_when_all_are_looked_for_once_more_waits_for_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, where the first look at a pack fails, and folders are made slowly."""
    place, written = Place(tmp_path, Layout.PACKED), threading.Event()
    wanted = place.kernel("K", "ptx", "cubin")
    write_each = Writer.write

    def write(writer: Writer, contents: Contents) -> Brought:
        written.set()
        return write_each(writer, contents)

    def make_late(paths: Sequence[str]) -> None:
        written.wait(0.5)  # It is not set: the writer waits.
        make_folders(paths)

    monkeypatch.setattr(place.blobs, "parts", lambda *asked: ())
    monkeypatch.setattr(Writer, "write", write)
    monkeypatch.setattr("kstore.local.fill.make_folders", make_late)
    assert place.place(wanted).paths == wanted.keys() == contents(place.tree.root).keys()


def test_all_that_is_loose_is_placed_in_one_way_however_many_files_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left over for the look at what is missing, which would copy it."""
    monkeypatch.setattr("kstore.local.fill._LINK_COUNT", 2)
    monkeypatch.setattr("kstore.local.fill._FOLDER_COUNT", 2)
    place = Place(tmp_path, Layout.LOOSE)
    wanted = {f"inductor/{number}{number}/c.py": place.store(b"%d" % number) for number in range(8)}
    placed = place.place(wanted)
    assert placed.paths == wanted.keys() == contents(place.tree.root).keys()
    assert list(placed.modes.values()) == [len(wanted)]


def test_what_cannot_be_written_with_the_others_is_written_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where other threads hold all descriptors, the writer of single files waits until they have closed theirs."""
    place = Place(tmp_path, Layout.PACKED)
    wanted = {**place.kernel("K", "ptx", "cubin"), "inductor/ab/c.py": place.store(b"code")}
    monkeypatch.setattr("kstore.local.write.write_rows", lambda *asked, **also: 0)
    placed = place.place(wanted)
    assert placed.paths == wanted.keys() == contents(place.tree.root).keys()
    assert placed.modes == {LinkMode.COPY: len(wanted)}
    for path, entry in wanted.items():
        assert bears_stamp((place.tree.root / path).stat().st_mtime_ns, entry.digest)


def test_what_interrupts_the_making_of_folders_ends_the_restore(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for one artifact, whose own folders are made before it is tried how it can be placed."""

    def make_unless_in_a_thread(paths: Sequence[str]) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise KeyboardInterrupt
        make_folders(paths)

    monkeypatch.setattr("kstore.local.fill.make_folders", make_unless_in_a_thread)
    with pytest.raises(KeyboardInterrupt):
        place.place({"inductor/ab/c.py": place.store(b"published")})


def test_a_blob_that_goes_before_it_is_linked_costs_its_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `verify --repair` and gc move a blob aside."""
    place = Place(tmp_path, Layout.LOOSE)
    wanted = place.kernel("K", "ptx", "cubin") | place.kernel("L", "ptx", "cubin")
    (blob,) = tmp_path.glob(f"store/blobs/*/{wanted['triton/K/cubin'].digest.hex()}")
    link_many = Linker.link_many

    def late(linker: Linker, links: Sequence[Link]) -> list[LinkMode]:
        blob.unlink(missing_ok=True)
        return link_many(linker, links)

    monkeypatch.setattr(Linker, "link_many", late)
    placed = place.place(wanted)
    assert placed.paths == {"triton/L/ptx", "triton/L/cubin"}
    assert [skipped.path for skipped in placed.skipped] == ["triton/K/cubin"]


def test_where_a_folder_goes_before_it_is_filled_nothing_is_placed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.local.fill.make_folders", lambda paths: None)
    with pytest.raises(CacheRootError, match="No such file"):
        place.place({f"inductor/{number:02}/c.py": place.store(b"%d" % number) for number in range(3)})


@pytest.mark.parametrize("is_whole", [True, False])
def test_before_anything_is_moved_all_that_stays_out_is_gone(place: Place, is_whole: bool) -> None:
    """What can fail has been done by then: others that restore with this worker move theirs."""
    wanted = {"triton/L/ptx": place.store(b"L", LINK | GROUP, 2), **place.kernel("K", "ptx", "cubin")}
    if not is_whole:
        wanted["triton/K/cubin"] = Entry(digest_of(b"nobody has it"), 1, 0, 0o644, LINK | GROUP, 2)
    seen: list[set[str]] = []

    def look() -> None:
        assert contents(place.tree.root) == {}
        (stage,) = (place.tree.root / ".kstore").glob("stage-*")
        seen.append({str(path.relative_to(stage)) for path in stage.rglob("*") if path.is_file()})

    assert place.place(wanted, before_move=look).paths == seen[0] == (wanted.keys() if is_whole else {"triton/L/ptx"})


def test_once_nobody_waits_any_more_nothing_is_moved(place: Place) -> None:
    waiting = Waiting()
    with pytest.raises(Abandoned):
        place.place(place.kernel("K", "ptx"), before_move=waiting.give_up, waiting=waiting)
    assert contents(place.tree.root) == {}


def test_others_are_told_of_a_restore_of_nothing_too(place: Place) -> None:
    """They wait for it."""
    told: list[str] = []
    assert place.place({}, before_move=lambda: told.append("told")) == Placed()
    assert told == ["told"]


def test_a_blob_that_is_missing_does_not_touch_the_group_that_is_there(place: Place) -> None:
    place.tree.put("triton/K/ptx", b"local")
    lost = Entry(digest_of(b"lost"), 4, 0, 0o644, int(LINK | GROUP), 2)
    place.place(place.kernel("K", "ptx") | {"triton/K/json": lost})
    assert contents(place.tree.root) == {"triton/K/ptx": b"local"}


def test_no_folder_is_left_of_a_group_that_has_lost_a_file(place: Place) -> None:
    """Neither in a fresh root nor in one where the rest is placed beside existing files."""
    lost = Entry(digest_of(b"lost"), 4, 0, 0o644, int(LINK | GROUP), 2)
    for name in ("first", "second"):
        place.place(place.kernel(name, "ptx") | {f"triton/broken/{name}": lost, f"inductor/{name}/c.py": lost})
    assert place.tree.scan().folders == {"triton", "triton/first", "triton/second"}


def looked_at_before(place: Place, monkeypatch: pytest.MonkeyPatch, folders: Collection[str]) -> None:
    """The root was looked at when it had these folders."""
    monkeypatch.setattr(place.tree, "scan", lambda: type("Before", (), {"folders": folders}))


@pytest.mark.parametrize("code", [errno.ENOTEMPTY, errno.EEXIST])
def test_a_folder_that_a_compiler_made_meanwhile_is_filled_up(
    place: Place, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Whichever of the two a filesystem says."""
    real = os.rename

    def rename(source: str, target: str) -> None:
        try:
            real(source, target)
        except OSError as error:
            assert error.errno == errno.ENOTEMPTY
            raise OSError(code, os.strerror(code), target) from error

    monkeypatch.setattr(os, "rename", rename)
    wanted = {"inductor/ab/c.py": place.store(b"published"), "inductor/ab/d.py": place.store(b"published too")}
    seen = place.tree.scan().folders
    place.tree.put("inductor/ab/c.py", b"compiled")
    looked_at_before(place, monkeypatch, seen)
    placed = place.place(wanted)
    assert (placed.paths, placed.occupied) == ({"inductor/ab/d.py"}, {"inductor/ab/c.py"})
    assert place.tree.read("inductor/ab/c.py") == b"compiled"
    assert place.tree.read("inductor/ab/d.py") == b"published too"


def check_that_it_stays(place: Place, monkeypatch: pytest.MonkeyPatch, compiled: str, wanted: Files) -> None:
    """A file that is compiled meanwhile keeps all of its group, `triton/K`, from coming."""
    seen = place.tree.scan().folders
    place.tree.put(compiled, b"compiled")
    looked_at_before(place, monkeypatch, seen)
    placed = place.place(wanted)
    assert contents(place.tree.root) == {compiled: b"compiled"}
    assert (placed.paths, placed.occupied) == (set(), wanted.keys())
    assert [skipped.path for skipped in placed.skipped] == ["triton/K"]


def test_a_group_that_a_compiler_made_meanwhile_stays(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_stays(place, monkeypatch, "triton/K/ptx", place.kernel("K", "ptx", "cubin"))


def test_no_folder_comes_into_a_group_that_a_compiler_made_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although no file of the published group is beside the compiled one."""
    wanted = {"triton/K/sm_90/ptx": place.store(b"published", LINK | GROUP, 2)}
    check_that_it_stays(place, monkeypatch, "triton/K/sm_80/ptx", wanted)


def test_a_group_that_somebody_removes_meanwhile_is_placed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = place.kernel("K", "ptx", "cubin")
    place.tree.put("triton/K/ptx", b"damaged")
    seen = place.tree.scan().folders
    shutil.rmtree(place.tree.root / "triton/K")
    looked_at_before(place, monkeypatch, seen)
    assert place.place(wanted).paths == wanted.keys() == contents(place.tree.root).keys()


def test_a_folder_that_somebody_removes_meanwhile_is_made_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"inductor/ab/c.py": place.store(b"code")}
    seen = place.tree.scan().folders | {"inductor"}
    looked_at_before(place, monkeypatch, seen)
    assert place.place(wanted).paths == wanted.keys() == contents(place.tree.root).keys()


def refuse_to_take(name: str, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """No artifact or folder of that name can be put in its place."""
    real = os.rename

    def rename(source: str, target: str) -> None:
        if "/stage-" in source and source.endswith(f"/{name}"):
            raise OSError(code, os.strerror(code), source)
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)


def test_a_file_whose_folder_is_somebody_elses_costs_itself(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.tree.put("inductor/ab/c.best_config", b"old")
    place.tree.put("inductor/cd/d.best_config", b"old")
    refuse_to_take("c.best_config", monkeypatch, errno.EACCES)
    placed = place.place({f"inductor/{name}.best_config": place.store(b"new") for name in ("ab/c", "cd/d")})
    assert contents(place.tree.root) == {"inductor/ab/c.best_config": b"old", "inductor/cd/d.best_config": b"new"}
    assert (placed.paths, placed.occupied) == ({"inductor/cd/d.best_config"}, set())
    reason = f"it cannot be put in its place: {os.strerror(errno.EACCES)}"
    assert placed.skipped == [Skipped("inductor/ab/c.best_config", reason)]


def test_a_root_that_takes_nothing_cannot_be_written(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside what another component has there."""
    place.tree.put("triton/MINE/k.ptx", b"mine")
    refuse_to_take("inductor", monkeypatch, errno.EACCES)
    with pytest.raises(CacheRootError, match=os.strerror(errno.EACCES)):
        place.place({"inductor/ab/c.py": place.store(b"code")})
    assert contents(place.tree.root) == {"triton/MINE/k.ptx": b"mine"}


def move(tmp_path: Path, wanted: Files, folders: set[str], among: set[str]) -> Mover:
    """What moved what is in `tmp_path / "stage"`; anything later than the epoch is new."""
    mover = Mover(
        lambda path: f"{tmp_path}/stage/{path}", lambda path: f"{tmp_path}/root/{path}", wanted,
        lambda path, time_ns: time_ns > 0,
    )  # fmt: skip
    lacking = {path for path in wanted if not (tmp_path / "stage" / path).exists()}
    mover.move(Placed(wanted, lacking), folders, among)
    return mover


def test_what_was_written_since_the_look_at_the_root_is_new(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its time is finer than the clock, and so a little later than now, but not from before a clock was set
    back.
    """
    monkeypatch.setattr("kstore.local.staging.clock_of", lambda folder: 100 * 10**9)
    stages = {"inductor": str(place.tree.root)}
    staging = Staging(place.tree.cacheroot(), stages, {}, ["inductor"], None, since=time.monotonic() - 10)
    moments = (80, 95, 100, 100.005, 100.1)
    new = [staging.is_since("inductor/c.py", int(moment * 10**9)) for moment in moments]
    assert new == [False, True, True, True, False]


def test_a_link_that_was_made_meanwhile_stays_however_old_what_it_leads_to(tmp_path: Path) -> None:
    for folder in ("stage", "root"):
        (tmp_path / folder / "inductor").mkdir(parents=True)
    (tmp_path / "stage" / "inductor" / "c.py").write_bytes(b"published")
    (tmp_path / "old").write_bytes(b"mine")
    os.utime(tmp_path / "old", (0, 0))
    (tmp_path / "root" / "inductor" / "c.py").symlink_to(tmp_path / "old")
    files = {"inductor/c.py": Entry(digest_of(b"published"), 9, 0, 0o644, 0, 0)}
    moved = move(tmp_path, files, {"inductor"}, {"inductor"})
    assert moved.occupied == {"inductor/c.py": "it was written while this was restored"}
    assert (tmp_path / "root" / "inductor" / "c.py").read_bytes() == b"mine"


def test_a_component_whose_own_mount_takes_nothing_costs_itself_and_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = StateFolder.staging

    def refuse(state: StateFolder, folder: str | None = None) -> AbstractContextManager[str]:
        if folder:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), folder)
        return staging(state)

    monkeypatch.setattr("kstore.local.place.find_elsewhere", lambda root, components: {"triton"})
    monkeypatch.setattr(StateFolder, "staging", refuse)
    placed = place.place({"inductor/ab/c.py": place.store(b"code"), **place.kernel("K", "ptx", "cubin")})
    assert placed.paths == {"inductor/ab/c.py"} == contents(place.tree.root).keys()
    folder = place.tree.root / "triton"
    assert placed.skipped == [Skipped("triton", f"{folder} cannot be written: Read-only file system")]


def test_a_component_of_which_nothing_came_is_no_trouble(tmp_path: Path) -> None:
    """Although the name of another one begins with its own."""
    (tmp_path / "stage" / "sglangjit").mkdir(parents=True)
    (tmp_path / "stage" / "sglangjit" / "k.so").write_bytes(b"object")
    files = dict.fromkeys(("sglang/c.py", "sglangjit/k.so"), Entry(digest_of(b"object"), 6, 0, 0o644, 0, 0))
    moved = move(tmp_path, files, set(), {"sglang", "sglangjit"})
    assert (moved.occupied, moved.refused) == ({}, {})
    assert contents(tmp_path / "root") == {"sglangjit/k.so": b"object"}


def test_a_file_whose_folder_somebody_removes_meanwhile_costs_itself(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, stays = "inductor/ab/c.py", "inductor/cd/d.py"
    place.tree.put("inductor/cd/mine.py", b"mine")
    seen = place.tree.scan().folders | {"inductor/ab"}
    looked_at_before(place, monkeypatch, seen)
    placed = place.place({gone: place.store(b"gone"), stays: place.store(b"stays")})
    assert placed.paths == {stays}
    reason = f"it cannot be put in its place: {os.strerror(errno.ENOENT)}"
    assert placed.skipped == [Skipped(gone, reason)]


def test_a_full_disk_is_no_trouble_of_one_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.tree.put("inductor/ab/c.best_config", b"old")
    refuse_to_take("c.best_config", monkeypatch, errno.ENOSPC)
    with pytest.raises(CacheRootError, match=os.strerror(errno.ENOSPC)):
        place.place({"inductor/ab/c.best_config": place.store(b"new")})
    assert contents(place.tree.root) == {"inductor/ab/c.best_config": b"old"}


def test_a_group_that_cannot_be_moved_in_is_put_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example on a filesystem that has no block left for a larger folder."""
    place.tree.put("triton/K/ptx", b"old")
    refuse_to_take("K", monkeypatch, errno.ENOSPC)
    placed = place.place(place.kernel("K", "ptx"))
    assert contents(place.tree.root) == {"triton/K/ptx": b"old"}
    assert (placed.paths, placed.lacking) == (set(), {"triton/K/ptx"})
    assert placed.skipped == [Skipped("triton/K", f"it cannot be put in its place: {os.strerror(errno.ENOSPC)}")]


def test_a_file_where_a_folder_should_be_stays(place: Place) -> None:
    place.tree.put("inductor/ab", b"a file")
    placed = place.place({"inductor/ab/c.py": place.store(b"code")})
    assert place.tree.read("inductor/ab") == b"a file"
    assert placed.paths == set()


def test_a_folder_where_a_file_should_be_stays(place: Place) -> None:
    place.tree.put("inductor/ab/c.py/x", b"a file")
    placed = place.place({"inductor/ab/c.py": place.store(b"code")})
    assert contents(place.tree.root) == {"inductor/ab/c.py/x": b"a file"}
    assert placed.paths == set()


def test_what_is_never_changed_in_place_bears_its_stamp(place: Place) -> None:
    wanted = {"inductor/ab/c.py": place.store(b"code")}
    place.place(wanted)
    mtime_ns = (place.tree.root / "inductor/ab/c.py").stat().st_mtime_ns
    assert bears_stamp(mtime_ns, wanted["inductor/ab/c.py"].digest)


def test_no_stamp_is_ahead_of_the_clock(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore takes a file whose time is in the future for one that is being written."""
    second = 10**9
    monkeypatch.setattr(time, "time_ns", lambda real=time.time_ns: real() // second * second)
    placed = place.place({"inductor/ab/c": place.store(b"code", 0)})
    (file,) = (place.tree.root / path for path in placed.paths)
    assert bears_stamp(file.stat().st_mtime_ns, digest_of(b"code"))
    assert time.time_ns() - 2 * second < file.stat().st_mtime_ns < time.time_ns()


def test_what_may_be_changed_in_place_is_a_writable_copy(place: Place) -> None:
    placed = place.place({"inductor/ab/c.cu": place.store(b"code", 0, mode=0o444)})
    status = (place.tree.root / "inductor/ab/c.cu").stat()
    assert (status.st_nlink, status.st_mode & 0o777) == (1, 0o644)
    assert placed.modes == {LinkMode.COPY: 1}
    assert placed.known["inductor/ab/c.cu"].inode == status.st_ino


def test_a_time_that_matters_is_restored(place: Place) -> None:
    place.place({"inductor/build.ninja": place.store(b"rules", MTIME)})
    assert (place.tree.root / "inductor/build.ninja").stat().st_mtime_ns == 1_500_000_000


def test_executables_stay_executable(place: Place) -> None:
    place.place({"inductor/ab/c.so": place.store(b"object", Flag.HOST, mode=0o755)})
    assert (place.tree.root / "inductor/ab/c.so").stat().st_mode & 0o777 == 0o755


def test_one_blob_may_go_to_many_places(place: Place) -> None:
    wanted = {f"inductor/{number:02}/c.py": place.store(b"same") for number in range(40)}
    assert place.place(wanted).paths == wanted.keys()
    assert set(contents(place.tree.root).values()) == {b"same"}


def test_many_files_and_a_big_one(place: Place) -> None:
    big = os.urandom(1 << 20) * 6
    wanted = {f"inductor/{number % 7}/c{number}.py": place.store(b"%d" % number) for number in range(60)}
    wanted["inductor/big.py"] = place.store(big)
    assert place.place(wanted).paths == wanted.keys()
    assert place.tree.read("inductor/big.py") == big


def test_a_restore_from_which_nothing_is_left_to_place_says_why(place: Place) -> None:
    name = f"{'x' * 300}.py"
    placed = place.place({f"inductor/{name}": place.store(b"code")})
    assert [tuple(skip) for skip in placed.skipped] == [
        (f"inductor/{name}", "its path is too long for this cache root")
    ]
    assert placed.paths == set()


def test_a_folder_that_cannot_have_its_name_costs_what_is_in_it(place: Place) -> None:
    short, long = "inductor/ab/c.py", f"inductor/{'x' * 300}/c.py"
    placed = place.place({path: place.store(b"code") for path in (short, long)})
    assert placed.paths == contents(place.tree.root).keys() == {short}
    assert placed.skipped == [Skipped(long, "its path is too long for this cache root")]


def test_a_list_is_not_placed_without_a_file_that_cannot_have_its_name(place: Place) -> None:
    """vLLM would not start: it reads what its list names."""
    names = [f"{rank}/backbone/{name}" for rank in ("rank_0", "rank_1") for name in ("list.py", "graph")]
    wanted = {f"inductor/{name}": place.store(name.encode(), 0) for name in names}
    long = f"inductor/rank_0/backbone/{'x' * 300}"
    placed = place.place({**wanted, long: place.store(b"another graph", 0)}, lambda path: path.endswith("/list.py"))
    left_out = "inductor/rank_0/backbone/list.py"
    assert placed.paths == wanted.keys() - {left_out} == contents(place.tree.root).keys()
    assert {skipped.path for skipped in placed.skipped} == {left_out, long}


def put_a_socket(blob: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(blob.parent)  # otherwise its name would be too long
    blob.unlink()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(blob.name)


def put_a_file_above(blob: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(blob.parent)
    blob.parent.write_text("no folder")


def remove(blob: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blob.unlink()


@pytest.mark.parametrize("damage", [put_a_socket, put_a_file_above, remove])
def test_a_blob_that_cannot_be_looked_at_costs_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path, pytest.MonkeyPatch], None]
) -> None:
    """Also the first blob, with which it is found out how files can be linked."""
    place = Place(tmp_path, Layout.LOOSE)
    bad, good = place.store(b"bad"), place.store(b"good")
    damage(Path(blob_path(str(place.blobs.loose.folder), bad.digest)), monkeypatch)
    placed = place.place({"inductor/aa/bad.py": bad, "inductor/bb/good.py": good})
    assert placed.paths == {"inductor/bb/good.py"}
    assert [skip.path for skip in placed.skipped] == ["inductor/aa/bad.py"]


@pytest.mark.parametrize("size", [2**62, 2**63, 2**64 - 1])
def test_a_size_that_no_file_has_costs_its_file(tmp_path: Path, size: int) -> None:
    place = Place(tmp_path, Layout.LOOSE)
    wanted = {
        "inductor/aa/bad.py": place.store(b"bad")._replace(size=size),
        "inductor/bb/good.py": place.store(b"good"),
    }
    assert place.place(wanted).paths == {"inductor/bb/good.py"}
