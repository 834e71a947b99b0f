"""What torch has counted in this process. Never imports torch."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Self

_HITS = (("inductor", "fxgraph_cache_hit"),)
_MISSES = (
    ("inductor", "fxgraph_cache_miss"),
    ("inductor", "fxgraph_cache_bypass"),
    ("aot_autograd", "autograd_cache_saved"),
)
"""Counters that grow only when something is compiled. Others reappear on a hit, because torch then adds what it counted
when it compiled (`FxGraphCache.cache_hit_post_compile`), and `autograd_cache_miss` also counts lookups made for
nothing, when Dynamo restarts a trace.
"""


@dataclass(frozen=True, slots=True)
class Counters:
    """Lookups of graphs so far."""

    hits: int = 0
    misses: int = 0
    bypassed: int = 0
    """Misses of graphs that torch cannot cache, as with freezing: they say nothing about the objects in them."""

    @classmethod
    def now(cls) -> Self:
        """What torch has counted so far; nothing if it has not been imported."""
        counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
        # A graph and its AOT entry are compiled together, so the two counts overlap: the larger one is taken.
        graphs = _sum(counters, _MISSES[:2])
        return cls(_sum(counters, _HITS), max(graphs, _sum(counters, _MISSES[2:])), _sum(counters, _MISSES[1:2]))

    def since(self, before: Counters) -> Counters:
        """What has been counted since; everything if torch was told to count anew."""
        if self.hits < before.hits or self.misses < before.misses:
            return self
        bypassed = max(0, self.bypassed - before.bypassed)
        return Counters(self.hits - before.hits, self.misses - before.misses, bypassed)


def _sum(counters: Any, names: tuple[tuple[str, str], ...]) -> int:
    # A Counter of Counters: looking up a missing name would add it.
    return sum(counters[area].get(name, 0) for area, name in names if area in counters)
