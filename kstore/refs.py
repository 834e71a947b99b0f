"""Refs publish generations: `refs/<gpu>/<key>/@<environment>/<n>`, each a small JSON file, never overwritten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kstore.backends import Backend
from kstore.errors import IntegrityError, MissError, UsageError
from kstore.scope import Scope

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Ref:
    """One published generation of a scope."""

    scope: Scope
    generation: int
    manifest: bytes
    """Digest of the manifest blob."""
    manifest_size: int
    """Bytes."""
    packs: tuple[str, ...]
    """Where its blobs are likely to be, newest first: a hint for speed."""
    created: float
    """Seconds since 1970 by the committer's clock: for people only."""
    creator: str
    """`user@host` of the committer: for people only."""
    files: int
    """Artifacts, those of every host included."""
    size: int
    """Bytes of all artifacts."""
    parent: int = 0
    """The generation it grew from; 0 for none."""

    @property
    def name(self) -> str:
        """Where it is stored."""
        return f"{self.scope.folder}/{self.generation}"

    def dump(self) -> bytes:
        """As JSON."""
        content = {
            "format": FORMAT,
            "generation": self.generation,
            "parent": self.parent,
            "manifest": {"digest": self.manifest.hex(), "size": self.manifest_size},
            "packs": list(self.packs),
            "created": self.created,
            "creator": self.creator,
            "files": self.files,
            "bytes": self.size,
        }
        return json.dumps(content, indent=1).encode() + b"\n"


def load_ref(scope: Scope, generation: int, data: bytes) -> Ref:
    """Read what `Ref.dump` wrote.

    Raises:
        IntegrityError: it is damaged, or a newer kstore wrote it.
    """
    try:
        content: dict[str, Any] = json.loads(data)
        if content["format"] != FORMAT or content["generation"] != generation:
            raise ValueError(f"format {content['format']}, generation {content['generation']}")
        return Ref(
            scope=scope,
            generation=generation,
            manifest=_digest(content["manifest"]["digest"]),
            manifest_size=int(content["manifest"]["size"]),
            packs=tuple(_pack_id(pack) for pack in content["packs"]),
            created=float(content["created"]),
            creator=str(content["creator"]),
            files=int(content["files"]),
            size=int(content["bytes"]),
            parent=int(content["parent"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise IntegrityError(
            f"generation {generation} of {scope} cannot be read ({error!r}); it is damaged, or a newer kstore wrote it"
        ) from error


def _digest(text: str) -> bytes:
    digest = bytes.fromhex(text)
    if len(digest) != 32:
        raise ValueError(f"{text!r} is no digest")
    return digest


def _pack_id(text: str) -> str:
    return _digest(text).hex()


class Refs:
    """The refs of one store."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

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
            data = self._backend.get(f"{scope.folder}/{generation}")
        except FileNotFoundError:
            raise MissError(f"{scope} has no generation {generation}; `kstore show` lists them") from None
        return load_ref(scope, generation, data)

    def newest(self, scope: Scope) -> Ref | None:
        """The newest generation, or None if nothing is published."""
        generations = self.generations(scope)
        return self.get(scope, generations[-1]) if generations else None

    def publish(self, ref: Ref) -> bool:
        """Publish `ref` as its generation. False if another writer was faster; theirs stays."""
        return self._backend.put_if_absent(ref.name, ref.dump())

    def gpus(self) -> list[str]:
        """Every GPU that has refs."""
        return sorted(child.name for child in self._backend.list("refs") if child.is_folder)

    def scopes(self, gpu: str | None = None, under: str = "") -> Iterator[Scope]:
        """Every scope with a folder, of one GPU or all, in order; `under` a key prefix such as `my-model`."""
        for slug in [gpu] if gpu else self.gpus():
            yield from self._walk(slug, under)

    def environments(self, gpu: str, key: str) -> list[str]:
        """The environments that `key` was committed under."""
        children = self._backend.list(f"refs/{gpu}/{key}")
        return sorted(c.name[1:] for c in children if c.is_folder and c.name.startswith("@"))

    def _walk(self, gpu: str, key: str) -> Iterator[Scope]:
        children = self._backend.list("/".join(filter(None, ("refs", gpu, key))))
        for name in sorted(child.name for child in children if child.is_folder):
            if name.startswith("@"):
                yield from _scope(gpu, key, name[1:])
            else:
                yield from self._walk(gpu, f"{key}/{name}" if key else name)


def _scope(gpu: str, key: str, environment: str) -> Iterator[Scope]:
    """None for a folder that is a file server's own, such as `@eaDir`."""
    try:
        yield Scope(gpu, key, environment)
    except UsageError:
        return
