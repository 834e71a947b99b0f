"""Each cause of a miss, as the doctor names it."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import ModuleType, SimpleNamespace

import pytest

from kstore.backends import PosixBackend
from kstore.blobs.loose import blob_name
from kstore.components import load_table
from kstore.components.table import KSTORE_FOLDER
from kstore.components.variables import default_folder
from kstore.doctor import Check, Verdict, examine
from kstore.doctor.check import again
from kstore.environment import Environment, Host
from kstore.environment.influences import have_same_keys, influence, influences
from kstore.errors import KstoreError, StoreUnavailable, UsageError, WaitTimeout
from kstore.local import numbered
from kstore.local.link import Linker, LinkMode
from kstore.mounts import Mount
from kstore.published.manifest import Manifest, Seen
from kstore.report import CommitStatus, RestoreStatus
from kstore.settings import Mode
from kstore.store import Store
from tests.faults.reading import raising, trouble_with, unlistable
from tests.layers.images import Fleet
from tests.trees import (
    ENVIRONMENT,
    GPU,
    KEY,
    Node,
    Tree,
    contents,
    hide_what_needs_no_torch,
    in_processes,
    shared_object,
)

OURS = {"torch": "2.13.0+cu130", "triton": "3.7.1", "python": "cpython-311", "machine": "x86_64"}


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"cpu": "-mavx2", "compiler": "gcc version 12", "libstdc++": "libstdc++.so.6.0.30", "glibc": "glibc 2.36"}
    found = Host("0123456789abcdef", facts)
    monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _: found)
    monkeypatch.setattr("kstore.doctor.surroundings.detect_host", lambda _: found)


@pytest.fixture
def published(tmp_path: Path) -> Node:
    node = Node(tmp_path, "builder")
    node.tree.graph()
    node.tree.kernel()
    node.commit()
    return node


def checks(store: Store, key: str = KEY) -> dict[str, Check]:
    return {check.name: check for check in examine(store, key)}


def worst(store: Store, key: str = KEY) -> dict[str, Check]:
    """Every check whose verdict is not OK."""
    return {name: check for name, check in checks(store, key).items() if check.verdict is not Verdict.OK}


def test_where_the_builder_itself_looks_nothing_is_wrong(published: Node) -> None:
    assert worst(published.store) == {}
    assert list(checks(published.store)) == [
        "store", "writing", "store space", "generation", "GPU", "environment", "cache root", "link mode", "space",
        "inodes", "inotify", "system calls", "compiler", "host", "variables", "key variables",
    ]  # fmt: skip


def test_a_root_with_the_kernels_of_another_key_is_a_warning(published: Node) -> None:
    found = worst(published.store, "other/v1")["cache root"]
    assert f"has the kernels of {KEY}" in found.found
    assert "a cache root of its own" in found.advice


def test_without_a_key_no_cache_root_is_claimed(
    published: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbered, "NUMBERED_ROOTS", tmp_path / "numbered")
    store = Store(published.location, gpu=GPU, environment="env", environ={})

    found = checks(store, "")
    assert "generation" not in found
    assert found["cache root"].found == f"{tmp_path}/numbered/env"
    assert not (tmp_path / "numbered").exists()


def test_with_a_key_no_cache_root_is_claimed_either_and_nothing_is_left_behind(
    published: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If root's doctor claimed a root, the user's job would get another one."""
    monkeypatch.setattr(numbered, "NUMBERED_ROOTS", tmp_path / "numbered")
    store = Store(published.location, gpu=GPU, environment=ENVIRONMENT, environ={})
    before = contents(tmp_path)

    assert checks(store)["cache root"].found.startswith(f"{tmp_path}/numbered/{ENVIRONMENT}/0, ")
    assert not (tmp_path / "numbered").exists()
    assert "cache root" in checks(Node(tmp_path, "never/there").store)
    assert not (tmp_path / "never").exists()
    assert contents(tmp_path) == before
    (tmp_path / "never").mkdir()  # as a mount in which no job has been
    checks(Node(tmp_path, "never").store)
    assert not any((tmp_path / "never").iterdir())


def test_a_root_that_cannot_be_made_is_bad(published: Node) -> None:
    store = Store(published.location, cache_root="/proc/none", gpu=GPU, environment=ENVIRONMENT, environ={})
    found = worst(store)["cache root"]

    assert found.verdict is Verdict.BAD
    assert "set KSTORE_CACHE_ROOT to a local folder" in found.advice


def test_the_root_that_a_job_has_claimed_is_looked_at(
    published: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbered, "NUMBERED_ROOTS", tmp_path / "numbered")
    for key in ("other/v1", KEY):
        job = Store(published.location, gpu=GPU, environment=ENVIRONMENT, environ={})
        path = job.restore(key).cache_root

    store = Store(published.location, gpu=GPU, environment=ENVIRONMENT, environ={})
    assert path.endswith("/1")
    assert checks(store)["cache root"].found.startswith(f"{path}, ")


@pytest.mark.parametrize(
    ("timeout", "patience", "told"), [(0, 0.1, "0.1 s"), (600, 0.1, "0.1 s"), (1, 600, "1 s")],
    ids=["without a limit", "with a long one", "with a short one"],
)  # fmt: skip
def test_a_store_that_hangs_is_reported_as_hanging(
    published: Node, monkeypatch: pytest.MonkeyPatch, timeout: int, patience: float, told: str
) -> None:
    monkeypatch.setattr("kstore.doctor.shared._PATIENCE", patience)
    monkeypatch.setattr(PosixBackend, "get", lambda *_: Event().wait())

    store = Node(published.location.parent, "builder", timeout=timeout).store
    assert f"has taken more than {told}" in worst(store)["store"].found


HOSTILE = {
    "cache_root": ["x"],
    "folders": ["x"],
    "environment": {"torch": {"a": "b" * 9999}, "triton": None},
    "host": {"cpu": ["\x1b[31m"]},
    "variables": {f"TORCHINDUCTOR_{number}": ["\x1b[31m" * 9999] for number in range(999)} | {"TRITON_DEBUG": 5},
}
ENDLESS = {"variables": {"OMP_NUM_THREADS": "9" * 9999, "TORCHINDUCTOR_" + "X" * 9999: "1"}, "processors": 8}


ELSEWHERE = {"cache_root": "/x", "folders": {"triton": 5, "inductor": ["\x1b[31m" * 9999]}}


@pytest.mark.parametrize(
    "meta", [HOSTILE, dict.fromkeys(HOSTILE, 5), dict.fromkeys(HOSTILE, "x" * 9999), {}, ENDLESS, ELSEWHERE]
)
def test_whatever_a_manifest_says_it_is_told_in_few_words(
    published: Node, monkeypatch: pytest.MonkeyPatch, meta: dict[str, object]
) -> None:
    load = Manifest.load

    def hostile(data: bytes, see: Seen | None = None) -> Manifest:
        return replace(load(data, see), meta=meta)

    monkeypatch.setattr(Manifest, "load", staticmethod(hostile))
    other = Host("fedcba9876543210", {"cpu": "-mavx512f", "compiler": "gcc version 12"})
    monkeypatch.setattr("kstore.doctor.surroundings.detect_host", lambda _: other)
    published.tree.put("inductor/ab/cab.main.so", shared_object())
    published.commit()
    here = published.location.parent
    for store in (published.store, Node(here, "builder", environment="other").store, Node(here, gpu="gpu-sm80").store):
        found = list(examine(store, KEY))
        assert len(found) < 50
        assert all(len(check.name) + len(check.found) + len(check.advice) < 1500 for check in found)


def test_a_store_that_cannot_be_reached_is_bad_and_is_not_made(tmp_path: Path) -> None:
    store = Node(tmp_path / "gone").store

    assert worst(store)["store"].verdict is Verdict.BAD
    assert not (tmp_path / "gone" / "store").exists()


def test_what_to_do_about_a_store_is_said_once(tmp_path: Path) -> None:
    said = worst(Node(tmp_path / "gone").store)["store"]

    assert said.advice == "mount it, or name another store with --store or KSTORE_ROOT"
    assert said.found.endswith("to make one in")


def test_where_an_error_says_nothing_of_what_to_do_it_is_said_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.doctor.shared._is_made", raising(OSError("it is gone")))
    said = worst(Node(tmp_path).store)["store"]

    assert (said.found, said.advice.startswith("mount it")) == ("it is gone", True)


