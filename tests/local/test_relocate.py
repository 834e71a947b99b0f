from __future__ import annotations

import json

import pytest

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


def test_a_group_that_writes_its_folder_otherwise_is_of_it_all_the_same() -> None:
    data = group("/café", "k.ptx", "k.json")
    otherwise = json.dumps(json.loads(data), ensure_ascii=False).encode()
    assert otherwise != data
    stored = {relocate.to_stored("triton_group", each, PATH, "/café") for each in (data, otherwise)}
    assert stored == {to_stored(group(HERE, "k.ptx", "k.json"))}


def test_other_fields_are_kept() -> None:
    data = json.dumps({"child_paths": {}, "more": [1]}).encode()
    assert json.loads(to_stored(data).data)["more"] == [1]


def test_a_list_of_names_has_nothing_to_relocate() -> None:
    data = json.dumps({"child_paths": ["k.ptx", "k.cubin"]}).encode()
    assert to_stored(data) == Stored(data, ("k.ptx", "k.cubin"))


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[]", b"{}", b'{"child_paths": {"../x": "/x"}}', b'{"child_paths": {"": "/x"}}']
)
def test_what_is_no_group_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        to_stored(data)
