"""A ref: one published generation of a scope, as a small JSON file."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from kstore.digest import DIGEST_SIZE
from kstore.errors import IntegrityError, StoreFormatError, described
from kstore.scope import Scope

FORMAT = 1
"""The format of refs, and of all that they name: an older kstore leaves alone what has a higher one."""
REFS = "refs"
"""The folder that all refs are in."""
_NAMED, _NAME_SIZE = 32, 8
"""How many generations before it a ref names, and by how many bytes of its manifest's digest it names each."""
_LARGEST = (1 << 63) - 1
"""No size or number of files is larger."""
_YEAR_10000 = 253_402_300_800
"""In seconds since 1970: no later time can be shown to people."""


class RefState(StrEnum):
    """What a generation stands for. One that is not live is empty: its key misses."""

    LIVE = "live"
    FORGOTTEN = "forgotten"
    """What was before it is no longer wanted."""
    QUARANTINED = "quarantined"
    """What was before it is not to be restored, but may be rolled back to."""
    LOST = "lost"
    """A repair found that nothing was left of what was before it. Nobody took it out."""


class Effort(NamedTuple):
    """What it took to commit a generation: for statistics only."""

    seconds: float
    """From the commit's beginning until it was published, by the committer's clock."""
    uploaded: int
    """Bytes written to the store."""
    new_files: int
    """Artifacts that it added or changed."""


class Delta(NamedTuple):
    """What is stored of a manifest that follows on an earlier one. See `kstore.published.delta`."""

    digest: bytes
    """Of the blob."""
    size: int
    """Bytes."""
    follows: bytes
    """Digest of the manifest that it follows on, which is stored whole."""
    follows_size: int
    """Bytes."""


def folder_of(scope: Scope) -> str:
    """Where the refs of a scope are stored."""
    return f"{REFS}/{scope.path}"


def ref_name(scope: Scope, generation: int) -> str:
    """Where the ref of a generation is stored."""
    return f"{folder_of(scope)}/{generation}"


@dataclass(frozen=True, slots=True)
class Ref:
    """One published generation of a scope."""

    scope: Scope
    generation: int
    manifest: bytes
    """Digest of the manifest: a blob, unless there is a delta."""
    manifest_size: int
    """Bytes."""
    packs: tuple[str, ...]
    """Every pack that may hold blobs of it: gc keeps a pack as long as a ref names it. Readers look there first."""
    created: float
    """Seconds since 1970 by the committer's clock, 0 if that makes no sense: for people only."""
    creator: str
    """`user@host` of the committer: for people only."""
    files: int
    """Artifacts, those of every host included."""
    size: int
    """Bytes of all artifacts."""
    parent: int = 0
    """The generation it grew from; 0 for none."""
    state: RefState = RefState.LIVE
    line: int = 1
    """The first of the generations that led to this one without a loss. What an earlier one had and this one lacks may
    have been damaged rather than taken out. 0 if the line began before the first one of this store: see `layers`."""
    lineage: tuple[bytes, ...] = ()
    """The generations before it, the last one first, as far as known: the beginning of each manifest's digest."""
    delta: Delta | None = None
    """None if the manifest is stored whole."""
    effort: Effort | None = None
    """None if it was not committed from a cache root, or was committed by an older kstore."""
    since: int = 0
    """When what it holds was published, by the store's clock in nanoseconds, if gc or a repair has only published that
    again, which is no use of its key; else 0."""
    lease: str = ""
    """Nonce of the lease under which its committer went on compiling for others, who wait for the rest; else empty."""
    depth: int = field(default=0, compare=False)
    """How many stores are above the one that it is in. Not stored."""

    @property
    def name(self) -> str:
        """Where it is stored."""
        return ref_name(self.scope, self.generation)

    @property
    def stored(self) -> dict[bytes, int]:
        """The blobs that the manifest is read from: digest → bytes."""
        if self.delta is None:
            return {self.manifest: self.manifest_size}
        return {self.delta.follows: self.delta.follows_size, self.delta.digest: self.delta.size}

    @property
    def withdrawn(self) -> str:
        """`forgotten` or `quarantined` if somebody took the key out; else empty."""
        return self.state if self.state in (RefState.FORGOTTEN, RefState.QUARANTINED) else ""

    def remembers(self, base: Ref) -> bool:
        """Whether what `base` has and this one lacks was taken out on purpose."""
        return base.scope == self.scope and self.line <= base.generation and not self._has_another_than(base)

    def _has_another_than(self, base: Ref) -> bool:
        """Whether a server has lost `base`, and its number was used again."""
        return self._named(base.generation) not in (b"", base.manifest[:_NAME_SIZE])

    def grew_from(self, earlier: Ref) -> bool:
        """Whether `earlier` led to it, commit upon commit, as far as it knows."""
        return earlier.generation < self.generation and self._named(earlier.generation) == earlier.manifest[:_NAME_SIZE]

    def _named(self, generation: int) -> bytes:
        """How it names that generation, from itself backwards; empty if it does not."""
        named, back = self.leads_to(), self.generation - generation
        return named[back] if 0 <= back < len(named) else b""

    def leads_to(self) -> tuple[bytes, ...]:
        """The lineage of the generation that follows on this one."""
        return (self.manifest[:_NAME_SIZE], *self.lineage)[:_NAMED]

    def describe(self) -> dict[str, Any]:
        """For machines."""
        return {
            **self.scope.describe(),
            "generation": self.generation,
            "state": self.state,
            "parent": self.parent,
            "files": self.files,
            "bytes": self.size,
            "created": self.created,
            "creator": self.creator,
            "packs": list(self.packs),
            **self._effort(),
        }

    def dump(self) -> bytes:
        """As JSON."""
        content = {
            "format": FORMAT,
            "generation": self.generation,
            "parent": self.parent,
            "manifest": {"digest": self.manifest.hex(), "size": self.manifest_size},
            **_dump_delta(self.delta),
            "packs": list(self.packs),
            "created": self.created,
            "creator": self.creator,
            "files": self.files,
            "bytes": self.size,
            "state": self.state,
            "line": self.line,
            "lineage": b"".join(self.lineage).hex(),
            **({"since": self.since} if self.since else {}),
            **({"lease": self.lease} if self.lease else {}),
            **self._effort(),
        }
        return json.dumps(content, indent=1).encode() + b"\n"

    def _effort(self) -> dict[str, Any]:
        return {"effort": self.effort._asdict()} if self.effort else {}


