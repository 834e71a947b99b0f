"""FlashInfer's operations: ninja goes by times, and would load what another worker's flags were built to."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from kstore.components import load_table
from kstore.environment import Host
from tests.trees import Node, contents, shared_object

ARCHITECTURE = "flashinfer/.cache/flashinfer/0.7.2/90a"
OPERATION = f"{ARCHITECTURE}/cached_ops/decode_f16"
LOCK = f"{ARCHITECTURE}/cached_ops/tmp/decode_f16.lock"
"""Of the operation's name (`JitSpec.lock_path`)."""
CUTE_DSL = f"{ARCHITECTURE}/cached_ops/quantize_sm90a_cute_dsl"


@pytest.fixture(autouse=True)
def known(host: Host) -> None:
    """A host that is known without running the compiler."""


def build(node: Node, compiler: str, linker: str = "1") -> None:
    """What `JitSpec.build` leaves of an operation of one source, built with those flags."""
    node.tree.put(LOCK, b"")
    node.tree.put(f"{OPERATION}/build.ninja", f"cuda_cflags = {compiler}\nldflags = {linker}".encode())
    node.tree.put(f"{OPERATION}/.ninja_log", f"{compiler} {linker}".encode())
    node.tree.put(f"{OPERATION}/csrc_decode.cuda.o", shared_object() + compiler.encode())
    node.tree.put(f"{OPERATION}/decode_f16.so", shared_object() + f"{compiler} {linker}".encode())


def built(node: Node) -> dict[str, bytes]:
    return contents(node.tree.root / OPERATION)


def test_flags_and_objects_of_two_workers_are_never_mixed(tmp_path: Path) -> None:
    base = Node(tmp_path, "base")
    build(base, "1")
    base.commit()
    changes_compiler, changes_linker = Node(tmp_path, "compiler"), Node(tmp_path, "linker")
    for node in (changes_compiler, changes_linker):
        node.restore()
        assert built(node) == built(base)
    build(changes_compiler, "2")
    build(changes_linker, "1", "2")
    assert changes_linker.commit().new_files == 4
    assert changes_compiler.commit().declined == 4
    other = Node(tmp_path, "other")
    other.restore()
    assert built(other) == built(changes_linker)


def test_one_that_is_not_linked_yet_waits_for_the_next_commit(tmp_path: Path) -> None:
    node = Node(tmp_path)
    build(node, "1")
    library = node.tree.root / OPERATION / "decode_f16.so"
    library.unlink()
    assert node.commit().new_files == 0
    build(node, "1")
    assert node.commit().new_files == 4


def test_one_whose_lock_is_held_waits_for_the_next_commit(tmp_path: Path) -> None:
    node = Node(tmp_path)
    build(node, "1")
    with (node.tree.root / LOCK).open("w") as builder:
        fcntl.flock(builder.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert node.commit().new_files == 0
    assert node.commit().new_files == 4


def test_kernels_of_its_cute_dsl_are_complete_with_what_they_were_compiled_from(tmp_path: Path) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    node.tree.put(f"{CUTE_DSL}/quantize_f16.o", shared_object())
    assert node.commit().new_files == 0
    node.tree.put(f"{CUTE_DSL}/meta.json", b'{"arch": "sm90a"}')
    assert node.commit().new_files == 2
    other.restore()
    assert contents(other.tree.root / CUTE_DSL) == contents(node.tree.root / CUTE_DSL)


def test_what_ninja_is_told_of_all_operations_together_is_no_operation() -> None:
    assert load_table()["flashinfer"].ignores("0.7.2/90a/cached_ops/tmp/")
