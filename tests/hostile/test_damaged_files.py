"""Each kind of file of a store and of a cache root's memory, cut short, swapped, replaced: every answer is right,
or a typed error.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from kstore.errors import IntegrityError, StoreFormatError, StoreUnavailable
from kstore.report import CommitReport, CommitStatus, RestoreReport
from tests.hostile.victim import Victim
from tests.trees import KEY, Node, contents

# ---- What is harmed


class Kind(NamedTuple):
    """A kind of file: how to find one of them, and another one."""

    layout: str
    file: Callable[[Victim], Path]
    other: Callable[[Victim], Path]


SHARED = {
    "kstore.json": Kind("loose", lambda v: v.store / "kstore.json", lambda v: v.ref()),
    "ref": Kind("loose", lambda v: v.ref(2), lambda v: v.ref(1)),
    "single blob": Kind("loose", lambda v: v.blob(v.single), lambda v: v.blob(f"{v.group}/k.ptx")),
    "blob of a group": Kind("loose", lambda v: v.blob(f"{v.group}/k.cubin"), lambda v: v.blob(f"{v.group}/k.ptx")),
    "relocated blob": Kind("loose", lambda v: v.blob(f"{v.group}/__grp__k.json"), lambda v: v.blob(v.single)),
    "manifest": Kind("loose", lambda v: v.manifest(2), lambda v: v.manifest(1)),
    "pack with the manifest": Kind("packed", lambda v: v.pack(0), lambda v: v.pack(1)),
    "older pack": Kind("packed", lambda v: v.pack(1), lambda v: v.pack(0)),
}
LOCAL = {
    "index": Kind("loose", lambda v: v.state(v.reader, "index-*"), lambda v: v.state(v.writer, "index-*")),
    "base": Kind("loose", lambda v: v.state(v.reader, "base"), lambda v: v.state(v.writer, "base")),
    "sync.json": Kind("loose", lambda v: v.state(v.reader, "sync.json"), lambda v: v.state(v.writer, "sync.json")),
}
KINDS = SHARED | LOCAL
ASKED = [name for name in SHARED if name != "relocated blob"]  # it is read as any other of a group

# ---- How it is harmed


def rewrite(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def swap(path: Path, other: Path) -> None:
    spare = path.with_name("spare")
    path.rename(spare)
    other.rename(path)
    spare.rename(other)


def replace_by_link(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


def link_to_a_copy(path: Path, copy: Path) -> None:
    """The bytes are right, and even the time is: but the file is somebody else's to change."""
    shutil.copy2(path, copy)
    replace_by_link(path, copy)


def link_to_other_bytes(path: Path, secret: Path) -> None:
    secret.write_bytes(b"secret" * 100)
    replace_by_link(path, secret)


def replace_by_folder(path: Path, *names: str) -> None:
    path.unlink()
    path.mkdir()
    for name in names:
        (path / name).touch()


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as one, chdir(path.parent):  # The name of one has a hundred bytes at most.
        one.bind(path.name[:100])
    os.rename(path.with_name(path.name[:100]), path)


