"""Who compiles for others that wait."""

from __future__ import annotations

from kstore.lease import Claim
from kstore.operations.wait import lease_of
from tests.trees import KEY, Node


def claim(node: Node, key: str = KEY) -> Claim | None:
    return lease_of(node.store.storage, node.store.scope(key), 1.0).newest()


def is_held(node: Node) -> bool:
    newest = claim(node)
    return newest is not None and not newest.is_released
