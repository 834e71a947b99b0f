"""Manifests that no commit would make, under correct digests: nothing is written outside the cache root, and what
kstore and the worker have there stays.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

import kstore
from kstore.blobs.loose import blob_name
from kstore.digest import digest_of
from kstore.errors import IntegrityError, KstoreError
from kstore.local.link import LinkMode
from kstore.published.manifest import Entry, Flag, Manifest
from kstore.published.ref import Ref
from kstore.report import RestoreStatus
from tests import tablefiles
from tests.hostile.victim import attempt
from tests.trees import ENVIRONMENT, GPU, KEY, Node, contents, listing
from tests.trees import publish as publish_ref

EVIL = b"evil"
FIRST = Entry(digest_of(EVIL), len(EVIL), 0, 0o644, 0, 0)
MINE = b"# compiled here\n"

pytestmark = pytest.mark.usefixtures("host")


class World:
    """A worker with files of its own, in a folder where everything else is watched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = Node(folder, "root")
        self.outside = folder / "outside"
        self.outside.mkdir(parents=True)
        (self.outside / "file").write_bytes(b"outside")
        self.node.tree.put("inductor/ab/mine.py", MINE)
        self.node.tree.put("triton/MINE/k.ptx", MINE)
        self.node.store.create()
        self.node.store.storage.blobs.loose.put_many([(FIRST.digest, EVIL)])

    def publish(self, data: bytes, generation: int = 1) -> None:
        """Publish a manifest, as bytes, as the newest generation."""
        self.node.store.storage.blobs.loose.put_many([(digest_of(data), data)])
        scope = self.node.store.scope(KEY)
        ref = Ref(scope, generation, digest_of(data), len(data), (), 0.0, "evil", 1, 1)
        assert publish_ref(self.node.store.storage.refs, ref)

    def restore(self) -> kstore.RestoreReport | KstoreError:
        """As `Store.restore`. Whatever it does, it does inside the root, and it takes nothing away."""
        before = self.watched()
        answer = attempt(self.node.restore)
        assert self.watched() == before
        assert self.node.tree.read("inductor/ab/mine.py") == self.node.tree.read("triton/MINE/k.ptx") == MINE
        for path in self.node.tree.root.rglob("*"):
            assert not path.is_symlink() or path in self.links
            assert not path.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX)
        return answer

    links: tuple[Path, ...] = ()
    """Symbolic links that were in the root before."""

    def watched(self) -> object:
        """Everything except the inside of the root and the mark of a restore."""
        names = {path.name for path in self.folder.iterdir()} - {"root"}
        stored = contents(self.folder / "store")
        return names, listing(self.outside), {name: data for name, data in stored.items() if name[:5] != "used/"}

    def commit(self) -> kstore.CommitReport | KstoreError:
        """As `Store.commit`, with one more file."""
        self.node.tree.wrapper("more")
        answer: kstore.CommitReport | KstoreError = attempt(self.node.commit)
        return answer


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def manifest(files: Mapping[bytes, Entry | bytes]) -> bytes:
    """A manifest with any bytes for paths, and any bytes for records."""
    record = tablefiles.Table()
    for path, entry in files.items():
        record[path] = entry if isinstance(entry, bytes) else pack(entry)
    return tablefiles.dump({"files": record, "meta": {}})


def pack(entry: Entry) -> bytes:
    (row,) = tablefiles.load(Manifest({"x": entry}).dump())["files"].values()
    return row


# ---- Paths

REFUSED = {
    "climbs": b"inductor/../../outside/file",
    "climbs at its end": b"inductor/ab/..",
    "climbs at once": b"../outside/file",
    "climbs after a line's end": b"inductor/x\n/../../../outside/new",
    "absolute": b"/tmp/kstore-hostile",
    "a NUL": b"inductor/a\0b",
    "a NUL after a climb": b"inductor/..\0/x",
    "a point": b"inductor/./x",
    "no name": b"inductor//x",
    "a folder's name": b"inductor/x/",
    "a component's name": b"inductor",
    "a point alone": b".",
    "kstore's own folder": b".kstore/base",
    "kstore's own folder in a component": b"inductor/.kstore/stage-0/x",
    "kstore's own folder deeper": b"triton/X/.kstore/x",
    "kstore's own folder as a file": b"triton/.kstore",
    "climbs and is long": b"inductor/../" + b"x" * 600,
}


