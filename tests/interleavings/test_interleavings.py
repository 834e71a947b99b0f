"""Every schedule of a few workers on one store: whatever happens in between, and whoever is killed where.

The code that runs is the real code, down to the calls of the backend; each of these is one step (see `memory`).
All orders of all steps are explored, kills of any number of actors at any of them, and delays of any length (where
an actor `wait`s: time passes for everybody, at any moment). Not explored are files that a writer leaves under `tmp/`,
a server that shows one client what it no longer shows another, and more actors than each scene has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from kstore.backends import Upload
from kstore.condemned import Doomed
from kstore.gc import Policy
from kstore.intake import Intake
from kstore.lease import Lease
from kstore.operations import bring as bringing
from kstore.published.generations import republish
from kstore.published.ref import Ref
from kstore.published.refs import Refs
from kstore.storage import Storage
from tests.interleavings import actors, toys
from tests.interleavings.actors import (
    Fill,
    History,
    World,
    aged,
    compile_kernel,
    forgotten_and_condemned,
    old_and_condemned,
    repaired,
    unchanged,
    write_wrapper,
)
from tests.interleavings.exploration import Broken, Explored, Violation, explore
from tests.interleavings.invariants import Invariants, ever_published
from tests.interleavings.memory import Contents, MemoryBackend, MemoryUpload
from tests.trees import Tree

GRACE = 3600.0
pytestmark = pytest.mark.usefixtures("host", "quiet")


def by_a(tree: Tree) -> None:
    compile_kernel(tree, by="A")
    write_wrapper(tree, "shared")


def by_b(tree: Tree) -> None:
    compile_kernel(tree, by="B")
    write_wrapper(tree, "shared")


def by_c(tree: Tree) -> None:
    write_wrapper(tree, "C")


FILLS: dict[str, Fill] = {
    "live A": by_a,
    "bring A": by_a,
    "bring again": by_a,
    "commit A": by_a,
    "commit B": by_b,
    "commit C": by_c,
}
FIRST = partial(compile_kernel, by="A")
SECOND = partial(compile_kernel, by="another")


@dataclass(frozen=True)
class Scene:
    """Who works on what."""

    actors: tuple[str, ...]
    published: tuple[Fill, ...] = ()
    history: History = unchanged
    keys: dict[str, str] = field(default_factory=dict)
    excused: frozenset[str] = frozenset()
    """The actors that may fail or leave something out: a reader that is suspended for longer than the grace period."""

    def __str__(self) -> str:
        start = f", after {len(self.published)} generations" if self.published else ""
        return ", ".join(self.actors) + start

    def world(self, folder: Path, layout: str) -> World:
        """Committers are those that have something to commit."""
        fills = {name: FILLS[name] for name in self.actors if name in FILLS}
        layouts = {"commit A": "loose", "commit B": "packed"} if layout == "mixed" else {}
        layout = "loose" if layout == "mixed" else layout
        return World(folder, layout, fills, layouts, self.keys, self.published, self.history)


SCENES = [
    Scene(("commit A", "commit B", "restore R")),
    Scene(("commit A", "commit B", "restore R"), published=(FIRST,)),
    Scene(("commit A", "commit B", "commit C"), published=(FIRST, SECOND)),
    Scene(("commit A", "commit B", "restore R"), keys={"commit B": "model/v2"}),
    Scene(("bring A", "commit B", "restore R"), published=(FIRST,)),
]
LARGE_SCENES = [
    Scene(("commit A", "commit B", "commit C", "restore R")),
    Scene(("commit A", "commit B", "commit C", "restore R"), published=(FIRST, SECOND)),
    Scene(("commit A", "commit B", "commit C", "restore R"), keys={"commit C": "model/v2"}),
]


WITH_GC = {"published": (FIRST, SECOND), "history": old_and_condemned}
"""Committer A has what the first generation had, which is condemned by now."""
FORGOTTEN = {"published": (FIRST,), "history": forgotten_and_condemned}
"""What import A brings in existed before."""
NOTHING_TO_DELETE = frozenset({"full 1", "timeless 1"})
"""One actor comes after another gc; one takes the time of the last publication for now: until the commit, nothing
on the list is old.
"""
GC_SCENES = [
    Scene(("gc 1", "gc 2"), **WITH_GC),
    Scene(("gc 1", "commit A", "restore R"), **WITH_GC),
    Scene(("gc 1", "commit A", "wait 4000"), **WITH_GC),
    Scene(("gc 1", "forget F", "restore R"), **WITH_GC),
    Scene(("gc 1", "live A"), **WITH_GC),
    Scene(("gc 1", "bring A"), **FORGOTTEN),
]
WAITING_SCENES = [
    Scene(("gc 1", "bring A", "wait 4000"), **WITH_GC),
    Scene(("full 1", "commit A", "wait 4000"), **WITH_GC),
    Scene(("timeless 1", "commit A", "wait 4000"), **WITH_GC, excused=NOTHING_TO_DELETE),
]
NEW_KEY = {"keys": {"commit A": "model/v2"}}
"""Committer A begins to store its blobs while it still reads."""
NEW_KEY_SCENES = [
    Scene(("gc 1", "commit A", "wait 4000"), **WITH_GC, **NEW_KEY),
    Scene(("gc 1", "commit A", "wait 4000"), published=(FIRST, SECOND), history=aged, **NEW_KEY),
]
LARGE_GC_SCENES = [
    Scene(("gc 1", "gc 2", "rot"), **WITH_GC),
    Scene(("gc 1", "commit A", "commit B"), **WITH_GC),
]
LARGEST_SCENES = [
    Scene(("gc 1", "rot", "commit A", "wait 4000"), **WITH_GC),
    Scene(("gc 1", "commit A", "restore R", "wait 4000"), **WITH_GC, excused=frozenset({"restore R"})),
    Scene(("gc 1", "bring A", "bring again"), **WITH_GC),
    Scene(("full 1", "gc 1", "commit A"), **WITH_GC, excused=NOTHING_TO_DELETE),
    Scene(("gc 1", "bring A", "wait 4000"), **FORGOTTEN),
    Scene(("gc 1", "commit A", "forget F"), **WITH_GC),
    Scene(("gc 1", "gc 2", "commit A"), **WITH_GC),
    Scene(("gc 1", "live A", "wait 4000"), **WITH_GC),
    Scene(("gc 1", "gc 2", "restore R", "forget F"), **WITH_GC),
    Scene(("gc 1", "gc 2", "rot", "commit A"), **WITH_GC),
]
TWO_GCS_AND_MORE = [
    Scene(("gc 1", "gc 2", "commit A", "commit B"), **WITH_GC),
]
EVERYBODY = Scene(("gc 1", "gc 2", "commit A", "commit B", "restore R", "forget F"), **WITH_GC)
"""Too many for all schedules: there are billions of states."""
MERGING = {"published": (partial(write_wrapper, by="one"), partial(write_wrapper, by="two")), "history": aged}
"""The newest generation is in two packs, which gc merges into one."""
MERGING_SCENES = [
    Scene(("gc 1", "commit A"), **MERGING),
    Scene(("gc 1", "restore R"), **MERGING),
    Scene(("gc 1", "forget F"), **MERGING),
]
REPAIRED = {"published": (FIRST, SECOND), "history": repaired, "keys": {"commit A": "model/v2"}}
"""Committer A has what the pinned generation lacks, under another key."""
REPAIRED_SCENES = [
    Scene(("gc 1", "gc 2"), **REPAIRED),
    Scene(("gc 1", "gc 2", "wait 4000"), **REPAIRED),
    Scene(("gc 1", "commit A", "wait 4000"), **REPAIRED),
]
LARGE_REPAIRED_SCENES = [
    Scene(("gc 1", "gc 2", "commit A"), **REPAIRED),
]
LARGE_MERGING_SCENES = [
    Scene(("gc 1", "commit A", "wait 4000"), **MERGING),
    Scene(("gc 1", "gc 2"), **MERGING),
    Scene(("gc 1", "gc 2", "wait 4000"), **MERGING),
]
"""With a commit beside both there are more states than fit into 20 GB."""


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What is missing in one of a million states is no news."""
    caplog.set_level(logging.CRITICAL, "kstore")


