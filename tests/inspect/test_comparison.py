from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import kstore
from kstore.environment import Host
from kstore.errors import MissError, StoreUnavailable
from kstore.inspect import contents
from kstore.inspect.comparison import Change, Comparison, Difference, Field, compare_sides, find_sides
from kstore.inspect.items import Artifact, Item, items_of
from kstore.inspect.kinds import Kind
from kstore.inspect.sides import Side, Sizes, _published_facts, local_side
from kstore.published.manifest import Flag, Manifest
from kstore.report import Count
from kstore.scope import Scope
from tests.inspect.caches import (
    put_choice,
    put_cpp,
    put_kernel,
    put_module,
    put_named,
)
from tests.trees import KEY, Node, entry, shared_object


class Two:
    """Two workers that compile different releases of a model."""

    def __init__(self, folder: Path, layout: str) -> None:
        self.nodes = Node(folder, "left", layout=layout), Node(folder, "right", layout=layout)
        self.left, self.right = (node.tree for node in self.nodes)

    def compare(self) -> Comparison:
        for node, key in zip(self.nodes, ("m/v1", "m/v2"), strict=True):
            node.commit(key)
        return kstore.compare(self.nodes[0].store, "m/v1", "m/v2")

    def difference(self) -> Difference:
        (found,) = self.compare().differences
        return found


@pytest.fixture
def two(tmp_path: Path, layout: str) -> Two:
    return Two(tmp_path, layout)


def side_of(*artifacts: Artifact) -> Side:
    """A generation of which no blob can be fetched."""
    return Side("m@1", Scope("gpu", "m", "torch"), 1, artifacts, {}, lambda sizes: iter(()))


def brief(comparison: Comparison) -> list[tuple[str, str]]:
    return [(str(found.change), found.name) for found in comparison.differences]


def test_equal_caches_do_not_differ(two: Two) -> None:
    for tree in (two.left, two.right):
        put_kernel(tree, "triton_add")
        put_kernel(tree, "triton_mul")
        put_choice(tree, "k")
        tree.wrapper()
    found = two.compare()

    assert not found.differ
    assert [(tally.component, tally.kind, tally.same) for tally in found.tallies] == [
        ("inductor", Kind.GENERATED_CODE, 1),  # Kinds are in the order in which people look at them.
        ("inductor", Kind.AUTOTUNE, 1),
        ("triton", Kind.TRITON_KERNEL, 2),
    ]
    assert (found.only_left, found.only_right) == (Count(), Count())


def test_a_kernel_with_another_option_is_the_same_kernel_changed(two: Two) -> None:
    left = put_kernel(two.left, "triton_poi_fused_add_3", num_warps=4)
    right = put_kernel(two.right, "triton_poi_fused_add_3", num_warps=8, shared=2048)
    found = two.difference()

    assert (found.change, found.kind, found.name) == (Change.CHANGED, Kind.TRITON_KERNEL, "triton_poi_fused_add_3")
    assert found.left and found.right and (found.left.unit, found.right.unit) == (left, right)
    assert found.fields == (Field("num_warps", 4, 8), Field("shared", 1024, 2048))
    assert found.files == (
        "__grp__triton_poi_fused_add_3.json",
        *(f"triton_poi_fused_add_3.{suffix}" for suffix in ("cubin", "json", "ptx")),
    )
    assert found.other_code is None


def test_an_option_that_only_one_of_two_kernels_has_is_told(two: Two) -> None:
    for name, left, right in (("added", {}, {"maxnreg": 64}), ("gone", {"maxnreg": 32}, {})):
        put_kernel(two.left, name, **left)
        put_kernel(two.right, name, **right)
    found = two.compare()

    assert [(each.name, each.fields) for each in found.differences] == [
        ("added", (Field("maxnreg", None, 64),)),
        ("gone", (Field("maxnreg", 32, None),)),
    ]
    assert [(tally.same, tally.different[Change.CHANGED]) for tally in found.tallies] == [(0, 2)]


