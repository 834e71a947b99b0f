"""What is remembered of the last restore of a root, whatever becomes of its files."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kstore.digest import digest_of
from kstore.local import lastrestore
from kstore.local.lastrestore import LastRestore
from kstore.published.ref import Ref
from kstore.scope import Scope

SCOPE = Scope("gpu", "my/v1", "torch")
MANIFEST = b"what the root grew from"
REF = Ref(SCOPE, 3, digest_of(MANIFEST), len(MANIFEST), (), 0.0, "me", 1, 2)
STORE = "/data/\udcff"
"""As Python names a folder whose name is no text."""
ANSWER = {"files": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A root's `.kstore`, with the base that a restore has just saved."""
    made = tmp_path / ".kstore"
    made.mkdir()
    (made / "base").write_bytes(MANIFEST)
    return made


@pytest.fixture
def last(folder: Path) -> LastRestore:
    return seen_from(folder)


def seen_from(folder: Path, **placing: str) -> LastRestore:
    """What is remembered there, by a worker that would place artifacts like that."""
    return LastRestore(str(folder), str(folder / "base"), placing)


def save(last: LastRestore, ref: Ref | None = REF, whole: str = "", answer: dict[str, Any] | None = None) -> None:
    last.save(ref, whole, answer, scope=SCOPE, store=STORE, host_hint="this host")


def test_a_root_into_which_nobody_has_restored(last: LastRestore) -> None:
    assert (last.load(), last.begun(), last.answer(), last.since("")) == (None, "", None, None)
    assert (last.is_whole(), last.scope(), last.host_hint(), last.found_store(STORE)) == (False, "", "", False)


def test_a_restore_that_has_ended_is_remembered_whatever_is_committed_later(last: LastRestore, folder: Path) -> None:
    name = last.begin(STORE)
    save(last, whole=name, answer=ANSWER)
    (folder / "base.new").write_bytes(b"of a later commit")
    (folder / "base.new").replace(folder / "base")
    found = last.load()

    assert found and found.snapshot and (found.snapshot.ref, found.snapshot.data) == (REF, MANIFEST)
    assert (last.begun(), last.is_whole(), last.scope(), last.host_hint()) == (name, True, SCOPE.path, "this host")
    assert last.answer() == (REF, ANSWER) == last.since("") == last.since("another")
    assert last.since(name) is None is last.since(None)
    assert not last.has_base(REF)