def load_ref(scope: Scope, generation: int, data: bytes) -> Ref:
    """Read what `Ref.dump` wrote.

    Raises:
        IntegrityError: it is damaged.
        StoreFormatError: a newer kstore wrote it.
    """
    try:
        content: dict[str, Any] = json.loads(data)
        if content["format"] > FORMAT:
            raise StoreFormatError(
                f"generation {generation} of {scope} has format {content['format']}, this kstore reads {FORMAT}; "
                "install the version that made it"
            )
        if content["generation"] != generation:
            raise ValueError(f"it says that it is generation {content['generation']}")
        return Ref(
            scope=scope,
            generation=generation,
            manifest=_digest(content["manifest"]["digest"]),
            manifest_size=_size(content["manifest"]["size"]),
            delta=_load_delta(content.get("delta")),
            packs=tuple(_digest(pack).hex() for pack in content["packs"]),
            created=_load_time(content["created"]),
            creator=str(content["creator"]),
            files=_size(content["files"]),
            size=_size(content["bytes"]),
            parent=_size(content["parent"]),
            state=RefState(content["state"]),
            line=_size(content["line"]),
            lineage=_load_lineage(content.get("lineage", "")),
            since=_size(content.get("since", 0)),
            lease=str(content.get("lease", "")),
            effort=_load_effort(content.get("effort")),
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        what = f"generation {generation} of {scope} cannot be read ({described(error)})"
        raise IntegrityError(f"{what}: it is damaged; see `kstore verify {scope.key}`") from error


def _load_lineage(text: str) -> tuple[bytes, ...]:
    names = bytes.fromhex(text)
    return tuple(names[at : at + _NAME_SIZE] for at in range(0, len(names), _NAME_SIZE))


def _dump_delta(delta: Delta | None) -> dict[str, Any]:
    if delta is None:
        return {}
    base = {"digest": delta.follows.hex(), "size": delta.follows_size}
    return {"delta": {"digest": delta.digest.hex(), "size": delta.size, "base": base}}


def _load_delta(content: Any) -> Delta | None:
    if content is None:
        return None
    base = content["base"]
    return Delta(_digest(content["digest"]), _size(content["size"]), _digest(base["digest"]), _size(base["size"]))


def _load_effort(content: Any) -> Effort | None:
    """A generation is none the worse for statistics that make no sense."""
    try:
        effort = Effort(float(content["seconds"]), _size(content["uploaded"]), _size(content["new_files"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return effort if 0 <= effort.seconds < math.inf else None


def _load_time(value: Any) -> float:
    """A generation is none the worse for a time that no clock shows."""
    seconds = float(value)
    return seconds if 0 <= seconds < _YEAR_10000 else 0.0


def _size(value: Any) -> int:
    size = int(value)
    if not 0 <= size <= _LARGEST:
        raise ValueError(f"{size} is not a size")
    return size


def _digest(text: str) -> bytes:
    digest = bytes.fromhex(text)
    if len(digest) != DIGEST_SIZE:
        raise ValueError(f"{text!r} is not a digest")
    return digest
