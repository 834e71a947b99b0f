"""Stores with several keys, GPUs and generations, and what is known of their restores."""

from __future__ import annotations

from pathlib import Path

from kstore.report import RestoreStatus
from kstore.stats.totals import Sample
from kstore.storage import Storage
from tests.trees import Node

A100, H100 = "nvidia-a100-sm80", "nvidia-h100-sm90"


def commit(folder: Path, key: str, *kernels: str, gpu: str = H100, layout: str = "packed") -> Node:
    """Publish one more generation of a key, with these Triton kernels and one module of the key's own."""
    node = Node(folder, f"{gpu}-{key.replace('/', '-')}", layout=layout, gpu=gpu)
    for kernel in kernels:
        node.tree.kernel(kernel)
    node.tree.wrapper(f"{key} on {gpu}")
    assert node.commit(key).ok
    return node


def busy_store(folder: Path) -> Storage:
    """Three keys of two GPUs, loose and packed, which share some kernels and not others."""
    commit(folder, "llama/v1", "shared", "one")
    commit(folder, "llama/v1", "two")
    commit(folder, "llama/v2", "shared", "one", "three")
    commit(folder, "llama/v1", "shared", gpu=A100, layout="loose")
    commit(folder, "flux/dev", "flux", layout="loose")
    commit(folder, "flux/dev", "shared", "flux two", layout="packed")
    return commit(folder, "flux/dev", "shared", gpu=A100, layout="loose").store.storage


def sample(status: str = "restored", seconds: float = 0.5, *, at: float = 1000.0, worker: str = "me@here") -> Sample:
    return Sample(at, RestoreStatus(status), 3, seconds, 0.0, 20, 4000, 20, 0, "hardlink", worker)
