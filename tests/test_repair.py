"""Verify and repair beside other keys and other workers: nothing that is whole is lost, and nothing that was committed."""

from __future__ import annotations

import random
from itertools import accumulate
from pathlib import Path

import pytest

from kstore.blobs.packindex import pack_name
from kstore.environment import Host
from tests.gc.stores import kernels, restored
from tests.trees import Node

OTHER = "model/v2"


@pytest.fixture(autouse=True)
def known(host: Host) -> None:
    """A host that is known without running the compiler."""


def rot_frame(node: Node, path: str) -> None:
    """The frame of a pack that an artifact is in changes."""
    (pack,) = node.newest().packs
    index = node.store.storage.blobs.pack(pack).index
    number = index.digests.index(node.published()[path].digest)
    ends = accumulate(frame.blobs for frame in index.frames)
    frame = next(frame for frame, end in zip(index.frames, ends, strict=True) if number < end)
    rot(node.location / pack_name(pack), frame.offset + frame.packed_size // 2)


def rot(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.chmod(0o644)
    path.write_bytes(data)


def large(node: Node) -> None:
    """A file that has a frame of its own."""
    node.tree.put("inductor/ab/clarge.py", random.Random(1).randbytes(5 << 20))


def test_what_another_key_has_lost_comes_back_with_its_next_commit(tmp_path: Path) -> None:
    first, second = Node(tmp_path, "first", layout="packed"), Node(tmp_path, "second", layout="packed")
    kernel = first.tree.kernel("of the first only")
    large(first)
    first.commit()
    large(second)
    second.commit(OTHER)
    rot_frame(first, f"{kernel}/k.cubin")
    assert second.store.verify(OTHER, repair=True).repaired
    first.commit()
    assert restored(tmp_path, "third") == kernels(first)
