"""Refs publish generations: `refs/<gpu>/<key>/@<environment>/<n>`, each a small JSON file, never overwritten.

Beside a ref, `<n>.pin` keeps its generation, and `<n>.dropped` is a ref on its way out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from kstore.backends import Backend, Upload
from kstore.errors import IntegrityError, MissError, StoreFormatError, UsageError
from kstore.scope import Scope

FORMAT = 1
"""Of refs, and of all that they name: an older kstore leaves alone what has a higher one."""
_PIN, _DROPPED = ".pin", ".dropped"
_ATTEMPTS = 3
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


@dataclass(frozen=True, slots=True)
class Effort:
    """What it took to commit a generation: for statistics only."""

    seconds: float
    """From the commit's beginning until it was published, by the committer's clock."""
    uploaded: int
    """Bytes written to the store."""
    new_files: int
    """Artifacts that it added or changed."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What is stored of a manifest that follows on an earlier one. See `kstore.published.delta`."""

    digest: bytes
    """Of the blob."""
    size: int
    """Bytes."""
    base: bytes
    """Digest of the manifest that it follows on, which is stored whole."""
    base_size: int
    """Bytes."""


def ref_name(scope: Scope, generation: int) -> str:
    """Where the ref of a generation is stored."""
    return f"{scope.folder}/{generation}"


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
    """Where its blobs are likely to be, newest first: a hint for speed."""
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
    have been damaged, and not been taken out. 0 if that is before the first one of this store: see `layers`."""
    delta: Delta | None = None
    """None if the manifest is stored whole."""
    effort: Effort | None = None
    """None if it was not committed from a cache root, or by an older kstore."""
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
        return {self.delta.base: self.delta.base_size, self.delta.digest: self.delta.size}

    @property
    def withdrawn(self) -> str:
        """`forgotten` or `quarantined` if somebody took the key out; else empty."""
        return self.state if self.state in (RefState.FORGOTTEN, RefState.QUARANTINED) else ""

    def remembers(self, base: Ref) -> bool:
        """Whether what `base` has and this one lacks was taken out on purpose."""
        is_lost = base.generation == self.generation and base.manifest != self.manifest  # in a server's crash
        return base.scope == self.scope and self.line <= base.generation and not is_lost

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
            **self._effort(),
        }
        return json.dumps(content, indent=1).encode() + b"\n"

    def _effort(self) -> dict[str, Any]:
        return {"effort": asdict(self.effort)} if self.effort else {}


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
            packs=tuple(_pack_id(pack) for pack in content["packs"]),
            created=_load_time(content["created"]),
            creator=str(content["creator"]),
            files=int(content["files"]),
            size=int(content["bytes"]),
            parent=int(content["parent"]),
            state=RefState(content["state"]),
            line=int(content["line"]),
            effort=_load_effort(content.get("effort")),
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise IntegrityError(f"generation {generation} of {scope} cannot be read ({error!r}): it is damaged") from error


def _dump_delta(delta: Delta | None) -> dict[str, Any]:
    if delta is None:
        return {}
    base = {"digest": delta.base.hex(), "size": delta.base_size}
    return {"delta": {"digest": delta.digest.hex(), "size": delta.size, "base": base}}


def _load_delta(content: Any) -> Delta | None:
    if content is None:
        return None
    base = content["base"]
    return Delta(_digest(content["digest"]), _size(content["size"]), _digest(base["digest"]), _size(base["size"]))


def _load_effort(content: Any) -> Effort | None:
    """A generation is none the worse for statistics that make no sense."""
    try:
        effort = Effort(float(content["seconds"]), int(content["uploaded"]), int(content["new_files"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return effort if 0 <= effort.seconds < math.inf and min(effort.uploaded, effort.new_files) >= 0 else None


def _load_time(value: Any) -> float:
    """A generation is none the worse for a time that no clock shows."""
    seconds = float(value)
    return seconds if 0 <= seconds < _YEAR_10000 else 0.0


def _size(value: Any) -> int:
    size = int(value)
    if size < 0:
        raise ValueError(f"{size} is no size")
    return size


def _digest(text: str) -> bytes:
    digest = bytes.fromhex(text)
    if len(digest) != 32:
        raise ValueError(f"{text!r} is no digest")
    return digest


def _pack_id(text: str) -> str:
    return _digest(text).hex()


class Refs:
    """The refs of one store."""

    def __init__(self, backend: Backend, depth: int = 0) -> None:
        self._backend = backend
        self._depth = depth

    def generations(self, scope: Scope) -> list[int]:
        """Published generations, oldest first: one directory read."""
        names = (child.name for child in self._backend.list(scope.folder) if not child.is_folder)
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    def get(self, scope: Scope, generation: int) -> Ref:
        """One generation.

        Raises:
            MissError: there is no such generation.
            IntegrityError: its ref is damaged.
        """
        try:
            ref = load_ref(scope, generation, self._read(scope, generation))
        except IntegrityError:  # or just a read that was cut short
            ref = load_ref(scope, generation, self._read(scope, generation))
        return replace(ref, depth=self._depth) if self._depth else ref

    def _read(self, scope: Scope, generation: int) -> bytes:
        try:
            return self._backend.get(ref_name(scope, generation))
        except FileNotFoundError:
            raise MissError(f"{scope} has no generation {generation}; `kstore show {scope.key}` lists them") from None

    def newest(self, scope: Scope) -> Ref | None:
        """The newest generation, an empty one too; None if nothing is published."""
        for _ in range(_ATTEMPTS):
            generations = self.generations(scope)
            if not generations:
                return None
            with suppress(MissError):  # it was superseded, and gc removed it, since it was listed
                return self.get(scope, generations[-1])
        raise MissError(f"{scope} lists a generation {generations[-1]} that is not there")

    def exists(self, ref: Ref) -> bool:
        """Whether a generation of its number is still published."""
        try:
            self._backend.stat(ref.name)
        except FileNotFoundError:
            return False
        return True

    def is_kept(self, ref: Ref) -> bool:
        """Whether this very generation is still published: a crash may have lost it, and another have its number."""
        with suppress(MissError, IntegrityError):
            return self.get(ref.scope, ref.generation).manifest == ref.manifest
        return False

    def reserve(self) -> AbstractContextManager[Upload]:
        """Begin a commit: the file that is to become its ref. gc can keep it from that; see `kstore.condemned`."""
        return self._backend.upload()

    def publish(self, ref: Ref, reserved: Upload) -> bool:
        """Publish `ref` as its generation. False if another writer was faster; theirs stays.

        Raises:
            StagingLost: it took so long that gc no longer waits for it.
        """
        reserved.write(ref.dump())
        return reserved.publish(ref.name)

    def is_newest(self, ref: Ref) -> bool:
        """Whether no later generation is listed."""
        return self.generations(ref.scope)[-1:] == [ref.generation]

    def published_at(self, scope: Scope, generation: int) -> int:
        """When a generation was published: by the store's clock, in nanoseconds."""
        return self._backend.stat(ref_name(scope, generation)).mtime_ns

    def pins(self, scope: Scope) -> set[int]:
        """The generations that are kept whatever gc is told."""
        return {int(name) for name in self._marked(scope, _PIN)}

    def pin(self, scope: Scope, generation: int) -> None:
        """Keep a generation. The pin is made first and the ref looked for then; `drop` does it the other way round.

        Raises:
            MissError: there is no such generation, or it is being removed.
        """
        name = ref_name(scope, generation)
        self._backend.put_if_absent(name + _PIN, b"")
        try:
            self._backend.stat(name)
        except FileNotFoundError:
            self._backend.delete(name + _PIN)
            raise MissError(f"{scope} has no generation {generation}; `kstore show {scope.key}` lists them") from None

    def unpin(self, scope: Scope, generation: int) -> None:
        """Let gc decide about a generation again."""
        self._backend.delete(f"{ref_name(scope, generation)}{_PIN}")

    def drop(self, scope: Scope, generation: int) -> bool:
        """Remove a generation that is not the newest. False if it is pinned, or gone already."""
        name = ref_name(scope, generation)
        try:
            self._backend.move(name, name + _DROPPED)
        except FileNotFoundError:
            return False
        return self._finish_drop(scope, generation)

    def finish_drops(self, scope: Scope) -> None:
        """Finish what a killed gc began."""
        for name in self._marked(scope, _DROPPED):
            self._finish_drop(scope, int(name))

    def _finish_drop(self, scope: Scope, generation: int) -> bool:
        name = ref_name(scope, generation)
        if generation not in self.pins(scope):
            self._backend.delete(name + _DROPPED)
            return True
        with suppress(FileNotFoundError):
            self._backend.move(name + _DROPPED, name)
        return False

    def _marked(self, scope: Scope, suffix: str) -> list[str]:
        names = (
            child.name.removesuffix(suffix) for child in self._backend.list(scope.folder) if child.name.endswith(suffix)
        )
        return [name for name in names if name.isascii() and name.isdecimal()]

    def gpus(self) -> list[str]:
        """Every GPU that has refs."""
        return sorted(child.name for child in self._backend.list("refs") if child.is_folder)

    def scopes(self, gpu: str | None = None, under: str = "") -> Iterator[Scope]:
        """Every scope with a folder, of one GPU or all, in order; `under` a key prefix such as `my-model`."""
        for slug in [gpu] if gpu else self.gpus():
            yield from walk_scopes(self._backend, "refs", slug, under)


def walk_scopes(backend: Backend, folder: str, gpu: str, key: str = "") -> Iterator[Scope]:
    """Every scope that has a folder below `folder`, of one GPU, in order; `key` a prefix such as `my-model`."""
    children = backend.list("/".join(filter(None, (folder, gpu, key))))
    for name in sorted(child.name for child in children if child.is_folder):
        if name.startswith("@"):
            yield from _scope(gpu, key, name[1:])
        else:
            yield from walk_scopes(backend, folder, gpu, f"{key}/{name}" if key else name)


def _scope(gpu: str, key: str, environment: str) -> Iterator[Scope]:
    """The scope, unless the folder is a file server's own, such as `@eaDir`."""
    try:
        yield Scope(gpu, key, environment)
    except UsageError:
        return
