from __future__ import annotations

from kstore.digest import digest_of
from kstore.local.pathsof import PathsOf
from kstore.published.manifest import Entry, Files, pack_entries

ONE, TWO = digest_of(b"one"), digest_of(b"two")


def files(**digests: bytes) -> Files:
    return {path.replace("_", "/"): Entry(digest, 3, 0, 0o644, 0, 0) for path, digest in digests.items()}


def test_each_path_has_what_its_blob_holds() -> None:
    """Whatever the order of the files."""
    one, two = memoryview(b"one"), memoryview(b"two")
    every = files(a_x=ONE, b_x=TWO, a_y=ONE, c=TWO)
    paths, records, data = PathsOf(every).take([(TWO, two), (ONE, one)])
    assert dict(zip(paths, data, strict=True)) == {"a/x": one, "b/x": two, "a/y": one, "c": two}
    assert records == [*pack_entries(every[path] for path in paths)]
    assert PathsOf(every).take([]) == ([], [], [])


def test_a_blob_that_comes_twice_goes_to_its_paths_once() -> None:
    for paths in (PathsOf(files(a=ONE)), PathsOf(files(a=ONE, b=ONE))):
        blob = ONE, memoryview(b"one")
        found = [*paths.take([blob, blob]).paths, *paths.take([blob]).paths]
        assert len(found) == len({*found}) > 0


def test_what_nobody_has_taken_is_left() -> None:
    paths = PathsOf(files(a_x=ONE, b_x=TWO, a_y=ONE))
    assert dict(paths.wanted.items()) == {ONE: 3, TWO: 3}
    paths.take([(TWO, memoryview(b"two"))])
    assert {*paths.left()} == {"a/x", "a/y"}