def test_what_only_one_side_has_is_told_with_its_main_options_and_a_choice_with_all_of_them(two: Two) -> None:
    put_kernel(two.left, "gone", num_warps=8, maxnreg=64)
    put_choice(two.right, "new", num_warps=2, XBLOCK=64)
    gone, new = two.compare().differences

    assert gone.fields == (Field("num_warps", 8, None), Field("num_stages", 2, None), Field("num_ctas", 1, None))
    assert set(new.fields) == {Field("num_warps", None, 2), Field("num_stages", None, 1), Field("XBLOCK", None, 64)}


def test_kernels_of_a_kind_that_differ_alike_are_in_the_order_of_their_names_and_then_of_their_paths(two: Two) -> None:
    names = [name for name in "abcdef" for _ in range(3)]
    folders = [put_kernel(two.left, name, num_warps=warps) for name, warps in zip(names, (1, 2, 4) * 6, strict=True)]
    two.right.wrapper()
    found = [(each.name, each.left.unit) for each in two.compare().differences if each.left]

    assert found == sorted(zip(names, folders, strict=True))


def test_a_kernel_whose_code_changed_is_told_from_one_that_only_moved_in_its_file(two: Two) -> None:
    for tree, code, line in ((two.left, "add", 1), (two.right, "sub", 1)):
        put_kernel(tree, "changed", code=code, line=line)
    for tree, line in ((two.left, 1), (two.right, 40)):
        put_kernel(tree, "moved", line=line)
    found = {difference.name: difference.other_code for difference in two.compare().differences}

    assert found == {"changed": True, "moved": False}


def kernel_at(folder: str, *forms: str) -> Side:
    """A generation with these files of one kernel, each of which holds its own digest."""
    files = (Artifact(f"triton/{folder}/k.{form}", "", entry(folder + form, Flag.GROUP, 2)) for form in forms)
    return replace(side_of(*files), fetch=lambda sizes: ((digest, digest) for digest in sizes))


def test_where_one_of_two_kernels_has_no_source_its_code_is_not_known_to_be_another() -> None:
    whole, bare = kernel_at("one", "source", "ptx"), kernel_at("other", "ptx")
    for sides in ((whole, bare), (bare, whole)):
        (found,) = compare_sides(*sides).differences
        assert (found.change, found.other_code) == (Change.CHANGED, None)


def test_the_code_of_a_kernel_that_was_only_rebuilt_is_not_looked_into() -> None:
    one = kernel_at("k", "source")
    other = replace(one, artifacts=tuple(each._replace(entry=entry("new", Flag.GROUP, 2)) for each in one.artifacts))
    (found,) = compare_sides(one, other).differences

    assert (found.change, found.files, found.other_code) == (Change.REBUILT, ("k.source",), None)


def test_a_file_of_one_side_has_a_counterpart_in_the_item_that_its_own_is_compared_with(two: Two) -> None:
    gone, _ = put_kernel(two.left, "a_gone"), put_kernel(two.right, "a_new")
    pairs = {
        name: (put_kernel(two.left, name, num_warps=4), put_kernel(two.right, name, num_warps=8))
        for name in ("abs", "add")
    }
    found = two.compare()

    for name, (left, right) in pairs.items():
        assert found.counterpart(f"{left}/{name}.ptx") == f"{right}/{name}.ptx"
        assert found.counterpart(f"{right}/{name}.ptx") == f"{left}/{name}.ptx"
    assert found.counterpart(f"{gone}/a_gone.ptx") is None


def test_the_configurations_that_differ_least_are_compared(two: Two) -> None:
    for tree, stages in ((two.left, 2), (two.right, 3)):
        for warps in (1, 2, 4, 8):
            put_kernel(tree, "triton_mm", num_warps=warps, num_stages=stages)
    put_kernel(two.right, "triton_mm", num_warps=16, num_stages=3)
    found = two.compare().differences

    assert [difference.fields for difference in found if difference.change is Change.CHANGED] == [
        (Field("num_stages", 2, 3),)
    ] * 4
    assert [difference.fields for difference in found if difference.change is Change.ADDED] == [
        (Field("num_warps", None, 16), Field("num_stages", None, 3), Field("num_ctas", None, 1))
    ]


