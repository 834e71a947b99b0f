from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kstore.components import load_table
from kstore.local import relocate
from kstore.local.relocate import PLACEHOLDER, Stored, to_local

PATH = "KVIM/__grp__k.json"
HERE = "/cache/triton"


def group(root: str, *names: str) -> bytes:
    return json.dumps({"child_paths": {name: f"{root}/KVIM/{name}" for name in names}}).encode()


def to_stored(data: bytes) -> Stored:
    return relocate.to_stored("triton_group", data, PATH, HERE)


def test_every_method_that_the_table_names_exists() -> None:
    named = {method for c in load_table().values() for _, method in c.named["relocate"]}
    assert named == set(relocate._METHODS)


def test_the_stored_form_does_not_depend_on_the_place() -> None:
    stored = {to_stored(group(root, "k.ptx", "k.cubin")).data for root in (HERE, "/a", "/b/c", "relative")}
    assert len(stored) == 1
    assert PLACEHOLDER.encode() in stored.pop()


@pytest.mark.parametrize("root", ["/tmp/kstore/env/0/triton", '/with "quotes"\\and backslash', "/café"])
def test_the_local_form_lists_the_files_where_they_are(root: str) -> None:
    stored = to_stored(group("/elsewhere", "k.ptx", "k.cubin"))
    assert json.loads(to_local(stored.data, root)) == json.loads(group(root, "k.ptx", "k.cubin"))


def test_the_names_of_a_groups_files_can_be_told() -> None:
    assert to_stored(group("/a", "k.ptx", "k.json")).children == ("k.ptx", "k.json")


def test_a_group_that_is_of_another_folder_can_be_told() -> None:
    assert to_stored(group(HERE, "k.ptx", "k.json")).is_local
    assert to_stored(json.dumps(json.loads(group(HERE, "k.ptx")), indent=2).encode()).is_local
    assert not to_stored(group("/a", "k.ptx", "k.json")).is_local
    assert not to_stored(to_stored(group(HERE, "k.ptx")).data).is_local
    mixed = {"k.ptx": f"{HERE}/KVIM/k.ptx", "k.json": "/a/KVIM/k.json"}
    assert not to_stored(json.dumps({"child_paths": mixed}).encode()).is_local


@pytest.mark.parametrize("how", [{"indent": 2}, {"ensure_ascii": False}, {"separators": (",", ":")}])
def test_a_group_that_is_written_otherwise_has_the_same_stored_form(how: dict[str, Any]) -> None:
    otherwise = json.dumps(json.loads(group("/café", "k.ptx", "ü.json")), **how).encode()
    stored = relocate.to_stored("triton_group", otherwise, PATH, "/café")
    assert stored == to_stored(group(HERE, "k.ptx", "ü.json"))


@given(names=st.lists(st.text(min_size=1).filter(lambda name: "/" not in name), unique=True), inside=st.text())
@example(names=["k.ptx", "k_0.json"], inside="KVIM")
@example(names=['k".ptx', "k\\n"], inside='a"b')
def test_the_stored_form_is_that_of_json(names: list[str], inside: str) -> None:
    inside = inside.replace("/", "") or "K"
    data = json.dumps({"child_paths": {name: f"{HERE}/{inside}/{name}" for name in names}}).encode()
    stored = relocate.to_stored("triton_group", data, f"{inside}/__grp__k.json", HERE)
    moved = {name: f"{PLACEHOLDER}/{inside}/{name}" for name in names}
    assert stored == Stored(json.dumps({"child_paths": moved}).encode(), tuple(names), is_local=True)


def test_other_fields_are_kept() -> None:
    content = {"child_paths": {"k.ptx": f"{HERE}/KVIM/k.ptx"}, "more": [f"/x{HERE}/y", "\u0040"]}
    stored = json.loads(to_stored(json.dumps(content).encode()).data)
    assert stored == {**content, "child_paths": {"k.ptx": f"{PLACEHOLDER}/KVIM/k.ptx"}}


def test_a_list_of_names_has_nothing_to_relocate() -> None:
    data = json.dumps({"child_paths": ["k.ptx", "k.cubin"]}).encode()
    assert to_stored(data) == Stored(data, ("k.ptx", "k.cubin"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"child_paths": {"../x": "/x"}}',
        b'{"child_paths": {"": "/x"}}',
        b'{"child_paths": [1]}',
    ],
)
def test_data_that_is_not_a_group_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        to_stored(data)
