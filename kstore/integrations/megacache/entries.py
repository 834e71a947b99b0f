"""What a mega-cache holds, and which file of torch's cache folder each entry is.

Torch's own load writes each entry to that file (`populate_cache` of the subclasses of `CacheArtifact`), so entries and
files are the same thing in two places. The paths are those of torch 2.13.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from kstore.errors import IntegrityError

COMPONENT = "inductor"
"""The component whose folder all of them are below."""


class Kind(StrEnum):
    """The kinds that torch registers, by the names that it gives them."""

    GRAPH = "inductor"
    """A graph as Inductor compiled it, with the Triton kernels that it bundles."""
    AOT = "aot_autograd"
    """What AOTAutograd makes of it."""
    TUNED = "autotune"
    """The configuration that won for one Triton kernel."""
    PROFILE = "pgo"
    """What Dynamo learnt about dynamic shapes."""
    PRECOMPILED = "precompile"
    """A package of `caching_precompile`."""


class Artifact(NamedTuple):
    """One entry."""

    kind: str
    """A `Kind`, or what another package registered with torch."""
    key: str
    content: bytes


# Each has a group for the key that torch would make the path from.
_PATHS = {
    Kind.GRAPH: re.compile(r"fxgraph/[^/]+/(?P<key>[^/]+)/[^/]+"),
    Kind.AOT: re.compile(r"aotautograd/(?P<key>[^/]+)/[^/]+"),
    Kind.TUNED: re.compile(r"(?P<key>[^/]{2}/[^/]+\.best_config)"),
    Kind.PROFILE: re.compile(r"dynamo/code_state_(?P<key>[^/]+)\.pkl"),
    Kind.PRECOMPILED: re.compile(r"dynamo/(?P<key>[^/]+)/entry"),
}
# A key that is one name in a path. It does not begin with a dot, so it cannot climb.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_LONGEST = 255
"""Bytes of a name: NAME_MAX on Linux."""
_NOT_IN_NAMES = re.compile(r'[<>:"/\\|?*]')


def artifact_of(path: str) -> tuple[Kind, str] | None:
    """The kind and key of the artifact at `path`, `<component>/…`; None if a mega-cache cannot carry it."""
    component, _, relative = path.partition("/")
    if component != COMPONENT or not _is_text(relative):
        return None
    for kind, pattern in _PATHS.items():
        if found := pattern.fullmatch(relative):
            return kind, found["key"]
    return None


def _is_text(path: str) -> bool:
    """Whether the path is UTF-8, as a mega-cache's keys are; a file's name need not be."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def files_of(artifacts: Iterable[Artifact]) -> tuple[dict[str, bytes], tuple[Artifact, ...]]:
    """Path below torch's cache folder → content, and the entries whose kind is unknown.

    Raises:
        IntegrityError: a key cannot be part of a path.
    """
    files: dict[str, bytes] = {}
    unknown = []
    for artifact in artifacts:
        if artifact.kind in _PATHS:
            # Of several with one name, such as states of one profile, the last is the newest: torch records in order.
            files[_path_of(artifact)] = artifact.content
        else:
            unknown.append(artifact)
    return files, tuple(unknown)


def _path_of(artifact: Artifact) -> str:
    key = artifact.key
    match artifact.kind:
        case Kind.GRAPH:
            return f"fxgraph/{_name(key[1:3])}/{_name(key)}/{_content_name(artifact.content)}"
        case Kind.AOT:
            return f"aotautograd/{_name(key)}/{_content_name(artifact.content)}"
        case Kind.TUNED:
            folder, _, name = key.partition("/")
            path = f"{_name(folder)}/{_name(name)}"
            if not _PATHS[Kind.TUNED].fullmatch(path):
                raise IntegrityError(_foreign(key))
            return path
        case Kind.PROFILE:
            name = _NOT_IN_NAMES.sub("_", key)
            return f"dynamo/{_printable(f'code_state_{name}.pkl')}"
        case _:
            return f"dynamo/{_name(key)}/entry"


def _content_name(content: bytes) -> str:
    """The name that torch gives what it writes (`sha256_hash` in torch._inductor.codecache)."""
    return base64.b32encode(hashlib.sha256(content).digest())[:51].decode().lower()


def _name(text: str) -> str:
    if not _NAME.fullmatch(text) or len(text) > _LONGEST:
        raise IntegrityError(_foreign(text))
    return text


def _foreign(key: str) -> str:
    return f"a mega-cache holds the key {key!r}, which no torch writes; none of it is used"


def _printable(text: str) -> str:
    """Check the name of a file that has the user's own job name in it."""
    if not text.isprintable() or len(text.encode()) > _LONGEST:
        raise IntegrityError(f"a mega-cache holds the key {text!r}, which cannot be a file name")
    return text