MIXED_IS_EXHAUSTIVE = pytest.mark.parametrize(
    "layout", ["loose", "packed", pytest.param("mixed", marks=pytest.mark.exhaustive)], indirect=True
)


PACKED_FIRST = pytest.mark.parametrize(
    "layout",
    ["packed", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("loose", "mixed"))],
    indirect=True,
)
ONE_COMMITS = pytest.mark.parametrize("layout", ["loose", "packed"], indirect=True)


@pytest.fixture(params=["loose", "packed", "mixed"])
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[Scene, str, Explored], None]:
    """Say what was explored, at the end of the tests."""

    def tell(scene: Scene, layout: str, explored: Explored) -> None:
        record_property("told", f"{scene} ({layout}): {explored}")

    return tell


@pytest.fixture(autouse=True)
def no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Safety does not depend on the lease, and without it two gcs meet in every way they can."""
    monkeypatch.setattr(Lease, "acquire", lambda lease: True)
    monkeypatch.setattr(Lease, "release", lambda lease: None)


@pytest.fixture
def merging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two packs count as many."""
    monkeypatch.setattr("kstore.gc.repack.MANY", 2)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import stores each blob by itself, and notes it."""
    monkeypatch.setattr(bringing, "_BATCH", 1)


def check(scene: Scene, folder: Path, layout: str, switches: int | None = None) -> Explored:
    world = scene.world(folder, layout)
    invariants = Invariants(world, excused=scene.excused)
    return explore([world.actor(name) for name in scene.actors], world.start, invariants, switches=switches)


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_nothing_is_lost_whatever_the_schedule(
    scene: Scene, layout: str, tmp_path: Path, tell: Callable[[Scene, str, Explored], None]
) -> None:
    explored = check(scene, tmp_path, layout)
    tell(scene, layout, explored)
    assert explored.schedules > 50


@PACKED_FIRST
@pytest.mark.slow
@pytest.mark.parametrize(
    "scene",
    [*(pytest.param(scene, marks=pytest.mark.exhaustive) for scene in LARGE_SCENES[:2]), LARGE_SCENES[2]],
    ids=str,
)
def test_nothing_is_lost_with_more_workers(
    scene: Scene, layout: str, tmp_path: Path, tell: Callable[[Scene, str, Explored], None]
) -> None:
    tell(scene, layout, check(scene, tmp_path, layout))


@ONE_COMMITS
@pytest.mark.parametrize("scene", [*GC_SCENES, *NEW_KEY_SCENES], ids=str)
def test_nothing_is_lost_with_gc(
    scene: Scene, layout: str, tmp_path: Path, tell: Callable[[Scene, str, Explored], None]
) -> None:
    tell(scene, layout, check(scene, tmp_path, layout))


@PACKED_FIRST
@pytest.mark.parametrize("scene", WAITING_SCENES, ids=str)
def test_nothing_is_lost_with_gc_however_long_anybody_waits(
    scene: Scene, layout: str, tmp_path: Path, tell: Callable[[Scene, str, Explored], None]
) -> None:
    tell(scene, layout, check(scene, tmp_path, layout))


@PACKED_FIRST
@pytest.mark.usefixtures("deltas")
@pytest.mark.parametrize("scene", [*SCENES[1:3], *GC_SCENES[:4]], ids=str)
def test_nothing_is_lost_where_manifests_follow_on_others(
    scene: Scene, layout: str, tmp_path: Path, tell: Callable[[Scene, str, Explored], None]
) -> None:
    tell(scene, layout, check(scene, tmp_path, layout))


@pytest.mark.usefixtures("merging")
@pytest.mark.parametrize("scene", MERGING_SCENES, ids=str)
def test_nothing_is_lost_where_small_packs_become_one(
    scene: Scene, tmp_path: Path, tell: Callable[[Scene, str, Explored], None]
) -> None:
    tell(scene, "packed, merged", check(scene, tmp_path, "packed"))


@pytest.mark.parametrize(
    "scene",
    [*REPAIRED_SCENES, *(pytest.param(scene, marks=pytest.mark.exhaustive) for scene in LARGE_REPAIRED_SCENES)],
    ids=str,
)
def test_nothing_is_lost_of_a_generation_whose_pack_a_repair_has_taken_away(
    scene: Scene, tmp_path: Path, tell: Callable[[Scene, str, Explored], None]
) -> None:
    tell(scene, "packed, repaired", check(scene, tmp_path, "packed"))


def test_a_gc_that_keeps_nothing_for_what_a_repair_has_taken_away_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = REPAIRED_SCENES[1]
    world = scene.world(tmp_path, "packed")
    invariants = Invariants(world)
    monkeypatch.setattr("kstore.gc.mark.seek", lambda storage, lacking, named: set())
    with pytest.raises(Violation, match="is missing"):
        explore([world.actor(name) for name in scene.actors], world.start, invariants)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("merging")
@pytest.mark.parametrize("scene", LARGE_MERGING_SCENES, ids=str)
def test_nothing_is_lost_where_more_make_one_of_small_packs(
    scene: Scene, tmp_path: Path, tell: Callable[[Scene, str, Explored], None]
) -> None:
    tell(scene, "packed, merged", check(scene, tmp_path, "packed"))


CONDEMNED_MEANWHILE = Scene(
    ("gc 1", "gc 2", "commit A", "wait 4000"), published=(FIRST, SECOND), history=aged, keys={"commit A": "model/v2"}
)
"""What committer A stores while it reads is dead to one gc, and another gc deletes it before it is published."""


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each blob is stored when it has been read."""
    monkeypatch.setattr("kstore.blobs.writers.BATCH_COUNT", 1)