def test_thousands_of_configurations_of_one_name_are_still_compared(two: Two) -> None:
    for tree, stages in ((two.left, 2), (two.right, 3)):
        for shared in range(60):
            put_kernel(tree, "triton_", num_stages=stages, shared=shared)
    found = two.compare()

    assert {difference.change for difference in found.differences} == {Change.CHANGED}
    assert len(found.differences) == 60


def test_what_one_side_alone_has_is_removed_or_added(two: Two) -> None:
    put_kernel(two.left, "old")
    put_kernel(two.right, "new")

    assert brief(two.compare()) == [("removed", "old"), ("added", "new")]


def test_the_same_key_with_other_bytes_is_a_rebuilt_graph(two: Two) -> None:
    two.left.graph("fone", "one")
    two.right.graph("fone", "other")
    two.left.autograd("aone", "one")
    two.right.autograd("aone", "other")

    found = two.compare()

    assert brief(found) == [("rebuilt", "fone"), ("rebuilt", "aone")]
    assert {each.files for each in found.differences} == {()}  # They are named by their content.


def test_a_file_that_no_key_names_has_changed(two: Two) -> None:
    for tree, times in ((two.left, "1"), (two.right, "2")):
        tree.put("tunableop/tunableop_results0.csv", times.encode())

    found = two.compare()

    assert (brief(found), found.unread) == ([("changed", "tunableop/tunableop_results0.csv")], 0)
    assert found.differences[0].files == ()  # There are no others that it might be told from.


@pytest.mark.parametrize("path", ["triton/k/cuda_utils.so", "inductor/ab/cone.main.so"])
def test_an_object_whose_path_holds_its_key_is_rebuilt_if_only_its_bytes_differ(path: str) -> None:
    one, other = (side_of(Artifact(path, "", entry(content))) for content in ("one", "other"))

    assert [found.change for found in compare_sides(one, other).differences] == [Change.REBUILT]


def test_a_kernel_with_one_form_more_is_a_rebuilt_one() -> None:
    forms = [Artifact(f"triton/k/k.{suffix}", "", entry(suffix, Flag.GROUP, 2)) for suffix in ("ptx", "llir")]
    (found,) = compare_sides(side_of(forms[0]), side_of(*forms)).differences

    assert (found.change, found.fields, found.files) == (Change.REBUILT, (), ("k.llir",))


def test_one_more_answer_to_a_graphs_key_is_a_change(two: Two) -> None:
    for tree in (two.left, two.right):
        tree.graph("fone", "one")
    two.right.graph("fone", "another guard")
    found = two.difference()

    assert (found.change, found.fields) == (Change.CHANGED, (Field("entries", 1, 2),))


@pytest.mark.parametrize("path", ["{side}/fxgraph/ab/fone/entry", "{side}/aotautograd/aone/entry"])
def test_a_graph_of_the_same_key_below_another_folder_is_rebuilt(two: Two, path: str) -> None:
    """A serving engine has a folder for each model, and one for each of its ranks below that."""
    for tree, side in ((two.left, "one"), (two.right, "other")):
        tree.put(f"vllm/torch_compile_cache/{path.format(side=side)}", side.encode())

    assert two.difference().change is Change.REBUILT


def test_a_kernel_of_the_same_path_whose_list_differs_has_not_moved() -> None:
    kernel = Artifact("triton/k/k.ptx", "", entry("ptx", Flag.GROUP, 2))
    one, other = (
        side_of(kernel, Artifact("triton/k/__grp__k.json", "", entry(listed, Flag.GROUP, 2)))
        for listed in ("one", "other")
    )
    (found,) = compare_sides(one, other).differences

    assert (found.change, found.files) == (Change.REBUILT, ("__grp__k.json",))


def test_other_graphs_are_removed_and_added(two: Two) -> None:
    two.left.graph("fone")
    two.right.graph("ftwo")
    found = two.compare()

    assert brief(found) == [("removed", "fone"), ("added", "ftwo")]
    assert found.unread == 0


def test_the_same_kernel_of_another_rank_has_moved(two: Two) -> None:
    for tree, rank in ((two.left, 0), (two.right, 1)):
        put_kernel(tree, "triton_add", below=f"inductor/triton/{rank}")
    found = two.difference()

    assert (found.change, found.name, found.fields) == (Change.MOVED, "triton_add", ())


