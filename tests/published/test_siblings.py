"""A new key's first pack leaves out what keys with similar names have."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstore.published.siblings import nearest
from tests.trees import ENVIRONMENT, Node


@pytest.mark.parametrize(
    ("own", "names", "expected"),
    [
        ("v3", ["v1", "v2", "v4"], ["v2", "v1", "v4"]),
        ("v11", ["v1", "v2", "v9", "v10"], ["v10", "v9", "v2", "v1"]),
        ("2026-11-25", ["2026-01-03", "2026-11-24", "2025-12-31"], ["2026-11-24", "2026-01-03", "2025-12-31"]),
        ("a", ["b", "a", "c"], ["b", "c"]),
        ("unet-v2", ["bert", "unet-v1", "vae"], ["unet-v1", "bert", "vae"]),
        ("v2", [], []),
    ],
)
def test_those_named_most_like_it_come_first(own: str, names: list[str], expected: list[str]) -> None:
    assert nearest(own, names) == expected


def worker(folder: Path, key: str, *, environment: str = ENVIRONMENT) -> Node:
    return Node(folder, f"{environment}/{key}", layout="packed", environment=environment)


def release(folder: Path, number: int, *kernels: str, environment: str = ENVIRONMENT) -> int:
    """Commit a release from a fresh container. Returns how many blobs that stored."""
    node = worker(folder, f"v{number}", environment=environment)
    for kernel in kernels:
        node.tree.kernel(kernel)
    return node.commit(f"model/v{number}").new_blobs


def test_a_new_release_after_many_shares_with_the_last(tmp_path: Path) -> None:
    for number in range(1, 41):
        release(tmp_path, number, f"kernel of {number}")

    alone, shared = release(tmp_path, 42, "another kernel"), release(tmp_path, 41, "kernel of 40")

    assert shared == 1  # the manifest
    assert alone > shared


def test_other_environments_take_nobodys_place(tmp_path: Path) -> None:
    release(tmp_path, 1, "kernel")
    for number in range(2, 36):
        release(tmp_path, 1, f"of torch {number}", environment=f"torch-{number}")
        release(tmp_path, 2, f"later, of torch {number}", environment=f"torch-{number}")

    assert release(tmp_path, 2, "kernel") == 1


def test_releases_of_another_model_are_not_asked(tmp_path: Path) -> None:
    release(tmp_path, 1, "kernel")
    node = worker(tmp_path, "other")
    node.tree.kernel("kernel")

    assert node.commit("another/v1").new_blobs > 1


def test_a_release_that_was_forgotten_is_not_relied_upon(tmp_path: Path) -> None:
    release(tmp_path, 1, "kernel")
    worker(tmp_path, "v1").store.forget("model/v1")

    assert release(tmp_path, 2, "kernel") > 1
