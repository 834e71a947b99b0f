"""MiniMax's sparse attention: a folder for each recipe, with libraries and the list of what each was built from."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstore.environment import Host
from tests.trees import Node, contents, held, on_host, restored_on, shared_object

TOOLCHAIN = "v2/92df60e75d5603cc"
RECIPE = f"{TOOLCHAIN}/fmha_0_1_0_3_1_0_0-b6f944cb3e5a"
KEPT = {"entry.json": b"{}", "fmha_0_1_0_3_1_0_0-5702e91e0b4b.so": shared_object()}
"""What `Recipe.lookup` reads."""
PLACES = ("msa", "msa/prefill_q8kv4", "msa/decode_q8kv4")
everywhere = pytest.mark.parametrize("place", PLACES)


def build(node: Node, place: str = "msa") -> dict[str, bytes]:
    """Write what `Recipe.build` leaves, and return what of it is to be stored."""
    node.tree.put(f"{place}/{TOOLCHAIN}/manifest.json", b"{}")
    for name, data in KEPT.items():
        node.tree.put(f"{place}/{RECIPE}/{name}", data)
    ninja = "build.ninja", ".ninja_log", ".ninja_deps", ".ninja_lock"
    for name in (".lock", "lock", "fmha_run.cu", "fmha_run.o", ".entry.json.a1b2.tmp", *ninja):
        node.tree.put(f"{place}/{RECIPE}/{name}", b"on the way to the library")
    return {f"{place}/{TOOLCHAIN}/manifest.json": b"{}"} | {f"{place}/{RECIPE}/{n}": data for n, data in KEPT.items()}


@everywhere
def test_libraries_and_their_list_are_all_that_is_stored(tmp_path: Path, host: Host, place: str) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    kept = build(node, place)
    node.tree.put(f"{place}/capability_probes/a2af1f4b7b9a1e2a/qmul4.result", b"supported\n")
    assert node.commit().new_files == len(kept)
    other.restore()
    assert contents(other.tree.root) == kept
    assert all((other.tree.root / path).stat().st_nlink > 1 for path in kept)


@pytest.mark.parametrize(
    "library",
    [
        "0_1_0_3_1_0_0/0_1_0_3_1_0_0.so", "plan/fmha_sm100_plan.so", "_all_variants/all_variants.so",
        "prefill_q8kv4/prefill_attention_q8kv4_shift0_100a_0f1e/_fmha_sm100_prefill.so",
    ],
)  # fmt: skip
def test_a_library_that_older_versions_would_take_as_it_is_is_not_stored(
    tmp_path: Path, host: Host, library: str
) -> None:
    node = Node(tmp_path)
    node.tree.put(f"msa/{library}", shared_object())
    assert node.commit().new_files == 0


@everywhere
def test_a_folder_that_is_being_built_waits(tmp_path: Path, host: Host, place: str) -> None:
    node = Node(tmp_path)
    kept = build(node, place)
    with held(node.tree.root / place / RECIPE / ".lock"):
        assert node.commit().new_files == 1  # the toolchain's manifest
    (node.tree.root / place / RECIPE / "entry.json").unlink()
    assert node.commit().new_files == 0
    build(node, place)
    assert node.commit().new_files == len(kept) - 1


def test_a_host_unlike_the_builders_gets_neither_library_nor_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    on_host(monkeypatch, "a")
    build(node)
    node.commit()
    assert not restored_on(monkeypatch, tmp_path, "b").tree.has(f"msa/{RECIPE}")