def test_cpp_kernels_are_named_by_the_module_that_calls_them(two: Two) -> None:
    for tree, body in ((two.left, "out[0] = 1;"), (two.right, "out[0] = 2;")):
        put_module(tree, {"cpp_fused_add_0": body})
        put_cpp(tree, body)
    found = two.compare().differences

    assert [(one.kind, one.change, one.name) for one in found if one.kind is Kind.CPP_KERNEL] == [
        (Kind.CPP_KERNEL, Change.CHANGED, "cpp_fused_add_0")
    ]
    assert [(one.change, one.calls) for one in found if one.kind is Kind.GENERATED_CODE] == [
        (Change.CHANGED, ("cpp_fused_add_0",))
    ]


def test_a_cpp_kernel_built_with_other_flags_is_named_by_a_module_that_both_have(two: Two, host: Host) -> None:
    for tree, flags in ((two.left, "-O2"), (two.right, "-O3")):
        put_module(tree, {"cpp_fused_add_0": "out[0] = 1;"})
        source = put_cpp(tree, "out[0] = 1;", flags)
        tree.put(source.replace(".cpp", ".so"), shared_object() + flags.encode())
        put_kernel(tree, "triton_add", flags=flags)
    found, _ = sorted(two.compare().differences, key=lambda difference: difference.kind)

    assert (found.name, found.change, found.files) == ("cpp_fused_add_0", Change.CHANGED, (".main.so",))


def test_the_module_of_one_triton_kernel_is_named_after_it(two: Two) -> None:
    for tree, body in ((two.left, "pass"), (two.right, "return")):
        put_named(tree, ".py", f"@triton.jit\ndef triton_red_fused_sum_7(in_ptr0):\n    {body}\n")

    assert brief(two.compare()) == [("changed", "triton_red_fused_sum_7")]


def test_a_tuned_choice_shows_what_was_chosen(two: Two) -> None:
    put_choice(two.left, "k", num_warps=4, XBLOCK=64, time_taken_ms=1)
    put_choice(two.right, "k", num_warps=8, XBLOCK=64, time_taken_ms=2)
    found = two.difference()

    assert (found.change, found.fields) == (Change.CHANGED, (Field("num_warps", 4, 8),))


def test_a_choice_that_is_too_large_to_be_read_is_not_told_as_one_without_options(two: Two) -> None:
    put_choice(two.left, "k", num_warps=4, padding="x" * (1 << 20))
    put_choice(two.right, "k", num_warps=8)
    found = two.compare()

    assert [(each.change, each.fields) for each in found.differences] == [(Change.CHANGED, ())]
    assert found.unread == 1


@pytest.mark.parametrize(
    ("path", "size", "unread"),
    [
        ("cone.main.cpp", 3 << 20, 1),
        ("cone.main.so", 3 << 20, 0),
        ("cone.py", 3 << 20, 1),
        ("one.best_config", 2 << 20, 1),
    ],
)
def test_what_would_tell_and_is_too_large_to_be_read_is_counted(path: str, size: int, unread: int) -> None:
    held = side_of(Artifact(f"inductor/ab/{path}", "", entry()._replace(size=size)))

    assert compare_sides(held, side_of()).unread == unread


def test_a_kernel_without_metadata_is_counted_among_what_nothing_more_is_known_about() -> None:
    kernel = Artifact("triton/k/k.ptx", "", entry("ptx", Flag.GROUP, 2))

    assert compare_sides(side_of(kernel), side_of()).unread == 1


def test_a_choice_is_named_by_the_kernel_that_it_chose(two: Two) -> None:
    for tree, warps in ((two.left, 4), (two.right, 8)):
        folder = put_kernel(tree, "triton_red_fused_sum_1", num_warps=warps)
        put_choice(tree, "k", num_warps=warps, triton_cache_hash=folder.partition("/")[2])
    choice = [found for found in two.compare().differences if found.kind is Kind.AUTOTUNE]

    assert [found.name for found in choice] == ["triton_red_fused_sum_1"]


