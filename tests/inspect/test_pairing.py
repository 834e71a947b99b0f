from __future__ import annotations

from kstore.inspect.contents import Content
from kstore.inspect.items import Item, Part
from kstore.inspect.kinds import Kind
from kstore.inspect.pairing import Named, pair_items


def variant(folder: str, code: str, **options: int) -> Named:
    """One of several Triton kernels of the same name."""
    part = Part("k.ptx", "", code.encode(), len(code))
    return Named(Item(Kind.TRITON_KERNEL, folder, frozenset({part})), Content("k", options))


def paired(left: list[Named], right: list[Named]) -> set[tuple[str, str]]:
    return {(one.item.unit if one else "", other.item.unit if other else "") for one, other in pair_items(left, right)}


def test_what_has_the_same_path_is_compared_whatever_else_has_its_name() -> None:
    left = [variant("a", "one", num_warps=8), variant("b", "two", num_warps=4)]

    assert paired(left, [variant("b", "other", num_warps=8)]) == {("a", ""), ("b", "b")}


def test_what_has_the_same_bytes_is_compared_whatever_else_has_its_name() -> None:
    left = [variant("b", "two"), variant("a", "one")]

    assert paired(left, [variant("c", "two")]) == {("a", ""), ("b", "c")}


def test_the_variant_that_is_least_like_the_others_is_left_over() -> None:
    left = [variant("a", "one", num_warps=1, shared=1), variant("b", "two", num_warps=8)]
    right = [variant("c", "three", num_warps=8, maxnreg=64)]

    assert paired(left, right) == {("a", ""), ("b", "c")}
    assert paired(right, left) == {("", "a"), ("c", "b")}


def test_of_very_many_variants_those_with_the_same_configuration_are_compared() -> None:
    left = [variant(f"left {number}", f"one {number}", shared=number) for number in range(100)]
    right = [variant(f"right {number}", f"other {number}", shared=number) for number in reversed(range(100))]

    assert paired(left, right) == {(f"left {number}", f"right {number}") for number in range(100)}


def test_of_many_variants_with_one_more_option_the_nearest_are_compared() -> None:
    """Autotuning compiles a kernel under a hundred configurations."""
    left = [variant(f"left {number}", f"one {number}", num_stages=number) for number in range(100)]
    right = [variant(f"{number}", f"other {number}", num_stages=number, maxnreg=64) for number in reversed(range(100))]

    assert paired(left, right) == {(f"left {number}", f"{number}") for number in range(100)}


def test_of_very_many_variants_none_is_left_out() -> None:
    left = [variant(f"left {number}", f"one {number}", num_warps=4, shared=number) for number in range(300)]
    right = [variant(f"right {number}", f"other {number}", num_warps=8, shared=number) for number in range(299)]
    found = paired(left, right)

    assert sorted(one for one, _ in found) == sorted(each.item.unit for each in left)
    assert sorted(other for _, other in found if other) == sorted(each.item.unit for each in right)
