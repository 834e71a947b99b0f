"""What is compared: a generation as it is in the store, or a cache root as it is on this node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kstore.errors import MissError
from kstore.inspect.items import Artifact
from kstore.local.untouched import UNMARKED
from kstore.published.leaning import fetch_many
from kstore.published.manifest import HOST, Files, Manifest
from kstore.scope import Scope

if TYPE_CHECKING:
    from kstore.local.found import Skipped
    from kstore.published.ref import Ref
    from kstore.store import Store
    from kstore.worker import Worker

Sizes = Mapping[bytes, int]
"""Digest → size in bytes."""
Fetch = Callable[[Sizes], Iterator[tuple[bytes, bytes]]]

_FACT_LENGTH = 4096
HOSTS = "hosts"
"""The fact that names the hosts that some of the side's artifacts are bound to."""


@dataclass(frozen=True)
class Side:
    """One of the two sides of a comparison."""

    label: str
    """How it was requested: `my-model/v1@3`, or the path of the cache root."""
    scope: Scope
    generation: int
    """0 for a cache root."""
    artifacts: tuple[Artifact, ...]
    facts: Mapping[str, str]
    """About the software, the hosts and the paths that it was built with."""
    fetch: Fetch = field(repr=False, compare=False)
    """Yields (digest, bytes) of the blobs that can be fetched, verified, in batches."""
    skipped: tuple[Skipped, ...] = ()
    """What a cache root has that a commit would leave out."""

    @property
    def blobs(self) -> dict[bytes, int]:
        """Its distinct blobs, with their sizes in bytes."""
        return {artifact.entry.digest: artifact.entry.size for artifact in self.artifacts}

    def for_host(self, host: str) -> Side:
        """What a host with that fingerprint would restore of it."""
        anyones = {artifact.path: artifact.entry for artifact in self.artifacts if not artifact.host}
        bound = {
            artifact.path: artifact.entry for artifact in self.artifacts if artifact.host and artifact.host == host
        }
        files = Manifest(anyones, {host: bound}).for_host(host)
        artifacts = tuple(Artifact(path, host if path in bound else "", entry) for path, entry in files.items())
        others = {name: value for name, value in self.facts.items() if name != HOSTS}
        return replace(self, artifacts=artifacts, facts=others | ({HOSTS: host} if bound else {}))

    def describe(self) -> dict[str, Any]:
        """For machines."""
        return {
            "label": self.label,
            **self.scope.describe(),
            "generation": self.generation or None,
            "files": len(self.artifacts),
            "bytes": sum(artifact.entry.size for artifact in self.artifacts),
        }


def published_side(store: Store, ref: Ref) -> Side:
    """A generation, with its artifacts for every host.

    Raises:
        IntegrityError: its manifest is lost.
    """
    manifest = store.snapshot(ref).manifest

    def fetch(wanted: Sizes) -> Iterator[tuple[bytes, bytes]]:
        for digest, data in fetch_many(store.storage, (ref,), wanted):
            yield digest, bytes(data)

    return Side(
        label=f"{ref.scope.key}@{ref.generation}",
        scope=ref.scope,
        generation=ref.generation,
        artifacts=_artifacts(manifest.files, manifest.hosts),
        facts=_published_facts(ref.scope, manifest),
        fetch=fetch,
    )


def local_side(store: Store, scope: Scope, *, ask_host: bool) -> Side:
    """This node's cache root for `scope`. Without `ask_host`, this host is detected only if something is bound to it.

    Raises:
        MissError: there is no such cache root.
    """
    worker = store.local_worker(scope)
    if worker is None:
        raise MissError(
            f"there is no cache root of {scope.key} here; give two keys, or name the folder with --cache-root"
        )
    state = worker.state.load()
    # Somebody may have written into a file. Its folder's times, which a commit goes by, do not show that.
    state.index.folders.clear()
    found = worker.scan(replace(state, untouched=UNMARKED))
    files = found.files
    bound = {path for path, entry in files.items() if entry.flags & HOST}
    host = worker.host.fingerprint if bound or ask_host else ""
    artifacts = tuple(Artifact(path, host if path in bound else "", entry) for path, entry in files.items())
    facts = _local_facts(worker, host)
    return Side(worker.root.path, scope, 0, artifacts, facts, _local_fetch(worker, artifacts), tuple(found.skipped))


def _local_fetch(worker: Worker, artifacts: tuple[Artifact, ...]) -> Fetch:
    """A function that reads artifacts of a cache root by digest, in the form in which they are stored."""
    by_digest = {artifact.entry.digest: artifact for artifact in artifacts}

    def fetch(wanted: Sizes) -> Iterator[tuple[bytes, bytes]]:
        for digest in wanted:
            found = by_digest.get(digest)
            data = worker.read_stored(found.path, found.entry) if found else None
            if data is not None:
                yield digest, data

    return fetch


def _artifacts(files: Files, hosts: Mapping[str, Files]) -> tuple[Artifact, ...]:
    return tuple(
        Artifact(path, host, entry) for host, held in (("", files), *hosts.items()) for path, entry in held.items()
    )


def _published_facts(scope: Scope, manifest: Manifest) -> dict[str, str]:
    meta = manifest.meta
    certain = {"GPU": scope.gpu, "environment": scope.environment}
    facts = certain | _texts(meta.get("environment")) | certain
    facts |= {f"host {name}": value for name, value in _texts(meta.get("host")).items()}
    if manifest.hosts:
        facts[HOSTS] = " ".join(sorted(manifest.hosts))
    return facts | _texts({"cache root": meta["cache_root"]} if "cache_root" in meta else None)


def _local_facts(worker: Worker, host: str) -> dict[str, str]:
    facts = {"GPU": worker.scope.gpu, "environment": worker.scope.environment}
    # If another environment's kernels were restored into it, this process cannot tell what they were built with.
    if worker.environment.tag == worker.scope.environment:
        facts |= worker.environment.facts
    if host:
        facts |= {f"host {name}": value for name, value in worker.host.facts.items()} | {HOSTS: host}
    return facts | {"cache root": worker.root.path}


def _texts(content: object) -> dict[str, str]:
    """Facts of a manifest, which anybody may have written."""
    if not isinstance(content, Mapping):
        return {}
    scalars = {name: value for name, value in content.items() if isinstance(value, str | int | float)}
    return {str(name)[:_FACT_LENGTH]: str(value)[:_FACT_LENGTH] for name, value in scalars.items()}