def test_a_choice_of_another_kernel_is_named_by_the_one_that_is_chosen_now(two: Two) -> None:
    for tree, name in ((two.left, "triton_old"), (two.right, "triton_new")):
        folder = put_kernel(tree, name)
        put_choice(tree, "k", triton_cache_hash=folder.partition("/")[2])
    choice = [found.name for found in two.compare().differences if found.kind is Kind.AUTOTUNE]

    assert choice == ["triton_new"]


@pytest.mark.parametrize("metadata", [b"{", b"[1]", b'{"a": "' + b"x" * (1 << 20) + b'"}', b"\xff" * 100])
def test_a_kernel_with_broken_metadata_is_told_by_its_name(two: Two, metadata: bytes) -> None:
    put_kernel(two.left, "triton_add", metadata=metadata)
    put_kernel(two.right, "triton_add", num_warps=8)
    found = two.compare()

    assert brief(found) == [("changed", "triton_add")]
    assert found.differences[0].fields == ()  # Nobody knows what they were.
    assert found.unread == 1
    assert compare_sides(found.right, found.left).differences[0].fields == ()


@pytest.mark.parametrize(("path", "unread"), [("inductor/ab/cone.py", 0), ("inductor/ab/one.best_config", 1)])
def test_a_file_that_is_not_what_its_name_says_is_told_by_its_path(two: Two, path: str, unread: int) -> None:
    two.left.put(path, b"\xff{")
    two.right.put(path, b"{}")
    found = two.compare()

    assert (brief(found), found.unread) == ([("changed", path)], unread)


def test_a_lost_blob_costs_only_what_it_would_have_told(two: Two) -> None:
    folder = put_kernel(two.left, "triton_add")
    put_kernel(two.right, "triton_add", num_warps=8)
    for node, key in zip(two.nodes, ("m/v1", "m/v2"), strict=True):
        node.commit(key)
    entry = two.nodes[0].published("m/v1")[f"{folder}/triton_add.json"]
    for blob in Path(two.nodes[0].location).rglob(entry.digest.hex()):
        blob.unlink()
    found = kstore.compare(two.nodes[0].store, "m/v1", "m/v2")

    assert brief(found) == [("changed", "triton_add")]


def told_of_other_code(two: Two) -> list[tuple[str, bool | None]]:
    put_kernel(two.left, "triton_add", code="add", num_warps=4)
    put_kernel(two.right, "triton_add", code="sub", num_warps=8)
    comparison = two.compare()
    return [(found.name, found.other_code) for found in comparison.differences]