def test_a_store_that_is_a_file_is_to_be_a_folder(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.location.write_text("no folder")

    assert worst(node.store)["store"].advice == "a store is a folder: name one with --store or KSTORE_ROOT"


def test_a_store_that_nobody_has_made_is_bad(tmp_path: Path) -> None:
    assert "first commit makes it" in worst(Node(tmp_path).store)["store"].advice


@pytest.mark.parametrize("key", [KEY, ""])
def test_a_store_that_has_lost_the_folder_of_all_refs_is_bad_and_what_to_do_is_said(published: Node, key: str) -> None:
    shutil.rmtree(published.location / "refs")
    found = checks(published.store, key)["store"]

    assert found.verdict is Verdict.BAD
    assert "has lost its folder `refs`" in found.found
    assert found.advice.startswith("bring it back before the next commit")


def test_a_store_whose_folders_cannot_be_listed_is_not_known_to_have_lost_any(
    published: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(published.location / "refs")
    unlistable(monkeypatch, "", PermissionError(13, "Permission denied"))

    assert checks(published.store)["store"].verdict is Verdict.OK


def test_a_store_in_which_nothing_has_been_published_has_lost_nothing(tmp_path: Path) -> None:
    Node(tmp_path, "first").store.storage.create()
    assert checks(Node(tmp_path, "second").store)["store"].verdict is Verdict.OK


@pytest.fixture
def image(tmp_path: Path) -> Fleet:
    """With a store below the shared store; the shared store does not exist."""
    fleet = Fleet(tmp_path, "packed", "packed")
    fleet.bake("one")
    return fleet


def test_where_a_store_below_is_read_the_one_above_is_nothing_but_missing(image: Fleet) -> None:
    worker = image.worker("new")

    found = worst(worker.store)
    assert found["store"].verdict is Verdict.WARNING
    assert "the first commit makes it" in found["store"].advice
    assert all(check.verdict is not Verdict.BAD for check in found.values())
    assert checks(worker.store)["generation"].verdict is Verdict.OK
    assert not image.shared.exists()


def test_refs_that_are_lost_above_a_store_that_is_read_cost_only_what_was_published_above(image: Fleet) -> None:
    worker = image.worker("new")
    worker.tree.kernel("own")
    worker.commit()
    shutil.rmtree(image.shared / "refs")

    found = checks(worker.store)["store"]
    assert (found.verdict, found.found.startswith(f"{image.shared} has lost")) == (Verdict.WARNING, True)


@pytest.mark.parametrize("trouble", ["unmounted", "something else"])
def test_a_store_above_that_is_in_trouble_costs_commits_only(image: Fleet, trouble: str) -> None:
    image.shared.parent.rmdir()
    if trouble == "something else":
        image.shared.mkdir(parents=True)
        (image.shared / "thesis.tex").touch()
    store = image.worker("new").store

    found = worst(store)
    assert found["store"].verdict is Verdict.WARNING
    assert "only the stores below are read" in found["store"].advice
    assert all(check.verdict is not Verdict.BAD for check in found.values())
    assert "1 of" in checks(store)["generation"].found


@pytest.mark.parametrize("trouble", ["missing", "newer", "unreadable"])
def test_a_store_below_from_which_nothing_can_be_restored_is_named(
    image: Fleet, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checks(image.worker("new").store)["store below"].found == str(image.base)
    settings = image.base / "kstore.json"
    if trouble == "missing":
        shutil.rmtree(image.base)
    elif trouble == "newer":
        settings.chmod(0o644)
        settings.write_text(settings.read_text().replace('"format": 1', '"format": 99'))
    else:
        trouble_with(monkeypatch, "kstore.json", PermissionError(13, "Permission denied"))
    found = worst(image.worker("another").store)["store below"]

    assert found.verdict is Verdict.WARNING
    says = {"missing": "there is none at", "newer": "has format 99", "unreadable": "Permission denied"}
    assert says[trouble] in found.found and str(image.base) in found.found


def test_what_was_restored_from_below_takes_no_more_room(image: Fleet, disk: SimpleNamespace) -> None:
    worker = image.worker("new")
    worker.restore()
    disk.f_favail = 1

    assert checks(worker.store)["inodes"].verdict is Verdict.OK


def test_a_folder_that_holds_something_else_is_bad(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "thesis.tex").touch()
    found = worst(Node(tmp_path).store)["store"]

    assert "holds 'thesis.tex'" in found.found
    assert "kstore init" not in found.advice


def test_a_store_that_nobody_here_can_make_is_not_to_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.doctor.shared.os.access", lambda *_: False)
    found = worst(Node(tmp_path).store)["store"]

    assert found.found.endswith("yet, and nobody here can make it")
    assert f"permissions of {tmp_path}," in found.advice
    assert "kstore init" not in found.advice


def refuse_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(PosixBackend, "put_if_absent", refuse)


def test_a_store_that_cannot_be_written_costs_commits_only(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_files(monkeypatch)
    found = worst(published.store)["writing"]
    assert found.verdict is Verdict.WARNING
    assert "restores work" in found.advice


def refuse_links(monkeypatch: pytest.MonkeyPatch, *, renames: bool) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), target)

    monkeypatch.setattr(os, "link", refuse)
    if not renames:
        rename_code = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: ctypes.set_errno(errno.EINVAL) or -1)
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(renameat2=lambda *_: rename_code()))


def test_a_first_commit_may_make_the_store_while_it_is_tried_where_it_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that start at once, each with the doctor first. Where a filesystem is mounted, an empty folder exists."""
    (tmp_path / "store").mkdir()
    link, created = os.link, []

    def make_store_first(source: str, target: str) -> None:
        monkeypatch.setattr(os, "link", link)
        created.append(Node(tmp_path).store.create())
        link(source, target)

    monkeypatch.setattr(os, "link", make_store_first)
    assert worst(Node(tmp_path).store)["store"].found.endswith("yet")
    assert created == [True]
    assert os.listdir(tmp_path / "store/tmp") == []
    assert not list(tmp_path.glob("**/.kstore-doctor-*"))


@pytest.mark.usefixtures("plain_calls")
def test_where_nothing_can_be_published_a_store_is_good_for_restores_only(
    published: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On mounts of object stores, files can be made, but no name can be reserved for one writer only."""
    refuse_links(monkeypatch, renames=False)
    found = worst(published.store)["writing"]
    assert found.verdict is Verdict.WARNING
    assert "no hard link can be made here (Input/output error), and a rename that never" in found.found
    assert found.advice.startswith("no commit can publish anything: put the store on")
    assert os.listdir(published.location / "tmp") == []

    absent = Node(tmp_path / "absent").store
    os.mkdir(tmp_path / "absent")
    found = worst(absent)["store"]
    assert found.verdict is Verdict.BAD
    assert "yet: no hard link can be made here" in found.found
    assert found.advice.startswith("no commit can publish anything: put the store on")
    assert os.listdir(tmp_path / "absent") == []
    with pytest.raises(StoreUnavailable, match=", or put the store on a filesystem that has one of them"):
        absent.create()
    reader = Node(tmp_path / "absent", mode=Mode.READ).store
    assert worst(reader)["store"].found.endswith("yet")

    reader = Node(tmp_path, mode=Mode.READ).store
    assert checks(reader)["writing"].verdict is Verdict.OK


