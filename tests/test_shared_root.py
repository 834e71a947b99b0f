"""Workers of one host in one cache root, like the ranks of a job: one of them places what all of them came for."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kstore.environment import Host
from kstore.errors import IntegrityError
from kstore.local.found import Scan
from kstore.local.lastrestore import LastRestore
from kstore.local.place import Placer
from kstore.local.placed import Placed
from kstore.operations import restore as restores
from kstore.operations.answer import AnotherRestore
from kstore.operations.request import Request
from kstore.report import RestoreReport, RestoreStatus
from kstore.worker import Worker
from tests.layers import images
from tests.trees import KEY, Node, contents, in_processes, shared_object

WORKERS = 8


@pytest.fixture
def published(tmp_path: Path) -> Node:
    """A worker that has committed two kernels and a file."""
    node = Node(tmp_path, "first")
    for name in ("one", "another"):
        node.tree.kernel(name)
    node.tree.put("inductor/ab/c.py", b"# wrapper")
    node.commit()
    return node


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cache roots that are scanned from now on."""
    roots, scan = [], Worker.scan

    def noted(worker: Worker, *arguments: Any) -> Scan:
        roots.append(worker.root.path)
        return scan(worker, *arguments)

    monkeypatch.setattr(Worker, "scan", noted)
    return roots


@pytest.fixture
def restore_after(monkeypatch: pytest.MonkeyPatch, scans: list[str]) -> Callable[..., RestoreReport]:
    """Restore, while something else happens to the root after this worker came and before it holds the root."""

    def restore(node: Node, happens: Callable[[], object], **choice: Any) -> RestoreReport:
        begun = LastRestore.begun

        def look_and_wait(last: LastRestore) -> str | None:
            found = begun(last)
            monkeypatch.setattr(LastRestore, "begun", begun)
            happens()
            scans.clear()
            return found

        monkeypatch.setattr(LastRestore, "begun", look_and_wait)
        return node.restore(**choice)

    return restore


def worker(published: Node, **settings: Any) -> Node:
    """One of the workers that share a root."""
    return Node(published.location.parent, "shared", **settings)


def reads(published: Node, *stores: str, root: str = "shared") -> Node:
    """A worker that reads several stores, the first of which it would write."""
    folder = published.location.parent
    return images.Worker(folder, root, *(folder / name for name in stores), layout="loose")


def test_what_another_has_restored_meanwhile_is_relied_on(
    published: Node, restore_after: Callable[..., RestoreReport], scans: list[str]
) -> None:
    other = worker(published)
    report = restore_after(worker(published), other.restore)
    assert scans == []
    assert (report.status, report.placed, report.files) == (RestoreStatus.CURRENT, 0, len(contents(other.tree.root)))
    assert set(report.components or {}) == {"inductor", "triton"}
    assert replace(report, seconds=0) == replace(worker(published).restore(), seconds=0, used_modes=None)