@pytest.mark.parametrize("path", REFUSED.values(), ids=REFUSED.keys())
def test_a_path_that_leaves_its_component_costs_the_whole_manifest(world: World, path: bytes) -> None:
    world.publish(manifest({b"inductor/ab/good.py": FIRST, path: FIRST}))
    before = contents(world.node.tree.root)
    assert isinstance(world.restore(), IntegrityError)
    assert contents(world.node.tree.root) == before
    world.commit()
    assert not Path("/tmp/kstore-hostile").exists()


CONTRADICTIONS = {
    "a file in a file": (b"inductor/x", b"inductor/x/y"),
    "a file deep in a file": (b"inductor/x", b"inductor/x/y/z/w"),
    "a file in a long file": (b"inductor/" + b"x" * 600, b"inductor/" + b"x" * 600 + b"/y"),
}


def test_a_manifest_that_is_refused_is_passed_over(world: World) -> None:
    world.publish(manifest({b"inductor/ab/good.py": FIRST}))
    world.publish(manifest({b"inductor/ab/good.py": FIRST, b"inductor/../x": FIRST}), 2)
    answer = world.restore()
    assert isinstance(answer, kstore.RestoreReport)
    assert (answer.generation, answer.placed) == (1, 1)
    world.commit()
    assert (world.node.newest().generation, len(world.node.published())) == (3, 4)


def test_verify_finds_a_manifest_that_is_refused_and_repair_takes_it_out(world: World) -> None:
    world.publish(manifest({b"inductor/ab/good.py": FIRST}))
    world.publish(manifest({b"inductor/ab/good.py": FIRST, b"inductor/ab": FIRST}), 2)
    (damage,) = world.node.store.verify(repair=True).damage
    assert damage.generation == 2
    assert "contradict" in damage.reason
    assert world.node.store.verify().ok
    assert (world.node.newest().generation, len(world.node.published())) == (3, 1)