Harm = Callable[[Path, Path, Path], object]
"""Takes the file, another one of its kind, and a path outside of everything."""
HARMS: dict[str, Harm] = {
    "missing": lambda path, other, outside: path.unlink(),
    "empty": lambda path, other, outside: rewrite(path, b""),
    "one byte": lambda path, other, outside: rewrite(path, path.read_bytes()[:1]),
    "half": lambda path, other, outside: rewrite(path, path.read_bytes()[: path.stat().st_size // 2]),
    "a page": lambda path, other, outside: rewrite(path, path.read_bytes()[:4096]),
    "all but a page": lambda path, other, outside: rewrite(path, path.read_bytes()[:-4096]),
    "all but a byte": lambda path, other, outside: rewrite(path, path.read_bytes()[:-1]),
    "one byte more": lambda path, other, outside: rewrite(path, path.read_bytes() + b"\0"),
    "zeros": lambda path, other, outside: rewrite(path, bytes(path.stat().st_size)),
    "deep nesting": lambda path, other, outside: rewrite(path, b'{"a":' * 100_000),
    "a byte of no text": lambda path, other, outside: rewrite(path, b"\xff" + path.read_bytes()),
    "another's bytes": lambda path, other, outside: rewrite(path, other.read_bytes()),
    "swapped": lambda path, other, outside: swap(path, other),
    "a folder": lambda path, other, outside: replace_by_folder(path),
    "a folder with something in it": lambda path, other, outside: replace_by_folder(path, "file"),
    "a pipe": lambda path, other, outside: replace_by_pipe(path),
    "a socket": lambda path, other, outside: replace_by_socket(path),
    "a link to a copy": lambda path, other, outside: link_to_a_copy(path, outside),
    "a link to other bytes": lambda path, other, outside: link_to_other_bytes(path, outside),
    "a link to another": lambda path, other, outside: replace_by_link(path, other),
    "a link to itself": lambda path, other, outside: replace_by_link(path, path),
    "a link to nothing": lambda path, other, outside: replace_by_link(path, outside),
    "a link to endless zeros": lambda path, other, outside: replace_by_link(path, Path("/dev/zero")),
    "a link to a folder": lambda path, other, outside: replace_by_link(path, outside.parent),
}


@contextmanager
def harmed(victim: Victim, kind: Kind, harm: Harm) -> Iterator[None]:
    """Afterwards everything is as it was."""
    with victim.undone():
        harm(kind.file(victim), kind.other(victim), victim.outside / "file")
        yield


@pytest.fixture(params=ASKED)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def victim(kind: Kind, loose: Victim, packed: Victim) -> Victim:
    return loose if kind.layout == "loose" else packed


# ---- What is true all the same


@pytest.mark.timeout(30)
@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
def test_every_answer_is_right_or_a_typed_error(
    victim: Victim, kind: Kind, harm: Harm, caplog: pytest.LogCaptureFixture
) -> None:
    with harmed(victim, kind, harm):
        victim.check_restore()
        victim.check_commit()
        victim.check_functions(caplog)


FOLLOWING: dict[str, Callable[[Victim], Path]] = {
    "what is followed on": lambda victim: victim.stored(0),
    "what it adds": lambda victim: victim.stored(1),
    "ref": lambda victim: victim.ref(2),
}


@pytest.mark.usefixtures("deltas")
@pytest.mark.timeout(30)
@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", FOLLOWING)
def test_every_answer_is_right_or_typed_where_a_manifest_follows_on_another_too(
    following: Victim, name: str, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    others = {"what is followed on": 1, "what it adds": 0}
    kind = Kind("loose", FOLLOWING[name], lambda v: v.stored(others[name]) if name in others else v.ref(1))
    with harmed(following, kind, HARMS[harm]):
        following.check_restore()
        following.check_commit()
        following.check_functions(caplog)


LOSSES = [name for name in HARMS if name != "a link to a copy"]
"""The harms after which the right bytes cannot be had from that file."""


def fresh(victim: Victim) -> Node:
    return Node(victim.folder, "fresh", layout=victim.layout)


@pytest.mark.parametrize("harm", [name for name in LOSSES if name != "a page"])  # blobs are smaller
@pytest.mark.parametrize("name", ["single blob", "blob of a group", "relocated blob"])
def test_a_harmed_blob_costs_its_group_or_itself(loose: Victim, name: str, harm: str) -> None:
    with harmed(loose, KINDS[name], HARMS[harm]):
        node = fresh(loose)
        report = node.restore()
        lost = {path for path in loose.published if not node.tree.has(path)}
    expected = {loose.single} if name == "single blob" else members(loose)
    if harm == "swapped" and name != "blob of a group":
        expected = {loose.single} | members(loose)
    assert lost == expected
    assert {skipped.path for skipped in report.skipped} <= lost


def members(victim: Victim) -> set[str]:
    return {path for path in victim.published if path.startswith(f"{victim.group}/")}


@pytest.mark.parametrize("harm", LOSSES)
def test_a_generation_whose_manifest_is_harmed_is_passed_over(loose: Victim, harm: str) -> None:
    with harmed(loose, KINDS["manifest"], HARMS[harm]):
        answer = loose.check_restore()
    if harm == "swapped":  # with the blob of the generation before
        assert isinstance(answer, IntegrityError)
    else:
        assert isinstance(answer, RestoreReport)
        assert answer.generation == 1


NO_FILES = ["a folder", "a pipe", "a socket", "a link to itself"]


@pytest.mark.parametrize("harm", NO_FILES)
def test_a_commit_passes_over_what_is_in_the_place_of_a_ref(loose: Victim, harm: str) -> None:
    """A listing ignores a folder, but its number is taken all the same."""
    with harmed(loose, KINDS["ref"], HARMS[harm]):
        answer = loose.check_commit()
    assert isinstance(answer, CommitReport)
    assert (answer.status, answer.generation) == (CommitStatus.COMMITTED, 3)
    with harmed(loose, KINDS["ref"], HARMS[harm]):
        assert [ref.generation for ref in fresh(loose).store.quarantine(KEY)] == [3]


@pytest.mark.parametrize("harm", ["empty", "half", "all but a page", "zeros", "deep nesting", *NO_FILES])
@pytest.mark.parametrize("name", ["kstore.json", "ref"])
def test_what_says_where_to_look_is_believed_whole_or_not_at_all(loose: Victim, name: str, harm: str) -> None:
    with harmed(loose, KINDS[name], HARMS[harm]):
        answer = loose.check_restore()
    if name == "ref":
        assert isinstance(answer, RestoreReport)
        assert answer.generation == 1
    else:
        assert isinstance(answer, (StoreFormatError, StoreUnavailable))


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", LOCAL)
def test_what_a_root_remembers_is_replaced_where_it_can_be(
    loose: Victim, name: str, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Losing it costs time, never a commit. That also holds where it cannot be replaced: a folder."""
    with harmed(loose, KINDS[name], HARMS[harm]):
        answer = loose.check_commit()
        again = loose.check_commit()
        told = caplog.text  # once in a process
        loose.check_functions(caplog)
    assert isinstance(answer, CommitReport)
    assert isinstance(again, CommitReport)
    assert (answer.status, again.status) == (CommitStatus.COMMITTED, CommitStatus.UNCHANGED)
    assert answer.new_files == 1
    assert ("cannot write" in told) == harm.startswith("a folder")


def test_without_harm_everything_is_restored_and_committed(loose: Victim, packed: Victim) -> None:
    """The proof that the other tests check something."""
    for victim in (loose, packed):
        with victim.undone():
            assert isinstance(victim.check_restore(), RestoreReport)
            answer = victim.check_commit()
            assert isinstance(answer, CommitReport)
            assert answer.new_files == 1
            node = fresh(victim)
            assert node.restore().skipped == ()
            assert len(contents(node.tree.root)) == len(victim.truth) + 1


# ---- Trouble stays where it is


@pytest.mark.parametrize("harm", HARMS)
def test_a_harmed_ref_of_another_key_is_not_this_keys_trouble(packed: Victim, harm: str) -> None:
    """A key's first pack leaves out what its siblings' packs hold: where they cannot be read, it holds everything."""
    with harmed(packed, Kind("packed", lambda v: v.ref(2), lambda v: v.ref(1)), HARMS[harm]):
        node = Node(packed.folder, "reader", layout="packed")
        assert node.commit("model/v2").status is CommitStatus.COMMITTED
        reader = fresh(packed)
        assert reader.restore("model/v2").skipped == ()
        assert contents(reader.tree.root).keys() == contents(node.tree.root).keys()


@pytest.mark.parametrize("data", [b"[]", b"{}", b'{"child_paths": 5}', b'{"child_paths": {"a/b": ""}}', b"[" * 100_000])
def test_a_kernels_list_that_makes_no_sense_waits(loose: Victim, data: bytes) -> None:
    with loose.undone():
        kernel = loose.reader.tree.kernel("senseless")
        loose.reader.tree.put(f"{kernel}/__grp__k.json", data)
        report = loose.reader.commit()
        assert report.new_files == 1
        assert [skipped.path for skipped in report.skipped] == [kernel]
