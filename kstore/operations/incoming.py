"""What there is to bring in, and what of it is new. It is merged with what is published, as the news of a worker that
never restored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from kstore.blobs.batches import Fetch
from kstore.components import load_table, method_of
from kstore.components.mergers import merge_files
from kstore.digest import digest_of
from kstore.errors import IntegrityError
from kstore.merge import merge
from kstore.operations.proposal import apart
from kstore.operations.theirs import Theirs
from kstore.published.leaning import fetch
from kstore.published.manifest import Entry, Files, Manifest
from kstore.published.ref import Ref
from kstore.storage import Storage


@dataclass(frozen=True, slots=True)
class Incoming:
    """What there is to bring in."""

    manifest: Manifest
    identity: bytes
    """Names the manifest, whatever scope it goes to."""
    fetch: Fetch
    """Brings its blobs."""
    location: str
    """Where it comes from, for people."""


@dataclass(slots=True)
class News:
    """What the next generation would hold, and what of it is new."""

    files: Files
    hosts: dict[str, Files]
    taken: list[tuple[str, Entry]] = field(default_factory=list)
    """What is new. Several hosts may have the same path."""
    declined: int = 0
    """How many artifacts differ from published ones, which stay."""
    contents: dict[bytes, bytes] = field(default_factory=dict)
    """What mergers made, by digest."""


def merge_in(storage: Storage, incoming: Incoming, theirs: Theirs) -> News:
    """Merge what comes in with the newest generation.

    Raises:
        IntegrityError: what has to be read of it is missing or damaged.
    """
    news = News(theirs.manifest.files, dict(theirs.manifest.hosts))
    join = partial(_join, storage, incoming, theirs.snapshot.ref if theirs.snapshot else None)
    news.files = _merge(news, "", incoming.manifest.files, join)
    for host, bound in incoming.manifest.hosts.items():
        news.hosts[host] = _merge(news, host, bound, join)
    return news


def _merge(news: News, host: str, ours: Files, join: Callable[[News, str, Entry, Entry], Entry | None]) -> Files:
    """Merge the files of a host, or with "" the portable ones."""
    theirs, beside = apart(news.files, news.hosts, host)
    merged = merge({}, theirs, ours, {}, beside)
    for path in merged.to_merge:
        if joined := join(news, path, merged.files[path], ours[path]):
            merged.files[path] = joined
            merged.taken.add(path)
    news.taken += ((path, merged.files[path]) for path in merged.taken)
    news.declined += len(merged.declined)
    return merged.files


def _join(
    storage: Storage, incoming: Incoming, newest: Ref | None, news: News, path: str, theirs: Entry, ours: Entry
) -> Entry | None:
    """Join two versions of a file by their meaning; None if that is what is published."""
    method = method_of(load_table(), "merge", path)
    if not method or not newest:
        return None
    try:
        published = fetch(storage, theirs, newest)
    except IntegrityError:
        return ours
    for _, coming in incoming.fetch({ours.digest: ours.size}):
        data = merge_files(method, published, bytes(coming))
        if data == published:
            return None
        joined = ours._replace(digest=digest_of(data), size=len(data))
        news.contents[joined.digest] = data
        return joined
    raise IntegrityError(f"{path} is missing or damaged in {incoming.location}; nothing is published")