@pytest.mark.parametrize("paths", CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_what_is_both_file_and_folder_is_refused(world: World, paths: tuple[bytes, bytes]) -> None:
    world.publish(manifest(dict.fromkeys(paths, FIRST)))
    assert isinstance(world.restore(), IntegrityError)


LEFT_OUT = {
    "an unknown component": b"nothing/ab/x.py",
    "another case": b"Inductor/ab/x.py",
    "a blank": b" inductor/ab/x.py",
    "a look-alike": b"\xd1\x96nductor/ab/x.py",
    "no text": b"\xff\xfe/x",
    "home": b"~/x",
    "a variable": b"$HOME/x",
}


@pytest.mark.parametrize("path", LEFT_OUT.values(), ids=LEFT_OUT.keys())
def test_what_is_in_no_component_is_left_out(world: World, path: bytes) -> None:
    world.publish(manifest({b"inductor/ab/good.py": FIRST, path: FIRST}))
    answer = world.restore()
    assert isinstance(answer, kstore.RestoreReport)
    assert (answer.placed, len(answer.skipped)) == (1, 1)
    assert world.node.tree.read("inductor/ab/good.py") == EVIL


PLACED = {
    "no text": b"inductor/\xff\xfe\xed\xa0\x80",
    "another case of another file": b"inductor/AB/GOOD.py",
    "a line's end": b"inductor/a\nb",
    "terminal codes": b"inductor/\x1b[2J\x07",
    "a name of 255 bytes": b"inductor/" + b"x" * 255,
    "a path of 900 bytes": b"inductor/" + b"/".join([b"x" * 100] * 9),
    "backslashes": b"inductor/..\\..\\x",
    "three points": b"inductor/.../x",
    "a tilde": b"inductor/~/x",
}


@pytest.mark.parametrize("path", PLACED.values(), ids=PLACED.keys())
def test_odd_names_are_names(world: World, path: bytes) -> None:
    world.publish(manifest({b"inductor/ab/good.py": FIRST, path: FIRST}))
    answer = world.restore()
    assert isinstance(answer, kstore.RestoreReport)
    assert answer.placed == 2
    assert (world.node.tree.root / path.decode("utf-8", "surrogateescape")).read_bytes() == EVIL
    assert isinstance(world.commit(), kstore.CommitReport)


@pytest.mark.parametrize(
    "path", [b"inductor/" + b"x" * 256, b"inductor/" + (b"x" * 20 + b"/") * 199 + b"x", b"inductor/" + b"y" * 4096]
)
def test_what_has_too_long_a_name_for_the_filesystem_is_left_out(world: World, path: bytes) -> None:
    world.publish(manifest({b"inductor/ab/good.py": FIRST, path: FIRST}))
    answer = world.restore()
    assert isinstance(answer, kstore.RestoreReport)
    assert (answer.placed, answer.left_out) == (1, 1)
    assert [(skipped.path.encode(), "too long" in skipped.reason) for skipped in answer.skipped] == [(path, True)]
    assert world.node.tree.read("inductor/ab/good.py") == EVIL


def test_what_no_commit_would_look_at_is_left_out(world: World) -> None:
    deep = "inductor/" + "d/" * 101 + "x"
    world.publish(manifest({b"inductor/ab/good.py": FIRST, deep.encode(): FIRST}))
    answer = world.restore()
    assert isinstance(answer, kstore.RestoreReport)
    assert answer.skipped == ((deep, "its path is too deep"),)
    assert isinstance(world.commit(), kstore.CommitReport)


def test_a_path_twice_as_deep_as_any_is_refused(world: World) -> None:
    """The names of all folders that it is in take far more memory than it does."""
    world.publish(manifest({b"inductor/ab/good.py": FIRST, b"inductor/" + b"d/" * 200 + b"x": FIRST}))
    assert isinstance(world.restore(), IntegrityError)


def test_a_group_with_too_long_a_name_is_left_out_whole(world: World) -> None:
    grouped = FIRST._replace(flags=int(Flag.GROUP), unit=2)
    long = "triton/LONG/" + ("x" * 40 + "/") * 99 + "x"
    world.publish(manifest(dict.fromkeys((b"triton/LONG/k.ptx", long.encode(), b"triton/SHORT/k.ptx"), grouped)))
    answer = world.restore()
    assert isinstance(answer, kstore.RestoreReport)
    assert (answer.placed, {skipped.path for skipped in answer.skipped}) == (1, {long, "triton/LONG/k.ptx"})
    assert not world.node.tree.has("triton/LONG")


def test_what_was_too_long_is_kept_by_the_next_commit(world: World) -> None:
    path = "inductor/" + ("x" * 40 + "/") * 99 + "x"
    world.publish(manifest({b"inductor/ab/good.py": FIRST, path.encode(): FIRST}))
    world.restore()
    assert isinstance(world.commit(), kstore.CommitReport)
    assert world.node.published().keys() > {path, "inductor/ab/good.py"}


def test_a_path_that_occurs_twice_is_placed_once(world: World) -> None:
    """The same path once as itself, and once as a long path under its digest."""
    other = FIRST._replace(digest=digest_of(b"other"))
    path = b"inductor/ab/twice.py"
    long_row = len(path).to_bytes(4, "little") + path + pack(other)
    world.publish(tables_with_rows({path: pack(FIRST), b"\xff" + digest_of(path): long_row}))
    assert isinstance(world.restore(), (kstore.RestoreReport, KstoreError))
    assert contents(world.node.tree.root).get(path.decode(), EVIL) == EVIL


def test_a_file_in_a_group_that_is_being_written_is_not_replaced(world: World) -> None:
    """Whatever the manifest says about the file: no commit leaves a group's file outside its group."""
    world.publish(Manifest({"triton/MINE/k.ptx": FIRST}).dump())
    assert isinstance(world.restore(), kstore.RestoreReport)


def test_a_group_does_not_take_the_place_of_a_folder_of_other_files(world: World) -> None:
    """Otherwise the whole folder would be removed with it."""
    world.publish(Manifest({"inductor/ab/x.py": FIRST._replace(flags=int(Flag.GROUP), unit=2)}).dump())
    assert isinstance(world.restore(), kstore.RestoreReport)


def tables_with_rows(rows: Mapping[bytes, bytes]) -> bytes:
    """Rows as they are stored."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kstore.tables._store_row", lambda key, value: (key, value))
        return tablefiles.dump({"files": rows, "meta": {}})


@pytest.mark.parametrize("row", [b"", b"\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\xffx" + pack(FIRST), b"\0\0\0\0"])
def test_a_long_path_that_is_cut_short_is_refused(world: World, row: bytes) -> None:
    world.publish(tables_with_rows({b"\xff" + bytes(32): row}))
    assert isinstance(world.restore(), IntegrityError)


# ---- What is already in the cache root


@pytest.mark.parametrize("target", ["outside", "outside/file", "nothing", "root/inductor/loop", "/dev/zero"])
@pytest.mark.parametrize("place", ["inductor/loop", "inductor/a/loop", "triton/loop"])
@pytest.mark.parametrize("below", ["", "/x", "/x/y/z"])
def test_links_in_the_root_lead_nowhere(world: World, place: str, target: str, below: str) -> None:
    link = world.node.tree.root / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(world.folder / target)
    world.links = (link,)
    group = FIRST._replace(flags=int(Flag.GROUP), unit=place.count("/") + 1) if below else FIRST
    for generation, entry in enumerate((FIRST, group), 1):
        world.publish(manifest({f"{place}{below}".encode(): entry, b"inductor/ab/good.py": FIRST}), generation)
        world.restore()
    assert world.node.tree.read("inductor/ab/good.py") == EVIL


def test_what_the_worker_has_in_the_place_of_a_folder_stays(world: World) -> None:
    world.publish(manifest({b"inductor/ab/mine.py/x": FIRST, b"triton/MINE/k.ptx/y/z": FIRST}))
    world.restore()


def test_a_file_in_the_place_of_the_workers_folder_is_left_out(world: World) -> None:
    world.publish(manifest({b"inductor/ab": FIRST, b"triton/MINE": FIRST}))
    answer = world.restore()
    assert isinstance(answer, kstore.RestoreReport)
    assert {skipped.path for skipped in answer.skipped} == {"inductor/ab", "triton/MINE"}


# ---- Records

GROUP, SLOT, LINK, RELOCATE, MERGE, MTIME, HOST = (int(flag) for flag in map(Flag.__getitem__, (
    "GROUP", "SLOT", "LINK", "RELOCATE", "MERGE", "MTIME", "HOST",
)))  # fmt: skip

IMPOSSIBLE = {
    "a group that is a component": (GROUP, 1),
    "a group that is everything": (GROUP, 0),
    "a group deeper than its file": (GROUP, 4),
    "a group that is its file": (GROUP, 3),
    "a slot deeper than its file": (SLOT, 255),
    "a group and a slot": (GROUP | SLOT, 2),
    "linked and relocated": (LINK | RELOCATE, 0),
    "linked and merged": (LINK | MERGE, 0),
    "linked, with a time of its own": (LINK | MTIME, 0),
}


@pytest.mark.parametrize(("flags", "unit"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
@pytest.mark.parametrize("path", ["inductor/ab/x.py", "triton/MINE/x.ptx", "triton/X/x.ptx"])
def test_records_that_contradict_themselves_cost_the_whole_manifest(
    world: World, path: str, flags: int, unit: int
) -> None:
    world.publish(manifest({path.encode(): FIRST._replace(flags=flags, unit=unit)}))
    assert isinstance(world.restore(), IntegrityError)
    assert not world.node.tree.has(path)


ODD = {
    "a mode that runs as another user": FIRST._replace(mode=0o7777),
    "no mode": FIRST._replace(mode=0),
    "every bit of a mode": FIRST._replace(mode=2**16 - 1),
    "a time long ago": FIRST._replace(mtime_ns=-(2**63), flags=MTIME),
    "a time before 1970": FIRST._replace(mtime_ns=-1, flags=MTIME),
    "a time far away": FIRST._replace(mtime_ns=2**63 - 1, flags=MTIME),
    "garbage to relocate": FIRST._replace(flags=RELOCATE),
    "garbage to merge": FIRST._replace(flags=MERGE),
    "portable, but bound": FIRST._replace(flags=HOST),
    "flags of the future": FIRST._replace(flags=128),
    "linked": FIRST._replace(flags=LINK),
    "linked, and run as another user": FIRST._replace(flags=LINK, mode=0o6755),
}


@pytest.mark.parametrize("entry", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("path", ["inductor/ab/x.py", "inductor/cache/x", "triton/X/__grp__x.json"])
def test_odd_records_are_harmless(world: World, path: str, entry: Entry) -> None:
    world.publish(manifest({path.encode(): entry}))
    answer = world.restore()
    assert isinstance(answer, kstore.RestoreReport)
    assert world.node.tree.read(path) == EVIL
    assert (world.node.tree.root / path).stat().st_mode & 0o400
    world.node.tree.put(path, b"a compiler's", mode=0o644)
    assert isinstance(world.commit(), kstore.CommitReport)


@pytest.mark.parametrize("size", [0, 1, len(EVIL) + 1, 2**40, 2**64 - 1])
@pytest.mark.parametrize("flags", [0, LINK])
def test_a_blob_of_another_size_than_declared_is_left_out(world: World, size: int, flags: int) -> None:
    world.publish(manifest({b"inductor/ab/x.py": FIRST._replace(size=size, flags=flags)}))
    answer = world.restore()
    assert isinstance(answer, kstore.RestoreReport)
    assert [skipped.path for skipped in answer.skipped] == ["inductor/ab/x.py"]
    assert not world.node.tree.has("inductor/ab/x.py")
    assert isinstance(world.commit(), kstore.CommitReport)


@pytest.mark.usefixtures("plain_calls")
def test_a_clone_has_permission_bits_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the filesystem can clone, the file is made with the manifest's mode."""
    monkeypatch.setattr("kstore.calls.plain.fcntl.ioctl", lambda *_: 0)
    world.publish(manifest({b"inductor/ab/x.py": FIRST._replace(flags=LINK, mode=0o6700)}))
    answer = world.restore()
    assert isinstance(answer, kstore.RestoreReport)
    assert answer.link_mode is LinkMode.REFLINK
    assert (world.node.tree.root / "inductor/ab/x.py").stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize("row", [b"", b"short", pack(FIRST)[:-1], pack(FIRST) + b"\0"])
def test_a_record_of_another_size_is_refused(world: World, row: bytes) -> None:
    world.publish(manifest({b"inductor/ab/x.py": row}))
    assert isinstance(world.restore(), IntegrityError)


# ---- Tables


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"files": {}},
        {"meta": {}},
        {"files": {}, "meta": {b"key": b"["}},
        {"files": {}, "meta": {b"key": b"[" * 100_000}},
        {"files": {}, "meta": {b"\xff\xfe": b"1"}},
        {"files": {}, "meta": {}, "hosts/a": {b"x": b"y"}},
    ],
)
def test_tables_that_make_no_manifest_are_refused(world: World, found: Mapping[str, tablefiles.Table]) -> None:
    world.publish(tablefiles.dump(found))
    assert isinstance(world.restore(), IntegrityError)
    assert isinstance(world.commit(), IntegrityError)


