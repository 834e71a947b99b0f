from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kstore.backends import PosixBackend
from kstore.backends.base import Child
from kstore.digest import digest_of
from kstore.errors import IntegrityError, MissError, StoreFormatError
from kstore.published.ref import Effort, Ref, load_ref
from kstore.published.refs import Refs
from kstore.scope import Scope
from tests.trees import in_processes, publish

SCOPE = Scope("gpu", "model/v1", "env")
REF = Ref(
    scope=SCOPE,
    generation=1,
    manifest=digest_of(b"manifest"),
    manifest_size=8,
    packs=("ab" * 32, "cd" * 32),
    created=1.5,
    creator="user@host",
    files=3,
    size=100,
    parent=0,
)


@pytest.fixture
def backend(tmp_path: Path) -> PosixBackend:
    return PosixBackend(tmp_path / "store")


@pytest.fixture
def refs(backend: PosixBackend) -> Refs:
    return Refs(backend)


class Told:
    """A store that ends a listing only once somebody has asked for a ref, or after a while."""

    def __init__(self, backend: PosixBackend, monkeypatch: pytest.MonkeyPatch, *, patience: float) -> None:
        self.asked = threading.Event()
        self.was_asked: list[bool] = []
        real_get, real_list = backend.get, backend.list

        def get(*arguments: Any) -> bytes:
            self.asked.set()
            return real_get(*arguments)

        def list_slowly(folder: str) -> Iterator[Child]:
            yield from real_list(folder)
            self.was_asked.append(self.asked.wait(patience))

        monkeypatch.setattr(backend, "get", get)
        monkeypatch.setattr(backend, "list", list_slowly)