def test_code_that_is_too_large_is_not_looked_into(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MAX_SOURCE", 10)

    assert told_of_other_code(two) == [("triton_add", None)]


@pytest.mark.parametrize("side", [0, 1], ids=["left", "right"])
def test_what_a_store_cannot_give_just_now_costs_only_what_it_would_have_told(
    two: Two, side: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(sizes: Sizes) -> Iterator[tuple[bytes, bytes]]:
        raise StoreUnavailable("the store is down")
        yield

    assert told_of_other_code(two) == [("triton_add", True)]
    sides = [*find_sides(two.nodes[0].store, "m/v1", "m/v2")]
    sides[side] = replace(sides[side], fetch=fail)
    found = compare_sides(*sides)

    assert [(each.change, each.name, each.other_code) for each in found.differences] == [
        (Change.CHANGED, "triton_add", None)
    ]
    assert found.unread == 1
    assert "some files that describe others cannot be read: the store is down" in caplog.messages


def test_bytes_are_counted_once_a_blob(two: Two) -> None:
    two.left.put("inductor/ab/ca.py", b"both")
    two.left.put("inductor/ab/cb.py", b"left only")
    two.left.put("inductor/ab/cc.py", b"left only")
    two.right.put("inductor/ab/ca.py", b"both")
    two.right.put("inductor/ab/cd.py", b"right")
    found = two.compare()

    assert (found.shared, found.only_left, found.only_right) == (Count(1, 4), Count(1, 9), Count(1, 5))


def test_differences_between_the_builders_are_reported(tmp_path: Path) -> None:
    one, other = (
        Node(tmp_path, name, environment=environment) for name, environment in (("a", "torch-1"), ("b", "torch-2"))
    )
    one.tree.wrapper("one")
    one.commit("m/v1")
    other.tree.wrapper("two")
    other.commit("m/v2")
    facts = {fact.name: (fact.left, fact.right) for fact in kstore.compare(one.store, "m/v1", "m/v2").facts}

    assert facts == {
        "environment": ("torch-1", "torch-2"),
        "cache root": (str(one.tree.root), str(other.tree.root)),
    }


def test_objects_of_another_host_are_the_same_kernel_changed(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    for node, host, key in zip(two.nodes, ("a" * 16, "b" * 16), ("m/v1", "m/v2"), strict=True):
        monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _, host=host: Host(host, {"cpu": host}))
        node.tree.put("inductor/ab/cone.main.so", shared_object() + host.encode())
        node.commit(key)
    found = kstore.compare(two.nodes[0].store, "m/v1", "m/v2")

    assert [(one.change, one.fields) for one in found.differences] == [
        (Change.CHANGED, (Field("host", "a" * 16, "b" * 16),))
    ]
    assert Field("host cpu", "a" * 16, "b" * 16) in found.facts
    assert Field("hosts", "a" * 16, "b" * 16) in found.facts


def test_the_hosts_of_an_object_are_told_in_the_order_of_their_fingerprints() -> None:
    path, hosts = "inductor/ab/cone.main.so", "abcdefgh"
    one, other = (side_of(*(Artifact(path, host, entry(host)) for host in some)) for some in ("i", hosts))
    (found,), (back,) = compare_sides(one, other).differences, compare_sides(other, one).differences

    assert found.fields == (Field("host", "i", " ".join(hosts)),)
    assert back.fields == (Field("host", " ".join(hosts), "i"),)


def test_a_key_is_compared_with_the_cache_root_here(tmp_path: Path, layout: str, host: Host) -> None:
    node = Node(tmp_path, layout=layout)
    put_kernel(node.tree, "old")
    node.tree.put("inductor/ab/cone.main.so", shared_object())
    node.commit()

    assert not kstore.compare(node.store, KEY).differ

    put_kernel(node.tree, "new", num_warps=2)
    found = kstore.compare(node.store, f"{KEY}@1")

    assert brief(found) == [("added", "new")]
    assert found.differences[0].fields[0] == Field("num_warps", None, 2)
    assert (found.right.generation, found.right.label) == (0, str(node.tree.root))


@pytest.mark.parametrize("after", ["restore", "commit"])
def test_what_somebody_has_written_into_a_file_of_the_cache_root_is_seen(
    tmp_path: Path, layout: str, after: str, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder's times say nothing about that."""
    for module in ("found", "scan"):  # as if it had been there for a while
        monkeypatch.setattr(f"kstore.local.{module}.is_settled", lambda *_: True)
    builder = Node(tmp_path, "builder", layout=layout)
    put_kernel(builder.tree, "one")
    builder.commit()
    node = Node(tmp_path, layout=layout) if after == "restore" else builder
    assert node.restore().ok if after == "restore" else node.commit().ok
    assert not kstore.compare(node.store, KEY).differ

    path = next((node.tree.root / "triton").rglob("*.ptx"))
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(b"!" + data[1:])
    assert brief(kstore.compare(node.store, KEY)) == [("rebuilt", "one")]


def test_comparing_with_the_cache_root_leaves_out_other_hosts(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, elsewhere = Node(tmp_path, "here"), Node(tmp_path, "elsewhere")
    node.tree.put("inductor/ab/cone.main.so", shared_object())
    node.commit()
    monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host("b" * 16, {}))
    elsewhere.tree.put("inductor/ab/ctwo.main.so", shared_object())
    elsewhere.commit()
    monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _: host)
    again = Node(tmp_path, "here")

    assert not kstore.compare(again.store, KEY).differ


def test_of_several_hosts_a_side_keeps_only_what_the_one_would_restore() -> None:
    files = [Artifact(f"inductor/ab/cone{host}.main.so", host, entry(host)) for host in ("", "a", "b")]
    every = Side("m@1", Scope("gpu", "m", "torch"), 1, tuple(files), {"hosts": "a b", "torch": "2"}, lambda _: iter(()))

    assert every.for_host("a").artifacts == (files[0], files[1])
    assert every.for_host("a").facts == {"hosts": "a", "torch": "2"}
    for unlike in ("c", ""):
        assert every.for_host(unlike).artifacts == (files[0],)
        assert every.for_host(unlike).facts == {"torch": "2"}


def test_of_what_is_there_for_any_host_and_for_this_one_a_side_keeps_what_a_restore_would() -> None:
    """This host's file, and its group whole."""
    path, group = "inductor/ab/cone.main.so", "triton/k"
    anyones = Artifact(path, "", entry("any")), Artifact(f"{group}/k.json", "", entry("any", Flag.GROUP, 2))
    bound = Artifact(path, "a", entry("own")), Artifact(f"{group}/k.so", "a", entry("own", Flag.GROUP, 2))
    every = side_of(*anyones, *bound)

    assert sorted(every.for_host("a").artifacts) == sorted(bound)
    assert sorted(every.for_host("b").artifacts) == sorted(anyones)


def test_what_another_environments_cache_root_was_built_with_is_not_taken_from_this_process(tmp_path: Path) -> None:
    own, other = Node(tmp_path), Node(tmp_path, environment="torch-other")
    own.tree.wrapper()
    own.commit()
    scope = own.store.scope(KEY)
    certain = {"GPU": scope.gpu, "environment": scope.environment, "cache root": str(own.tree.root)}

    assert local_side(other.store, scope, ask_host=False).facts == certain
    assert local_side(own.store, scope, ask_host=False).facts == own.store.environment.facts | certain


def test_without_a_cache_root_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    node = Node(tmp_path, "builder")
    node.tree.wrapper()
    node.commit()
    with pytest.raises(MissError, match="no cache root"):
        kstore.compare(Node(tmp_path, "other").store, KEY)

    assert not (tmp_path / "other").exists()


def test_nothing_is_written_by_comparing(tmp_path: Path, host: Host) -> None:
    node = Node(tmp_path)
    put_kernel(node.tree, "old")
    node.commit()
    put_kernel(node.tree, "new")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    kstore.compare(node.store, KEY)

    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_only_the_small_files_of_what_differs_are_read(two: Two) -> None:
    for tree in (two.left, two.right):
        put_kernel(tree, "same")
        put_module(tree, {"cpp_fused_add_0": "out[0] = 1;"})
        tree.graph("fsame", "same")
    put_kernel(two.left, "changed", num_warps=4)
    put_kernel(two.right, "changed", num_warps=8)
    two.left.graph("fone", "one")
    two.right.graph("fone", "two")
    comparison = two.compare()
    read: list[str] = []

    def watched(side: Side) -> Side:
        paths = {artifact.entry.digest: artifact.path.rpartition("/")[2] for artifact in side.artifacts}

        def fetch(wanted: Sizes) -> Iterator[tuple[bytes, bytes]]:
            for digest, data in side.fetch(wanted):
                read.append(paths[digest])
                yield digest, data

        return Side(side.label, side.scope, side.generation, side.artifacts, side.facts, fetch)

    compare_sides(watched(comparison.left), watched(comparison.right))

    assert sorted(read) == ["changed.json"] * 2


def test_it_can_be_written_as_json(two: Two) -> None:
    put_kernel(two.left, "triton_add", num_warps=4)
    put_kernel(two.right, "triton_add", num_warps=8)
    (found,) = two.compare().differences
    content = json.loads(json.dumps(found.describe()))

    assert content["fields"] == [{"name": "num_warps", "left": 4, "right": 8}]
    assert (content["change"], content["kind"], content["component"]) == ("changed", "triton-kernel", "triton")


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"environment": [], "host": 7, "cache_root": None},
        {"environment": {"GPU": "another", "environment": "another"}, "host": {"y" * 100_000: "cpu"}},
        {"environment": {"torch": {"a": []}, "cuda": "x" * 100_000}, "cache_root": {"a": "b"}, "folders": "none"},
    ],
)
def test_facts_that_anybody_may_have_written_are_taken_with_care(meta: dict[str, object]) -> None:
    facts = _published_facts(Scope("gpu", "m", "torch"), Manifest(meta=meta))

    assert {"GPU": "gpu", "environment": "torch"}.items() <= facts.items()
    assert max(map(len, (*facts, *facts.values()))) <= len("host ") + 4096