def test_hostile_paths_of_another_host_are_refused_too(world: World) -> None:
    """Paths of other hosts are checked too: otherwise this worker would pass them on."""
    evil = Manifest({}, {"some-other": {"../outside/file": FIRST}})
    world.publish(evil.dump())
    assert isinstance(world.restore(), IntegrityError)


def test_very_many_hosts_are_passed_on(world: World) -> None:
    world.publish(Manifest({}, {f"{number:016x}": {} for number in range(1000)}).dump())
    assert isinstance(world.restore(), kstore.RestoreReport)
    assert isinstance(world.commit(), kstore.CommitReport)


def test_a_ref_may_name_something_that_is_not_a_manifest(world: World) -> None:
    world.publish(EVIL)
    assert isinstance(world.restore(), IntegrityError)
    report = kstore.restore(
        KEY, store=world.folder / "store", cache_root=world.node.tree.root, gpu=GPU, environment=ENVIRONMENT
    )
    assert report.status is RestoreStatus.FAILED


def test_the_blob_of_an_artifact_may_be_the_manifest_itself(world: World) -> None:
    data = manifest({b"inductor/ab/x.py": FIRST})
    world.publish(data)
    again = manifest({b"inductor/ab/x.py": FIRST._replace(digest=digest_of(data), size=len(data))})
    world.publish(again, 2)
    world.restore()
    assert world.node.tree.read("inductor/ab/x.py") == data
    assert (world.folder / "store" / blob_name(digest_of(data))).read_bytes() == data