def test_what_is_relied_on_is_not_read(
    published: Node, restore_after: Callable[..., RestoreReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the store nor the manifest is read, and no compiler is asked."""

    def restore_and_take_the_store_away() -> None:
        worker(published).restore()
        (published.location / "refs").rename(published.location / "gone")
        monkeypatch.setattr("kstore.environment.ownhost.detect_host", pytest.fail)

    published.tree.put("inductor/ab/cabc.so", shared_object())
    published.commit()
    assert restore_after(worker(published), restore_and_take_the_store_away).ok


def test_a_release_that_starts_from_another_is_relied_on(
    published: Node, restore_after: Callable[..., RestoreReport], scans: list[str]
) -> None:
    release = {"key": "new", "seed": KEY}
    report = restore_after(worker(published), lambda: worker(published).restore(**release), **release)
    assert (report.status, scans) == (RestoreStatus.SEEDED, [])


@pytest.mark.parametrize("choice", [{"key": "new", "seed": KEY}, {"generation": 1}], ids=["seed", "generation"])
def test_another_request_is_looked_through(
    published: Node, restore_after: Callable[..., RestoreReport], scans: list[str], choice: dict[str, Any]
) -> None:
    assert restore_after(worker(published), worker(published).restore, **choice).ok
    assert len(scans) == 1


@pytest.mark.parametrize(
    ("stores", "holder"),
    [(["data"], "data"), (["data", "nothing", "store"], "store"), (["newer", "store"], "newer")],
    ids=["none below", "another order", "another above"],
)
def test_what_a_worker_with_other_stores_has_restored_is_no_answer(
    published: Node, restore_after: Callable[..., RestoreReport], stores: list[str], holder: str
) -> None:
    newer = reads(published, "newer", "store", root="builder")
    newer.tree.kernel("newer")
    newer.commit()
    report = restore_after(reads(published, *stores), reads(published, "data", "store").restore)
    assert (report.ok, Path(report.store).name) == (len(stores) > 1, holder)


def test_what_was_restored_from_a_store_below_is_relied_on(
    published: Node, restore_after: Callable[..., RestoreReport], scans: list[str]
) -> None:
    report = restore_after(reads(published, "data", "store"), reads(published, "data", "store").restore)
    assert (report.status, report.store, scans) == (RestoreStatus.CURRENT, str(published.location), [])


def test_what_was_restored_from_another_seed_is_no_answer(
    published: Node, restore_after: Callable[..., RestoreReport]
) -> None:
    report = restore_after(worker(published), lambda: worker(published).restore("new", seed=KEY), key="new")
    assert report.status is RestoreStatus.MISS


def test_what_was_built_for_other_hosts_is_not_counted(
    published: Node, restore_after: Callable[..., RestoreReport], host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.tree.put("inductor/ab/cabc.so", shared_object())
    with monkeypatch.context() as patch:
        patch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host("b" * 16, {"cpu": "other"}))
        published.commit()
    made = list[RestoreReport]()
    report = restore_after(worker(published), lambda: made.append(worker(published).restore()))
    assert (report.files, report.bytes) == (made[0].files, made[0].bytes)
    assert report.files == published.newest().files - 1


def test_what_was_restored_before_is_looked_through(published: Node, scans: list[str]) -> None:
    """Something may have happened since."""
    worker(published).restore()
    lost = next(worker(published).tree.root.rglob("c.py"))
    lost.unlink()
    scans.clear()
    assert (worker(published).restore().placed, len(scans)) == (1, 1)
    assert lost.exists()


def commit_one_more(published: Node, other: Node) -> None:
    other.restore()
    other.tree.kernel("one more")
    other.commit()


def restore_damaged(published: Node, other: Node) -> None:
    """Some of it is left out."""
    blobs = [path for path in (published.location / "blobs").rglob("*") if path.is_file()]
    wrapper = next(path for path in blobs if path.read_bytes() == b"# wrapper")
    wrapper.write_bytes(b"# damaged")
    assert other.restore().left_out


def restore_another_key(published: Node, other: Node) -> None:
    published.commit("other")
    other.restore("other")


def restore_elsewhere(published: Node, other: Node) -> None:
    """Triton's kernels go where that worker has them."""
    environ = {"TRITON_CACHE_DIR": str(other.tree.root.parent / "elsewhere")}
    assert worker(published, environ=environ).restore().placed


def forget_which_was_the_last(published: Node, other: Node) -> None:
    other.restore()
    (other.tree.root / ".kstore/begun").unlink()


def restore_with_another_version(published: Node, other: Node) -> None:
    other.restore()
    record = other.tree.root / ".kstore/restored.json"
    content = json.loads(record.read_bytes())
    del content["answer"]["components"]
    record.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "happens",
    [
        commit_one_more,
        restore_damaged,
        restore_another_key,
        restore_elsewhere,
        forget_which_was_the_last,
        restore_with_another_version,
    ],
    ids=lambda happens: happens.__name__,
)
def test_anything_else_is_looked_through(
    happens: Callable[[Node, Node], None],
    published: Node,
    restore_after: Callable[..., RestoreReport],
    scans: list[str],
) -> None:
    report = restore_after(worker(published), lambda: happens(published, worker(published)))
    assert report.ok
    assert len(scans) == 1


@pytest.mark.parametrize(("here", "there"), [("an image", "another image"), ("", "")], ids=["told", "not told"])
def test_what_another_image_on_this_node_has_restored_is_looked_through(
    published: Node,
    restore_after: Callable[..., RestoreReport],
    scans: list[str],
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
    here: str,
    there: str,
) -> None:
    """It has no code that was built for this host."""
    monkeypatch.setattr("kstore.operations.answer.surroundings", lambda _: here)
    bound = published.tree.put("inductor/ab/cabc.so", shared_object())
    published.commit()

    def restore_on_another_host() -> None:
        with monkeypatch.context() as patch:
            patch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host("b" * 16, {"cpu": "other"}))
            patch.setattr("kstore.operations.answer.surroundings", lambda _: there)
            assert worker(published).restore().ok

    shared = worker(published)
    assert restore_after(shared, restore_on_another_host).placed == 1
    assert len(scans) == 1
    assert bound in contents(shared.tree.root)