def test_without_hard_links_a_mount_of_fuse_may_give_a_name_to_two_hosts(
    published: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Azure's blobfuse2 does: it looks whether the object exists, and then renames."""
    refuse_links(monkeypatch, renames=True)
    device = os.stat(published.location).st_dev
    mounted = [Mount("/elsewhere", device + 1, "fuse.sshfs"), Mount("/under", device, "ext4")]
    monkeypatch.setattr("kstore.doctor.shared.mounts", lambda: mounted)
    assert "writing" not in worst(published.store)

    mounted.append(Mount("/data", device, "fuse.blobfuse2"))
    found = worst(published.store)["writing"]
    assert found.verdict is Verdict.WARNING
    assert "is on fuse.blobfuse2, which has no hard links" in found.found
    assert "KSTORE_MODE=read on all others" in found.advice
    assert os.listdir(published.location / "tmp") == []


@pytest.fixture
def writing_of_another(published: Node, tmp_path: Path) -> Callable[..., Check]:
    """What another user is told about writing."""
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    store = published.store

    def writing(user: int, key: str) -> Check:
        os.setgid(user)
        os.setuid(user)
        return next(check for check in examine(store, key) if check.name == "writing")

    def tell(key: str = KEY) -> Check:
        found: list[Check] = in_processes(writing, [(4711, key)])
        return found[0]

    return tell


def open_to_all(store: Path) -> None:
    for folder in (store, *store.rglob("*")):
        if folder.is_dir():
            folder.chmod(0o777)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_folders_of_a_store_that_another_user_has_made_are_named(
    published: Node, writing_of_another: Callable[..., Check]
) -> None:
    for folder in (published.location, published.location / "tmp"):
        folder.chmod(0o777)
    (published.location / "used").mkdir()
    found = writing_of_another()
    assert found.verdict is Verdict.WARNING
    assert f"folders of {published.location} cannot be written" in found.found
    assert ": blobs, blobs/" in found.found and found.found.endswith(" more")
    assert found.advice.startswith("restores work, commits may fail") and "setgid bit" in found.advice

    open_to_all(published.location)
    for mode in (0o755, 0o766):
        (published.location / "refs" / GPU / "model").chmod(mode)
        assert writing_of_another().found.endswith(f": refs/{GPU}/model")
    assert writing_of_another("other/v1").verdict is Verdict.OK
    (published.location / "refs" / GPU / "model").chmod(0o777)
    assert writing_of_another().verdict is Verdict.OK


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
@pytest.mark.parametrize("folder", ["used", "leases", f"leases/{GPU}/model/v1", "stats", f"stats/{GPU}", "groups"])
def test_folders_of_what_workers_note_for_others_matter_to_no_commit(
    published: Node, writing_of_another: Callable[..., Check], folder: str
) -> None:
    open_to_all(published.location)
    (published.location / folder).mkdir(parents=True)
    open_to_all(published.location)
    assert writing_of_another().verdict is Verdict.OK
    (published.location / folder).chmod(0o755)

    found = writing_of_another()
    assert (found.verdict, found.found.endswith(f": {folder}")) == (Verdict.WARNING, True)
    assert found.advice.startswith("restores and commits work, ")
    published.store.settings = replace(published.store.settings, stats=False)
    assert writing_of_another().verdict is (Verdict.OK if folder.startswith("stats") else Verdict.WARNING)


@pytest.mark.parametrize(
    ("layout", "named"), [("packed", ": packs, refs, "), ("loose", ": blobs, blobs/"), (None, ": packs, blobs, ")]
)
def test_only_folders_that_commits_of_this_layout_write_in_are_named(
    published: Node, layout: str | None, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Node(published.location.parent, "builder", layout="packed").commit("other/v1")
    monkeypatch.setattr("kstore.doctor.shared.os.access", lambda *_: False)

    assert named in worst(Node(published.location.parent, "builder", layout=layout).store)["writing"].found


@pytest.mark.parametrize(
    ("error", "why"),
    [(PermissionError(13, "Permission denied", "/x"), "Permission denied"), (StoreUnavailable("gone"), "gone")],
)
def test_a_link_that_cannot_be_tried_is_no_reason_to_copy(
    large: Node, monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    def refuse(_: object) -> None:
        raise error

    monkeypatch.setattr("kstore.doctor.node.probe_link", refuse)
    found = worst(Node(large.location.parent, "fresh").store)

    assert found["link mode"][1:3] == (Verdict.WARNING, f"not tried: {why}")
    assert found["space"].verdict is Verdict.WARNING
    reading = checks(Node(large.location.parent, "fresh", mode="read").store)
    assert reading["link mode"].verdict is Verdict.OK
    assert reading["space"].verdict is Verdict.WARNING


@pytest.mark.parametrize(
    ("mode", "found"),
    [(LinkMode.HARDLINK, "hardlink"), (LinkMode.COPY, "copy, out of packs: it is another filesystem")],
)
def test_why_files_are_copied_is_told(
    published: Node, monkeypatch: pytest.MonkeyPatch, mode: LinkMode, found: str
) -> None:
    linker = Linker(mode)
    linker.why = "it is another filesystem"
    monkeypatch.setattr("kstore.doctor.node.probe_link", lambda worker: linker)

    assert checks(published.store)["link mode"][1:3] == (Verdict.OK, found)


def test_a_worker_that_only_reads_is_not_told_to_write(published: Node) -> None:
    store = Node(published.location.parent, "builder", mode=Mode.READ).store

    assert worst(store) == {}
    assert "store space" not in checks(store)


@pytest.mark.parametrize("folder", ["", "gone"])
def test_a_key_that_is_malformed_is_the_callers_mistake(tmp_path: Path, folder: str) -> None:
    with pytest.raises(UsageError):
        next(examine(Node(tmp_path / folder).store, "a//b"))


def test_a_key_that_has_nothing_is_bad(published: Node) -> None:
    assert worst(published.store, "other/v1")["generation"].verdict is Verdict.BAD


def test_a_command_that_it_names_finds_the_same_by_itself_only_where_variables_say_so(published: Node) -> None:
    def advice(store: Store) -> str:
        return worst(store, "other/v1")["generation"].advice

    named = {"gpu": GPU, "environment": ENVIRONMENT, "cache_root": published.tree.root}
    options = f"--store {published.location} --gpu {GPU} --environment {ENVIRONMENT} --cache-root {published.tree.root}"
    told = {"KSTORE_ROOT": str(published.location), "KSTORE_GPU": GPU, "KSTORE_ENVIRONMENT": ENVIRONMENT}
    told["KSTORE_CACHE_ROOT"] = str(published.tree.root)
    assert f"`kstore exec other/v1 {options} -- …`" in advice(Store(published.location, environ={}, **named))
    assert "`kstore exec other/v1 -- …`" in advice(Store(environ=told))


def test_a_command_that_it_names_is_for_the_usual_store_though_a_variable_names_another() -> None:
    usual = "/data/kstore"
    assert again(Store(usual, environ={"KSTORE_ROOT": "/other"}), "gc") == f"kstore gc --store {usual}"
    assert (
        again(Store(usual, environ={}), "gc") == again(Store(usual, environ={"KSTORE_ROOT": ""}), "gc") == "kstore gc"
    )


@pytest.mark.parametrize("verb", ["forget", "quarantine"])
def test_a_key_that_was_forgotten_is_bad(published: Node, verb: str) -> None:
    getattr(published.store, verb)(KEY)

    found = worst(published.store)["generation"]
    assert KEY in found.found
    where = f"--store {published.location} --gpu {GPU} --environment {ENVIRONMENT}"
    assert f"`kstore rollback {KEY} {where}`" in found.advice


def test_the_advice_for_a_forgotten_key_fills_it_anew(
    published: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    published.store.forget(KEY)
    published.commit()
    assert published.published() == {}

    root = published.tree.root
    assert f"to fill it again, remove {root} on each worker" in worst(published.store)["generation"].advice
    shutil.rmtree(root)
    published.restore()
    published.tree.graph()
    published.commit()
    assert len(published.published()) == 1

    published.store.forget(KEY)
    monkeypatch.setattr(numbered, "NUMBERED_ROOTS", tmp_path / "numbered")
    anywhere = Store(published.location, gpu=GPU, environment=ENVIRONMENT, environ={})
    assert f"`kstore clean {KEY} --store {published.location}` on each worker" in worst(anywhere)["generation"].advice


def test_another_gpu_has_nothing_to_hit(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.origin.gpu_slug", lambda *_: "nvidia-other-sm80")
    found = worst(Node(published.location.parent, "builder", gpu=None).store)

    assert found["GPU"].verdict is Verdict.BAD
    assert found["GPU"].found == f"compiled on {GPU}; this worker has nvidia-other-sm80: nothing can hit"
    assert "set KSTORE_GPU" in found["GPU"].advice


def test_the_software_of_another_gpu_s_builder_is_not_compared(published: Node) -> None:
    """Whatever there is for this GPU is still to be compiled."""
    other = Node(published.location.parent, "builder", gpu="nvidia-other-sm80", environment="torch-other")

    assert worst(other.store).keys() == {"GPU"}


@pytest.mark.parametrize(("name", "label", "right"), [("gpu", "GPU", GPU), ("environment", "environment", ENVIRONMENT)])
def test_a_setting_for_which_nothing_is_published_is_what_is_named(
    published: Node, name: str, label: str, right: str
) -> None:
    here, variable = published.location.parent, f"KSTORE_{name.upper()}"

    found = worst(Node(here, "builder", **{name: None}, environ={variable: "mistyped"}).store)[label]
    assert found.verdict is Verdict.BAD
    assert right in found.found
    assert f"; {variable} is mistyped: nothing can hit" in found.found
    assert f"correct {variable}, or unset it" in found.advice
    assert f"correct the setting `{name}`" in worst(Node(here, "builder", **{name: "mistyped"}).store)[label].advice


def environment(monkeypatch: pytest.MonkeyPatch, **facts: str) -> None:
    content = OURS | facts
    monkeypatch.setattr(
        "kstore.origin.detect_environment",
        lambda *_: Environment(f"tag-{content['torch']}-{content['triton']}", content),
    )


def test_other_software_is_named_on_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, torch="2.12.1+cu130")
    builder = Node(tmp_path, environment=None)
    builder.tree.graph()
    builder.commit()
    environment(monkeypatch)

    assert worst(Node(tmp_path, environment=None).store)["environment"].found == (
        "compiled with torch 2.12.1+cu130; this worker has torch 2.13.0+cu130: nothing can hit"
    )


def test_software_that_is_not_known_any_more_is_not_said_to_have_been_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, torch="2.12.1")
    builder = Node(tmp_path, environment=None)
    builder.tree.graph()
    builder.commit()
    (builder.location / blob_name(builder.newest().manifest)).unlink()
    environment(monkeypatch)

    assert checks(Node(tmp_path, environment=None).store)["environment"].found == (
        "compiled with tag-2.12.1-3.7.1; this worker has tag-2.13.0+cu130-3.7.1: nothing can hit"
    )


def test_software_is_compared_with_that_of_a_builder_with_this_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for gpu, torch in (("another-gpu", "2.11.0"), (GPU, "2.12.1"), ("yet-another-gpu", "2.10.0")):
        environment(monkeypatch, torch=torch)
        builder = Node(tmp_path, gpu, gpu=gpu, environment=None)
        builder.tree.graph()
        builder.commit()
    environment(monkeypatch)

    found = checks(Node(tmp_path, environment=None).store)
    assert found["environment"].found.startswith("compiled with torch 2.12.1; this worker has torch 2.13.0")
    assert found["GPU"].verdict is Verdict.OK


@pytest.mark.parametrize("setting", [{"gpu": "another-gpu"}, {"environment": "another"}])
def test_what_others_have_published_beside_it_is_no_trouble(published: Node, setting: dict[str, str]) -> None:
    other = Node(published.location.parent, "other", **setting)
    other.tree.graph()
    other.commit()

    assert worst(published.store) == {}


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_what_only_others_have_is_neither_missed_nor_looked_for(published: Node, is_forgotten: bool) -> None:
    here = Node(published.location.parent, "elsewhere", environment="another", components=("inductor",))
    if is_forgotten:
        here.tree.graph("fown")
        here.commit()
        here.store.forget(KEY)
    for entry in published.published().values():
        next(published.location.glob(f"blobs/*/{entry.digest.hex()}")).unlink()

    assert worst(here.store).keys() == ({"generation"} if is_forgotten else {"environment"})


def test_what_another_environment_had_and_was_forgotten_is_nothing_to_restore(published: Node) -> None:
    published.store.forget(KEY)

    found = worst(Node(published.location.parent, "builder", environment="other").store)
    assert found["generation"].found == f"nothing is published for {KEY}"


def test_without_torch_the_key_must_have_one_environment(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, torch="none")
    here = published.location.parent
    other = Node(here, "other", environment="torch-other")
    other.tree.graph()
    other.commit()
    bare = Node(here, "builder", environment=None)
    for verb, verdict in ((None, Verdict.BAD), ("quarantine", Verdict.BAD), ("forget", Verdict.WARNING)):
        if verb:
            getattr(other.store, verb)(KEY)
        assert worst(bare.store)["environment"].verdict is verdict


def test_without_torch_only_the_environments_of_the_gpu_that_is_set_are_choices(
    published: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, torch="none")
    here = published.location.parent
    other = Node(here, "other", gpu="nvidia-other-sm80")
    other.tree.graph()
    other.commit()

    assert worst(Node(here, "bare", environment=None).store)["environment"].verdict is Verdict.WARNING
    assert worst(Node(here, "bare", environment=None, gpu=None).store)["environment"].verdict is Verdict.BAD


def test_without_a_key_it_says_that_no_compiler_is_installed(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_what_needs_no_torch(monkeypatch)
    here = published.location.parent
    found = worst(Node(here, "bare", environment="notorch-notriton-cp311-x86_64-0123abcd").store, "")["environment"]
    assert (found.verdict, sys.executable in found.found) == (Verdict.WARNING, True)
    assert "environment" not in worst(Node(here, "triton", environment="notorch-triton3.7.1-cp311").store, "")


def test_without_torch_the_only_environment_is_looked_at(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the environment that a restore takes."""
    environment(monkeypatch, torch="none")
    bare = Node(published.location.parent, "bare", environment=None)
    assert bare.restore().ok
    assert "generation" not in worst(bare.store)
    damage(published)
    assert worst(bare.store)["generation"].verdict is Verdict.BAD


def test_an_older_generation_is_restored_where_the_newest_is_damaged(published: Node) -> None:
    published.tree.graph("ftwo")
    published.commit()
    damage(published)

    found = worst(published.store)
    assert found.keys() == {"generation"}
    assert found["generation"].verdict is Verdict.WARNING
    assert found["generation"].found == "generation 2 is damaged, and 1 is restored instead"


def test_a_generation_that_cannot_be_read_is_bad(published: Node) -> None:
    damage(published)

    assert "kstore verify" in worst(published.store)["generation"].advice


def test_what_a_newer_kstore_published_is_not_damage(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.published.ref.FORMAT", 0)

    found = worst(published.store)["generation"]
    assert found.verdict is Verdict.BAD
    assert "install the version that made it" in found.found
    assert "kstore verify" not in found.advice


def test_a_generation_that_another_user_hides_is_not_damage(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble_with(monkeypatch, published.newest().name, PermissionError(13, "Permission denied"))

    found = worst(published.store)["generation"]
    assert found.verdict is Verdict.BAD
    assert found.found.startswith(f"cannot read the store at {published.location}: Permission denied")
    assert "kstore verify" not in found.advice
    with pytest.raises(StoreUnavailable):
        published.commit()


@pytest.mark.parametrize("environment", [ENVIRONMENT, "torch1-triton1-cp1-x86_64-00000000"], ids=["own", "other"])
def test_a_manifest_that_memory_has_no_room_for_ends_no_examination(
    published: Node, environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble_with(monkeypatch, blob_name(published.newest().manifest), MemoryError())
    found = worst(Node(published.location.parent, "builder", environment=environment).store)

    if environment == ENVIRONMENT:
        assert "it does not fit in memory; raise the limits of this process" in found["generation"].found
        assert "kstore verify" not in found["generation"].advice
    else:
        assert "nothing can hit" in found["environment"].found


@pytest.mark.parametrize("hidden", [f"another-gpu/{KEY}", f"{GPU}/{KEY}/@another"])
def test_what_is_hidden_of_others_is_no_trouble_of_this_worker(
    published: Node, hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (published.location / "refs" / hidden).mkdir(parents=True)
    unlistable(monkeypatch, f"refs/{hidden}", PermissionError(13, "Permission denied"))

    assert checks(published.store)["generation"].verdict is Verdict.OK
    assert published.commit().status is CommitStatus.UNCHANGED


def test_what_is_hidden_of_a_key_is_trouble_of_a_worker_that_must_choose(
    published: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an init container, without torch."""
    monkeypatch.setattr(Store, "knows_software", False)
    hidden = f"refs/{GPU}/{KEY}/@another"
    (published.location / hidden).mkdir()
    unlistable(monkeypatch, hidden, PermissionError(13, "Permission denied"))

    assert checks(published.store)["generation"].verdict is Verdict.BAD
    with pytest.raises(StoreUnavailable):
        published.restore()


def test_a_pack_that_cannot_be_read_is_bad(tmp_path: Path) -> None:
    node = Node(tmp_path, "builder", layout="packed")
    node.tree.kernel()
    node.commit()
    first = node.newest().packs
    node.tree.graph()
    node.commit()
    for pack in first:
        (node.location / "packs" / pack).unlink()

    found = worst(Node(tmp_path, "builder", layout="packed").store)["contents"]
    assert found.verdict is Verdict.BAD
    assert found.found == "1 pack of generation 2 cannot be read: some of its files are missed"
    assert f"kstore verify {KEY} --repair" in found.advice


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"short")])
def test_loose_files_that_are_gone_or_cut_short_are_bad(published: Node, damage: Callable[[Path], object]) -> None:
    for path in loose_files(published, "triton/")[:3]:
        path.chmod(0o644)
        damage(path)

    found = worst(published.store)["contents"]
    assert found.verdict is Verdict.BAD
    lacks = "the store lacks 3 files of generation 1"
    assert found.found == f"{lacks}: they are missed, and so is what is grouped with them"
    assert f"kstore verify {KEY} --repair" in found.advice
    published.store.verify(repair=True)
    assert worst(published.store)["contents"].advice == "commit from a worker that has the files"


def test_a_loose_file_that_is_gone_is_not_missed_where_any_pack_has_it(published: Node, tmp_path: Path) -> None:
    (graph,) = loose_files(published, "inductor/")
    graph.unlink()
    other = Node(tmp_path, "other", layout="packed")
    other.tree.graph()
    other.commit("other/v1")

    assert Node(tmp_path, "fresh").restore().left_out == 0
    assert worst(published.store) == {}


def test_a_store_whose_loose_files_cannot_be_looked_for_is_bad(
    published: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(PosixBackend, "stat_many", refuse)
    assert worst(published.store)["contents"].found == f"{published.location} cannot be read: Permission denied"


def loose_files(node: Node, under: str) -> list[Path]:
    """Where the blobs of a part of the newest generation are."""
    digests = {entry.digest.hex() for path, entry in node.published().items() if path.startswith(under)}
    return [node.location / "blobs" / digest[:2] / digest for digest in sorted(digests)]


def test_what_only_a_store_has_that_is_not_given_is_bad(image: Fleet) -> None:
    worker = image.worker("worker")
    worker.restore()
    worker.tree.kernel("above")
    worker.commit()

    (found,) = (check for check in examine(image.without("alone").store, KEY) if check.name == "contents")
    assert found.verdict is Verdict.BAD
    assert "which is not one of the stores here" in found.found  # and not that they are lost


def test_what_an_image_that_is_given_has_lost_is_bad(image: Fleet) -> None:
    worker = image.worker("worker")
    worker.restore()
    worker.tree.kernel("above")
    worker.commit()
    for kind in ("blobs", "packs"):
        shutil.rmtree(image.base / kind, ignore_errors=True)

    (found,) = (check for check in examine(image.worker("again").store, KEY) if check.name == "contents")
    assert found.verdict is Verdict.BAD
    assert f"{image.base} had them, and has them no more" in found.found
    assert found.advice.startswith("the next worker that restores, compiles them again")


def damage(node: Node) -> None:
    """Cut the manifest of the newest generation short."""
    for path in (node.location / "blobs").glob(f"*/{node.newest().manifest.hex()}*"):
        path.chmod(0o644)
        path.write_bytes(b"")


def test_another_cache_root_costs_something(published: Node) -> None:
    found = worst(Node(published.location.parent, "elsewhere").store)["cache root"]

    assert found.verdict is Verdict.WARNING
    assert f"KSTORE_CACHE_ROOT={published.tree.root}" in found.advice


def test_a_root_that_no_job_has_made_yet_is_where_the_builder_had_it(published: Node) -> None:
    shutil.rmtree(published.tree.root)

    assert checks(published.store)["cache root"][1:3] == (Verdict.OK, str(published.tree.root))


@pytest.mark.parametrize(
    ("torch", "cost"),
    [
        ("2.7.1+cu126", "programs with C++ kernels fail"), ("2.8.0", "graphs and kernels hit"),
        ("2.13.0", "graphs and"), ("3.0", "graphs and"), ("none", "graphs and"),
    ],
)  # fmt: skip
def test_what_another_cache_root_costs_depends_on_torch(
    published: Node, monkeypatch: pytest.MonkeyPatch, torch: str, cost: str
) -> None:
    facts = published.store.environment.facts | {"torch": torch}
    monkeypatch.setattr("kstore.origin.detect_environment", lambda *_: Environment("torch-test", facts))

    found = worst(Node(published.location.parent, "elsewhere").store)["cache root"]
    assert found.advice.startswith(cost)


def test_a_folder_that_a_variable_named_counts_where_it_is(tmp_path: Path) -> None:
    """It is where compilers look, whatever the cache root is."""
    chosen = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "chosen")}
    builder = Node(tmp_path, "builder", environ=dict(chosen))
    Tree(tmp_path).put("chosen/ab/cone.py", b"code")
    builder.commit()

    assert checks(Node(tmp_path, "other", environ=dict(chosen)).store)["cache root"].verdict is Verdict.OK
    found = worst(Node(tmp_path, "builder").store)["cache root"]
    assert found.found == f"{tmp_path}/builder/inductor, and what is published was built in {tmp_path}/chosen"
    assert f"TORCHINDUCTOR_CACHE_DIR={tmp_path}/chosen avoids that" in found.advice


def test_folders_that_variables_named_are_told_in_the_order_of_their_components(tmp_path: Path) -> None:
    folders = {"TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/graphs", "TRITON_CACHE_DIR": f"{tmp_path}/kernels"}
    builder = Node(tmp_path, "builder", environ=dict(folders))
    Tree(tmp_path).put("graphs/ab/cone.py", b"code")
    Tree(tmp_path).kernel(below="kernels")
    builder.commit()

    advice = worst(Node(tmp_path, "builder").store)["cache root"].advice
    assert advice.endswith(": " + " and ".join(f"{name}={there}" for name, there in folders.items()) + " avoids that")


def test_where_nothing_tells_the_folders_of_the_builder_it_had_them_in_its_cache_root(
    published: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive of torch's tells not even a cache root."""
    load, meta = Manifest.load, {"cache_root": str(published.tree.root)}
    monkeypatch.setattr(Manifest, "load", staticmethod(lambda *given: replace(load(*given), meta=meta)))
    elsewhere = Node(published.location.parent, "elsewhere").store
    assert checks(published.store)["cache root"].verdict is Verdict.OK
    assert f"built in {published.tree.root}" in worst(elsewhere)["cache root"].found

    meta["cache_root"] = ""
    assert checks(elsewhere)["cache root"].verdict is Verdict.OK


def test_the_builders_cache_root_is_named_beside_a_folder_that_one_of_its_variables_named(tmp_path: Path) -> None:
    builder = Node(tmp_path, "builder", environ={"TRITON_CACHE_DIR": str(tmp_path / "chosen")})
    builder.tree.graph()
    Tree(tmp_path).kernel(below="chosen")
    builder.commit()

    found = worst(Node(tmp_path, "other").store)["cache root"]
    assert found.found == f"{tmp_path}/other, and what is published was built in {tmp_path}/builder"
    apart = f"KSTORE_CACHE_ROOT={tmp_path}/builder and TRITON_CACHE_DIR={tmp_path}/chosen"
    assert found.advice.endswith(f": {apart} avoids that")
    ours = Node(tmp_path, "builder", components=("inductor",)).store
    assert checks(ours)["cache root"].verdict is Verdict.OK  # the component that was elsewhere is not managed


def test_the_folder_that_a_variable_is_to_name_may_be_above_the_cache(tmp_path: Path) -> None:
    """As with FlashInfer, which looks in a home; this one begins like the name of the builder's root."""
    home = tmp_path / "builder-home"
    builder = Node(tmp_path, "builder", environ={"FLASHINFER_WORKSPACE_BASE": str(home)})
    Tree(home).put(".cache/flashinfer/0.2/90/generated/one.inc", b"code")
    builder.commit()
    assert any(path.startswith("flashinfer/") for path in builder.published())

    advice = worst(Node(tmp_path, "builder").store)["cache root"].advice
    assert f": FLASHINFER_WORKSPACE_BASE={home} avoids that" in advice


@pytest.mark.parametrize("name", ["else where", "else\twhere"])
def test_a_cache_root_with_a_blank_costs_every_cpp_compile(published: Node, name: str) -> None:
    found = worst(Node(published.location.parent, name).store)["cache root"]

    assert "has a space in it" in found.found
    assert "choose another" in found.advice


@pytest.mark.parametrize("user", ["", "-1000"])
def test_a_numbered_root_is_not_to_be_taken_from_whoever_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    monkeypatch.setattr(numbered, "NUMBERED_ROOTS", tmp_path / "numbered")
    node = Node(tmp_path, f"numbered{user}/{ENVIRONMENT}/0")
    node.tree.kernel()
    node.commit()
    found = worst(Node(tmp_path, "elsewhere").store)["cache root"]

    assert f"built in {node.tree.root}" in found.found
    assert "one fixed KSTORE_CACHE_ROOT on the builder and here avoids that" in found.advice


def test_space_is_named_by_a_folder_that_stays(published: Node, tmp_path: Path) -> None:
    (tmp_path / "never").mkdir()
    found = checks(Node(tmp_path, "never/there").store)

    assert found["space"].found.endswith(f" in {tmp_path}/never")


def test_objects_for_other_hosts_are_counted(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cab.main.so", "cac.main.so"):
        published.tree.put(f"inductor/ab/{name}", shared_object())
    published.commit()
    assert "2 C++ objects fit it" in checks(published.store)["host"].found

    other = Host("fedcba9876543210", {"cpu": "-mavx512f", "compiler": "gcc version 12"})
    monkeypatch.setattr("kstore.doctor.surroundings.detect_host", lambda _: other)
    assert worst(published.store)["host"].found == "2 C++ objects were built for other hosts (cpu differ)"

    newer = Host("fedcba9876543210", {"compiler": "gcc version 12", "what the builder has not told": "anything"})
    monkeypatch.setattr("kstore.doctor.surroundings.detect_host", lambda _: newer)
    assert worst(published.store)["host"].found.endswith("other hosts (unknown differ)")


def test_variables_that_change_keys_are_compared_with_the_builders(published: Node) -> None:
    environ = {"CI": "true", "TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCHINDUCTOR_COMPILE_THREADS": "4"}
    found = worst(Node(published.location.parent, "builder", environ=environ).store)

    assert {name: check.verdict for name, check in found.items()} == {
        "CI": Verdict.BAD,
        "TORCHINDUCTOR_MAX_AUTOTUNE": Verdict.BAD,
    }
    assert found["CI"].found == "not set where it was compiled, true here"
    assert "AOT entries" in found["CI"].advice


def test_variables_that_look_like_settings_are_reported(published: Node) -> None:
    environ = {
        "KSTORE_STORE": "/x", "KSTORE_CACHE_DIR": "/x", "KSTORE_CACH_ROOT": "/x", "KSTORE_TIMEOUT": "10",
        "KSTORE_PORT": "tcp://10.0.0.1:80", "KSTORE_SERVICE_HOST": "10.0.0.1",
    }  # fmt: skip
    found = worst(Node(published.location.parent, "builder", environ=environ).store)

    assert {name: check.advice for name, check in found.items()} == {
        "KSTORE_STORE": "if KSTORE_ROOT is meant, rename it",
        "KSTORE_CACHE_DIR": "if KSTORE_CACHE_ROOT is meant, rename it",
        "KSTORE_CACH_ROOT": "if KSTORE_CACHE_ROOT is meant, rename it",
    }


def test_what_the_builder_had_set_is_missed_here(tmp_path: Path) -> None:
    builder = Node(tmp_path, environ={"CXX": "clang++"})
    builder.tree.graph()
    builder.commit()

    assert worst(Node(tmp_path).store)["CXX"].found == "clang++ where it was compiled, not set here"
    assert "CXX" not in worst(Node(tmp_path, gpu="gpu-sm80").store)  # for which nothing is published


@pytest.mark.parametrize(
    ("there", "here", "found"),
    [
        ({"OMP_NUM_THREADS": "3"}, {}, "torch had 3 where it was compiled, and has 4 here"),
        ({}, {"MKL_NUM_THREADS": "1"}, "torch had 8 where it was compiled, and has 1 here"),
        ({}, {}, "torch had 8 where it was compiled, and has 4 here"),
        ({"OMP_NUM_THREADS": "4"}, {}, None),
        ({"OMP_NUM_THREADS": "6", "MKL_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "2,1"}, None),
        ({"OMP_NUM_THREADS": "4"}, {"OMP_NUM_THREADS": "16"}, None),
    ],
)
def test_only_the_number_of_threads_that_torch_has_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: dict[str, str], here: dict[str, str], found: str | None
) -> None:
    """Of eight processors there, and of four here."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    builder = Node(tmp_path, gpu="cpu-test", environ=there)
    builder.tree.graph()
    builder.commit()
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)))
    told = worst(Node(tmp_path, gpu="cpu-test", environ=here).store)

    assert {name: check.found for name, check in told.items()} == ({"CPU threads": found} if found else {})


@pytest.mark.parametrize("processors", [0, 1 << 20, "8"])
def test_what_can_be_no_number_of_processors_tells_no_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processors: object
) -> None:
    builder = Node(tmp_path, gpu="cpu-test", environ={"OMP_NUM_THREADS": "3"})
    builder.tree.graph()
    builder.commit()
    load = Manifest.load

    def made_up(data: bytes, see: Seen | None = None) -> Manifest:
        manifest = load(data, see)
        return replace(manifest, meta={**manifest.meta, "processors": processors})

    monkeypatch.setattr(Manifest, "load", staticmethod(made_up))

    assert worst(Node(tmp_path, gpu="cpu-test").store).keys() == {"OMP_NUM_THREADS"}


def test_a_default_that_is_spelt_out_changes_nothing(published: Node) -> None:
    environ = {
        "TORCHINDUCTOR_MAX_AUTOTUNE": "0",
        "TORCHINDUCTOR_SHAPE_PADDING": "1",
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCH_COMPILE_DEBUG": "0",
        "CXX": "g++",
        "TRITON_PRINT_AUTOTUNING": "1",
        "TRITON_KERNEL_DUMP": "1",
        "LLVM_CONFIG": "/usr/bin/llvm-config",
    }
    assert worst(Node(published.location.parent, "builder", environ=environ).store) == {}


def test_an_empty_variable_counts_where_torch_does_not_take_it_for_its_default(published: Node) -> None:
    """As where a script passes on variables that are not set."""
    defaults = dict.fromkeys(("CI", "OMP_NUM_THREADS", "TORCHINDUCTOR_MAX_AUTOTUNE", "TRITON_DEBUG"), "")
    environ = {"TORCHINDUCTOR_SHAPE_PADDING": "", "TORCHINDUCTOR_CUDAGRAPH_OR_ERROR": "", **defaults}
    found = worst(Node(published.location.parent, "builder", environ=environ).store)

    assert {name: check.found for name, check in found.items()} == dict.fromkeys(
        environ.keys() - defaults, "not set where it was compiled, empty here"
    )
    found = worst(Node(published.location.parent, "builder", environ=environ).store, "")
    assert {name: check.found for name, check in found.items()} == dict.fromkeys(
        environ.keys() - defaults, "it is empty"
    )
    builder = Node(published.location.parent, "builder", environ=environ)
    builder.tree.kernel("another")
    builder.commit()
    assert worst(builder.store) == {}


def test_the_number_of_threads_is_in_no_key_of_a_gpus_graph(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun sets it for every job, and somebody who examines a job by hand has not set it."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(99)))
    environ = {"OMP_NUM_THREADS": "98"}

    found = worst(Node(published.location.parent, "builder", environ=environ).store)
    assert found["CPU threads"].verdict is Verdict.WARNING


def test_where_hosts_have_other_processors_only_what_sets_threads_is_about_them(
    published: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(99)))

    assert worst(Node(published.location.parent, "builder", environ={"CI": "true"}).store).keys() == {"CI"}


def test_what_concerns_only_code_for_the_cpu_keeps_the_cpu_from_hitting(tmp_path: Path) -> None:
    for gpu, verdict in (("cpu-test", Verdict.BAD), (GPU, Verdict.WARNING)):
        builder = Node(tmp_path, gpu, gpu=gpu)
        builder.tree.graph()
        builder.commit()
        here = Node(tmp_path, gpu, gpu=gpu, environ={"ATEN_CPU_CAPABILITY": "avx2"})
        assert worst(here.store)["ATEN_CPU_CAPABILITY"].verdict is verdict


def test_key_variables_that_agree_are_named(tmp_path: Path) -> None:
    builder = Node(tmp_path, environ={"CXX": "clang++", "CI": "true"})
    assert checks(builder.store, "")["CI"].found == "it is true"
    builder.tree.graph()
    builder.commit()

    assert checks(builder.store)["key variables"].found == "CI, CXX"


def test_graphs_with_frozen_parameters_are_not_cached(published: Node) -> None:
    environ = {"TORCHINDUCTOR_FREEZING": "1"}

    found = list(examine(Node(published.location.parent, "builder", environ=environ).store, KEY))
    (check,) = (check for check in found if "caches no graph whose parameters it freezes" in check.found)
    assert (check.name, check.verdict) == ("TORCHINDUCTOR_FREEZING", Verdict.WARNING)


def test_triton_reads_on_and_1_alike(tmp_path: Path) -> None:
    builder = Node(tmp_path, environ={"TRITON_DISABLE_LINE_INFO": "on", "DISABLE_PTXAS_OPT": "0"})
    builder.tree.kernel()
    builder.commit()

    here = Node(tmp_path, environ={"TRITON_DISABLE_LINE_INFO": "1"})
    assert worst(here.store).keys() == {"DISABLE_PTXAS_OPT"}  # "0" is in the key too


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1"),
        ("TRITON_ALWAYS_COMPILE", "on"),
        ("TRITON_INTERPRET", "1"),
        ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "false"),
        ("TORCH_COMPILE_FORCE_DISABLE_CACHES", "off"),
        ("TORCHINDUCTOR_FX_GRAPH_CACHE", "0"),
        ("TORCHINDUCTOR_FX_GRAPH_CACHE", ""),
        ("TORCHINDUCTOR_FX_GRAPH_CACHE_DEFAULT", "0"),
    ],
)
def test_a_cache_that_is_switched_off_is_bad(published: Node, name: str, value: str) -> None:
    found = worst(Node(published.location.parent, "builder", environ={name: value}).store)

    assert found[name].verdict is Verdict.BAD
    assert found[name].found == f"it is {value or 'empty'}: the cache is not consulted"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "0"),
        ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", ""),
        ("TORCHINDUCTOR_AUTOGRAD_CACHE", "false"),
        ("TRITON_ALWAYS_COMPILE", "no"),
    ],
)
def test_a_cache_that_is_not_switched_off_is_consulted(published: Node, name: str, value: str) -> None:
    assert worst(Node(published.location.parent, "builder", environ={name: value}).store) == {}


@pytest.mark.parametrize(
    "environ",
    [
        {"TORCHINDUCTOR_FX_GRAPH_CACHE_DEFAULT": "0", "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"},
        {"TORCH_COMPILE_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0"},
    ],
)
def test_a_switch_that_torch_does_not_read_for_another_switches_nothing_off(
    published: Node, environ: dict[str, str]
) -> None:
    assert worst(Node(published.location.parent, "builder", environ=environ).store) == {}


def test_a_component_that_the_user_has_placed_elsewhere_is_named(published: Node, tmp_path: Path) -> None:
    environ = {"TRITON_CACHE_DIR": str(tmp_path / "mine")}
    found = worst(Node(published.location.parent, "builder", environ=environ).store)

    assert found["triton"].verdict is Verdict.WARNING


def test_the_component_that_one_process_of_several_leaves_alone_is_named(published: Node) -> None:
    number = len(published.store.settings.components)
    assert checks(published.store)["variables"].found == f"{number} components are in the cache root"

    found = checks(Node(published.location.parent, "builder", environ={"WORLD_SIZE": "8"}).store)
    assert found["jax"] == Check("jax", Verdict.OK, "JAX is left alone in one process of several")
    assert found["variables"].found.startswith(f"{number - 1} components")


def test_a_component_that_is_published_and_not_managed_here_is_bad(published: Node) -> None:
    here = published.location.parent
    assert worst(Node(here, "builder", components=("inductor", "triton")).store) == {}

    found = worst(Node(here, "builder", components=("inductor",)).store)
    assert found.keys() == {"triton"}
    assert found["triton"].verdict is Verdict.BAD
    assert found["triton"].found.endswith(": restores leave out 8 files of it")
    assert found["triton"].advice == "add it to KSTORE_COMPONENTS"


def test_of_components_that_nobody_knows_only_some_are_named(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write to the store may have made up any number of them."""
    entry, *_ = published.published().values()
    data = Manifest({f"made-up-{number}/a/b/c/file": entry for number in range(999)}).dump()
    load = Manifest.load
    monkeypatch.setattr(Manifest, "load", staticmethod(lambda *_: load(data)))

    told = [check for check in examine(published.store, KEY) if "does not know the component" in check.found]
    assert 0 < len(told) < 50


def test_a_component_that_only_another_version_knows_is_bad(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    older = {name: component for name, component in load_table().items() if name != "triton"}
    monkeypatch.setattr("kstore.doctor.components.load_table", lambda: older)

    found = worst(Node(published.location.parent, "builder", components=("inductor",)).store)["triton"]
    assert (found.verdict, found.advice) == (Verdict.BAD, "install the builder's")


def test_two_variables_that_name_one_folder_keep_what_is_published_of_one_from_being_restored(
    published: Node, tmp_path: Path
) -> None:
    environ = {"TRITON_CACHE_DIR": str(tmp_path / "one"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "one")}
    store = Node(published.location.parent, "builder", environ=environ).store

    found = worst(store)["triton"]
    assert found.verdict is Verdict.BAD
    assert found.found.startswith("Triton and TorchInductor share one folder")
    assert found.found.endswith("and restores leave out 8 files")
    assert found.advice == "set TRITON_CACHE_DIR to a folder of its own"
    assert worst(store, "other/v1")["triton"].verdict is Verdict.WARNING


def test_a_variable_that_names_the_cache_roots_folder_keeps_what_is_published_from_being_restored(
    published: Node, tmp_path: Path
) -> None:
    environ = {"TRITON_CACHE_DIR": str(tmp_path / "builder" / "inductor")}

    assert worst(Node(published.location.parent, "builder", environ=environ).store)["triton"].verdict is Verdict.BAD


@pytest.mark.parametrize("below", ["", "/cache"])
def test_a_file_in_the_place_of_a_folder_that_the_user_has_named_is_bad(
    published: Node, tmp_path: Path, below: str
) -> None:
    (tmp_path / "file").touch()
    environ = {"TRITON_CACHE_DIR": f"{tmp_path}/file{below}"}

    found = worst(Node(published.location.parent, "builder", environ=environ).store)["triton"]
    assert found.verdict is Verdict.BAD
    assert found.found == f"TRITON_CACHE_DIR={tmp_path}/file{below}: it cannot be written: Not a directory"
    assert found.advice == "name another folder, or unset TRITON_CACHE_DIR"


def test_a_file_in_the_place_of_a_components_folder_is_bad(published: Node, tmp_path: Path) -> None:
    reader = Node(published.location.parent, "reader")
    reader.tree.root.mkdir()
    (reader.tree.root / "warp").touch()

    found = worst(reader.store)["warp"]
    assert found.verdict is Verdict.BAD
    assert found.found == f"{reader.tree.root}/warp: it cannot be written: Not a directory"


def refuse_writes(monkeypatch: pytest.MonkeyPatch, folder: str | Path, code: int) -> None:
    """From now on no file in a folder can be written."""
    write = os.write

    def refuse(fd: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(f"{folder}/"):
            raise OSError(code, os.strerror(code))
        return write(fd, data)

    monkeypatch.setattr(os, "write", refuse)


def test_a_full_disk_that_the_user_has_named_is_bad(
    published: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_writes(monkeypatch, tmp_path / "mine", errno.ENOSPC)
    (tmp_path / "mine").mkdir()
    environ = {"TRITON_CACHE_DIR": f"{tmp_path}/mine/triton", "CUDA_CACHE_PATH": f"{tmp_path}/other"}

    found = worst(Node(published.location.parent, "builder", environ=environ).store)
    assert found["triton"].verdict is Verdict.BAD
    assert "cannot be written: No space left on device" in found["triton"].found
    assert found["cuda"].verdict is Verdict.WARNING
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_noexec_mount_that_the_user_has_named_is_bad_for_what_is_loaded_from_there(
    published: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statvfs = os.statvfs

    def noexec(path: str) -> object:
        return SimpleNamespace(f_flag=os.ST_NOEXEC) if path == f"{tmp_path}/mine" else statvfs(path)

    monkeypatch.setattr(os, "statvfs", noexec)
    (tmp_path / "mine").mkdir()
    environ = {"TRITON_CACHE_DIR": f"{tmp_path}/mine/triton", "CUDA_CACHE_PATH": f"{tmp_path}/mine/cuda"}

    found = worst(Node(published.location.parent, "builder", environ=environ).store)
    assert found["triton"].verdict is Verdict.BAD
    assert "mounted noexec" in found["triton"].found
    assert found["cuda"].verdict is Verdict.WARNING


def test_a_file_that_the_user_has_named_is_not_shared(published: Node, tmp_path: Path) -> None:
    store = Node(tmp_path, "builder", environ={"PYTORCH_TUNABLEOP_FILENAME": str(tmp_path / "mine.csv")}).store
    assert worst(store)["tunableop"].verdict is Verdict.WARNING
    assert "not shared" in worst(store)["tunableop"].advice

    published.tree.put("tunableop/results0.csv", b"Validator,PT_VERSION,2.13.0\n")
    published.commit()
    assert worst(store)["tunableop"].verdict is Verdict.BAD
    assert "restores leave out 1 file of it" in worst(store)["tunableop"].found


def test_torch_imported_too_early_is_bad(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("torch._dynamo"))
    environ = {"TORCHINDUCTOR_CACHE_DIR": default_folder(load_table()["inductor"])}
    found = worst(Node(published.location.parent, "builder", environ=environ).store)

    assert found["inductor"].verdict is Verdict.BAD


def test_torch_may_be_imported_early_where_the_user_has_placed_its_cache(
    published: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("torch._dynamo"))
    environ = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "mine")}
    found = worst(Node(published.location.parent, "builder", environ=environ).store)

    assert found["inductor"].verdict is Verdict.WARNING


def test_a_default_of_torchs_that_was_inherited_is_no_trouble(published: Node) -> None:
    environ = {"TORCHINDUCTOR_CACHE_DIR": default_folder(load_table()["inductor"])}
    found = worst(Node(published.location.parent, "builder", environ=environ).store)

    assert "inductor" not in found
    reader = Node(published.location.parent, "reader", environ=environ)
    reader.tree.root.mkdir()
    (reader.tree.root / "inductor").touch()
    assert worst(reader.store)["inductor"].found.startswith(f"{reader.tree.root}/inductor: ")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A filesystem with plenty of everything, to be changed by tests."""
    status = SimpleNamespace(
        f_blocks=10**9, f_bavail=10**9, f_frsize=4096, f_files=10**6, f_favail=10**6, f_flag=0
    )  # fmt: skip
    monkeypatch.setattr(os, "statvfs", lambda path: status)
    yield status


@pytest.mark.parametrize(
    ("field", "value", "name", "verdict"),
    [
        ("f_bavail", 0, "space", Verdict.BAD),
        ("f_bavail", 2**18 - 1, "space", Verdict.WARNING),
        ("f_favail", 0, "inodes", Verdict.BAD),
        ("f_bavail", 2**18 - 1, "store space", Verdict.WARNING),
        ("f_flag", os.ST_NOEXEC, "cache root", Verdict.BAD),
    ],
)
def test_what_the_disk_lacks_is_named(
    published: Node, disk: SimpleNamespace, field: str, value: int, name: str, verdict: Verdict
) -> None:
    assert worst(published.store) == {}
    setattr(disk, field, value)

    assert worst(published.store)[name].verdict is verdict


def test_in_a_store_without_inodes_no_file_can_be_made(
    published: Node, disk: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mounts of rclone count inodes, and say that none is left."""
    disk.f_favail = 0
    assert "store space" not in worst(published.store)
    refuse_files(monkeypatch)
    found = worst(published.store)["store space"]
    assert found.found.endswith("but no inodes") and "commits will fail" in found.advice
    disk.f_files = 0  # as on Btrfs, which counts none
    assert "store space" not in worst(published.store)


def test_a_root_whose_folders_do_not_show_news_is_bad(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """On mounts of s3fs and rclone a folder's time does not change."""
    mkdir = os.mkdir

    def keep_time(path: str, mode: int = 0o777) -> None:
        folder = os.path.dirname(path)
        before = os.stat(folder)
        mkdir(path, mode)
        if path.endswith("/name"):
            os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))

    monkeypatch.setattr(os, "mkdir", keep_time)
    found = worst(published.store)["folder times"]
    assert found.verdict is Verdict.BAD
    assert "KSTORE_CACHE_ROOT" in found.advice
    assert not list(published.tree.root.glob(".kstore-doctor-*"))


def test_where_no_folder_can_be_made_it_is_not_known_whether_it_would_show_news(
    published: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def refuse(path: str, mode: int = 0o777) -> None:
        if ".kstore-doctor-" in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", refuse)
    assert "folder times" not in checks(published.store)


def test_a_root_in_which_nothing_more_can_be_written_is_bad(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota, for instance, is told by nothing else."""
    refuse_writes(monkeypatch, published.tree.root, errno.EDQUOT)
    found = worst(published.store)["cache root"]
    assert (found.verdict, os.strerror(errno.EDQUOT) in found.found) == (Verdict.BAD, True)


@pytest.mark.parametrize("limits", [(0, 0), (11430, -1)], ids=["btrfs", "cephfs"])
def test_a_filesystem_may_have_no_limit_of_inodes(
    published: Node, disk: SimpleNamespace, limits: tuple[int, int]
) -> None:
    disk.f_files, disk.f_favail = limits

    found = checks(published.store)["inodes"]
    assert (found.verdict, found.found) == (Verdict.OK, "not limited")


def test_a_filesystem_may_have_no_limit_of_size(published: Node, disk: SimpleNamespace) -> None:
    """As ramfs, and a tmpfs that is mounted with size=0."""
    disk.f_blocks = disk.f_bavail = 0

    assert worst(published.store) == {}
    assert checks(published.store)["space"].found == f"not limited in {published.tree.root}"


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ESTALE])
def test_a_filesystem_that_does_not_tell_its_size_ends_no_examination(
    published: Node, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(path: str) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "statvfs", refuse)
    found = worst(published.store)

    assert found.keys() == {"store space", "space"}
    assert found["store space"].found == f"not known in {published.location}: {os.strerror(number)}"
    assert found["space"].found == f"not known in {published.tree.root}: {os.strerror(number)}"
    assert {check.verdict for check in found.values()} == {Verdict.WARNING}
    assert "inotify" in checks(published.store)


def test_a_folder_that_the_user_has_named_may_not_tell_whether_it_is_noexec(
    published: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), path)

    monkeypatch.setattr(os, "statvfs", refuse)
    reader = Node(published.location.parent, "reader", environ={"TRITON_CACHE_DIR": f"{tmp_path}/mine"})

    assert worst(reader.store)["triton"].verdict is Verdict.WARNING
    assert reader.restore().ok


def test_a_worker_with_a_noexec_root_is_sent_to_a_folder_that_programs_may_be_loaded_from(
    published: Node, disk: SimpleNamespace
) -> None:
    disk.f_flag = os.ST_NOEXEC

    assert "from which programs may be loaded" in worst(published.store)["cache root"].advice


@pytest.fixture
def large(published: Node, disk: SimpleNamespace) -> Node:
    """What is published takes 30 MB, and 20 MB are free."""
    published.tree.put("inductor/ab/large.bin", b"x" * 30_000_000)
    published.commit()
    disk.f_bavail = 5000
    return published


def test_what_may_be_linked_may_fit(large: Node) -> None:
    check = checks(Node(large.location.parent, "fresh").store)["space"]

    assert check.verdict is Verdict.WARNING
    assert check.found.startswith("20 MB free in ") and check.found.endswith(", and a restore may take 30 MB")


@pytest.mark.parametrize("mode", [LinkMode.HARDLINK, LinkMode.COPY])
def test_what_takes_just_what_is_free_fits(
    large: Node, disk: SimpleNamespace, mode: LinkMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.doctor.node.probe_link", lambda worker: Linker(mode))
    disk.f_frsize, disk.f_bavail = 1, large.newest().size
    check = checks(Node(large.location.parent, "fresh").store)["space"]

    assert (check.verdict, "restore" in check.found) == (Verdict.WARNING, False)  # Compilers need some too.
    disk.f_bavail = 1 << 30
    assert checks(Node(large.location.parent, "fresh").store)["space"].verdict is Verdict.OK


def test_inodes_that_do_not_suffice_for_all_that_is_published_may_suffice(
    published: Node, disk: SimpleNamespace
) -> None:
    fresh = Node(published.location.parent, "fresh").store
    disk.f_favail = published.newest().files
    assert checks(fresh)["inodes"].verdict is Verdict.OK

    disk.f_favail -= 1
    check = checks(fresh)["inodes"]
    assert (check.verdict, check.found) == (Verdict.WARNING, "8 left, and a restore may make 9 files")


def test_what_a_restore_copies_must_fit(large: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.doctor.node.probe_link", lambda worker: Linker(LinkMode.COPY))
    fresh = Node(large.location.parent, "fresh")
    check = checks(fresh.store)["space"]
    assert (check.verdict, check.found.endswith(", and a restore takes 30 MB")) == (Verdict.BAD, True)

    fresh.commit()  # of nothing, as after a restore that failed
    assert checks(fresh.store)["space"].verdict is Verdict.BAD

    cold = Node(large.location.parent, "cold")  # nothing of the store is in that root yet
    cold.tree.kernel("own")
    (cold.tree.root / KSTORE_FOLDER).mkdir()
    assert checks(cold.store)["space"].verdict is Verdict.BAD

    fresh.restore()
    large.tree.graph("ftwo")
    large.commit()
    assert checks(fresh.store)["space"].verdict is Verdict.WARNING  # most of it is already in the root


def test_numbers_are_told_as_people_read_them(tmp_path: Path, disk: SimpleNamespace) -> None:
    node = Node(tmp_path)
    node.tree.graph()
    node.commit()
    disk.f_bavail = 1
    found = checks(node.store)

    assert found["generation"].found.startswith(f"1 of {KEY}: 1 file by ")
    assert found["store space"].found.startswith("4.1 kB free in ")


@pytest.mark.parametrize(("blocks", "says"), [(0, "commits will fail"), (1000, "commits may fail")])
def test_a_small_store_with_room_for_a_commit_is_not_called_full(
    published: Node, disk: SimpleNamespace, blocks: int, says: str
) -> None:
    disk.f_bavail = blocks

    assert says in worst(published.store)["store space"].advice


@pytest.mark.parametrize(
    ("limit", "few"), [("_WATCHES", "8191\n"), ("_INSTANCES", "0\n"), ("_WATCHES", "none"), ("_INSTANCES", "")]
)
def test_few_watches_make_live_commits_slower(
    published: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, few: str
) -> None:
    if few:  # gVisor has no such file
        (tmp_path / "limit").write_text(few)
    monkeypatch.setattr(f"kstore.doctor.node.{limit}", str(tmp_path / "limit"))

    assert worst(published.store)["inotify"].verdict is Verdict.WARNING


@pytest.mark.parametrize(
    ("watches", "instances", "few"),
    [
        (8191, 1, "fs/inotify/max_user_watches"),
        (8192, 0, "fs/inotify/max_user_instances"),
        (0, 0, "fs/inotify/max_user_watches and fs/inotify/max_user_instances"),
    ],
)
def test_the_limit_that_is_to_be_raised_is_the_one_that_is_too_low(
    published: Node, monkeypatch: pytest.MonkeyPatch, watches: int, instances: int, few: str
) -> None:
    numbers = {"/proc/sys/fs/inotify/max_user_watches": watches, "/proc/sys/fs/inotify/max_user_instances": instances}
    monkeypatch.setattr("kstore.doctor.node._number", numbers.__getitem__)

    assert worst(published.store)["inotify"].advice.endswith(f"; raise {few}")


def test_as_many_watches_as_a_large_model_has_folders_suffice(
    published: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, enough in (("_WATCHES", "8192\n"), ("_INSTANCES", "1\n")):
        (tmp_path / limit).write_text(enough)
        monkeypatch.setattr(f"kstore.doctor.node.{limit}", str(tmp_path / limit))

    assert checks(published.store)["inotify"][1:3] == (Verdict.OK, "8192 watches, 1 instances a user")


def test_without_the_compiled_module_restores_take_longer(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.doctor.node.IS_COMPILED", False)
    found = worst(published.store)
    assert found.keys() == {"system calls"}
    assert found["system calls"].verdict is Verdict.WARNING


def test_a_container_that_has_no_files_in_memory_is_bad(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "memfd_create", refuse)
    found = worst(published.store)["system calls"]
    assert found.verdict is Verdict.BAD
    assert "memfd_create" in found.found and found.advice.startswith("nothing is committed: mount /proc")


def test_a_container_that_has_no_files_in_memory_restores_and_only_cannot_commit(
    published: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    other = Node(tmp_path, "other")
    monkeypatch.setattr(os, "memfd_create", refuse)
    assert other.restore().status is RestoreStatus.RESTORED
    other.tree.kernel("more")
    with pytest.raises(KstoreError, match="memfd_create"):
        other.commit()


def test_a_compiler_that_does_not_answer_is_named(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(_: object) -> Host:
        raise WaitTimeout("g++ has taken more than 30 s: nothing is known; see what ails it")

    monkeypatch.setattr("kstore.doctor.surroundings.detect_host", hang)
    check = worst(published.store)["compiler"]
    assert (check.verdict, check.advice) == (Verdict.BAD, "see what ails it")


def test_without_a_compiler_the_cpu_cannot_hit_either(published: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.doctor.surroundings.detect_host", lambda _: Host("0", {"compiler": "none"}))

    assert worst(published.store)["compiler"].verdict is Verdict.WARNING
    cpu = Node(published.location.parent, "builder", gpu="cpu-x86_64").store
    assert worst(cpu)["compiler"].verdict is Verdict.BAD


def test_what_says_where_a_cache_is_is_in_no_key() -> None:
    assert influence("TORCHINDUCTOR_CACHE_DIR") == "" != influence("TORCHINDUCTOR_MAX_AUTOTUNE")
    assert influences({"HOME": "/root", "CI": "", "CXX": "clang++", "TRITON_CACHE_DIR": "/x"}) == {"CXX": "clang++"}


def test_switches_of_torchs_that_bear_other_names_are_in_its_keys() -> None:
    assert influences({"ENABLE_PERSISTENT_TMA_MATMUL": "1"}) == {"ENABLE_PERSISTENT_TMA_MATMUL": "1"}
    assert have_same_keys("ENABLE_PERSISTENT_TMA_MATMUL", "0", None)
    assert not have_same_keys("ENABLE_PERSISTENT_TMA_MATMUL", "1", None)
    assert influences({"ENABLE_HOST_SIDE_TMA": "1", "FAKE_ALLOW_META": "0"}).keys() == {
        "ENABLE_HOST_SIDE_TMA", "FAKE_ALLOW_META",
    }  # fmt: skip
    assert have_same_keys("TORCHDYNAMO_AUTO_FUNCTIONALIZED_V2", "1", None)
    assert not have_same_keys("AOT_INDUCTOR_COMPILE_WRAPPER_WITH_O0", "1", None)  # of torch 2.7
    assert have_same_keys("AOT_INDUCTOR_COMPILE_WRAPPER_WITH_O0", "0", None)


def test_variables_of_older_tritons_are_in_their_keys() -> None:
    assert influence("TRITON_DISABLE_RESHAPE_ENCODING_INFERENCE") == "Triton's kernels" == influence("USE_IR_LOC")


@pytest.mark.parametrize("name", ["LAYOUT_OPTIMIZATION", "PARTITIONED_SCATTER_ENABLED"])
def test_one_whose_default_is_another_with_rocm_always_counts(name: str) -> None:
    assert not any(have_same_keys(f"TORCHINDUCTOR_{name}", value, None) for value in "01")
