from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.errors import UsageError
from kstore.scope import MAX_KEY_LENGTH, Scope, check_key


@pytest.mark.parametrize("key", ["m", "my-model/v1", "A.b_c-D/0", "a/b/c/d", "-", "_", "a..b", "k" * MAX_KEY_LENGTH])
def test_good_keys(key: str) -> None:
    assert check_key(key) == key


BAD_KEYS: list[Any] = [
    "",
    "/",
    "/abs",
    "a/",
    "a//b",
    ".",
    "..",
    "../x",
    "a/../b",
    ".hidden",
    "a/.hidden",
    "@env",
    "a/@env",
    "a b",
    "a\0b",
    "a\n",
    "modèle",
    "a\\b",
    "k" * (MAX_KEY_LENGTH + 1),
    None,
    5,
    b"bytes",
    ["a"],
]


@pytest.mark.parametrize("key", BAD_KEYS, ids=repr)
def test_bad_keys_are_refused(key: Any) -> None:
    with pytest.raises(UsageError):
        check_key(key)


@given(st.text(max_size=30))
def test_an_accepted_key_is_a_folder_that_stays_inside(key: str) -> None:
    try:
        check_key(key)
    except UsageError:
        return
    parts = key.split("/")
    assert all(part and part[0] not in ".@" for part in parts)
    assert key.isascii()


def test_a_refused_key_is_a_value_error_too() -> None:
    with pytest.raises(ValueError, match="my-model/v1"):
        check_key("no key")


def test_the_folder_of_a_scope() -> None:
    assert Scope("gpu-sm90", "model/v1", "torch-2.13+cu130").path == "gpu-sm90/model/v1/@torch-2.13+cu130"


@pytest.mark.parametrize(("gpu", "environment"), [("", "e"), ("g", ""), ("../g", "e"), ("g", "a/b"), ("g", "@e")])
def test_bad_names_of_gpu_and_environment_are_refused(gpu: str, environment: str) -> None:
    with pytest.raises(UsageError):
        Scope(gpu, "key", environment)
