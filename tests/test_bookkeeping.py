"""What a cache root remembers must never hide news, nor make old news of another place."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import pytest

from kstore.aside import Aside
from kstore.blobs.loose import blob_name
from kstore.digest import digest_of
from kstore.errors import IntegrityError
from kstore.local.place import Placer
from kstore.local.placed import Placed
from kstore.operations.sources import Sources
from kstore.published.manifest import Flag, Manifest
from kstore.report import CommitStatus, RestoreStatus
from kstore.store import Store
from tests.trees import ENVIRONMENT, GPU, KEY, Node, entry

pytestmark = pytest.mark.usefixtures("host")


def timings(node: Node) -> dict[str, float]:
    """The published measurements."""
    entry = node.published()["inductor/cache/system"]
    found: dict[str, float] = json.loads(node.store.storage.blobs.fetch(entry.digest, entry.size, node.newest().packs))
    return found


# ---- Interchangeable answers


def test_workers_that_commit_while_they_compile_the_same_graphs_publish_each_once(tmp_path: Path) -> None:
    first, second, third = (Node(tmp_path, name) for name in ("first", "second", "third"))
    for graph in ("fone", "ftwo"):
        first.tree.graph(graph, "of first")
        first.commit()
        second.tree.wrapper(graph)
        assert second.commit().new_files == 1
    for graph in ("fone", "ftwo"):
        second.tree.graph(graph, "of second")
        assert second.commit().new_files == 0
    third.restore()
    assert len([path for path in third.published() if "/fxgraph/" in path]) == 2
    second.tree.graph("fone", "of second, for another guard")
    assert second.commit().new_files == 1


def test_a_graph_that_a_restore_could_not_read_is_published_again_whenever_it_is_compiled(tmp_path: Path) -> None:
    first, second, third = (Node(tmp_path, name) for name in ("first", "second", "third"))
    first.tree.graph("fone", "of first")
    first.commit()
    (stored,) = first.published().values()
    (tmp_path / "store" / blob_name(stored.digest)).unlink()
    assert second.restore().skipped
    second.tree.wrapper()
    second.commit()
    graph = second.tree.graph("fone", "of second")
    assert second.commit().new_files == 1
    third.restore()
    assert third.tree.has(graph)


# ---- Files that are merged by meaning


def test_a_measurement_made_after_a_merge_does_not_undo_the_merge(tmp_path: Path) -> None:
    first, second = Node(tmp_path, "first"), Node(tmp_path, "second")
    first.tree.timings({"one": 1.0})
    first.commit()
    second.tree.timings({"two": 2.0})
    second.commit()
    second.tree.timings({"two": 2.0, "three": 3.0})
    second.commit()
    assert timings(second) == {"one": 1.0, "two": 2.0, "three": 3.0}


def test_the_first_measurement_of_a_worker_is_joined_with_what_it_has_never_restored(tmp_path: Path) -> None:
    first, second = Node(tmp_path, "first"), Node(tmp_path, "second")
    first.tree.timings({"one": 1.0, "both": 1.0})
    first.commit()
    second.tree.kernel("two")
    assert second.commit().declined == 0
    assert second.commit().declined == 0
    second.tree.timings({"two": 2.0, "both": 2.0})
    assert second.commit().new_files == 1
    assert timings(second) == {"one": 1.0, "both": 1.0, "two": 2.0}, "it cannot have changed what it never had"


def test_what_was_measured_before_a_restore_is_joined_with_what_is_published(tmp_path: Path) -> None:
    first, second = Node(tmp_path, "first"), Node(tmp_path, "second")
    first.tree.timings({"one": 1.0})
    first.commit()
    second.tree.timings({"two": 2.0})
    second.restore()
    second.commit()
    assert timings(second) == {"one": 1.0, "two": 2.0}


def test_what_was_measured_during_a_restore_is_joined_with_what_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Node(tmp_path, "first"), Node(tmp_path, "second")
    first.tree.timings({"one": 1.0})
    first.tree.kernel("one", "of first")
    first.commit()
    place = Placer.place

    def compile_and_place(*arguments: Any, **options: Any) -> Placed:
        second.tree.timings({"two": 2.0})
        second.tree.kernel("one", "of second")
        return place(*arguments, **options)

    monkeypatch.setattr(Placer, "place", compile_and_place)
    second.restore()
    second.commit()
    assert timings(second) == {"one": 1.0, "two": 2.0}
    fresh = Node(tmp_path, "fresh")
    fresh.restore()
    assert b"of first" in next((fresh.tree.root / "triton").glob("*/k.ptx")).read_bytes()


def test_measurements_that_are_made_anew_keep_what_is_published(tmp_path: Path) -> None:
    """Torch reads the file, measures for seconds, and replaces it: if two ranks share a root, one's are gone."""
    node = Node(tmp_path)
    node.tree.timings({"one": 1.0})
    node.commit()
    node.tree.timings({"two": 2.0})
    assert node.commit().new_files == 1
    assert timings(node) == {"one": 1.0, "two": 2.0}
    assert node.commit().status is CommitStatus.UNCHANGED