def test_what_is_known_about_one_side_alone_is_no_difference() -> None:
    left = Side("m@1", Scope("gpu", "m", "torch"), 1, (), {"cuda": "12", "torch": "2"}, lambda sizes: iter(()))
    right = replace(left, facts={"torch": "3", "triton": "3"})

    assert compare_sides(left, right).facts == (Field("torch", "2", "3"),)


def test_paths_that_anybody_may_have_written_are_compared_all_the_same() -> None:
    paths = ("", "/", "a\nb/c", "triton/\x1b/k.json", "inductor/fxgraph", "\udcff/x", "triton/" + "a/" * 100)
    entries = tuple(
        Artifact(path, "", entry(repr(path), Flag.GROUP, unit)) for path in paths for unit in (0, 1, 2, 255)
    )
    found = compare_sides(side_of(*entries), side_of())

    assert {difference.change for difference in found.differences} == {Change.REMOVED}


def kernel_of(*names: str) -> Item:
    """A Triton kernel with these files."""
    (item,) = items_of(Artifact(f"triton/x/{name}", "", entry(name, Flag.GROUP, 2)) for name in names).values()
    return item


def test_of_several_sources_in_one_folder_the_first_by_name_is_a_kernels_code() -> None:
    """A set of them is in another order in each process."""
    item = kernel_of(*(f"k{number:02}.{suffix}" for number in range(20) for suffix in ("source", "json")))
    code, metadata = item.code(), item.metadata()

    assert code and code.name == "k00.source"
    assert metadata and metadata.name == "k00.json"


