"""Only files whose pages lead where they should are read."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import lmdb
import pytest

from kstore import tables
from kstore.errors import IntegrityError
from tests import tablefiles

PAGE = 4096
CONTENT = {
    "many": {b"%06d" % number: bytes(60) for number in range(3000)},
    "large": {b"small": b"", b"large": bytes(range(256)) * (3 * PAGE // 256)},
    "empty": {},
}
WHOLE = tablefiles.dump(CONTENT)


def altered(offset: int, layout: str, *values: int) -> bytes:
    data = bytearray(WHOLE)
    struct.pack_into(layout, data, offset, *values)
    return bytes(data)


# The later meta page, the only branch, its first child, and the first node of that child.
NEWEST = max((0, PAGE), key=lambda meta: struct.unpack_from("<Q", WHOLE, meta + 144)[0])
BRANCH = next(page for page in range(2 * PAGE, len(WHOLE), PAGE) if WHOLE[page + 10] == 1)
(CHILD,) = struct.unpack_from("<H", WHOLE, BRANCH + 16)
LEAF = struct.unpack_from("<I", WHOLE, BRANCH + CHILD)[0] * PAGE
(NODE,) = struct.unpack_from("<H", WHOLE, LEAF + 16)
# The page of the tables, its first node, and the records of the empty table and of the one with the branch.
MAIN = struct.unpack_from("<Q", WHOLE, NEWEST + 128)[0] * PAGE
(TABLE,) = struct.unpack_from("<H", WHOLE, MAIN + 16)
EMPTY, RECORD = (WHOLE.index(name, MAIN) + len(name) for name in (b"empty", b"many"))
# The first page of the large value, and what leads to it.
LARGE = next(page for page in range(2 * PAGE, len(WHOLE), PAGE) if WHOLE[page + 10] == 4) // PAGE
POINTER = WHOLE.index(b"large" + struct.pack("<Q", LARGE)) + len(b"large")


@pytest.mark.parametrize(("count", "rows"), [(0, 0), (1, 0), (1, 1), (1, 1000), (1, 20_000), (100, 20)])
def test_every_file_that_is_made_is_read(count: int, rows: int) -> None:
    table = {b"%06d" % number: bytes(52) for number in range(rows)}
    content = {f"table{number}": table for number in range(count)}
    assert tablefiles.load(tablefiles.dump(content)) == content


def test_values_larger_than_a_page_are_read_whole() -> None:
    assert tablefiles.load(WHOLE) == CONTENT


@pytest.mark.parametrize(
    "data",
    {
        "no pages": b"",
        "a piece of a page behind the last one": WHOLE + bytes(PAGE // 2),
        "a page size that is none": altered(40, "<I", 4097),
        "another magic number": altered(16, "<I", 0xBEEFC0DF),
        "another version of the format": altered(PAGE + 20, "<I", 2),
        "two page sizes": altered(PAGE + 40, "<I", 512),
        "a last page beyond the end": altered(NEWEST + 136, "<Q", 2**63),
        "a page behind the last one": altered(NEWEST + 136, "<Q", MAIN // PAGE - 1),
        "a large value in a meta page": altered(POINTER, "<Q", 1),
        "a large value in a table": altered(POINTER, "<Q", LEAF // PAGE),
        "a large value beyond the end": altered(POINTER, "<Q", 2**64 - 1),
        "a root beyond the end": altered(NEWEST + 128, "<Q", 2**40),
        "a root that is a meta page": altered(NEWEST + 128, "<Q", 1),
        "keys that are compared as numbers": altered(NEWEST + 92, "<H", 8),
        "a tree that is too deep": altered(NEWEST + 94, "<H", 2**16 - 1),
        "an empty tree that is too deep": altered(EMPTY + 6, "<H", 33),
        "a page of another number": altered(LEAF, "<Q", 0),
        "a leaf that says it is a branch": altered(LEAF + 10, "<H", 1),
        "a leaf with fixed sizes": altered(LEAF + 10, "<H", 0x22),
        "a leaf without nodes": altered(LEAF + 12, "<H", 16),
        "a leaf with half a pointer": altered(LEAF + 12, "<H", 19),
        "more pointers than a page": altered(LEAF + 12, "<H", 2**16 - 2),
        "a node outside of its page": altered(LEAF + 16, "<H", PAGE - 1),
        "a node among the pointers": altered(LEAF + 16, "<H", 16),
        "a node that is the head of its page": altered(LEAF + 16, "<H", 0),
        "a value beyond its page": altered(LEAF + NODE, "<HH", 0, 1),
        "a value one byte beyond its page": altered(LEAF + NODE, "<H", 61),
        "a key beyond its page": altered(LEAF + NODE + 6, "<H", PAGE),
        "a large value that is none": altered(LEAF + NODE + 4, "<H", 1),
        "duplicates": altered(LEAF + NODE + 4, "<H", 6),
        "a row among the tables": altered(MAIN + TABLE + 4, "<H", 0),
        "a table that is a large value": altered(MAIN + TABLE + 4, "<H", 1),
        "a table of half a record": altered(MAIN + TABLE, "<H", 24),
        "a child beyond the end": altered(BRANCH + CHILD + 4, "<H", 1),
        "a child that is its parent": altered(BRANCH + CHILD, "<HHH", BRANCH // PAGE, 0, 0),
        "a branch with one child": altered(BRANCH + 12, "<H", 18),
        "the same child twice": altered(BRANCH + 18, "<H", CHILD),
    }.items(),
    ids=lambda item: item[0],
)  # fmt: skip
def test_pages_that_lead_astray_are_refused(data: tuple[str, bytes]) -> None:
    with pytest.raises(IntegrityError):
        tablefiles.load(data[1])


def lengthened(data: bytes, page: bytes) -> tuple[bytearray, int]:
    """The file with a page more, which nothing leads to, and that page's number."""
    longer, number = bytearray(data + page.ljust(PAGE, b"\0")), len(data) // PAGE
    for meta in (0, PAGE):
        struct.pack_into("<Q", longer, meta + 136, number)
    return longer, number