def test_what_was_measured_anew_replaces_what_was_published(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for value in (1.0, 2.0, 3.0):
        node.tree.timings({"one": value})
        assert (node.commit().new_files, node.commit().declined) == (1, 0)
        assert timings(node) == {"one": value}


@pytest.mark.parametrize("choice", [{}, {"components": ("triton",)}], ids=["damaged", "unmanaged"])
def test_measurements_are_joined_with_those_that_a_restore_left_out(tmp_path: Path, choice: dict[str, Any]) -> None:
    first = Node(tmp_path, "first")
    first.tree.timings({"one": 1.0})
    first.commit()
    blob = tmp_path / "store" / blob_name(first.published()["inductor/cache/system"].digest)
    away = blob.rename(tmp_path / "away")
    assert Node(tmp_path, "second", **choice).restore().skipped
    away.rename(blob)
    second = Node(tmp_path, "second")
    second.tree.timings({"two": 2.0})
    second.commit()
    assert timings(second) == {"one": 1.0, "two": 2.0}


@pytest.mark.parametrize("left", [b"", b"\0" * 9, b'{"one": 1.0, "tw'], ids=["nothing", "zeros", "its beginning"])
def test_what_a_killed_writer_leaves_of_measurements_is_not_published(tmp_path: Path, left: bytes) -> None:
    node = Node(tmp_path)
    node.tree.timings({"one": 1.0})
    node.commit()
    torn = [node.tree.put(f"inductor/cache/{name}", left) for name in ("other", "system")]
    report = node.commit()
    assert (report.status, [skipped.path for skipped in report.skipped]) == (CommitStatus.UNCHANGED, torn)
    assert timings(node) == {"one": 1.0}
    node.restore()
    assert json.loads(node.tree.read("inductor/cache/system")) == {"one": 1.0}


# ---- One root, several keys and stores


def decline_a_kernel(tmp_path: Path) -> Node:
    """A worker whose kernel lost to another worker's."""
    first, second = Node(tmp_path, "first"), Node(tmp_path, "second")
    first.tree.kernel("one", "of first")
    first.commit()
    second.tree.kernel("one", "of second")
    assert second.commit().declined > 0
    return second


def test_what_one_key_declined_another_takes(tmp_path: Path) -> None:
    node = decline_a_kernel(tmp_path)
    assert node.commit("model/other").new_files == 8


def test_what_one_store_declined_another_takes(tmp_path: Path) -> None:
    node = decline_a_kernel(tmp_path)
    other = Store(tmp_path / "other", cache_root=node.tree.root, gpu=GPU, environment=ENVIRONMENT, environ={})
    assert other.commit(KEY).status is CommitStatus.COMMITTED


def test_what_came_from_a_seed_reaches_a_key_that_was_published_meanwhile(tmp_path: Path) -> None:
    seed, cold, node = (Node(tmp_path, name) for name in ("seed", "cold", "node"))
    seed.tree.kernel("shared")
    seed.commit("model/seed")
    assert node.restore(seed="model/seed").status is RestoreStatus.SEEDED
    cold.tree.kernel("other")
    cold.commit()
    node.restore(seed="model/seed")
    assert node.commit().new_files == 8
    assert len(node.published()) == 16


def test_a_group_that_is_portable_for_one_writer_and_host_bound_for_another_is_never_mixed() -> None:
    portable = {f"x/group/{name}": entry("a", Flag.GROUP, 2) for name in ("one", "two")}
    bound = {"x/group/one": entry("b", Flag.GROUP | Flag.HOST, 2)}
    manifest = Manifest(portable | {"x/other/one": entry("a", Flag.GROUP, 2)}, {"host": bound})
    assert manifest.for_host("host") == bound | {"x/other/one": entry("a", Flag.GROUP, 2)}
    assert manifest.for_host("another") == manifest.files


def test_a_group_whose_portable_files_are_all_deeper_is_never_mixed_either() -> None:
    bound = {"x/group/one": entry("b", Flag.GROUP | Flag.HOST, 2)}
    manifest = Manifest({"x/group/below/two": entry("a", Flag.GROUP, 2)}, {"host": bound})
    assert manifest.for_host("host") == bound


# ---- News is never overlooked


def test_a_file_that_could_not_be_uploaded_is_offered_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    node.tree.wrapper("one")
    node.commit()
    node.tree.wrapper("two")
    with monkeypatch.context() as patch:
        patch.setattr(Sources, "read", lambda self, digests: ((digest, None) for digest in digests))
        patch.setattr("kstore.intake._ROOM", 0)  # as if all files were large
        assert node.commit().status is CommitStatus.UNCHANGED
    assert node.commit().new_files == 1


def test_a_store_that_is_replaced_under_a_worker_is_filled_anew(tmp_path: Path) -> None:
    import shutil

    node = Node(tmp_path)
    node.tree.wrapper("one")
    node.commit()
    shutil.rmtree(node.location)
    node.tree.wrapper("two")
    assert node.commit().new_files == 2
    assert len(node.published()) == 2


def test_a_listing_that_stays_as_it_was_does_not_hide_the_generation_that_won(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Node(tmp_path, "first", layout="packed"), Node(tmp_path, "second", layout="packed")
    first.tree.wrapper("one")
    first.commit()
    second.tree.wrapper("two")
    monkeypatch.setattr(second.store.storage.refs, "generations", lambda scope: [])
    assert second.commit().generation == 2
    assert len(first.published()) == 2
    assert len(second.store.storage.blobs.packs()) <= 3


# ---- Trouble that concerns one component


def test_an_empty_variable_is_no_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.py").write_text("secret")
    monkeypatch.chdir(tmp_path)
    node = Node(tmp_path)
    node.environ["TORCHINDUCTOR_CACHE_DIR"] = ""
    node.tree.wrapper()
    assert node.commit().files == 1
    node.restore()
    assert node.environ["TORCHINDUCTOR_CACHE_DIR"] == f"{node.tree.root}/inductor"


def test_a_component_that_cannot_be_written_costs_only_itself(tmp_path: Path) -> None:
    writer, node = Node(tmp_path, "writer"), Node(tmp_path, "node")
    writer.tree.wrapper()
    writer.tree.kernel()
    writer.commit()
    (tmp_path / "file").touch()
    node.environ["TRITON_CACHE_DIR"] = str(tmp_path / "file" / "triton")
    report = node.restore()
    assert report.placed == 1
    assert [skip.path for skip in report.skipped] == ["triton"]


def test_one_blob_with_very_many_paths_is_restored_within_the_limit_of_open_files(tmp_path: Path) -> None:
    node = Node(tmp_path, "writer", layout="packed")
    for number in range(1500):
        node.tree.put(f"inductor/ab/c{number}.py", b"the same")
    node.commit()
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))\n"
        "from kstore.store import Store\n"
        f"report = Store({str(node.location)!r}, cache_root={str(tmp_path / 'reader')!r}, gpu={GPU!r}, "
        f"environment={ENVIRONMENT!r}, environ={{}}).restore({KEY!r})\n"
        "assert report.placed == 1500, report"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("layout", ["loose", "packed"])