@pytest.mark.usefixtures("at_once")
def test_nothing_is_lost_of_what_a_first_commit_stores_while_it_reads(
    tmp_path: Path, tell: Callable[[Scene, str, Explored], None]
) -> None:
    tell(CONDEMNED_MEANWHILE, "loose, switches: 1", check(CONDEMNED_MEANWHILE, tmp_path, "loose", switches=1))


@pytest.mark.usefixtures("at_once")
def test_a_first_commit_that_reserves_its_place_when_all_is_stored_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Intake, "reservation", lambda intake: intake._worker.storage.refs.reserve())
    with pytest.raises(Violation, match="lacks 1 of"):
        check(CONDEMNED_MEANWHILE, tmp_path, "loose", switches=1)


@PACKED_FIRST
@pytest.mark.slow
@pytest.mark.parametrize("scene", LARGE_GC_SCENES, ids=str)
def test_nothing_is_lost_with_gc_and_more_workers(
    scene: Scene, layout: str, tmp_path: Path, tell: Callable[[Scene, str, Explored], None]
) -> None:
    tell(scene, layout, check(scene, tmp_path, layout))


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scene", LARGEST_SCENES, ids=str)
def test_nothing_is_lost_in_the_largest_scenes(
    scene: Scene, layout: str, tmp_path: Path, tell: Callable[[Scene, str, Explored], None]
) -> None:
    tell(scene, layout, check(scene, tmp_path, layout))


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scene", TWO_GCS_AND_MORE, ids=str)
def test_nothing_is_lost_with_two_gcs_and_more(
    scene: Scene, tmp_path: Path, tell: Callable[[Scene, str, Explored], None]
) -> None:
    tell(scene, "packed", check(scene, tmp_path, "packed"))


