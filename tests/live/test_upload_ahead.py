"""What is uploaded ahead may be published later, by the rules by which a commit relies on blobs that it finds."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.blobs.packindex import pack_name
from kstore.damaged import set_aside_blob
from kstore.digest import digest_of
from kstore.local.reading import Batch, read_in_batches
from kstore.operations.sources import Sources
from kstore.report import CommitStatus
from tests.gc.stores import collect, collect_fully, kernels, pass_time, restored, stored
from tests.trees import KEY, Node, shared_object


@pytest.fixture
def node(tmp_path: Path, layout: str) -> Node:
    """A worker that has compiled something since it last committed."""
    made = Node(tmp_path, layout=layout)
    made.tree.wrapper("old")
    made.commit()
    made.tree.kernel("one")
    made.tree.graph()
    return made


def test_it_publishes_nothing(node: Node) -> None:
    before = node.newest()
    node.store.upload_ahead(KEY)
    assert node.newest() == before


def test_the_commit_then_uploads_only_the_manifest(node: Node, tmp_path: Path) -> None:
    node.store.upload_ahead(KEY)
    report = node.commit()
    assert (report.status, report.new_files, report.new_blobs) == (CommitStatus.COMMITTED, 9, 1)
    assert restored(tmp_path, "reader") == kernels(node)


def test_the_first_commit_of_a_key_then_uploads_only_the_manifest_too(tmp_path: Path, layout: str) -> None:
    node = Node(tmp_path, layout=layout)
    node.tree.kernel("one")
    node.store.upload_ahead(KEY)
    report = node.commit()
    assert (report.new_files, report.new_blobs) == (8, 1)
    assert restored(tmp_path, "reader") == kernels(node)


def test_a_commit_after_several_uploads_uploads_only_the_manifest_too(node: Node, tmp_path: Path) -> None:
    for name in ("two", "three"):
        node.store.upload_ahead(KEY)
        node.tree.kernel(name)
    node.store.upload_ahead(KEY)
    assert node.commit().new_blobs == 1
    assert restored(tmp_path, "reader") == kernels(node)


def test_what_is_there_already_is_not_uploaded_again(node: Node) -> None:
    node.store.upload_ahead(KEY)
    before = stored(node)
    node.store.upload_ahead(KEY)
    assert stored(node) == before


def test_the_ref_names_every_pack_that_its_blobs_are_in(node: Node) -> None:
    """Otherwise gc would delete them."""
    node.store.upload_ahead(KEY)
    node.commit()
    for _ in range(3):
        collect_fully(node, keep=1)
    ref = node.newest()
    packs = set(ref.packs)
    wanted = {entry.digest: entry.size for entry in node.published().values()}
    assert {digest for digest, _ in node.store.storage.blobs.fetch_many(wanted, ref.packs)} == wanted.keys()
    assert packs <= set(node.store.storage.blobs.packs())


def test_a_ref_names_no_pack_that_it_does_not_need(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="packed")
    group = node.tree.kernel("one")
    node.store.upload_ahead(KEY)
    (ahead,) = node.store.storage.blobs.packs()
    shutil.rmtree(node.tree.root / group)
    node.tree.kernel("two")
    node.commit()
    assert ahead not in node.newest().packs


def test_what_gc_condemned_meanwhile_is_uploaded_again(node: Node, tmp_path: Path) -> None:
    node.store.upload_ahead(KEY)
    pass_time(node)
    assert collect(node).condemned.files > 0
    report = node.commit()
    assert report.new_blobs > 1
    pass_time(node)
    collect(node, keep=1)
    assert restored(tmp_path, "reader") == kernels(node)


def test_what_gc_condemned_meanwhile_and_a_compiler_changes_while_it_is_uploaded_again_waits(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, layout=layout)
    wrapper = node.tree.wrapper()
    node.commit()
    kernel = node.tree.kernel()
    node.store.upload_ahead(KEY)
    pass_time(node)
    assert collect(node).condemned.files > 0

    def read_changed(*arguments: Any) -> Iterator[Batch[bytes]]:
        node.tree.put(f"{kernel}/k.ptx", b"changed meanwhile")
        return read_in_batches(*arguments)

    monkeypatch.setattr("kstore.operations.sources.read_in_batches", read_changed)
    monkeypatch.setattr("kstore.intake._ROOM", 0)  # as if all files were large
    report = node.commit()
    assert [skipped.path for skipped in report.skipped] == [kernel]
    assert set(node.published()) == {wrapper}
    monkeypatch.undo()
    node.commit()
    assert restored(tmp_path, "reader") == kernels(node)


def test_what_gc_deleted_meanwhile_is_uploaded_again(node: Node, tmp_path: Path) -> None:
    """It is not on any list any more."""
    node.store.upload_ahead(KEY)
    ahead = stored(node)
    collect_fully(node, keep=1)
    assert not ahead <= stored(node)
    assert node.commit().new_blobs > 1
    assert restored(tmp_path, "reader") == kernels(node)


def test_a_pack_that_is_gone_is_not_relied_on_although_its_index_is_known(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="packed")
    node.tree.kernel("one")
    node.store.upload_ahead(KEY)
    (ahead,) = node.store.storage.blobs.packs()
    assert node.store.storage.blobs.digests_in([ahead])
    (node.location / pack_name(ahead)).unlink()
    assert node.commit().new_blobs == 9
    assert restored(tmp_path, "reader") == kernels(node)


def test_what_is_lost_of_the_newest_generation_is_kept_where_it_was_uploaded_ahead(tmp_path: Path) -> None:
    """Another worker has published the same, and its blob was found damaged."""
    node, other = (Node(tmp_path, name, layout=layout) for name, layout in (("node", "packed"), ("other", "loose")))
    node.tree.wrapper("one")
    node.store.upload_ahead(KEY)
    path = other.tree.wrapper("one")
    other.commit()
    set_aside_blob(other.store.storage.backend, other.published()[path].digest)
    report = node.commit()
    assert (report.status, report.new_blobs) == (CommitStatus.COMMITTED, 1)
    collect_fully(node, keep=1)
    assert restored(tmp_path, "reader") == kernels(node)


def test_what_is_being_written_is_left_alone(tmp_path: Path, layout: str) -> None:
    node = Node(tmp_path, layout=layout)
    group = node.tree.kernel("one")
    (node.tree.root / group / "tmp.pid_1_2").mkdir()
    node.store.upload_ahead(KEY)
    assert stored(node) == set()


def test_a_file_that_changes_while_it_is_uploaded_is_left_out(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, layout=layout)
    node.tree.graph("fone")
    changing = node.tree.graph("ftwo")
    node.tree.graph("fthree")
    gone, read = digest_of((node.tree.root / changing).read_bytes()), Sources.read

    def read_others(sources: Sources, digests: Iterable[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
        return ((digest, None if digest == gone else data) for digest, data in read(sources, digests))

    with monkeypatch.context() as patch:
        patch.setattr(Sources, "read", read_others)
        patch.setattr("kstore.intake._ROOM", 0)  # as if all files were large
        node.store.upload_ahead(KEY)
    report = node.commit()
    assert (report.new_files, report.new_blobs) == (3, 2)


def test_what_a_commit_would_decline_is_not_uploaded(tmp_path: Path, layout: str) -> None:
    first, second = Node(tmp_path, "first", layout=layout), Node(tmp_path, "second", layout=layout)
    second.tree.graph(content="mine")
    first.tree.graph(content="theirs")
    first.commit()
    before = stored(first)
    second.store.upload_ahead(KEY)
    assert stored(first) == before


def test_host_bound_files_are_uploaded_for_their_host(tmp_path: Path, layout: str, host: object) -> None:
    node = Node(tmp_path, layout=layout)
    node.tree.put("inductor/ab/cone.main.so", shared_object())
    node.store.upload_ahead(KEY)
    assert node.commit().new_blobs == 1


def test_nothing_is_remembered_of_the_cache_root(node: Node) -> None:
    before = node.store.worker(KEY, before_import=False).state.load()
    node.store.upload_ahead(KEY)
    after = node.store.worker(KEY, before_import=False).state.load()
    assert (after.index, after.synced) == (before.index, before.synced)


def test_a_worker_that_only_reads_uploads_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, mode="read")
    node.tree.wrapper("one")
    node.store.upload_ahead(KEY)
    assert not node.location.exists()
