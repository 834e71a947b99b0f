"""What `du` says that a key would free is what forgetting it frees, to the byte."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from kstore.blobs import BlobStore
from kstore.blobs.loose import blob_name
from kstore.blobs.packreader import PackReader
from kstore.environment import Host
from kstore.gc import Policy
from kstore.gc.mark import needs_in
from kstore.progress import Progress
from kstore.published import fetched
from kstore.published.manifest import Manifest
from kstore.published.ref import Ref
from kstore.published.refs import Refs
from kstore.report import Count
from kstore.scope import Scope
from kstore.stats.accounts import Accounts, Holding, holdings, space_of
from kstore.stats.overview import Shelf, overview
from kstore.stats.space import Space
from kstore.storage import Storage
from kstore.store import Store
from tests.faults.reading import raising, unlistable
from tests.layers.images import Fleet
from tests.stats.stores import A100, H100, busy_store, commit
from tests.test_repair import meanwhile, rot_frame
from tests.trees import ENVIRONMENT, KEY, Node

KEYS = ("llama/v1", "llama/v2", "flux/dev")
MEMORY = 64
"""The memory in MiB that reading a store of a thousand keys adds."""
PROGRAM = Path(__file__).parents[1] / "programs" / "measure_thousand.py"


@pytest.fixture(autouse=True)
def fixed_host(host: Host) -> None:
    """Nothing here is bound to a host."""


def objects(storage: Storage) -> dict[str, int]:
    """Name → bytes of every pack and loose blob, as the filesystem has them."""
    root = Path(storage.location)
    files = [path for folder in ("blobs", "packs") for path in (root / folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.stat().st_size for path in files}


def by_key(storage: Storage) -> Space[str]:
    return space_of(storage, lambda scope: scope.key)


def freed_by_forgetting(storage: Storage, key: str, folder: Path) -> int:
    """The bytes that are gone from a copy of the store after its key was forgotten."""
    copy = shutil.copytree(storage.location, folder / key.replace("/", "-"))
    store = Store(copy, environ={})
    before = objects(store.storage)
    store.forget(key)
    store.gc(Policy(keep=100, offline=True))
    after = objects(store.storage)
    return sum(size for name, size in before.items() if name not in after)


@pytest.mark.parametrize("key", KEYS)
def test_what_a_key_alone_has_is_what_forgetting_it_frees(tmp_path: Path, key: str) -> None:
    storage = busy_store(tmp_path)
    held = by_key(storage).groups[key]
    assert held.alone > 0
    assert freed_by_forgetting(storage, key, tmp_path / "copies") == held.alone


def test_a_pinned_generation_keeps_what_it_needs(tmp_path: Path) -> None:
    storage = busy_store(tmp_path)
    alone = by_key(storage).groups["llama/v1"].alone
    Store(storage.location, gpu=H100, environ={}, environment="torch-test").pin("llama/v1", 2)
    pinned = by_key(storage).groups["llama/v1"]
    assert 0 < pinned.alone < alone
    assert freed_by_forgetting(storage, "llama/v1", tmp_path / "copies") == pinned.alone


def test_a_pack_that_another_key_relies_on_is_shared_whole(tmp_path: Path) -> None:
    commit(tmp_path, "model/v1", "one", "two")
    before = sum(objects(commit(tmp_path, "model/v2", "one", "three").store.storage).values())
    storage = Storage(tmp_path / "store")
    space = by_key(storage)
    assert space.groups["model/v2"].shared == space.groups["model/v1"].stored
    assert space.groups["model/v1"].alone == 0
    assert [held.deduplicated for held in space.groups.values()] == [0, 0]
    assert freed_by_forgetting(storage, "model/v1", tmp_path / "copies") == 0
    assert space.whole.stored == before


def test_the_frames_of_a_shared_pack_that_one_key_needs_are_told(tmp_path: Path) -> None:
    """A blob of four megabytes has a frame of its own, and does not compress."""
    first = Node(tmp_path, "first", layout="packed")
    first.tree.put("inductor/ab/large.bin", os.urandom(4 << 20))
    first.tree.kernel("shared")
    first.commit("model/v1")
    second = Node(tmp_path, "second", layout="packed")
    second.tree.kernel("shared")
    second.commit("model/v2")
    space = by_key(second.store.storage)
    assert 4 << 20 <= space.groups["model/v1"].frames < (4 << 20) + 10_000
    assert space.groups["model/v2"].frames == 0

    first.store.forget("model/v1")
    first.store.gc(Policy(offline=True, max_size=None))
    left = by_key(second.store.storage)
    assert left.dead_frames + left.unneeded.bytes >= 4 << 20


def test_the_totals_are_those_of_the_folder(tmp_path: Path) -> None:
    storage = busy_store(tmp_path)
    found = objects(storage)
    (min(Path(storage.location, "blobs").iterdir()) / "notes.txt").write_bytes(b"no blob")
    space = by_key(storage)
    assert space.objects == Count(len(found), sum(found.values()))
    assert space.unneeded == Count()
    assert space.whole.stored == sum(found.values())
    assert space.whole.alone == sum(held.alone for held in space.groups.values())
    assert space.unreadable == []


def test_how_many_generations_have_been_read_can_be_told_meanwhile(tmp_path: Path) -> None:
    progress = Progress()
    whole = space_of(busy_store(tmp_path), lambda scope: scope.key, progress=progress).whole
    assert progress.done == whole.generations == 7


def test_what_no_generation_needs_is_listed_apart(tmp_path: Path) -> None:
    storage = busy_store(tmp_path)
    needed = by_key(storage).whole.stored
    store = Store(storage.location, environ={})
    store.forget("flux/dev")
    store.gc(Policy(keep=1))
    space, found = by_key(storage), objects(storage)
    assert space.unneeded.bytes == 0  # superseded a short time ago
    store.gc(Policy(keep=1, grace=0, offline=True), dry_run=True)
    copy = Store(shutil.copytree(storage.location, tmp_path / "copy"), environ={})
    for path in (Path(copy.location) / "refs").rglob("*/1"):
        if path.with_name("2").exists():
            path.unlink()
    space, found = by_key(copy.storage), objects(copy.storage)
    assert space.unneeded.bytes == sum(found.values()) - space.whole.stored > 0
    assert space.whole.stored < needed + 10_000_000


def test_equal_files_are_counted_once(tmp_path: Path) -> None:
    """One artifact under two keys and two GPUs: four times in the generations, once in the store."""
    data = os.urandom(50_000)
    for key in ("model/v1", "model/v2"):
        for gpu in (A100, H100):
            node = Node(tmp_path, f"{key}-{gpu}".replace("/", "-"), layout="loose", gpu=gpu)
            node.tree.put("inductor/ab/module.py", data)
            node.commit(key)
    storage = Storage(tmp_path / "store")
    space = by_key(storage)
    assert (space.whole.artifacts, space.whole.unique) == (200_000, 50_000)
    assert space.whole.deduplicated == 150_000
    assert space.groups["model/v1"].unique == 50_000
    assert space.whole.stored == 50_000 + space.whole.manifests == sum(objects(storage).values())
    assert space.whole.compressed == 0


def test_a_manifest_may_name_more_components_than_are_told_apart(tmp_path: Path) -> None:
    node = Node(tmp_path)
    path = node.tree.wrapper()
    node.commit()
    ref, entry = node.newest(), node.published()[path]
    manifest = Manifest({f"component{number}/file": entry for number in range(300)})
    holding = Holding(ref, False, manifest, needs_in(node.store.storage.blobs, ref, manifest))
    with Accounts(node.store.storage, lambda scope: scope.key) as accounts:
        accounts.add(holding)
        whole = accounts.finish().whole
    assert (whole.artifacts, whole.unique) == (300 * entry.size, entry.size)


def test_what_compression_saves_is_the_difference_to_the_folder(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="packed")
    node.tree.put("inductor/ab/module.py", b"pass\n" * 100_000)
    node.commit()
    space = by_key(node.store.storage)
    assert space.whole.compressed == 500_000 + space.whole.manifests - sum(objects(node.store.storage).values())
    assert space.whole.compressed > 490_000


def test_what_two_packs_have_is_neither_deduplicated_nor_badly_compressed(tmp_path: Path) -> None:
    data = os.urandom(50_000)
    for gpu in (A100, H100):
        node = Node(tmp_path, gpu, layout="packed", gpu=gpu)
        node.tree.put("inductor/ab/module.py", data)
        node.commit()
    whole = by_key(node.store.storage).whole
    assert (whole.artifacts, whole.unique, whole.deduplicated) == (100_000, 50_000, 0)
    assert 0 < whole.compressed < whole.manifests


@pytest.mark.parametrize("layout", ["loose", "packed"])
def test_what_a_store_below_has_is_not_compressed(tmp_path: Path, layout: str) -> None:
    fleet = Fleet(tmp_path, layout, layout)
    fleet.bake("one")
    worker = fleet.worker("worker")
    worker.restore()
    worker.tree.wrapper("two")
    worker.commit()
    whole = by_key(worker.store.storage).whole
    assert whole.elsewhere > 0 == whole.deduplicated
    assert whole.artifacts - whole.elsewhere + whole.manifests - whole.compressed == whole.stored
    assert whole.compressed == 0 if layout == "loose" else whole.compressed < whole.manifests


def test_what_a_store_below_has_and_this_one_too_is_not_for_gc(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "loose", "loose")
    base = fleet.bake("one")
    worker = fleet.worker("worker")
    worker.restore()
    worker.tree.wrapper("two")
    worker.commit()
    shutil.copytree(base / "blobs", worker.location / "blobs", dirs_exist_ok=True)
    dead = by_key(worker.store.storage).unneeded
    report = worker.store.gc(Policy(offline=True), dry_run=True)
    assert dead == report.deleted
    assert dead.files == 1  # the manifest from below


def test_an_unreadable_generation_is_named_once(tmp_path: Path) -> None:
    storage = busy_store(tmp_path)
    ref = Path(storage.location) / "refs" / H100 / "llama/v2/@torch-test/1"
    ref.chmod(0o644)
    ref.write_text("damaged")
    space = by_key(storage)
    assert "llama/v2" not in space.groups
    (said,) = space.unreadable
    assert said.count("generation 1 of llama/v2") == 1


def test_a_key_that_was_forgotten_is_held_but_not_published(tmp_path: Path) -> None:
    commit(tmp_path, "model/v1", "one")
    commit(tmp_path, "model/v2", "one").store.forget("model/v2")
    space = by_key(Storage(tmp_path / "store"))
    held = space.groups["model/v2"]
    assert (held.generations, held.live, held.published) == (2, 1, False)
    assert held.artifacts == held.unique > 0
    assert space.groups["model/v1"].published
    assert (space.whole.generations, space.whole.live, space.whole.published) == (3, 2, True)


def test_a_manifest_that_memory_has_no_room_for_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = busy_store(tmp_path)
    real = fetched.read_manifest

    def fails(blobs: BlobStore, ref: Ref) -> bytes:
        if ref.scope.key == "llama/v2":
            raise MemoryError
        return real(blobs, ref)

    monkeypatch.setattr(fetched, "read_manifest", fails)
    space = by_key(storage)
    assert space.unreadable == [f"generation 1 of {Scope(H100, 'llama/v2', ENVIRONMENT)}: it does not fit in memory"]
    assert set(space.groups) == {"llama/v1", "flux/dev"}


@pytest.mark.parametrize("is_named", [True, False], ids=["by the newest generation", "by an earlier one"])
def test_an_index_that_memory_has_no_room_for_is_named(
    tmp_path: Path, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = commit(tmp_path, KEY, "one", layout="packed")
    storage, (pack,) = node.store.storage, node.newest().packs
    if not is_named:
        node.store.forget(KEY)
    with Accounts(storage, Shelf.of) as accounts:
        for holding in holdings(storage, storage.refs.scopes(), [], None):
            accounts.add(holding)
        monkeypatch.setattr(PackReader, "_load_index", raising(MemoryError()))
        assert f"pack {pack}: it does not fit in memory" in accounts.finish().unreadable


def test_a_blob_that_is_lost_is_not_stored(tmp_path: Path) -> None:
    storage = busy_store(tmp_path)
    found = objects(storage)
    lost = min((name for name in found if name.startswith("blobs/")), key=lambda name: found[name])
    (Path(storage.location) / lost).unlink()
    space = by_key(storage)
    assert space.whole.stored == space.objects.bytes == sum(objects(storage).values())
    assert space.whole.elsewhere == found[lost]
    assert space.whole.alone == sum(held.alone for held in space.groups.values())
    assert space.unreadable == [f"1 lost blob, {found[lost]} bytes; `kstore verify` says of what"]
    assert overview(storage).unreadable == space.unreadable


def test_a_blob_that_two_generations_have_lost_is_counted_once(tmp_path: Path) -> None:
    node = commit(tmp_path, KEY, "one", layout="loose")
    node.tree.kernel("another")
    node.commit()
    entry = max(node.published().values(), key=lambda entry: entry.size)
    (node.location / blob_name(entry.digest)).unlink()
    (told,) = by_key(node.store.storage).unreadable
    assert told.startswith(f"1 lost blob, {entry.size} bytes;")


def test_a_pack_that_the_newest_generation_names_is_missed(tmp_path: Path) -> None:
    node = commit(tmp_path, KEY, "one", layout="packed")
    (pack,) = node.newest().packs
    node.tree.kernel("another")
    node.commit()
    (node.location / "packs" / pack).unlink()
    assert any(line.startswith(f"pack {pack}: ") for line in by_key(node.store.storage).unreadable)


def test_loose_blobs_in_a_folder_that_cannot_be_listed_are_not_called_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = commit(tmp_path, KEY, "one", layout="loose")
    unlistable(monkeypatch, f"blobs/{min(os.listdir(node.location / 'blobs'))}")
    (told,) = by_key(node.store.storage).unreadable
    assert "lost" not in told


REMOVALS = {
    "before its manifest is read": (BlobStore, "keep_only"),
    "while it is counted": (Accounts, "add"),
    "once all are counted": (Accounts, "finish"),
}


@pytest.mark.parametrize("layout", ["loose", "packed"])
@pytest.mark.parametrize(("owner", "method"), REMOVALS.values(), ids=REMOVALS.keys())
def test_what_gc_removes_meanwhile_is_not_lost(
    tmp_path: Path, layout: str, owner: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = commit(tmp_path, KEY, "one", layout=layout).store

    def remove() -> None:
        store.forget(KEY)
        assert store.gc(Policy(keep=1, offline=True)).deleted.files > 0

    meanwhile(monkeypatch, owner, method, remove)
    assert by_key(store.storage).unreadable == []


def test_what_cannot_be_asked_for_is_not_taken_for_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = commit(tmp_path, KEY, "one").store.storage

    def refuse(*_: object) -> NoReturn:
        raise PermissionError("denied")

    monkeypatch.setattr(fetched, "read_manifest", refuse)
    monkeypatch.setattr(Refs, "exists", refuse)
    assert by_key(storage).unreadable == [f"generation 1 of {Scope(H100, KEY, ENVIRONMENT)}: denied"]


def test_what_is_lost_is_told_also_if_gc_removes_something_else_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tmp_path, KEY, "one", layout="loose")
    node = commit(tmp_path, KEY, "two", layout="loose")
    lost = node.published()[node.tree.kernel("two") + "/k.cubin"]
    next(Path(node.location).rglob(lost.digest.hex())).unlink()
    meanwhile(monkeypatch, Accounts, "finish", lambda: node.store.gc(Policy(keep=1, offline=True)))
    assert by_key(node.store.storage).unreadable == [f"1 lost blob, {lost.size} bytes; `kstore verify` says of what"]


@pytest.mark.parametrize("after", ["a loose commit", "a packed commit", "another key's"])
def test_what_a_repair_has_saved_in_another_pack_is_not_lost(tmp_path: Path, after: str) -> None:
    """Earlier generations still name the pack that it moved away."""
    node = Node(tmp_path, layout="packed")
    kernels = [node.tree.kernel(name) for name in ("one", "two")]
    node.tree.put("inductor/ab/clarge.py", os.urandom(5 << 20))
    node.commit()
    node.tree.wrapper("later")
    node.commit()
    rot_frame(node, f"{kernels[0]}/k.cubin")
    node.store.verify(repair=True)
    key = "another" if after.startswith("another") else KEY
    again = Node(tmp_path, layout="loose" if "loose" in after else "packed")
    again.tree.wrapper("latest")
    again.commit(key)
    node.commit()
    space = by_key(node.store.storage)
    assert space.unreadable == []
    assert space.whole.elsewhere == 0
    for generation in range(1, node.newest().generation + 1):
        assert Node(tmp_path, f"of {generation}").restore(generation=generation).left_out == 0
    assert space.whole.stored == space.objects.bytes == sum(objects(node.store.storage).values())


def test_what_a_repair_has_saved_in_a_pack_that_no_generation_names_is_not_lost(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="packed")
    kernel = node.tree.kernel()
    node.tree.put("inductor/ab/clarge.py", os.urandom(5 << 20))
    node.commit()
    rot_frame(node, f"{kernel}/k.cubin")
    node.store.verify(repair=True)
    node.commit()
    node.store.pin(KEY, 1)
    node.store.forget(KEY)
    node.store.gc(Policy(keep=1, offline=True))
    space = by_key(node.store.storage)
    assert (space.whole.generations, space.whole.live) == (2, 1)
    assert (space.unreadable, space.whole.elsewhere) == ([], 0)
    assert space.whole.stored == space.objects.bytes == sum(objects(node.store.storage).values()) > 5 << 20


def test_a_blob_that_gc_has_aside_is_stored(tmp_path: Path) -> None:
    storage = busy_store(tmp_path)
    before = by_key(storage).whole
    blob = next((Path(storage.location) / "blobs").rglob("*/*"))
    (aside := Path(storage.location) / "gc" / "aside").mkdir(parents=True)
    blob.rename(aside / f"{blob.name}.0123")
    assert by_key(storage).whole == before


def test_an_overview_of_one_key_reads_no_other(tmp_path: Path) -> None:
    storage = busy_store(tmp_path)
    ref = Path(storage.location) / "refs" / H100 / "llama/v2/@torch-test/1"
    ref.chmod(0o644)
    ref.write_text("damaged")
    found = overview(storage, "llama/v1")
    assert found.unreadable == []
    assert list(found.rows) == [Shelf(A100, "llama/v1"), Shelf(H100, "llama/v1")]
    assert found.whole.held.generations == 3
    assert found.whole.commits.published == found.whole.commits.timed == 3


def test_nothing_is_written_by_looking(tmp_path: Path) -> None:
    storage = busy_store(tmp_path)
    before = sorted((str(path), path.stat().st_mtime_ns) for path in Path(storage.location).rglob("*"))
    overview(storage)
    by_key(storage)
    assert sorted((str(path), path.stat().st_mtime_ns) for path in Path(storage.location).rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize("keys", [250, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_a_store_of_many_keys_is_read_in_little_memory(
    keys: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), f"{tmp_path}/store", str(keys)],
        check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2],
        env={"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    found = json.loads(done.stdout)
    record_property("told", f"du, stats and report of {keys:,} keys: {found}")
    assert found["keys"] == keys
    assert found["alone"] == found["expected"]
    assert found["memory"] < MEMORY
