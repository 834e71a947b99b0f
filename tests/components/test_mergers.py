from __future__ import annotations

import ast
import json
import pprint
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstore.components import load_table
from kstore.components.mergers import MERGERS, csv_union, json_union, literal_union, merge_files

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


def test_what_adds_nothing_leaves_the_published_file_as_it_is() -> None:
    published = b'{\n  "mm": {"b": NaN, "a": 0.2}\n}'
    assert json_union(published, dump({"mm": {"a": 0.1}})) == published


def test_what_only_ours_measured_anew_prevails() -> None:
    published, ours = dump({"mm": {"a": 0.2, "b": 0.3}}), dump({"mm": {"a": 0.1}})
    assert json.loads(merge_files("json_union", published, ours, prevails=True)) == {"mm": {"a": 0.1, "b": 0.3}}
    whole = b'{"mm":  {"a": 0.1, "b": 0.3}}'
    assert merge_files("json_union", published, whole, prevails=True) == whole
    assert json.loads(merge_files("json_union", published, ours)) == {"mm": {"a": 0.2, "b": 0.3}}


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


# ---- Python: the lists of what vLLM and SGLang have compiled


def listed(*shapes: int, name: str = "artifact") -> bytes:
    """As `CompilerManager.save_to_file` of vLLM writes it: a range, a graph's number, a compiler."""
    entries = {((1, shape), 0, "inductor_standalone"): {"graph_handle": (f"{name}_{shape}", "/p")} for shape in shapes}
    return pprint.pformat(entries, indent=4).encode()


def test_what_either_side_compiled_is_listed() -> None:
    assert ast.literal_eval(literal_union(listed(8), listed(16)).decode()) == ast.literal_eval(listed(8, 16).decode())


def test_the_published_artifact_is_listed_of_what_both_compiled() -> None:
    assert literal_union(listed(8, 16), listed(8, name="other")) == listed(8, 16)
    assert b"other" not in literal_union(listed(8), listed(8, 16, name="other")).replace(b"other_16", b"")


def test_a_list_that_has_all_of_the_other_is_the_union() -> None:
    """Whichever of the two workers compiled more, nobody compiles that again."""
    assert literal_union(listed(8), listed(8, 16)) == listed(8, 16)
    in_another_form = b" " + listed(8, 16)
    for ours in (listed(8), listed(8, 16)):
        assert literal_union(in_another_form, ours) == in_another_form


def test_nothing_of_a_list_is_run() -> None:
    assert merge_files("literal_union", listed(8), b"__import__('os').abort()") == listed(8)


# ---- When JAX last read an entry


@pytest.mark.parametrize("prevails", [False, True])
def test_the_older_of_two_times_holds_whoever_has_changed_it(prevails: bool) -> None:
    old, new = (ns.to_bytes(8, "little") for ns in (255, 256))
    assert merge_files("oldest", old, new, prevails=prevails) == old
    assert merge_files("oldest", new, old, prevails=prevails) == old


# ---- Files that cannot be read

GOOD = {"json_union": b'{"a": 1}', "csv_union": rows("Gemm,tn,G,0.5"), "literal_union": listed(8), "oldest": bytes(8)}


@pytest.mark.parametrize("merger", MERGERS)
def test_an_unreadable_side_gives_way_to_the_other(merger: str) -> None:
    good = GOOD[merger]
    bad = b"\xff\xfe{"
    assert merge_files(merger, bad, good) == good
    assert merge_files(merger, good, bad) == good


@pytest.mark.parametrize("merger", MERGERS)
def test_a_side_that_prevails_gives_way_too_if_it_cannot_be_read(merger: str) -> None:
    bad = b"\xff\xfe{"
    assert merge_files(merger, GOOD[merger], bad, prevails=True) == GOOD[merger]
    assert merge_files(merger, bad, GOOD[merger], prevails=True) == GOOD[merger]


@pytest.mark.parametrize(
    ("merger", "bad"),
    [
        ("literal_union", b"[8, 16]"),
        ("literal_union", b"{[8]: 1}"),  # A list is no key.
        ("csv_union", b'"' + bytes(b"x" * 200_000)),  # Longer than any field that is read.
        ("oldest", bytes(7)),
    ],
)
def test_what_can_be_read_but_is_of_no_use_gives_way_too(merger: str, bad: bytes) -> None:
    assert merge_files(merger, bad, GOOD[merger]) == GOOD[merger]
    assert merge_files(merger, GOOD[merger], bad) == GOOD[merger]


def test_what_is_an_object_on_one_side_only_is_as_it_was_published() -> None:
    for published, ours in [({"mm": {}}, {"mm": 1}), ({"mm": {}}, []), ([], {"mm": {}})]:
        assert merge_files("json_union", dump(published), dump(ours)) == dump(published)


def test_two_unreadable_sides_give_ours() -> None:
    for prevails in (False, True):
        assert merge_files("json_union", b"{", b"[", prevails=prevails) == b"["


def test_what_is_nested_too_deeply_gives_way() -> None:
    deep, good = b'{"a":' * 100_000, dump({"a": 1})
    for merger in ("json_union", "literal_union"):
        assert merge_files(merger, deep, good) == merge_files(merger, good, deep) == good