def test_where_there_are_no_hard_links_the_manifest_is_copied(
    last: LastRestore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links")

    monkeypatch.setattr(os, "link", refuse)
    for _ in range(2):
        save(last)
        assert (found := last.load()) and found.snapshot


def test_the_manifest_is_linked_where_it_can_be(last: LastRestore, folder: Path) -> None:
    for _ in range(2):
        save(last)
        assert (folder / "restored").samefile(folder / "base")


def test_a_restore_that_found_nothing_is_remembered_without_a_generation(last: LastRestore, folder: Path) -> None:
    save(last)
    save(last, None)
    found = last.load()

    assert found and found.snapshot is None
    assert (last.scope(), last.answer(), (folder / "restored").exists()) == (SCOPE.path, None, False)


@pytest.mark.parametrize("ref", [REF, None], ids=["restored", "a miss"])
@pytest.mark.parametrize("accessed", [999, 1000, 1001])
def test_a_filesystem_notes_reads_if_that_of_the_record_itself_is_later_than_its_writing(
    last: LastRestore, ref: Ref | None, accessed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = lastrestore.read_noticed

    def read_at(path: str) -> bytes:
        data = read(path)
        os.utime(path, ns=(accessed, 1000))
        return data

    save(last, ref)
    monkeypatch.setattr(lastrestore, "read_noticed", read_at)
    found = last.load()

    assert found and (found.ended_ns, found.notes_reads) == (1000, accessed > 1000)


@pytest.mark.parametrize("damage", ["restored", "restored.json"])
def test_what_is_damaged_is_no_longer_known(last: LastRestore, folder: Path, damage: str) -> None:
    save(last)
    (folder / damage).unlink()
    (folder / damage).write_bytes(b"{")
    assert last.load() is None


@pytest.mark.parametrize("begun", [b"\xff\n", None], ids=["no text", "a folder"])
def test_the_restore_that_began_last_may_be_unreadable_and_then_nobody_relies_on_any(
    last: LastRestore, folder: Path, begun: bytes | None
) -> None:
    save(last, answer=ANSWER)
    (folder / "begun").mkdir() if begun is None else (folder / "begun").write_bytes(begun)
    assert (last.begun(), last.is_whole(), last.answer(), last.since("")) == (None, False, None, None)


def test_a_restore_that_cannot_note_that_it_began_has_no_name_and_nobody_relies_on_it(
    last: LastRestore, folder: Path
) -> None:
    (folder / "begun.new").mkdir()
    assert last.begin(STORE) == ""
    save(last, whole="", answer=ANSWER)
    assert (last.is_whole(), last.answer()) == (False, None)


@pytest.mark.parametrize(("whole", "answer"), [("", ANSWER), ("another", ANSWER), ("own", None)], ids=repr)
def test_a_restore_that_left_something_out_or_was_followed_or_noted_no_answer_is_not_relied_on(
    last: LastRestore, whole: str, answer: dict[str, Any] | None
) -> None:
    name = last.begin(STORE)
    save(last, whole=name if whole == "own" else whole, answer=answer)
    assert (last.answer(), last.is_whole()) == (None, whole == "own")


def test_a_worker_that_would_place_it_elsewhere_does_not_rely_on_it(last: LastRestore, folder: Path) -> None:
    save(last, whole=last.begin(STORE), answer=ANSWER)
    assert seen_from(folder, triton="elsewhere").answer() is None


def test_the_store_is_known_from_the_beginning_of_a_restore(last: LastRestore) -> None:
    last.begin(STORE)
    assert last.found_store(STORE) and not last.found_store("/data/other")
    save(last)
    last.begin("")  # The store is not there now.
    assert last.found_store(STORE) and not last.found_store("/data/other")


def test_whoever_asks_for_a_second_look_has_asked_once(last: LastRestore, folder: Path) -> None:
    assert not last.was_asked()
    for _ in range(2):
        last.ask()
    assert [last.was_asked(), last.was_asked()] == [True, False]
    (folder / "asked").mkdir()
    last.ask()
    assert not last.was_asked()


def test_a_root_that_moved_to_another_host_is_not_whole_there_and_nothing_else_is_forgotten(
    last: LastRestore, folder: Path
) -> None:
    save(last, whole=last.begin(STORE), answer=ANSWER)
    last.save_host_hint("another host")
    found = last.load()

    assert found and found.snapshot and found.snapshot.ref == REF
    assert (last.host_hint(), last.scope(), last.found_store(STORE)) == ("another host", SCOPE.path, True)
    assert (last.is_whole(), last.answer()) == (False, None)


@pytest.mark.parametrize("content", [None, b"{", b"[]"], ids=repr)
def test_where_nothing_is_remembered_no_move_is(last: LastRestore, folder: Path, content: bytes | None) -> None:
    if content:
        (folder / "restored.json").write_bytes(content)
    last.save_host_hint("another host")
    assert last.host_hint() == ""


def test_a_move_that_cannot_be_noted_is_no_trouble(last: LastRestore, folder: Path) -> None:
    save(last)
    (folder / "restored.json.new").mkdir()
    last.save_host_hint("another host")
    assert last.host_hint() == "this host"


def test_the_first_host_of_a_root_is_remembered_before_any_restore_and_is_none(tmp_path: Path) -> None:
    last = seen_from(tmp_path / "new" / ".kstore")
    for host in ("this host", "another host"):  # What another process has noted stays.
        last.note_first_host(host)
        assert (last.host_hint(), last.load(), last.scope()) == ("this host", None, "")


def test_a_root_that_cannot_be_made_has_no_first_host(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    last = seen_from(tmp_path / "file")
    last.note_first_host("this host")
    last.ask()
    assert last.host_hint() == ""


def test_the_folder_is_made_for_a_restore_that_found_nothing(tmp_path: Path) -> None:
    save(seen_from(tmp_path / "new"), None)
    assert json.loads((tmp_path / "new" / "restored.json").read_bytes())["host"] == "this host"


def test_a_base_is_known_by_its_content(last: LastRestore, folder: Path) -> None:
    assert last.has_base(REF)
    assert not last.has_base(replace(REF, manifest=digest_of(b"another")))
    (folder / "base").write_bytes(MANIFEST[1:])
    assert not last.has_base(REF)
    (folder / "base").unlink()
    assert not last.has_base(REF)
