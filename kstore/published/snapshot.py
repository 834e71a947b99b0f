"""One generation as it was read: its ref, and its manifest as bytes and parsed."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter

from kstore.aside import Kept, put_aside, whole
from kstore.errors import IntegrityError
from kstore.lazy import cached_property
from kstore.published.manifest import Manifest, Seen
from kstore.published.ref import Ref
from kstore.published.untrusted import check_manifest

_IDENTITY = attrgetter("depth", "scope", "generation", "manifest")


@dataclass
class Snapshot:
    """A ref and the manifest that it names."""

    ref: Ref
    data: Kept = field(compare=False)
    """The manifest's bytes, checked against the ref's digest; those of an empty one if it is lost and not needed."""
    see: Seen | None = field(default=None, repr=False, compare=False)
    """Is told about the manifest's rows while it is being parsed."""

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest.

        Raises:
            IntegrityError: it cannot be read.
            OSError: this process has no memory for it.
        """
        return Manifest.load(whole(self.data), self.see)

    @cached_property
    def checked(self) -> Manifest:
        """The manifest, checked for what no commit makes.

        Raises:
            IntegrityError: it cannot be read, or holds what no commit makes.
        """
        try:
            check_manifest(self.manifest)
        except IntegrityError as error:
            raise IntegrityError(f"generation {self.ref.generation} of {self.ref.scope} is damaged: {error}") from error
        return self.manifest

    def put_aside(self, folder: str) -> None:
        """Keep the manifest's bytes in `folder`, which is local, and not in memory, if they are many and there is room:
        once it has been parsed, they are only copied.
        """
        self.data = put_aside(self.data, folder)

    def is_generation_of(self, other: Ref | None) -> bool:
        """Whether `other` is this very generation."""
        return other is not None and bool(_IDENTITY(other) == _IDENTITY(self.ref))