def with_large_value(page: bytes, size: int) -> bytearray:
    """The first value of the leaf is large, and in a page of its own at the end."""
    data, number = lengthened(WHOLE, bytes(16) + page)
    struct.pack_into("<HHH", data, LEAF + NODE, size, 0, 1)
    struct.pack_into("<Q", data, LEAF + NODE + 8 + len(b"000000"), number)
    return data


@pytest.mark.parametrize("flags", [4, 5, 6])
def test_of_the_values_only_large_ones_lead_to_other_pages(flags: int) -> None:
    data = with_large_value(b"elsewhere", len(b"elsewhere"))
    assert tablefiles.load(bytes(data))["many"][b"000000"] == b"elsewhere"

    struct.pack_into("<HHH", data, LEAF + NODE, 8, 0, flags)
    with pytest.raises(IntegrityError, match=f"flags {flags}"):
        tablefiles.load(bytes(data))


def test_a_large_value_may_end_with_the_last_page_and_not_behind_it() -> None:
    assert tablefiles.load(bytes(with_large_value(b"", PAGE - 16)))["many"][b"000000"] == bytes(PAGE - 16)
    with pytest.raises(IntegrityError, match="elsewhere"):
        tablefiles.load(bytes(with_large_value(b"", PAGE - 15)))


def test_no_table_is_read_from_other_pages() -> None:
    data, number = lengthened(WHOLE, bytes(16) + WHOLE[EMPTY : EMPTY + 48])
    struct.pack_into("<H", data, MAIN + TABLE + 4, 1)
    struct.pack_into("<Q", data, EMPTY, number)
    with pytest.raises(IntegrityError, match="flags 1"):
        tablefiles.load(bytes(data))


@pytest.mark.parametrize("place", [2 * PAGE, PAGE - 6])
def test_a_branch_has_no_node_outside_of_its_page(place: int) -> None:
    """Nothing else is read two pages on; and the length of a node's key, here another page's number, tells nothing."""
    data = bytearray(tablefiles.dump({"t": {b"%06d" % number: bytes(60) for number in range(100)}}))
    root = next(page for page in range(2 * PAGE, len(data), PAGE) if data[page + 10] == 1)
    (pointer,) = struct.unpack_from("<H", data, root + 16)
    data[root + place : root + place + 6] = data[root + pointer : root + pointer + 6]
    struct.pack_into("<H", data, root + 16, place)
    with pytest.raises(IntegrityError, match="outside of it"):
        tablefiles.load(bytes(data))


def test_a_node_that_is_read_for_many_takes_no_more_than_its_page() -> None:
    """All pointers of a page lead to its largest node: otherwise a small file would fill the memory."""
    data = bytearray(WHOLE)
    (lower,) = struct.unpack_from("<H", data, LEAF + 12)
    count = (lower - 16) // 2
    struct.pack_into(f"<{count}H", data, LEAF + 16, *[lower] * count)
    struct.pack_into("<HHHH", data, LEAF + lower, 2000, 0, 0, 6)
    with pytest.raises(IntegrityError):
        tablefiles.load(bytes(data))


