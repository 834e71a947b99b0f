"""Where restores are counted: little is lost, nothing grows without bound, and nobody is harmed."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from kstore.backends import PosixBackend
from kstore.gc import Policy
from kstore.scope import Scope
from kstore.stats import pages
from kstore.stats.pages import (
    MISSES,
    MOST_SCOPES,
    SLOTS,
    add,
    folder_of,
    load_page,
    read_hits,
    read_misses,
    sweep_stats,
)
from tests.faults.injection import FAULTS, USUAL_FAULTS, Faults, FaultyBackend, Striker
from tests.gc.stores import collect
from tests.stats.stores import sample
from tests.trees import ENVIRONMENT, GPU, KEY, Node, in_processes

SCOPE = Scope(GPU, KEY, ENVIRONMENT)
PROCESSES, EACH = 8, 25


@pytest.fixture
def backend(tmp_path: Path) -> PosixBackend:
    return PosixBackend(tmp_path / "store")


def pages_in(backend: PosixBackend, folder: str) -> list[str]:
    return sorted(child.name for child in backend.list(folder))


def test_restores_of_one_scope_are_counted_in_one_file(backend: PosixBackend) -> None:
    for _ in range(50):
        assert add(backend, SCOPE, sample())
    assert pages_in(backend, folder_of(SCOPE)) == ["0.50"]
    assert read_hits(backend, SCOPE).hits == 50
    assert list(backend.list("tmp")) == []


def test_misses_leave_no_folder_of_their_own(backend: PosixBackend) -> None:
    for number in range(20):
        assert add(backend, Scope(GPU, f"key/{number}", ENVIRONMENT), sample("miss"))
    assert [child.name for child in backend.list("stats")] == ["@misses"]
    assert pages_in(backend, MISSES) == ["0.20"]
    assert read_misses(backend)[Scope(GPU, "key/7", ENVIRONMENT)].misses == 1


def test_only_the_latest_keys_that_missed_are_remembered(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MOST_SCOPES", 3)
    for number in range(5):
        add(backend, Scope(GPU, f"key/{number}", ENVIRONMENT), sample("miss", at=1000 + number))
    assert {scope.key for scope in read_misses(backend)} == {"key/2", "key/3", "key/4"}
    assert MOST_SCOPES > 3


def test_of_scopes_with_much_to_tell_only_as_many_are_remembered_as_a_page_can_hold(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_LARGEST_PAGE", 3000)
    for number in range(20):
        assert add(backend, Scope(GPU, f"key/{number}", ENVIRONMENT), sample("miss", at=1000 + number))
    found = read_misses(backend)
    assert 1 < len(found) < 20
    assert Scope(GPU, "key/19", ENVIRONMENT) in found and Scope(GPU, "key/0", ENVIRONMENT) not in found


def count_restores(root: Path, number: int) -> int:
    backend = PosixBackend(root)
    with pytest.MonkeyPatch.context() as patch:
        # On a busy machine this many others may count before one has looked for its mark and counts again.
        patch.setattr(pages, "_MARKS", PROCESSES * EACH)
        return sum(add(backend, SCOPE, sample(worker=f"{number}@here")) for _ in range(EACH))


def test_processes_that_count_at_once_lose_nothing_that_was_not_given_up(tmp_path: Path) -> None:
    root = tmp_path / "store"
    added = in_processes(count_restores, [(root, number) for number in range(PROCESSES)])
    backend = PosixBackend(root)
    assert read_hits(backend, SCOPE).hits == sum(added)
    # Each has four tries, and there are twice as many slots as processes.
    assert sum(added) >= 0.9 * PROCESSES * EACH
    assert len({name.partition(".")[0] for name in pages_in(backend, folder_of(SCOPE))}) <= SLOTS


@pytest.mark.parametrize("rivals", [1, 2], ids=["its number is taken", "its number is free again"])
def test_a_worker_that_loses_a_race_counts_in_another_slot(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch, rivals: int
) -> None:
    add(backend, SCOPE, sample())
    rival = PosixBackend(backend.root)
    create, races = backend.put_if_absent, iter([True])

    def create_late(name: str, data: bytes) -> bool:
        for _ in range(rivals if next(races, False) else 0):
            assert add(rival, SCOPE, sample())
        return create(name, data)

    monkeypatch.setattr(backend, "put_if_absent", create_late)
    monkeypatch.setattr("secrets.randbelow", lambda slots: 5)
    assert add(backend, SCOPE, sample())
    assert pages_in(backend, folder_of(SCOPE)) == [f"0.{1 + rivals}", "5.1"]
    assert read_hits(backend, SCOPE).hits == 2 + rivals


def test_a_page_that_grows_while_it_is_read_is_looked_for_again(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(backend, SCOPE, sample())
    rival, get, races = PosixBackend(backend.root), backend.get, iter([True])

    def get_late(name: str, *limits: int) -> bytes:
        if next(races, False):
            assert add(rival, SCOPE, sample())
        return get(name, *limits)

    monkeypatch.setattr(backend, "get", get_late)
    assert read_hits(backend, SCOPE).hits == 2


def test_of_a_page_that_anybody_may_have_written_no_more_is_taken_than_would_be_written() -> None:
    page = pages.Page(marks=[str(number) for number in range(40)])
    page.add_sample(SCOPE, sample())
    content = json.loads(page.dump())
    assert content["marks"] == [str(number) for number in range(8, 40)]

    content["marks"] = ["x" * 99] * 40
    content["scopes"] = [[GPU, f"key/{number}", *content["scopes"][0][2:]] for number in range(MOST_SCOPES + 1)]
    taken = load_page(json.dumps(content).encode())
    assert taken and taken.marks == ["x" * 16] * 32 and len(taken.scopes) == MOST_SCOPES


def test_what_is_no_page_of_a_slot_is_passed_over(backend: PosixBackend) -> None:
    add(backend, SCOPE, sample())
    folder = folder_of(SCOPE)
    backend.put(f"{folder}/{SLOTS}.1", backend.get(f"{folder}/0.1"))
    (backend.root / folder / "0.7").mkdir()

    assert add(backend, SCOPE, sample())
    assert read_hits(backend, SCOPE).hits == 2


def test_what_a_killed_worker_left_is_counted_once(backend: PosixBackend) -> None:
    add(backend, SCOPE, sample())
    first = backend.get(f"{folder_of(SCOPE)}/0.1")
    add(backend, SCOPE, sample())
    backend.put(f"{folder_of(SCOPE)}/0.1", first)  # killed before it deleted the page before
    assert read_hits(backend, SCOPE).hits == 2
    add(backend, SCOPE, sample())
    assert pages_in(backend, folder_of(SCOPE)) == ["0.3"]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b'{"format": 1}', b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_page_counts_for_nothing_and_is_replaced(backend: PosixBackend, damage: bytes) -> None:
    add(backend, SCOPE, sample())
    backend.put(f"{folder_of(SCOPE)}/0.2", damage)
    assert read_hits(backend, SCOPE).restores == 0
    assert add(backend, SCOPE, sample())
    assert read_hits(backend, SCOPE).hits == 1


def test_a_page_with_damage_in_any_byte_is_read_without_harm(backend: PosixBackend) -> None:
    add(backend, SCOPE, sample())
    data = backend.get(f"{folder_of(SCOPE)}/0.1")
    for position in range(len(data)):
        for byte in (0, data[position] ^ 1, 0xFF):
            load_page(data[:position] + bytes([byte]) + data[position + 1 :])


def test_a_page_of_a_newer_kstore_stays_as_it_is(backend: PosixBackend) -> None:
    name = f"{folder_of(SCOPE)}/0.7"
    backend.put(name, b'{"format": 2, "scopes": {}}')
    assert add(backend, SCOPE, sample())
    assert backend.get(name) == b'{"format": 2, "scopes": {}}'
    assert read_hits(backend, SCOPE).hits == 1


def test_a_restore_counts_though_a_newer_kstore_has_added_to_its_page_at_once(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = backend.put_if_absent

    def create_early(name: str, data: bytes) -> bool:
        made = create(name, data)
        backend.put(f"{folder_of(SCOPE)}/0.2", b'{"format": 2}')
        return made

    monkeypatch.setattr(backend, "put_if_absent", create_early)
    assert add(backend, SCOPE, sample())


@pytest.mark.parametrize("faults", [*FAULTS, *USUAL_FAULTS], ids=str)
def test_a_fault_at_any_call_loses_one_restore_at_most(faults: Faults, tmp_path: Path) -> None:
    for number in count():
        backend = PosixBackend(tmp_path / str(number))
        for _ in range(3):
            add(backend, SCOPE, sample())
        striker = Striker(faults.of_call(number), number)
        with suppress(OSError):
            add(FaultyBackend(backend, striker), SCOPE, sample())  # type: ignore[arg-type]
        if not striker.struck:
            break
        assert read_hits(backend, SCOPE).hits in (3, 4)
        assert add(backend, SCOPE, sample())
    assert number > 0


def test_gc_removes_what_was_counted_for_keys_that_are_gone(tmp_path: Path) -> None:
    node = Node(tmp_path)
    backend = node.store.storage.backend
    for key in ("model/v1", "model/v2"):
        node.tree.wrapper(key)
        node.commit(key)
        add(backend, node.store.scope(key), sample())
    add(backend, Scope(GPU, "never/there", ENVIRONMENT), sample())
    node.store.forget("model/v1")
    collect(node, dry_run=True)
    assert read_hits(backend, node.store.scope("model/v1")).hits == 1
    node.store.gc(Policy())
    assert read_hits(backend, node.store.scope("model/v1")).hits == 0
    assert read_hits(backend, node.store.scope("model/v2")).hits == 1
    assert pages_in(backend, f"stats/{GPU}/never/there/@{ENVIRONMENT}") == []


def test_what_cannot_be_removed_keeps_nothing_else(backend: PosixBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (Scope(GPU, key, ENVIRONMENT) for key in ("model/v1", "model/v2"))
    for scope in (one, other):
        add(backend, scope, sample())
    delete, refused = backend.delete, iter([True])

    def refuse_once(name: str) -> None:
        if next(refused, False):
            raise PermissionError(name)
        delete(name)

    monkeypatch.setattr(backend, "delete", refuse_once)
    sweep_stats(backend, lambda scope: False)
    assert read_hits(backend, one).hits + read_hits(backend, other).hits == 1
