from __future__ import annotations

from kstore.digest import digest_of
from kstore.local.pathsof import PathsOf
from kstore.published.manifest import Entry, Files

ONE, TWO = digest_of(b"one"), digest_of(b"two")


def files(**digests: bytes) -> Files:
    return {path: Entry(digest, 3, 0, 0o644, 0, 0) for path, digest in digests.items()}


def test_each_path_has_what_its_blob_holds() -> None:
    one, two = memoryview(b"one"), memoryview(b"two")
    paths = PathsOf(files(a=ONE, b=TWO, c=ONE), ())
    assert dict(zip(*paths.of([(TWO, two), (ONE, one)]), strict=True)) == {"a": one, "b": two, "c": one}
    assert paths.of([]) == ([], [])


def test_a_blob_that_comes_twice_goes_to_its_paths_once() -> None:
    for paths in (PathsOf(files(a=ONE), ()), PathsOf(files(a=ONE, b=ONE), ())):
        found, contents = paths.of([(ONE, memoryview(b"one"))] * 2)
        assert len(found) == len({*found}) == len(contents)


def test_some_paths_can_be_left_out() -> None:
    paths = PathsOf(files(a=ONE, b=TWO, c=ONE), {"b", "c"})
    assert paths.of([(ONE, memoryview(b"one"))]) == (["a"], [memoryview(b"one")])
    assert paths.sizes() == {ONE: 3}