def test_far_away_a_ref_is_read_before_the_listing_ends(
    backend: PosixBackend, refs: Refs, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(refs, REF)
    told = Told(backend, monkeypatch, patience=30)
    monkeypatch.setattr("kstore.published.refs.NEAR", -1.0)
    assert refs.newest(SCOPE) == REF
    assert told.was_asked == [True]


def test_no_more_than_one_of_many_generations_is_read_ahead(
    backend: PosixBackend, refs: Refs, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()
    for generation in range(1, 20):
        publish(refs, replace(REF, generation=generation))
    real_get, real_list = backend.get, backend.list
    monkeypatch.setattr(backend, "get", lambda name, *rest: read.append(name) or real_get(name, *rest))
    monkeypatch.setattr(backend, "list", lambda name: iter(sorted(real_list(name), key=lambda child: int(child.name))))
    monkeypatch.setattr("kstore.published.refs.NEAR", -1.0)
    newest = refs.newest(SCOPE)
    assert newest and newest.generation == 19
    assert len(read) <= 2


def test_nothing_is_read_ahead_where_the_store_is_near(
    backend: PosixBackend, refs: Refs, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(refs, REF)
    told = Told(backend, monkeypatch, patience=0.05)
    monkeypatch.setattr("kstore.published.refs.NEAR", 3600.0)
    assert refs.newest(SCOPE) == REF
    assert told.was_asked == [False]


@pytest.mark.parametrize("generation", [1, 2])
def test_what_was_read_ahead_is_for_who_reads_next_alone(
    backend: PosixBackend, refs: Refs, monkeypatch: pytest.MonkeyPatch, generation: int
) -> None:
    """Once a commit has a place for its ref, it asks again whether a generation still exists: gc may have run."""
    for number in (1, 2):
        publish(refs, replace(REF, generation=number))
    monkeypatch.setattr("kstore.published.refs.NEAR", -1.0)
    newest = refs.newest(SCOPE)
    assert newest and newest.generation == 2
    gone = replace(REF, generation=generation)
    os.unlink(backend.path(gone.name))
    assert not refs.is_kept(gone)


def test_what_was_dumped_is_loaded() -> None:
    assert load_ref(SCOPE, 1, REF.dump()) == REF


def test_a_ref_knows_the_generations_before_it() -> None:
    refs = [REF]
    for number in range(2, 60):
        content = digest_of(b"%d" % number)
        refs.append(replace(REF, generation=number, manifest=content, lineage=refs[-1].leads_to()))
    newest = load_ref(SCOPE, 59, refs[-1].dump())
    assert newest == refs[-1]
    assert all(newest.remembers(ref) for ref in refs)
    lost = [replace(ref, manifest=digest_of(b"another one")) for ref in refs]
    assert [ref.generation for ref in lost if not newest.remembers(ref)] == list(range(59 - 31, 60))


def test_a_ref_without_lineage_is_that_of_an_older_kstore() -> None:
    content = json.loads(REF.dump())
    del content["lineage"]
    assert load_ref(SCOPE, 1, json.dumps(content).encode()) == REF


def test_what_a_commit_took_is_in_its_ref() -> None:
    ref = replace(REF, effort=Effort(1.25, 1000, 2))
    assert load_ref(SCOPE, 1, ref.dump()) == ref
    assert ref.describe()["effort"] == {"seconds": 1.25, "uploaded": 1000, "new_files": 2}
    assert "effort" not in json.loads(REF.dump())


@pytest.mark.parametrize(
    "nonsense",
    [None, 1, [], {}, {"seconds": -1, "uploaded": 1, "new_files": 1}, {"seconds": 1, "uploaded": -1, "new_files": 1},
     {"seconds": float("nan"), "uploaded": 1, "new_files": 1}, {"seconds": "x", "uploaded": 1, "new_files": 1},
     {"seconds": 1, "uploaded": 10**400, "new_files": 1}],
)  # fmt: skip
def test_a_ref_is_none_the_worse_for_statistics_that_make_no_sense(nonsense: object) -> None:
    assert load_ref(SCOPE, 1, json.dumps(json.loads(REF.dump()) | {"effort": nonsense}).encode()) == REF


@pytest.mark.parametrize("time", [float("-inf"), float("inf"), float("nan"), -1, 1e18, 1e300])
def test_a_time_that_no_clock_shows_does_not_harm_a_ref(time: float) -> None:
    assert load_ref(SCOPE, 1, changed(created=time)) == replace(REF, created=0.0)


def test_a_ref_is_json_under_its_generation(backend: PosixBackend, refs: Refs) -> None:
    publish(refs, REF)
    assert json.loads(backend.get("refs/gpu/model/v1/@env/1"))["generation"] == 1


def test_a_published_ref_is_never_overwritten(refs: Refs) -> None:
    assert publish(refs, REF)
    assert not publish(refs, replace(REF, creator="somebody@else"))
    assert refs.get(SCOPE, 1) == REF


def test_one_of_eight_processes_publishes_a_generation(refs: Refs) -> None:
    won = in_processes(lambda name: publish(refs, replace(REF, creator=name)), [(f"w{n}",) for n in range(8)])
    assert won.count(True) == 1
    assert refs.get(SCOPE, 1).creator == f"w{won.index(True)}"


def test_the_newest_is_the_highest_number(refs: Refs) -> None:
    for generation in (1, 2, 9, 10):
        publish(refs, replace(REF, generation=generation))
    assert refs.generations(SCOPE) == [1, 2, 9, 10]
    newest = refs.newest(SCOPE)
    assert newest is not None
    assert newest.generation == 10


def test_nothing_published_is_no_error(refs: Refs) -> None:
    assert refs.newest(SCOPE) is None
    assert refs.generations(SCOPE) == []
    assert list(refs.scopes()) == []
    with pytest.raises(MissError, match="generation 7"):
        refs.get(SCOPE, 7)


def test_a_name_that_is_not_a_number_is_not_a_generation(backend: PosixBackend, refs: Refs) -> None:
    publish(refs, REF)
    for name in ("2.tmp", "-3", "٤", "notes", "5/folder", "0", "0009", "9" * 255, "007.pin", f"{'9' * 200}.dropped"):
        backend.put(f"refs/{SCOPE.path}/{name}", b"")
    assert refs.generations(SCOPE) == [1]
    assert refs.pins(SCOPE) == set()
    refs.finish_drops(SCOPE)


def test_a_link_that_leads_to_itself_hides_no_other(backend: PosixBackend, refs: Refs) -> None:
    publish(refs, REF)
    for name in (f"refs/{SCOPE.path}/2", f"refs/{SCOPE.path}/stray", "refs/stray"):
        path = Path(backend.path(name))
        path.symlink_to(path.name)
    assert refs.generations(SCOPE) == [1, 2]
    assert refs.get(SCOPE, 1) == REF
    with pytest.raises(IntegrityError, match=r"generation 2 of model/v1 .* is not a file"):
        refs.newest(SCOPE)
    assert list(refs.scopes()) == [SCOPE]


def test_folders_are_not_followed_deeper_than_a_key_can_be(backend: PosixBackend, refs: Refs) -> None:
    publish(refs, REF)
    folder = Path(backend.path("refs/gpu/nowhere-in-particular"))
    folder.symlink_to(".")
    assert set(refs.scopes()) >= {SCOPE}
    assert len(list(refs.scopes())) < 20
    folder.unlink()
    deep = [backend.path("refs/gpu" + "/d" * depth) for depth in range(1, 1500)]
    for path in deep:
        os.mkdir(path)
    try:
        assert list(refs.scopes()) == [SCOPE]
    finally:
        for path in reversed(deep):  # pytest cannot remove them.
            os.rmdir(path)


def test_scopes_are_listed_however_keys_nest(refs: Refs) -> None:
    scopes = [
        Scope("gpu", "model", "env"),
        Scope("gpu", "model/v1", "env"),
        Scope("gpu", "model/v1", "other"),
        Scope("gpu", "model/v1/deep", "env"),
        Scope("other", "model", "env"),
    ]
    for scope in scopes:
        publish(refs, replace(REF, scope=scope))
    assert sorted(refs.scopes()) == scopes
    assert sorted(refs.scopes("model/v1")) == scopes[1:4]
    assert refs.gpus() == ["gpu", "other"]
    assert [refs.parts("gpu", under) for under in ("", "model", "none")] == [["model"], ["v1"], []]


def test_folders_that_are_not_scopes_are_passed_over(backend: PosixBackend, refs: Refs) -> None:
    """Folders of a file server, such as Synology's @eaDir, or an ext4 root's lost+found."""
    publish(refs, REF)
    for name in ("refs/gpu/@eaDir/x", "refs/@eaDir/x", "refs/gpu/lost+found/@x/1", "refs/gpu/a b/@env/1"):
        backend.put(name, b"")
    assert list(refs.scopes()) == [SCOPE]


def changed(**content: object) -> bytes:
    return json.dumps({**json.loads(REF.dump()), **content}).encode()


def test_a_ref_of_a_newer_kstore_is_not_taken_for_a_damaged_one(backend: PosixBackend, refs: Refs) -> None:
    backend.put(REF.name, changed(format=2))
    with pytest.raises(StoreFormatError, match="install the version that made it"):
        refs.newest(SCOPE)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        REF.dump()[:-20],
        changed(generation=2),
        changed(manifest=None),
        changed(manifest={"digest": "ab", "size": 1}),
        changed(manifest={"digest": "zz" * 32, "size": 1}),
        changed(packs=["../../../etc/passwd"]),
        changed(packs=[5]),
        changed(packs=None),
        changed(created="long ago"),
        changed(bytes=10**400),
        changed(files=-1),
    ],
)
def test_a_damaged_ref_is_an_error_that_names_it(backend: PosixBackend, refs: Refs, data: bytes) -> None:
    backend.put(REF.name, data)
    with pytest.raises(IntegrityError, match=r"generation 1 of model/v1"):
        refs.newest(SCOPE)


def test_a_pin_of_what_does_not_exist_writes_nothing(refs: Refs, backend: PosixBackend) -> None:
    with pytest.raises(MissError, match="has no generation 1"):
        refs.pin(SCOPE, 1)
    assert list(backend.list("")) == []


def test_a_pin_of_what_is_removed_meanwhile_fails_and_stays_for_who_else_relies_on_it(
    refs: Refs, backend: PosixBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(refs, REF)
    put = backend.put_if_absent

    def put_late(name: str, data: bytes) -> bool:
        refs.drop(SCOPE, 1)
        return put(name, data)

    monkeypatch.setattr(backend, "put_if_absent", put_late)
    with pytest.raises(MissError, match="has no generation 1"):
        refs.pin(SCOPE, 1)
    assert refs.pins(SCOPE) == {1}


def test_what_was_read_ahead_in_a_listing_that_failed_is_forgotten(
    refs: Refs, backend: PosixBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def list_in_part(folder: str) -> Iterator[Child]:
        yield Child("1", False)
        raise OSError(5, "it fails")

    backend.put_if_absent(REF.name, REF.dump())
    with monkeypatch.context() as patch:
        patch.setattr("kstore.published.refs.NEAR", -1.0)
        patch.setattr(backend, "list", list_in_part)
        with pytest.raises(OSError, match="it fails"):
            refs.generations_ahead(SCOPE)
    assert refs._ahead == {}
