from __future__ import annotations

import json
from pathlib import Path

import pytest

from kstore.environment import Host
from kstore.errors import IntegrityError, MissError, UsageError
from kstore.inspect.artifact import find_artifact, read_artifact, text_of
from kstore.inspect.choice import Wanted, choose_one
from kstore.inspect.sides import Side, local_side, published_side
from tests.inspect.caches import put_cpp, put_kernel, put_module, put_named
from tests.trees import KEY, Node, shared_object


class One:
    """The published cache of one worker."""

    def __init__(self, folder: Path) -> None:
        self.node = Node(folder)
        self.tree = self.node.tree

    def side(self) -> Side:
        self.node.commit()
        return published_side(self.node.store, choose_one(self.node.store, Wanted(KEY)))


@pytest.fixture
def one(tmp_path: Path) -> One:
    return One(tmp_path)


def test_an_artifact_is_found_by_its_path_and_by_any_end_of_it(one: One) -> None:
    folder = put_kernel(one.tree, "triton_add")
    side = one.side()

    for text in (f"{folder}/triton_add.ptx", folder.partition("/")[2] + "/triton_add.ptx", "triton_add.ptx", ".ptx"):
        assert find_artifact(side, text).path == f"{folder}/triton_add.ptx"


def test_a_whole_name_wins_over_one_that_only_ends_so(one: One) -> None:
    put_kernel(one.tree, "my_add")
    folder = put_kernel(one.tree, "add")

    assert find_artifact(one.side(), "add.ptx").path == f"{folder}/add.ptx"


def test_a_whole_path_wins_over_one_that_ends_with_it(one: One) -> None:
    """A serving engine may have a folder of Triton's."""
    path = f"{put_kernel(one.tree, 'add')}/add.ptx"
    put_kernel(one.tree, "add", below="sglang/torch_compile_cache/model/triton")

    assert find_artifact(one.side(), path).path == path


def test_a_cpp_kernel_is_found_by_its_name(one: One) -> None:
    put_module(one.tree, {"cpp_fused_add_0": "out[0] = 1;"})
    path = put_cpp(one.tree, "out[0] = 1;")
    put_cpp(one.tree, "out[0] = 2;")

    assert find_artifact(one.side(), "cpp_fused_add_0.main.cpp").path == path
    assert find_artifact(one.side(), "cpp_fused_add_0").path == path
    for text in ("cpp_fused_add_0.main.so", "cpp_fused_add_01"):
        with pytest.raises(MissError):
            find_artifact(one.side(), text)


def test_the_module_of_a_triton_kernel_is_found_by_its_name(one: One) -> None:
    path = put_named(one.tree, ".py", "@triton.jit\ndef triton_red_fused_sum_7(in_ptr0):\n    pass\n")

    assert find_artifact(one.side(), "triton_red_fused_sum_7").path == path
    assert find_artifact(one.side(), "triton_red_fused_sum_7.py").path == path


def test_several_are_named(one: One) -> None:
    put_kernel(one.tree, "triton_add")
    with pytest.raises(UsageError, match=r"'triton_add' could be any of .*triton_add.cubin, triton_add.json"):
        find_artifact(one.side(), "triton_add")


def test_only_a_few_of_very_many_are_named(one: One) -> None:
    for warps in range(1, 20):
        put_kernel(one.tree, "triton_add", num_warps=warps)
    with pytest.raises(UsageError, match=r"triton/.* and 11 more in model/v1@1"):
        find_artifact(one.side(), "triton_add.ptx")


def test_as_many_as_fit_are_all_named(one: One) -> None:
    for warps in range(1, 9):
        put_kernel(one.tree, "triton_add", num_warps=warps)
    with pytest.raises(UsageError, match=r"(triton/\S+, ){7}triton/\S+ in model/v1@1"):
        find_artifact(one.side(), "triton_add.ptx")


