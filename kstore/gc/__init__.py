"""Garbage collection in two phases: condemn what nothing refers to, and delete it a grace later if that still holds.

retention (which generations stay, by a policy) → mark (what they need) → sweep (delete what was condemned, condemn the
rest). See docs/design.md for why no interleaving with commits, or with another gc, loses a blob.
"""

from kstore.gc.collection import collect
from kstore.gc.policy import Policy
from kstore.gc.report import GcReport, GcStatus

__all__ = ["GcReport", "GcStatus", "Policy", "collect"]