def test_what_a_like_host_in_another_container_has_restored_is_relied_on(
    published: Node,
    restore_after: Callable[..., RestoreReport],
    scans: list[str],
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    published.tree.put("inductor/ab/cabc.so", shared_object())
    published.commit()

    def restore_in_another_container() -> None:
        with monkeypatch.context() as patch:
            patch.setattr("kstore.operations.answer.surroundings", lambda _: "another container")
            assert worker(published).restore().ok

    assert restore_after(worker(published), restore_in_another_container).ok
    assert scans == []


def test_a_restore_that_began_before_this_worker_came_does_not_count(
    published: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have looked at a file that is gone since."""
    other, place, seen = worker(published), Placer.place, []
    state = other.store.worker(KEY, before_import=False).state

    def place_while_another_comes(*arguments: Any, **options: Any) -> Placed:
        seen.append(state.last_restore.begun())
        return place(*arguments, **options)

    monkeypatch.setattr(Placer, "place", place_while_another_comes)
    other.restore()
    assert state.last_restore.since(*seen) is None
    assert state.last_restore.since("")


def test_an_earlier_restore_does_not_count_because_it_cannot_be_told_from_a_later_one(
    published: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer generation would be missed for one error of the root's disk."""
    here, begun, reads = worker(published), LastRestore.begun, count()
    here.restore()
    published.tree.kernel("new")
    published.commit()

    def fail_once(last: LastRestore) -> str | None:
        return None if next(reads) == 1 else begun(last)

    monkeypatch.setattr(LastRestore, "begun", fail_once)
    assert (here.restore().generation, next(reads) > 2) == (2, True)


def test_a_restore_that_chose_before_this_worker_came_does_not_count(
    published: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generation may have been published, or quarantined, since."""
    here, choose, late = worker(published), restores.choose, list[AnotherRestore]()

    def choose_before_another_comes(*arguments: Any) -> Any:
        chosen = choose(*arguments)
        late.append(AnotherRestore(here.store.worker(KEY, before_import=False), Request()))
        return chosen

    monkeypatch.setattr(restores, "choose", choose_before_another_comes)
    assert worker(published).restore().status is RestoreStatus.RESTORED
    assert [another.has_restored() for another in late] == [False]


@pytest.fixture
def come_late(published: Node, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AnotherRestore]:
    """A worker that comes while another one places artifacts, and waits; then something happens."""

    def come(happens: Callable[[], object] = lambda: None, **choice: Any) -> AnotherRestore:
        here, place, late = worker(published), Placer.place, list[AnotherRestore]()

        def place_while_another_comes(*arguments: Any, **options: Any) -> Placed:
            placed = place(*arguments, **options)
            monkeypatch.setattr(Placer, "place", place)
            late.append(AnotherRestore(here.store.worker(KEY, before_import=False), Request(**choice)))
            late[0].ask()
            happens()
            return placed

        monkeypatch.setattr(Placer, "place", place_while_another_comes)
        worker(published).restore(**choice)
        return late[0]

    return come


def test_a_worker_that_comes_while_everything_is_placed_and_waits_relies_on_a_second_look(
    published: Node, come_late: Callable[..., AnotherRestore], scans: list[str]
) -> None:
    late = come_late()
    assert late.has_restored()
    assert len(scans) == 1
    assert late.report and (late.report.status, late.report.files) == (
        RestoreStatus.CURRENT, len(contents(published.tree.root)),
    )  # fmt: skip


def test_nobody_looks_twice_where_nobody_waits(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restores, "look_again", pytest.fail)
    assert worker(published).restore().status is RestoreStatus.RESTORED


def publish_more(published: Node) -> None:
    published.tree.kernel("more")
    published.commit()


def forget(published: Node) -> None:
    published.store.forget(KEY)


def remove_a_file(published: Node) -> None:
    (worker(published).tree.root / "inductor/ab/c.py").unlink()


def add_a_file(published: Node) -> None:
    worker(published).tree.put("inductor/ab/d.py", b"# of this worker")


def remove_a_kernel(published: Node) -> None:
    shutil.rmtree(next((worker(published).tree.root / "triton").iterdir()))


def take_the_store_away(published: Node) -> None:
    (published.location / "refs").rename(published.location / "gone")


@pytest.mark.parametrize(
    "happens", [publish_more, forget, remove_a_file, add_a_file, remove_a_kernel, take_the_store_away]
)
def test_what_has_changed_since_it_came_is_looked_for(
    published: Node, come_late: Callable[..., AnotherRestore], happens: Callable[[Node], None]
) -> None:
    assert not come_late(lambda: happens(published)).has_restored()


@pytest.mark.parametrize("error", [IntegrityError("damaged"), OSError(errno.EIO, "it fails")], ids=repr)
def test_trouble_at_the_second_look_costs_nothing_that_was_placed(
    published: Node, come_late: Callable[..., AnotherRestore], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    late = come_late(lambda: monkeypatch.setattr("kstore.operations.answer.newest_ref", fail))
    assert not late.has_restored()


def test_a_worker_that_asked_for_a_generation_looks_for_itself(
    published: Node, come_late: Callable[..., AnotherRestore]
) -> None:
    assert not come_late(generation=1).has_restored()


@pytest.mark.parametrize("choice", [{"generation": 1}, {"key": "new", "seed": KEY}], ids=["generation", "seed"])
def test_who_came_before_a_restore_relies_on_it_although_there_is_no_second_look(
    published: Node, choice: dict[str, Any]
) -> None:
    key, request = choice.get("key", KEY), Request(choice.get("generation"), choice.get("seed"))
    early = AnotherRestore(worker(published).store.worker(key, before_import=False), request)
    early.ask()
    worker(published).restore(**choice)
    assert early.has_restored()


def test_who_came_before_a_restore_that_had_nothing_to_place_relies_on_it(published: Node, tmp_path: Path) -> None:
    """Nothing that it placed could show a change at a second look."""
    published.tree.root.rename(tmp_path / "shared")
    shutil.rmtree(tmp_path / "shared/.kstore")
    early = AnotherRestore(worker(published).store.worker(KEY, before_import=False), Request())
    early.ask()
    assert worker(published).restore().status is RestoreStatus.CURRENT
    assert early.has_restored()


def test_all_who_start_together_have_everything(published: Node) -> None:
    def restore(folder: Path) -> tuple[bool, int, int]:
        node = Node(folder, "shared")
        report = node.restore()
        return report.ok, report.placed, len(contents(node.tree.root))

    answers = in_processes(restore, [(published.location.parent,)] * WORKERS)
    files = len(contents(published.tree.root))
    assert [(ok, found) for ok, _, found in answers] == [(True, files)] * WORKERS
    assert sum(placed for _, placed, _ in answers) == files
