from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstore.components import load_table
from kstore.components.mergers import MERGERS, csv_union, json_union, merge_files

TREES: Any = st.recursive(
    st.integers() | st.text(max_size=3), lambda inner: st.dictionaries(st.text("abc", max_size=2), inner, max_size=4)
)
OBJECTS = st.dictionaries(st.text("abc", max_size=2), TREES, max_size=4)


def dump(value: object) -> bytes:
    return json.dumps(value).encode()


def merged(published: object, ours: object) -> Any:
    return json.loads(json_union(dump(published), dump(ours)))


def test_every_merger_that_the_table_names_exists() -> None:
    named = {method for c in load_table().values() for _, method in c.named["merge"]}
    assert named == set(MERGERS)


# ---- JSON: the timings of max-autotune


def test_what_either_side_measured_is_kept() -> None:
    ours = {"mm": {"64x64": {"triton_1": 0.1}}, "bmm": {}}
    assert merged({"mm": {"32x32": {"triton_0": 0.2}}}, ours) == {
        "mm": {"32x32": {"triton_0": 0.2}, "64x64": {"triton_1": 0.1}},
        "bmm": {},
    }


def test_what_both_measured_stays_as_published() -> None:
    assert merged({"mm": {"64x64": 0.2}}, {"mm": {"64x64": 0.1}}) == {"mm": {"64x64": 0.2}}
    assert merged({"mm": 1}, {"mm": {"64x64": 0.1}}) == {"mm": 1}


@settings(deadline=None)
@given(published=OBJECTS, ours=OBJECTS)
def test_merging_again_changes_nothing(published: dict[str, Any], ours: dict[str, Any]) -> None:
    once = json_union(dump(published), dump(ours))
    assert json_union(once, dump(ours)) == once
    assert json_union(once, once) == once


# ---- CSV: the results of TunableOp

VALIDATORS = "Validator,PT_VERSION,2.13.0\nValidator,GCN_ARCH_NAME,gfx942\n"


def rows(*lines: str, validators: str = VALIDATORS) -> bytes:
    return (validators + "".join(f"{line}\n" for line in lines)).encode()


def test_rows_of_both_sides_are_kept_once() -> None:
    published = rows("Gemm_a,tn_64,Gemm_1,0.5")
    ours = rows("Gemm_a,tn_64,Gemm_2,0.4", "Gemm_a,nt_32,Gemm_3,0.3")
    assert csv_union(published, ours) == rows("Gemm_a,tn_64,Gemm_1,0.5", "Gemm_a,nt_32,Gemm_3,0.3")


def test_results_under_other_validators_are_not_mixed() -> None:
    published = rows("Gemm_a,tn_64,Gemm_1,0.5")
    ours = rows("Gemm_a,nt_32,Gemm_3,0.3", validators=VALIDATORS.replace("gfx942", "gfx90a"))
    assert csv_union(published, ours) == published


# ---- Files that cannot be read


@pytest.mark.parametrize("merger", MERGERS)
def test_an_unreadable_side_gives_way_to_the_other(merger: str) -> None:
    good = b'{"a": 1}' if merger == "json_union" else rows("Gemm,tn,G,0.5")
    bad = b"\xff\xfe{"
    assert merge_files(merger, bad, good) == good
    assert merge_files(merger, good, bad) == good


def test_two_unreadable_sides_give_ours() -> None:
    assert merge_files("json_union", b"{", b"[") == b"["


def test_what_is_nested_too_deeply_gives_way() -> None:
    deep, good = b'{"a":' * 100_000, dump({"a": 1})
    assert merge_files("json_union", deep, good) == merge_files("json_union", good, deep) == good
