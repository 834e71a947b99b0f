"""A mapping that keeps paths folder by folder is a mapping like any other."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Set

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.published.byfolder import ByFolder, Form
from kstore.published.paths import Paths
from kstore.published.rows import Rows

NUMBER = struct.Struct("<H")


def pack(numbers: Iterable[int]) -> Iterator[bytes]:
    return map(NUMBER.pack, numbers)


def unpack(records: bytes | bytearray) -> Iterator[int]:
    return (number for (number,) in NUMBER.iter_unpack(records))


NUMBERS = Form(NUMBER.size, pack, unpack)
FOLDERS = st.sampled_from(["", "/", "a/", "a/b/", "a/b/b/", "a-/", "b/", "a//"])
PATHS = st.builds("{}{}".format, FOLDERS, st.integers(0, 50) | st.sampled_from(["a", "b", "b-", "b0"]))
"""In some folders there may be more than are looked through one by one."""
ITEMS = st.lists(st.tuples(PATHS, st.integers(0, 2**16 - 1)), max_size=150)


def by_folder(items: Iterable[tuple[str, int]]) -> ByFolder[int]:
    return ByFolder(NUMBERS, items)


def agree(found: ByFolder[int], expected: dict[str, int]) -> None:
    assert dict(found.items()) == expected == dict(zip(found, found.values(), strict=True))
    assert len(found) == len(expected) and found == expected
    assert found.folders == {path.rpartition("/")[0] for path in expected}
    assert [*found.in_order()] == sorted(expected)
    rows = Rows(found)
    assert [(rows.path(n), rows.value(n)) for n in rows.numbers] == [*found.items()]


@given(ITEMS)
def test_the_last_value_of_a_path_stands(items: list[tuple[str, int]]) -> None:
    agree(by_folder(items), dict(items))


@given(ITEMS, ITEMS)
def test_it_can_be_changed_path_by_path(first: list[tuple[str, int]], then: list[tuple[str, int]]) -> None:
    found, expected = by_folder(first), dict(first)
    for path, number in then:
        assert (path in found) == (path in expected) and found.get(path) == expected.get(path)
        if path in expected and number % 2:
            assert found.pop(path) == expected.pop(path)
        else:
            found[path] = expected[path] = number
    agree(found, expected)


@given(ITEMS, ITEMS)
def test_a_copy_is_apart(first: list[tuple[str, int]], then: list[tuple[str, int]]) -> None:
    found = by_folder(first)
    copy = found.copy()
    copy.put(then)
    agree(found, dict(first))
    agree(copy, {**dict(first), **dict(then)})


@given(ITEMS, st.sets(PATHS))
def test_paths_can_be_left_out(items: list[tuple[str, int]], paths: set[str]) -> None:
    found = by_folder(items)
    odd = {path: number for path, number in dict(items).items() if number % 256 % 2}
    agree(found.where(0, bytes(byte % 2 for byte in range(256))), odd)
    gone = {"a", "b", ""}
    agree(found.without_folders(gone), {p: n for p, n in dict(items).items() if p.rpartition("/")[0] not in gone})
    agree(found.without(paths), {path: number for path, number in dict(items).items() if path not in paths})
    agree(found, dict(items))


@given(ITEMS, st.randoms(use_true_random=False))
def test_the_order_makes_no_difference(items: list[tuple[str, int]], random: object) -> None:
    shuffled = [*dict(items).items()]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert by_folder(items) == by_folder(shuffled)
    if shuffled:
        path, number = shuffled.pop()
        assert by_folder(items) != by_folder(shuffled) != by_folder(items)
        assert by_folder(items) != by_folder([*shuffled, (f"other/{path}", number)])
        assert by_folder(items) != by_folder([*shuffled, (path, number ^ 1)])


@given(ITEMS, ITEMS)
def test_what_another_lacks_or_has_otherwise_is_told_in_order(
    first: list[tuple[str, int]], then: list[tuple[str, int]]
) -> None:
    def mark(number: int) -> int | None:
        return number % 3 or None

    found, numbers = by_folder(first), dict(first)
    changed = found.copy()
    changed.put(then)
    for other in (by_folder(then), changed, found):
        lacking = [path for path in found if path not in other]
        unlike = [path for path in found if path in lacking or mark(other[path]) != mark(numbers[path])]
        assert [*found.missing_from(other)] == lacking
        assert [*found.unlike(other, mark)] == unlike


def test_records_can_be_put_as_they_are() -> None:
    found = by_folder([])
    found.put_records(["a/x", "a/y", "b/x"], b"".join(pack([1, 2, 3])))
    found.put_folder("c", ("x", "y"), b"".join(pack([4, 5])))
    agree(found, {"a/x": 1, "a/y": 2, "b/x": 3, "c/x": 4, "c/y": 5})
    signed = Form(NUMBER.size, pack, lambda records: (-number for number in unpack(records)))
    assert dict(found.seen_as(signed)) == {path: -number for path, number in found.items()}
    assert found.seen_as(signed) != found
    assert found.seen_as(Form(NUMBER.size, pack, lambda records: unpack(records))) == found  # The values are the same.


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_a_large_folder_that_is_put_at_once_can_be_changed_and_what_it_was_put_from_is_not(kind: type[bytes]) -> None:
    numbers = {f"a/{number}": number for number in range(60)}
    given = kind(b"".join(pack(numbers.values())))
    found = by_folder([])
    found.put_folder("a", tuple(map(str, range(60))), given)
    some = found.where(0, bytes(byte < 50 for byte in range(256)))
    found["a/0"] = some["a/1"] = 99
    agree(found, {**numbers, "a/0": 99})
    agree(some, {path: number for path, number in numbers.items() if number < 50} | {"a/1": 99})
    assert given == b"".join(pack(numbers.values()))


@pytest.mark.parametrize(
    "copied",
    [
        lambda found: found.copy(),
        lambda found: found.seen_as(NUMBERS),
        lambda found: found.without_folders({"b"}),
        lambda found: found.where(0, b"\1" * 256),
    ],
    ids=["copy", "seen as", "without folders", "where"],
)
def test_a_copy_of_a_large_folder_is_apart(copied: Callable[[ByFolder[int]], ByFolder[int]]) -> None:
    numbers = {f"a/{number}": number for number in range(60)}
    found = by_folder(numbers.items())
    copy = copied(found)
    found["a/0"] = 70
    copy["a/1"] = copy["a/new"] = 80
    agree(found, {**numbers, "a/0": 70})
    agree(copy, {**numbers, "a/1": 80, "a/new": 80})


def test_a_folder_with_nothing_in_it_is_none() -> None:
    found = by_folder([])
    found.put_folder("a", (), b"")
    agree(found, {})


def test_a_path_that_is_not_there_raises_a_key_error() -> None:
    found = by_folder([("a/x", 1)])
    for path in ("x", "a", "a/", "a/y", "/x"):
        with pytest.raises(KeyError):
            found[path]
        with pytest.raises(KeyError):
            del found[path]
    assert None not in found and found.get("a/y", 7) == 7


def test_a_folder_is_gone_through_once_whatever_is_taken_out_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be ten thousand names in it."""
    went: list[object] = []
    take_out = ByFolder._take_out

    def counted(files: ByFolder[int], key: str | None, gone: Set[str]) -> None:
        went.append(key)
        take_out(files, key, gone)

    monkeypatch.setattr(ByFolder, "_take_out", counted)
    gone = [f"a/{name}" for name in range(1, 60)]
    found, paths = by_folder((f"a/{name}", name) for name in range(60)), Paths(["a/0", *gone])
    found.drop([*gone, "a/absent", "b/absent"])
    paths -= {*gone, "a/absent", "b/absent"}
    assert dict(found.items()) == {"a/0": 0} and {*paths} == {"a/0"}
    assert went == ["a", "a"]


@given(st.sets(PATHS), st.sets(PATHS))
def test_paths_are_a_set(first: set[str], then: set[str]) -> None:
    found = Paths(first)
    found.update(then)
    assert found == first | then and len(found) == len(first | then)
    found -= first
    assert found == then - first
    found.update(by_folder((path, 0) for path in first))
    found.update(Paths(["z"]))
    assert found == first | then | {"z"}


def test_many_paths_take_little_more_than_their_records() -> None:
    """In a dict of paths and objects each takes more than four hundred bytes."""
    folders = [f"triton/{number:052}" for number in range(4_000)]
    items = ((f"{folder}/triton_poi_fused_{name}.cubin", name) for folder in folders for name in range(8))
    tracemalloc.start()
    try:
        found = by_folder(items)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) == 32_000
    assert peak < kept + (1 << 20)
    assert kept < len(found) * (NUMBER.size + 60)