def test_where_there_is_no_source_the_next_form_is_a_kernels_code() -> None:
    code = kernel_of("k.json", "k.ptx", "k.ttir").code()

    assert code and code.name == "k.ttir"
    assert (whole := kernel_of("k.json", "k.source", "k.ttir").code()) and whole.name == "k.source"
    assert kernel_of("k.json", "k.ptx").code() is None


def test_a_kernels_hosts_are_those_that_any_of_its_files_is_bound_to() -> None:
    files = [Artifact(f"triton/x/k.{host}", host, entry(host, Flag.GROUP, 2)) for host in ("", "a", "b")]
    (item,) = items_of(files).values()

    assert item.hosts == {"a", "b"}


def test_what_is_for_any_host_and_a_cache_root_are_told_as_having_no_host_and_no_generation() -> None:
    file = Artifact("inductor/ab/c.py", "", entry("c"))

    assert file.describe()["host"] is None
    assert file._replace(host="a").describe()["host"] == "a"
    assert replace(side_of(file), generation=0).describe()["generation"] is None


def test_files_of_a_cache_root_that_are_bound_to_this_host_are_told_so_unasked(tmp_path: Path, host: Host) -> None:
    node = Node(tmp_path)
    bound = node.tree.put("inductor/ab/cone.main.so", shared_object())
    node.tree.put("inductor/ab/empty.py", b"")
    side = local_side(node.store, node.store.scope(KEY), ask_host=False)

    assert [(artifact.path, artifact.host) for artifact in side.artifacts] == [(bound, host.fingerprint)]
    assert side.facts["hosts"] == host.fingerprint
    assert [skipped.path for skipped in side.skipped] == ["inductor/ab/empty.py"]
    assert list(side.fetch({entry("another").digest: 7})) == []


def test_numbers_among_the_facts_and_the_hosts_of_a_generation_are_told_as_text() -> None:
    manifest = Manifest({}, {"b": {}, "a": {}}, {"environment": {"cuda": 12.8}})
    facts = _published_facts(Scope("gpu", "m", "torch"), manifest)

    assert (facts["cuda"], facts["hosts"]) == ("12.8", "a b")
