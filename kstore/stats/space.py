"""What is reported about a store's bytes: what each group of generations, such as a key's, has, shares and saves."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kstore.report import Count
from kstore.words import plural

Group = TypeVar("Group", bound=Hashable)


@dataclass(slots=True)
class Held:
    """What one group has. Everything is in bytes, except the numbers of generations."""

    generations: int = 0
    live: int = 0
    """Those that are not empty."""
    published: bool = False
    """Whether a restore finds something: the newest generation of one of its scopes is not empty."""
    artifacts: int = 0
    """Artifacts of all its generations, each generation counted by itself."""
    unique: int = 0
    """The same, with equal files counted once."""
    manifests: int = 0
    """What says which artifact is where, for every generation."""
    stored: int = 0
    """The packs and loose blobs that it needs, packs counted whole."""
    alone: int = 0
    """Those that nothing else needs: what gc frees, in the end, if the group is forgotten."""
    copies: int = 0
    """Artifacts and manifests in `stored`, uncompressed; one that several packs or loose blobs hold counts for each."""
    elsewhere: int = 0
    """Artifacts that are in none of `stored`: a store below has them, or they are lost, or hidden."""
    frames: int = 0
    """Frames that only this group needs, in packs that others need too: they are freed if gc rewrites the pack."""

    @property
    def shared(self) -> int:
        """What others need too."""
        return self.stored - self.alone

    @property
    def deduplicated(self) -> int:
        """What storing equal files once saves; less than 0 if they are stored more often."""
        return self.artifacts + self.manifests - self.elsewhere - self.copies

    @property
    def compressed(self) -> int:
        """What compression saves; less than 0 if packs hold even more that is of no use."""
        return self.copies - self.stored


@dataclass(slots=True)
class Space(Generic[Group]):
    """Whose bytes a store holds."""

    groups: dict[Group, Held] = field(default_factory=dict)
    whole: Held = field(default_factory=Held)
    """All groups together. Nothing is shared with others here, so `alone` is what no two groups share."""
    dead_frames: int = 0
    """Bytes of frames in needed packs that hold nothing needed any more."""
    objects: Count = field(default_factory=Count)
    """Every pack and loose blob in the store."""
    unneeded: Count = field(default_factory=Count)
    """Those that no generation needs: gc condemns and deletes them."""
    unreadable: list[str] = field(default_factory=list)
    """What cannot be read: what it needs is unknown."""


def some_of(troubles: list[str], others: str) -> list[str]:
    """The first of troubles that are alike, and how many `others` have it: one folder may hide what many have."""
    if len(troubles) < 2:
        return troubles
    return [f"{troubles[0]}, and {plural(len(troubles) - 1, others)}"]
