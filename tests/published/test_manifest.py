from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstore.errors import IntegrityError
from kstore.published.manifest import Entry, Files, Flag, Manifest, compact, pack_entries, unit_of
from tests import tablefiles
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
MIB = 1 << 20
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


@pytest.mark.parametrize("number", [0, 5000])
def test_a_path_that_occurs_twice_is_damage(number: int) -> None:
    """Under its own name and as a long one: nobody can say which of them is meant."""
    files = {f"inductor/{each:05}/x.py": entry(str(each)) for each in range(number + 1)}
    (path, record) = f"inductor/{number:05}/x.py".encode(), next(pack_entries([entry("other")]))
    rows = {name.encode(): next(pack_entries([found])) for name, found in files.items()}
    twice = tablefiles.dump_as_stored(
        {"files": {**rows, b"\xff" * 33: tablefiles.long_value(path, record)}, "meta": {}}
    )
    with pytest.raises(IntegrityError, match="twice"):
        Manifest.load(twice)


def test_names_that_are_not_text_are_kept() -> None:
    path = b"triton/caf\xe9\xff/k".decode("utf-8", "surrogateescape")
    assert load({path: entry()}) == {path: entry()}


def test_names_are_sorted_as_their_bytes_are() -> None:
    names = [b"triton/\xff/k", "triton/\ue000/k".encode(), b"triton/\x80/k", "triton/\u00e9/k".encode(), b"\xff/k"]
    paths = [name.decode("utf-8", "surrogateescape") for name in names]
    assert set(load({path: entry() for path in paths})) == set(paths)


@pytest.fixture(scope="module")
def many() -> Manifest:
    paths = [f"triton/{number // 8:052}/triton_poi_fused_{number % 8}.cubin" for number in range(40_000)]
    return Manifest(compact((path, entry(path)) for path in paths))


def traced(call: Callable[[], object]) -> tuple[int, int]:
    """Bytes of what the call returns, and the most bytes that it uses in memory."""
    tracemalloc.start()
    try:
        _result = call()
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


def test_rows_are_not_all_in_memory_beside_a_manifest(many: Manifest) -> None:
    kept, peak = traced(many.dump)
    assert peak < kept + 6 * MIB


def test_rows_are_not_all_in_memory_beside_what_is_loaded(many: Manifest) -> None:
    data = many.dump()
    assert Manifest.load(data) == many
    kept, peak = traced(lambda: Manifest.load(data))
    assert peak < kept + 2 * MIB


def test_a_host_gets_the_portable_files_and_its_own() -> None:
    manifest = Manifest({"a": entry()}, {"one": {"b": entry()}, "two": {"c": entry()}})
    assert set(manifest.for_host("one")) == {"a", "b"}
    assert set(manifest.for_host("three")) == {"a"}
    assert len([*manifest.entries()]) == 3


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
        tablefiles.dump({}),
        tablefiles.dump({"files": {}}),
        tablefiles.dump({"files": {b"a": b"short"}, "meta": {}}),
        tablefiles.dump({"files": {}, "meta": {b"key": b"no json"}}),
    ],
)
def test_data_that_is_not_a_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        Manifest.load(data)
