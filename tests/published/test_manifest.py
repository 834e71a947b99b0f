from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstore import tables
from kstore.errors import IntegrityError
from kstore.published.manifest import Entry, Files, Flag, Manifest, unit_of
from tests.trees import entry, grouped

PATHS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60)
ENTRIES = st.builds(
    Entry,
    digest=st.binary(min_size=32, max_size=32),
    size=st.integers(0, 2**64 - 1),
    mtime_ns=st.integers(-(2**63), 2**63 - 1),
    mode=st.integers(0, 0o777),
    flags=st.integers(0, 127),
    unit=st.integers(0, 255),
)
FILES = st.dictionaries(PATHS, ENTRIES, max_size=10)


def load(files: Files) -> Files:
    return Manifest.load(Manifest(files).dump()).files


@settings(deadline=None, max_examples=50)
@given(files=FILES, hosts=st.dictionaries(st.text("0123456789abcdef", min_size=1), FILES, max_size=3))
def test_what_was_dumped_is_loaded(files: Files, hosts: dict[str, Files]) -> None:
    manifest = Manifest(files, hosts, {"key": "model/v1", "environment": {"torch": "2.13"}, "parent": 3})
    assert Manifest.load(manifest.dump()) == manifest


def test_the_same_files_give_the_same_bytes() -> None:
    files = {f"triton/{number}": entry(str(number)) for number in range(20)}
    assert Manifest(files).dump() == Manifest(dict(reversed(files.items()))).dump()


def test_long_paths_are_kept_whole() -> None:
    long = "triton/" + "folder/" * 200 + "k.json"
    assert load({long: entry("a"), long + "2": entry("b")}) == {long: entry("a"), long + "2": entry("b")}


def test_names_that_are_no_text_are_kept() -> None:
    path = b"triton/caf\xe9\xff/k".decode("utf-8", "surrogateescape")
    assert load({path: entry()}) == {path: entry()}


def test_a_host_gets_the_portable_files_and_its_own() -> None:
    manifest = Manifest({"a": entry()}, {"one": {"b": entry()}, "two": {"c": entry()}})
    assert set(manifest.for_host("one")) == {"a", "b"}
    assert set(manifest.for_host("three")) == {"a"}
    assert len(manifest.entries()) == 3


def test_a_unit_is_a_folder_or_the_file_itself() -> None:
    assert unit_of("triton/ABC/k.json", grouped()) == "triton/ABC"
    assert unit_of("triton/ABC/sub/k.json", grouped()) == "triton/ABC"
    assert unit_of("inductor/fxgraph/ab/key/one", entry("", Flag.SLOT, 4)) == "inductor/fxgraph/ab/key"
    assert unit_of("inductor/ab/c.py", entry()) == "inductor/ab/c.py"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nothing",
        tables.dump({}),
        tables.dump({"files": {}}),
        tables.dump({"files": {b"a": b"short"}, "meta": {}}),
        tables.dump({"files": {}, "meta": {b"key": b"no json"}}),
    ],
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        Manifest.load(data)
