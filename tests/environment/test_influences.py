"""What environment variables change keys, and which of their values are alike."""

from __future__ import annotations

import os

import pytest

from kstore.environment.influences import have_same_keys, influence, influences, processors, switched_off, threads


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("CI", "true", "0"),  # Whatever it is, torch takes it for true.
        ("TRITON_DEBUG", "ON", "true"),
        ("TRITON_DEBUG", "off", "0"),
        ("INDUCTOR_PROVENANCE", "0", None),
        ("FAKE_ALLOW_META", "1", None),
        ("AOT_PARTITIONER_DEBUG", "0", None),
        ("PARTITIONER_MEMORY_BUDGET_PARETO", "0", None),
        ("ENABLE_HOST_SIDE_TMA", "0", None),  # of torch 2.15
    ],
)
def test_values_of_one_meaning_make_the_same_keys(name: str, one: str, other: str | None) -> None:
    assert have_same_keys(name, one, other)


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("CI", "0", None),
        ("TRITON_DEBUG", "0", None),
        ("CXX", "CLANG++", "clang++"),
        ("TORCHINDUCTOR_CPP_MARCH", "on", "1"),
        ("FAKE_ALLOW_META", "0", None),
    ],
)
def test_values_of_other_meanings_make_other_keys(name: str, one: str, other: str | None) -> None:
    assert not have_same_keys(name, one, other)


def test_a_tag_that_the_user_gives_keys_is_in_every_graphs() -> None:
    assert influence("TORCH_COMPILE_CACHE_KEY_TAG") == "every graph"


@pytest.mark.parametrize(
    "name",
    [
        "ATEN_CPU_CAPABILITY",
        "TORCH_COMPILE_CACHE_KEY_TAG",
        "TORCHINDUCTOR_BUNDLE_TRITON_INTO_FX_GRAPH_CACHE",
        "TORCHINDUCTOR_AUTOTUNE_AT_COMPILE_TIME",
        "TORCHINDUCTOR_PROFILE",  # Empty text is the default.
    ],
)
def test_what_is_as_good_as_not_set_if_it_is_empty_has_no_influence_then(name: str) -> None:
    assert influences({name: "", "CXX": ""}) == {"CXX": ""}
    assert influences({name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    ("said", "expected"), [(" 2 ,1", 2), ("3", 3), ("9", 4), ("0", 4), ("-1", 4), ("many", 4), ("", 4), ("²", 4)]
)
def test_what_is_no_number_of_threads_is_not_taken_for_one(said: str, expected: int) -> None:
    assert threads({"OMP_NUM_THREADS": said}, of=4) == expected


def test_a_number_of_processors_that_nobody_knows_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert processors() == 1


@pytest.mark.parametrize("word", ["1", "y", "Yes", "on", "TRUE"])
def test_tritons_cache_may_be_switched_off_in_other_words(word: str) -> None:
    environ = {"TRITON_ALWAYS_COMPILE": word, "VLLM_DISABLE_COMPILE_CACHE": "1"}
    assert switched_off(environ) == list(environ)


@pytest.mark.parametrize("word", ["0", "n", "No", "off", "FALSE", ""])
def test_tritons_cache_may_be_left_on_in_other_words(word: str) -> None:
    assert switched_off({"TRITON_INTERPRET": word, "VLLM_DISABLE_COMPILE_CACHE": "0"}) == []
