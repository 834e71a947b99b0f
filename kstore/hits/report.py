"""What became of what was restored, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kstore.report import SCHEMA
from kstore.words import plural

DRIVER = "cuda"
"""The component of what the CUDA driver keeps for all libraries of a process. Some of it is new in every process, under
new names, whatever was restored (seen with torch 2.11 on an H100): none of it says anything about hits.
"""


@dataclass(frozen=True, slots=True)
class Usage:
    """What became of one component. An entry is what a compiler looks up at once: torch's FX or AOT entry of a graph, a
    kernel with its files, or else a file.
    """

    restored: int = 0
    """Entries that were restored."""
    hits: int | None = 0
    """How many of them were read, or, by torch's counters, how often one was; None if nobody can tell."""
    misses: int = 0
    """Entries that were compiled anew, or, by torch's counters, how often one was missed."""
    compiled: int = 0
    """Artifacts that were not there after the restore. A kernel that is not finished yet counts as one."""
    counted: bool = False
    """Whether this comes from torch's counters and not from the files."""


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Whether what was restored was of use."""

    key: str
    generation: int = 0
    """The generation that was restored; 0 for none."""
    components: Mapping[str, Usage] = field(default_factory=dict)
    why_unknown: str = ""
    """Why hits are not known."""

    @property
    def missed(self) -> int:
        """Entries that were compiled anew."""
        return sum(max(usage.misses, 1 if usage.compiled else 0) for usage in self.components.values())

    @property
    def unused(self) -> tuple[str, ...]:
        """Components with restored entries of which none was used.

        A component that had no need to compile either is named only if all are like it: torch may have everything that
        it needs from its graphs, and then asks for no Triton kernel.
        """
        idle = {name for name, usage in self.components.items() if usage.restored and usage.hits == 0}
        told = {name: usage for name, usage in self.components.items() if name != DRIVER}
        asked = {name for name, usage in told.items() if usage.hits or usage.hits is None or usage.misses}
        return tuple(sorted(name for name in idle if self.components[name].misses or not asked))

    @property
    def is_gone(self) -> bool:
        """Whether nothing is left of what was restored, and nothing shows that it was used before."""
        return bool(self.generation) and not any(usage.restored or usage.hits for usage in self.components.values())

    @property
    def has_failed(self) -> bool:
        """Whether a job that requires hits did not get them. With a cache switched off, compiling leaves no file."""
        return bool(self.missed or self.unused or self.is_gone)

    @property
    def failure(self) -> str:
        """What to tell a job that required hits and did not get them."""
        if self.missed:
            return f"{plural(self.missed, 'entry was', 'entries were')} compiled anew"
        return "nothing is left of what was restored" if self.is_gone else "nothing of what was restored was used"

    @property
    def doubt(self) -> str:
        """What to tell a job that requires hits if nothing says whether there were any; else empty."""
        if self.has_failed or not self.why_unknown or any(usage.hits for usage in self.components.values()):
            return ""
        return f"{self.key} was expected to hit, but it is not known whether it did: {self.why_unknown}"

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {"schema": SCHEMA, **asdict(self), "missed": self.missed, "unused": self.unused}
