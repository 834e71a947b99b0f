"""Import: check a bundle, then bring what it holds into a store, one scope at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kstore.bundles.format import Content
from kstore.bundles.reader import BundleReader
from kstore.errors import MissError
from kstore.operations.bring import Brought, bring_in
from kstore.operations.copy import target_of, writing
from kstore.operations.incoming import Incoming
from kstore.report import SCHEMA
from kstore.scope import check_key
from kstore.store import Store


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did."""

    store: str
    bundle: str
    key: str
    """The key that it was published under."""
    scopes: tuple[Brought, ...]

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "schema": SCHEMA,
            "store": self.store,
            "bundle": self.bundle,
            "key": self.key,
            "scopes": [brought.as_json() for brought in self.scopes],
        }


_SHOWN = 8
"""Scopes that are named: a bundle may declare any number."""


def import_bundle(
    store: Store, path: str, key: str | None = None, *, gpu: str | None = None, environment: str | None = None
) -> ImportReport:
    """Publish what a bundle holds, under its own key or another, for all its GPUs and environments or for one.

    `path` may be a pipe, and "-" is stdin.

    Raises:
        IntegrityError: it is damaged; nothing is published.
        MissError: it holds nothing for that GPU or environment.
        FileError: the file cannot be read.
        StoreUnavailable, StoreFormatError: the store cannot be used.
        UsageError: the key is malformed.
    """
    if key is not None:
        check_key(key)
    with BundleReader(path) as bundle:
        bundle.check(store.progress)
        key = key or bundle.header.key
        chosen = [
            (replace(content.scope, key=key), content)
            for content in bundle.header.contents
            if content.scope.is_of(gpu, environment)
        ]
        if not chosen:
            raise MissError(
                f"{bundle.path} has nothing for that GPU and environment; it has {_listed(bundle.header.contents)}"
            )
        brought = []
        for scope, content in chosen:
            incoming = Incoming(bundle.manifest(content), content.manifest, bundle.fetch, bundle.path)
            with writing(store):
                brought.append(bring_in(target_of(store, scope), incoming))
    return ImportReport(store.location, path, key, tuple(brought))


def _listed(contents: Sequence[Content]) -> str:
    held = ", ".join(f"{content.scope.gpu} {content.scope.environment}" for content in contents[:_SHOWN])
    return f"{held} and {len(contents) - _SHOWN} more" if len(contents) > _SHOWN else held