def branch(number: int, children: Sequence[int], times: int = 1) -> bytes:
    """A page that leads to each of these this many times."""
    nodes = b"".join(struct.pack("<HHHH", child, 0, 0, 0) for child in children)
    start = PAGE - len(nodes)
    pointers = [*range(start, PAGE, 8)] * times
    head = struct.pack("<QHHHH", number, 0, 1, 16 + 2 * len(pointers), start)
    return (head + struct.pack(f"<{len(pointers)}H", *pointers)).ljust(start, b"\0") + nodes


def test_branches_that_lead_to_one_page_again_and_again_fill_no_memory() -> None:
    first, count = len(WHOLE) // PAGE, 400
    below = range(first + 1, first + 1 + count)
    pages = [branch(first, below), *(branch(page, [LEAF // PAGE], times=2036) for page in below)]
    data = bytearray(WHOLE + b"".join(pages))
    struct.pack_into("<Q", data, NEWEST + 136, first + count)
    struct.pack_into("<H", data, RECORD + 6, 3)
    struct.pack_into("<Q", data, RECORD + 40, first)
    tracemalloc.start()
    try:
        with pytest.raises(IntegrityError, match="elsewhere"):
            tablefiles.load(bytes(data))
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data)
    finally:
        tracemalloc.stop()


def test_two_tables_of_one_tree_are_refused() -> None:
    """Otherwise a small file would have any number of rows."""
    data = bytearray(tablefiles.dump({"empty": {}, "one": {b"a": b"b"}}))
    records = [data.rindex(name) + len(name) for name in (b"empty", b"one")]
    data[records[0] : records[0] + 48] = data[records[1] : records[1] + 48]
    with pytest.raises(IntegrityError, match="elsewhere"):
        tablefiles.load(bytes(data))


def test_a_table_that_occurs_twice_is_refused() -> None:
    """Otherwise rows that no worker counts would be shown to whoever begins with them early."""
    data = tablefiles.dump({"one": {b"a": b""}, "two": {b"a": b""}})
    with pytest.raises(IntegrityError, match="twice"):
        tablefiles.load(data.replace(b"two", b"one"))


@pytest.mark.parametrize("page_size", [512, 32768])
def test_files_with_pages_of_any_size_are_read(page_size: int) -> None:
    with patch("kstore.tables._PAGE_SIZE", page_size):
        data = tablefiles.dump(CONTENT)
    assert struct.unpack_from("<I", data, 40) == (page_size,)
    assert tablefiles.load(data) == CONTENT


def test_files_of_very_many_pages_are_read() -> None:
    content = {"a": {b"large": bytes(34 << 20)}, "b": CONTENT["many"]}
    with patch("kstore.tables._PAGE_SIZE", 512):
        data = tablefiles.dump(content)
    assert len(data) > 512 << 16
    assert tablefiles.load(data) == content


@pytest.mark.parametrize("page_size", [256, 65536])
def test_files_with_pages_of_no_size_that_lmdb_knows_are_refused(page_size: int) -> None:
    with patch("kstore.tables._PAGE_SIZE", page_size):
        data = tables._empty_file(1 << 20)
    with pytest.raises(IntegrityError, match=f"pages of {page_size} bytes"):
        tablefiles.load(data)


def test_what_lmdb_itself_has_written_is_read_as_lmdb_reads_it(tmp_path: Path) -> None:
    """Rows that were put in any order, replaced and deleted in many transactions leave pages that nothing leads to."""
    rows, order = dict[bytes, bytes](), random.Random(7)
    with lmdb.open(str(tmp_path / "file"), subdir=False, max_dbs=4, map_size=64 << 20, lib_version=0) as environment:
        table = environment.open_db(b"table")
        for _ in range(40):
            with environment.begin(db=table, write=True) as transaction:
                for _ in range(100):
                    key, value = b"k" + order.randbytes(order.randrange(400)), order.randbytes(order.randrange(9000))
                    transaction.put(key, value)
                    rows[key] = value
                for key in order.sample(sorted(rows), len(rows) // 4):
                    transaction.delete(key)
                    del rows[key]
    found = tablefiles.load((tmp_path / "file").read_bytes())["table"]
    assert list(found.items()) == sorted(rows.items())