@ONE_COMMITS
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("switches", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_nothing_is_lost_with_everybody_and_few_switches(
    switches: int, layout: str, tmp_path: Path, tell: Callable[[Scene, str, Explored], None]
) -> None:
    tell(EVERYBODY, f"{layout}, switches: {switches}", check(EVERYBODY, tmp_path, layout, switches))


@ONE_COMMITS
def test_a_key_that_was_just_committed_to_is_not_forgotten_as_unused(
    layout: str, tmp_path: Path, tell: Callable[[Scene, str, Explored], None]
) -> None:
    scene = Scene(("unused 1", "commit C"), published=(FIRST,), history=aged)
    world = scene.world(tmp_path, layout)
    invariants = Invariants(world)

    def check(contents: Contents, outcomes: Mapping[str, Hashable]) -> None:
        invariants(contents, outcomes)
        for ref in ever_published(contents, world.scope_of("commit C")):
            if not ref.files and ref.parent > 1:
                raise Broken(f"generation {ref.parent} was committed, and is forgotten")

    tell(scene, layout, explore([world.actor(name) for name in scene.actors], world.start, check))


def collect_fully(backend: MemoryBackend) -> None:
    """As often as necessary."""
    for _ in range(3):
        backend.wait(2 * GRACE)
        node = actors.Node(Path("/nowhere"))
        actors.put_on(node, backend)
        node.store.gc(Policy(keep=1))


LEAVING = [("gc 1", "commit A"), ("gc 1", "forget F"), ("commit A", "forget F"), ("gc 1", "bring A")]


@MIXED_IS_EXHAUSTIVE
@pytest.mark.slow
@pytest.mark.parametrize("names", LEAVING, ids=str)
def test_whatever_is_left_by_the_killed_is_collected(names: tuple[str, ...], layout: str, tmp_path: Path) -> None:
    world = Scene(names, **WITH_GC).world(tmp_path, layout)
    explore([world.actor(name) for name in names], world.start, Invariants(world, collect=collect_fully))


# ---- Mistakes are found


def test_a_commit_that_does_not_look_at_what_is_condemned_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.upload.uploader.read_doomed", lambda backend, among: Doomed())
    with pytest.raises(Violation, match="lacks 1 of 3 blobs"):
        check(Scene(("gc 1", "commit A"), **WITH_GC), tmp_path, "loose")


@pytest.mark.parametrize("layout", ["loose", "packed"])
def test_an_import_that_does_not_look_at_what_is_condemned_is_found(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pack is noted as if an earlier import had stored it."""
    monkeypatch.setattr("kstore.upload.uploader.read_doomed", lambda backend, among: Doomed())
    monkeypatch.setattr(bringing._Notes, "packs", lambda notes: tuple(c.name for c in notes._backend.list("packs")))
    with pytest.raises(Violation, match="lacks"):
        check(Scene(("gc 1", "bring A"), **FORGOTTEN), tmp_path, layout)


@pytest.mark.exhaustive
def test_a_gc_that_does_not_keep_the_late_from_publishing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.gc.sweep.close_fence", lambda backend, name: None)
    with pytest.raises(Violation, match=r"lacks \d of \d blobs|manifest of generation 3 .* is missing"):
        check(Scene(("gc 1", "gc 2", "commit A", "wait 4000"), **WITH_GC), tmp_path, "packed")


@pytest.mark.exhaustive
def test_a_gc_that_deletes_a_name_that_was_taken_anew_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.gc.delete._is_same", lambda found, entry: True)
    with pytest.raises(Violation, match=r"lacks \d of \d blobs"):
        check(Scene(("gc 1", "gc 2", "commit A"), **WITH_GC), tmp_path, "loose")


@pytest.mark.usefixtures("merging")
def test_a_gc_that_publishes_rewritten_packs_after_a_commit_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(storage: Storage, ref: Ref, packs: Callable[[Ref], tuple[str, ...]], *, upon: int) -> None:
        republish(storage, ref, packs, upon=None)

    monkeypatch.setattr("kstore.gc.repack.republish", late)
    with pytest.raises(Violation, match="is not in the newest generation"):
        check(Scene(("gc 1", "commit A"), **MERGING), tmp_path, "packed")


def test_refs_that_are_overwritten_are_found(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def overwrite(refs: Refs, ref: Ref, reserved: Upload) -> bool:
        refs._backend.put(ref.name, ref.dump())
        return True

    monkeypatch.setattr(Refs, "publish", overwrite)
    with pytest.raises(Violation, match="is not in the newest generation"):
        check(Scene(("commit A", "commit C")), tmp_path, layout)


def test_a_race_that_is_lost_and_not_noticed_is_found(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = Refs.publish
    monkeypatch.setattr(Refs, "publish", lambda refs, ref, reserved: publish(refs, ref, reserved) or True)
    with pytest.raises(Violation, match="is not in the newest generation"):
        check(Scene(("commit A", "commit C")), tmp_path, layout)


def test_a_ref_that_comes_before_its_blobs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is whole in the end: only who looks in between, or is killed there, sees the mistake."""
    put_many, publish = MemoryBackend.put_many, MemoryUpload.publish

    def put_late(backend: MemoryBackend, objects: list) -> list[bool]:  # type: ignore[type-arg]
        if not objects[0].name.startswith("blobs/"):
            return put_many(backend, objects)
        waiting.extend(objects)
        return [True for _ in objects]

    def publish_early(upload: MemoryUpload, name: str) -> bool:
        created = publish(upload, name)
        put_many(upload._backend, waiting)
        waiting.clear()
        return created

    waiting: list = []  # type: ignore[type-arg]
    scene = Scene(("commit C",))
    world = scene.world(tmp_path, "loose")
    start, invariants = world.start, Invariants(world)
    monkeypatch.setattr(MemoryBackend, "put_many", put_late)
    monkeypatch.setattr(MemoryUpload, "publish", publish_early)
    with pytest.raises(Violation, match="is missing"):
        explore([world.actor("commit C")], start, invariants)


def toy_collector(world: World, start: Contents, name: str, backend: MemoryBackend) -> Hashable:
    toys.collect(backend, GRACE)
    return None


def collect(backend: MemoryBackend) -> None:
    """Condemn, and let time pass until the next run deletes."""
    toys.collect(backend, GRACE)
    backend.wait(GRACE)


def test_a_collector_that_commits_do_not_look_out_for_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(actors.ACTORS, "collect", toy_collector)
    scene = Scene(("commit A", "collect 1"), published=(FIRST, SECOND), history=collect)
    with pytest.raises(Violation, match="lacks 1 of"):
        check(scene, tmp_path, "loose")


def test_whatever_killed_workers_leave_can_be_collected(layout: str, tmp_path: Path) -> None:
    world = Scene(("commit A", "commit B"), published=(FIRST, SECOND)).world(tmp_path, layout)
    explore([world.actor(name) for name in world.fills], world.start, Invariants(world, collect=collect_fully))


def test_what_a_collector_leaves_behind_is_found(layout: str, tmp_path: Path) -> None:
    world = Scene(("commit A", "commit B")).world(tmp_path, layout)
    with pytest.raises(Violation, match="nothing refers to"):
        explore([world.actor(name) for name in world.fills], world.start, Invariants(world, collect=toys_condemn_only))


def toys_condemn_only(backend: MemoryBackend) -> None:
    toys.collect(backend, GRACE)