def test_a_commit_at_the_end_of_the_interpreter_succeeds(tmp_path: Path, layout: str) -> None:
    node = Node(tmp_path)
    node.tree.kernel()
    settings = f"store={str(node.location)!r}, cache_root={str(node.tree.root)!r}, layout={layout!r}, gpu={GPU!r}"
    code = f"import atexit, kstore; atexit.register(lambda: print(kstore.commit({KEY!r}, {settings}).status))"
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.strip() == "committed"


@pytest.mark.parametrize("room", [True, False])
def test_what_a_restore_of_very_much_puts_aside_is_remembered_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    """The bytes of a manifest are in no memory while the files are brought in; without room for them they are."""
    first, second = Node(tmp_path, "first"), Node(tmp_path, "second")
    first.tree.kernel()
    first.commit()
    folders = list[str]()

    def temporary(dir: str, buffering: int) -> IO[bytes]:
        folders.append(dir)
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return TemporaryFile(dir=dir, buffering=buffering)

    monkeypatch.setattr("kstore.aside.MANY", 1)
    monkeypatch.setattr("kstore.aside._PIECE", 1000)
    monkeypatch.setattr("kstore.aside.TemporaryFile", temporary)
    second.restore()
    state = tmp_path / "second/.kstore"
    assert folders == [str(state)] and digest_of((state / "base").read_bytes()) == second.newest().manifest
    assert second.commit().status is CommitStatus.UNCHANGED and second.restore().placed == 0


