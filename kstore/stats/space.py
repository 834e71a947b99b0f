"""What is said of a store's bytes: what each group of its generations, as a key's, has, shares and saves."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kstore.report import Count

Group = TypeVar("Group", bound=Hashable)


@dataclass(slots=True)
class Held:
    """What one group has. All in bytes, but for the numbers of generations."""

    generations: int = 0
    live: int = 0
    """Those of them that are not empty."""
    published: bool = False
    """Whether a restore finds something: the newest generation of one of its scopes is not empty."""
    artifacts: int = 0
    """Of all its generations, each counted by itself."""
    unique: int = 0
    """The same, equal files counted once."""
    manifests: int = 0
    """What says which artifact is where, in every generation."""
    stored: int = 0
    """The packs and loose blobs that it needs, packs whole."""
    alone: int = 0
    """Those that nothing else needs: what gc frees, in the end, if the group is forgotten."""
    copies: int = 0
    """Artifacts and manifests in these, uncompressed; one that several of them have counts for each."""
    elsewhere: int = 0
    """Artifacts that are in none of them: a store below has them, or they are lost."""
    frames: int = 0
    """Frames that only this group needs, of packs that others need too: they come free if gc rewrites the pack."""

    @property
    def shared(self) -> int:
        """What others need too."""
        return self.stored - self.alone

    @property
    def deduplicated(self) -> int:
        """What it saves that equal files are stored once; less than 0 where they are stored more often."""
        return self.artifacts + self.manifests - self.elsewhere - self.copies

    @property
    def compressed(self) -> int:
        """What compression saves; less than 0 where packs hold more that is of no use."""
        return self.copies - self.stored


@dataclass(slots=True)
class Space(Generic[Group]):
    """Whose bytes a store holds."""

    groups: dict[Group, Held] = field(default_factory=dict)
    whole: Held = field(default_factory=Held)
    """All groups together. Nothing is shared with others, so `alone` is what no two groups share."""
    dead_frames: int = 0
    """Bytes of frames of needed packs of which nothing is needed any more."""
    objects: Count = field(default_factory=Count)
    """Every pack and loose blob in the store."""
    unneeded: Count = field(default_factory=Count)
    """Those that no generation needs: gc condemns and deletes them."""
    unreadable: list[str] = field(default_factory=list)
    """What cannot be read: nothing is known of what it needs."""
