from __future__ import annotations

import json

import pytest

from kstore.components import load_table
from kstore.local import relocate
from kstore.local.relocate import PLACEHOLDER, group_children, to_local, to_stored

PATH = "KVIM/__grp__k.json"


def group(root: str, *names: str) -> bytes:
    return json.dumps({"child_paths": {name: f"{root}/KVIM/{name}" for name in names}}).encode()


def test_every_method_that_the_table_names_exists() -> None:
    named = {method for c in load_table().values() for _, method in c.named["relocate"]}
    assert named == set(relocate._METHODS)


def test_the_stored_form_does_not_depend_on_the_place() -> None:
    stored = {to_stored("triton_group", group(root, "k.ptx", "k.cubin"), PATH) for root in ("/a", "/b/c", "relative")}
    assert len(stored) == 1
    assert PLACEHOLDER.encode() in stored.pop()


@pytest.mark.parametrize("root", ["/tmp/kstore/env/0/triton", '/with "quotes"\\and backslash', "/café"])
def test_the_local_form_lists_the_files_where_they_are(root: str) -> None:
    stored = to_stored("triton_group", group("/elsewhere", "k.ptx", "k.cubin"), PATH)
    assert json.loads(to_local(stored, root)) == json.loads(group(root, "k.ptx", "k.cubin"))


def test_the_names_of_a_groups_files_can_be_told() -> None:
    assert group_children(to_stored("triton_group", group("/a", "k.ptx", "k.json"), PATH)) == ["k.ptx", "k.json"]


def test_other_fields_are_kept() -> None:
    data = json.dumps({"child_paths": {}, "more": [1]}).encode()
    assert json.loads(to_stored("triton_group", data, PATH))["more"] == [1]


def test_a_list_of_names_has_nothing_to_relocate() -> None:
    data = json.dumps({"child_paths": ["k.ptx", "k.cubin"]}).encode()
    assert to_stored("triton_group", data, PATH) == data
    assert group_children(data) == ["k.ptx", "k.cubin"]


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[]", b"{}", b'{"child_paths": {"../x": "/x"}}', b'{"child_paths": {"": "/x"}}']
)
def test_what_is_no_group_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        to_stored("triton_group", data, PATH)