@pytest.mark.parametrize("layout", ["loose", "packed"])
@pytest.mark.parametrize("room", [True, False])
def test_a_commit_of_very_much_publishes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, room: bool
) -> None:
    """Its manifest is put aside, and stored from there; without room for it, from memory."""

    def refuse(**_: object) -> IO[bytes]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for where in ("kstore.aside.MANY", "kstore.tables.MANY"):
        monkeypatch.setattr(where, 1)
    if not room:
        monkeypatch.setattr("kstore.aside.TemporaryFile", refuse)
    first, second, third = (Node(tmp_path, name, layout=layout) for name in ("first", "second", "third"))
    first.tree.kernel("one")
    assert first.commit().new_files and first.commit().status is CommitStatus.UNCHANGED
    state = tmp_path / "first/.kstore"
    assert digest_of((state / "base").read_bytes()) == first.newest().manifest
    second.restore()
    second.tree.kernel("two")
    second.commit()
    assert third.restore().placed == len(first.published()) and not third.store.verify(repair=False).damage


@pytest.mark.parametrize("trouble", [IntegrityError("short"), OSError(errno.EIO, os.strerror(errno.EIO))])
def test_what_was_put_aside_and_cannot_be_read_costs_the_memory_of_a_restore_and_not_the_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, trouble: Exception
) -> None:
    def pieces(_: Aside) -> Iterator[bytes]:
        yield b"a piece"
        raise trouble

    first, second = Node(tmp_path, "first"), Node(tmp_path, "second")
    first.tree.kernel()
    first.commit()
    monkeypatch.setattr("kstore.aside.MANY", 1)
    with monkeypatch.context() as patch:
        patch.setattr(Aside, "pieces", pieces)
        assert second.restore().placed == len(first.published())
    assert "cannot be remembered" in caplog.text
    assert second.commit().new_files == 0


@pytest.mark.parametrize(
    ("record", "damage"),
    [
        ("restored.json", ('"depth": 0', '"depth": 1')),
        ("restored.json", ('"depth": 0', '"depth": 1e999')),
        ("sync.json", ('"untouched": [', '"untouched": [1e999, ')),
    ],
)
def test_a_number_that_makes_no_sense_is_as_if_nothing_were_remembered(
    tmp_path: Path, record: str, damage: tuple[str, str]
) -> None:
    node = Node(tmp_path, "first")
    node.tree.kernel("one")
    node.commit()
    second = Node(tmp_path, "second")
    second.restore()
    path = second.tree.root / ".kstore" / record
    text = path.read_text()
    assert damage[0] in text
    path.write_text(text.replace(*damage))
    assert second.restore().status is RestoreStatus.CURRENT
    assert second.commit().status is CommitStatus.UNCHANGED


def test_what_a_newer_kstore_remembered_of_a_root_is_as_if_nothing_were(tmp_path: Path) -> None:
    node = Node(tmp_path, "first")
    node.tree.kernel("one")
    node.commit()
    path = node.tree.root / ".kstore/sync.json"
    newer, count = re.subn(r'(format\\*": )1', r"\g<1>2", path.read_text())
    assert count == 1  # in the ref of the generation that it grew from
    path.write_text(newer)
    node.tree.kernel("two")
    assert node.restore().status is RestoreStatus.CURRENT
    assert node.commit().status is CommitStatus.COMMITTED
