from __future__ import annotations

import json

import pytest

from kstore.inspect.kernels import (
    chosen_kernel,
    code_digest,
    definitions,
    jitted_name,
    read_choice,
    read_configuration,
    source_digest,
)


def test_a_kernels_options_and_results_are_read() -> None:
    data = json.dumps({"num_warps": 4, "shared": 0, "target": {"arch": 90}, "maxnreg": None, "cluster_dims": [1, 2, 1]})

    assert read_configuration(data.encode()) == {
        "num_warps": 4, "shared": 0, "target.arch": 90, "maxnreg": None, "cluster_dims": "1 2 1",
    }  # fmt: skip


def test_what_only_names_it_or_its_builder_is_no_configuration() -> None:
    data = json.dumps({"hash": "0123", "name": "k", "extern_libs": [["libdevice", "/x"]], "num_warps": 4})

    assert read_configuration(data.encode()) == {"num_warps": 4}


def test_when_and_how_a_choice_was_made_is_no_choice() -> None:
    data = json.dumps({"XBLOCK": 64, "time_taken_ms": 3, "configs_hash": "a", "triton_cache_hash": "B"})

    assert read_choice(data.encode()) == {"XBLOCK": 64}


@pytest.mark.parametrize("value", [[[1]], [1, {}], {"b": [1]}, {"b": {"c": 1}}])
def test_what_is_neither_a_value_nor_a_list_of_values_is_left_out(value: object) -> None:
    """The others can be compared, and be part of a set."""
    assert read_configuration(json.dumps({"a": value, "num_warps": 4}).encode()) == {"num_warps": 4}


@pytest.mark.parametrize("data", [b"{", b"[]", b"{}", b'{"triton_cache_hash": [1]}'])
def test_a_choice_that_names_no_kernel_is_that_of_none(data: bytes) -> None:
    assert chosen_kernel(data) == ""


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a": ' * 100_000])
def test_broken_metadata_is_none(data: bytes) -> None:
    assert read_configuration(data) is None
    assert read_choice(data) is None


def test_metadata_with_far_too_much_in_it_is_cut() -> None:
    data = json.dumps({f"option{number}": "x" * 1000 for number in range(1000)}).encode()
    found = read_configuration(data)

    assert found and len(found) == 200
    assert {len(str(value)) for value in found.values()} == {200}


def test_what_json_cannot_say_becomes_text() -> None:
    assert read_configuration(b'{"a": NaN, "b": -Infinity, "c": 1.5}') == {"a": "nan", "b": "-inf", "c": 1.5}


MODULE = """
cpp_fused_add_0 = async_compile.cpp_pybinding(['float*'], r'''
one
''')

triton_poi_fused_mul_1 = async_compile.triton('triton_poi_fused_mul_1', '''
@triton.jit
def triton_poi_fused_mul_1(in_ptr0):
    pass
''', device_str='cuda')
"""


def test_a_modules_kernels_are_found_with_their_sources() -> None:
    found = list(definitions(MODULE))

    assert [kernel.name for kernel in found] == ["cpp_fused_add_0", "triton_poi_fused_mul_1"]
    assert found[0].digest == source_digest(b"\none\n// Python bindings to call kernel():\nmore")


@pytest.mark.parametrize("text", ["", "a = async_compile.cpp(", "a = async_compile.cpp(r'''no end", "x" * 100_000])
def test_a_module_cut_short_has_no_kernels(text: str) -> None:
    assert list(definitions(text)) == []


def test_of_a_module_cut_short_the_kernels_before_the_cut_are_found() -> None:
    end = MODULE.rindex("'''")

    for cut in (MODULE[:end], MODULE[: MODULE.rindex("'''", 0, end)]):
        assert [kernel.name for kernel in definitions(cut)] == ["cpp_fused_add_0"]


def test_a_definition_without_a_source_hides_no_other() -> None:
    text = "first = async_compile.triton(name)\n" + " " * 100_000 + MODULE

    assert [kernel.name for kernel in definitions(text)] == ["cpp_fused_add_0", "triton_poi_fused_mul_1"]


@pytest.mark.parametrize("after", ["", " " * 100_000 + "'''source'''"])
def test_a_module_full_of_definitions_without_a_source_is_searched_once(after: str) -> None:
    searched = 0

    class Text(str):
        """Notes how much of it is searched for quotes."""

        __slots__ = ()

        def find(self, text: str, start: int = 0, end: int | None = None) -> int:  # type: ignore[override]
            nonlocal searched
            found = super().find(text, start, end)
            searched += (found if found >= 0 else min(len(self), end or len(self))) - start
            return found

    text = Text("name = async_compile.triton(\n" * 10_000 + after)

    assert list(definitions(text)) == []
    assert searched <= 2 * len(text)


def test_a_module_of_one_kernel_is_named_after_it() -> None:
    assert jitted_name("@triton.jit\ndef triton_red_fused_sum_7(in_ptr0):\n    pass\n") == "triton_red_fused_sum_7"
    assert jitted_name("def call(args):\n    pass\n") == ""


def test_lines_and_paths_are_no_part_of_the_code() -> None:
    one = b'#loc = loc("/a/k.py":12:0)\nmodule {\n  tt.func @k(%x loc("x"(#loc))) {\n    %a = add loc(#loc3)\n  }\n}\n'
    other = one.replace(b"/a/k.py", b"/b/k.py").replace(b":12:", b":99:").replace(b"#loc3", b"#loc41")

    assert one != other
    assert code_digest(one) == code_digest(other)
    assert code_digest(one) != code_digest(one.replace(b"add", b"sub"))


def test_the_place_in_a_last_line_without_its_end_is_no_part_of_the_code() -> None:
    one = b'module {\n}\n#loc1 = loc("/a/k.py":12:0)'

    assert code_digest(one) == code_digest(one.replace(b":12:", b":99:")) == code_digest(one + b"\n")


def test_code_full_of_places_without_an_end_of_line_is_read_in_one_go() -> None:
    assert code_digest(b" loc(#loc" * 200_000) == code_digest(b" loc(#loc")