@pytest.mark.parametrize("text", ["", "nothing.ptx", "../../etc/passwd", "\0"])
def test_what_is_not_there_is_a_miss(one: One, text: str) -> None:
    put_kernel(one.tree, "triton_add")
    with pytest.raises(MissError):
        find_artifact(one.side(), text)


def test_of_very_many_names_those_next_to_a_mistyped_one_are_looked_at(
    one: One, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("triton_add", "xriton_add"):
        put_kernel(one.tree, name)
    side = one.side()
    with pytest.raises(MissError, match=r"there is triton_add\.cubin, \S*xriton_add\.cubin"):
        find_artifact(side, "triton_ad.cubin")

    monkeypatch.setattr("kstore.inspect.artifact._COMPARED", 2)
    with pytest.raises(MissError, match=r"there is triton_add\.cubin") as miss:
        find_artifact(side, "triton_ad.cubin")
    assert "xriton" not in str(miss.value)


def test_a_path_of_several_hosts_means_this_hosts_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _, name=name: Host(name * 16, {}))
        node = Node(tmp_path, name)
        node.tree.put("inductor/ab/cone.main.so", shared_object() + name.encode())
        node.commit()
    monkeypatch.setattr("kstore.inspect.artifact.detect_host", lambda: Host("b" * 16, {}))
    side = published_side(node.store, choose_one(node.store, Wanted(KEY)))

    assert find_artifact(side, "cone.main.so").host == "b" * 16
    assert read_artifact(side, find_artifact(side, "cone.main.so")).endswith(b"b")

    monkeypatch.setattr("kstore.inspect.artifact.detect_host", lambda: Host("d" * 16, {}))
    assert find_artifact(side, "cone.main.so").host == "a" * 16


def test_the_bytes_are_those_in_the_store_with_its_placeholder(one: One) -> None:
    folder = put_kernel(one.tree, "triton_add")
    for side in (one.side(), local_side(one.node.store, one.node.store.scope(KEY), ask_host=False)):
        content = json.loads(read_artifact(side, find_artifact(side, "__grp__triton_add.json")))

        assert (
            content["child_paths"]["triton_add.ptx"] == f"@kstore-component@/{folder.partition('/')[2]}/triton_add.ptx"
        )


def test_lost_bytes_are_an_integrity_error(one: One) -> None:
    put_kernel(one.tree, "triton_add")
    side = one.side()
    artifact = find_artifact(side, "triton_add.ptx")
    for blob in Path(one.node.location).rglob(artifact.entry.digest.hex()):
        blob.unlink()
    with pytest.raises(IntegrityError, match="missing or damaged"):
        read_artifact(side, artifact)


def test_a_local_file_that_changed_since_it_was_scanned_is_not_taken_for_it(one: One) -> None:
    folder = put_kernel(one.tree, "triton_add")
    side = local_side(one.node.store, one.node.store.scope(KEY), ask_host=False)
    one.tree.put(f"{folder}/triton_add.ptx", b"other")
    with pytest.raises(IntegrityError):
        read_artifact(side, find_artifact(side, "triton_add.ptx"))


def test_json_is_laid_out_by_lines() -> None:
    assert text_of("a.json", b'{"b": 1, "a": [2]}') == '{\n "a": [\n  2\n ],\n "b": 1\n}\n'


def test_json_keeps_letters_of_every_language_and_other_text_its_layout() -> None:
    assert text_of("x/one.json", '{"ä": "中"}'.encode()) == '{\n "ä": "中"\n}\n'
    assert text_of("x/one.py", b'{"a": 1}') == '{"a": 1}'


@pytest.mark.parametrize("data", [b"{", b"[" * 100_000])
def test_broken_json_is_left_as_it_is(data: bytes) -> None:
    assert text_of("a.json", data) == data.decode()


@pytest.mark.parametrize("data", [b"a\0b", b"\xff\xfe", b"\x7fELF\0"])
def test_binary_has_no_text(data: bytes) -> None:
    assert text_of("a.py", data) is None
