"""Finds one artifact of a side by its path, the end of its path, or its kernel's name; and turns it into text."""

from __future__ import annotations

import difflib
import json
from bisect import bisect

from kstore.environment import detect_host
from kstore.errors import IntegrityError, MissError, UsageError
from kstore.inspect.contents import read_contents
from kstore.inspect.items import Artifact, items_of
from kstore.inspect.kinds import Kind
from kstore.inspect.sides import Side
from kstore.published.manifest import BELOW

MAX_COMPARED = 8 << 20
"""Bytes: a larger text is not compared line by line."""
MAX_LINES = 500_000
"""Nor is one of more lines: comparing one takes half a kilobyte, and 8 MiB may be eight million."""
_SHOWN = 8
_NEAR = 3
_COMPARED = 2500
"""Names that are looked at on either side of the place of a mistyped one: each may take half a millisecond."""
_NAMED = {Kind.TRITON_KERNEL, Kind.CPP_KERNEL, Kind.GENERATED_CODE, Kind.AUTOTUNE}
_JSON = (".json", ".best_config")


def find_artifact(side: Side, text: str) -> Artifact:
    """The artifact whose path is or ends with `text`; or the file of a kernel: `cpp_fused_add_0.main.cpp`.

    If there are versions for several hosts at one path, this host's is taken.

    Raises:
        MissError: there is none.
        UsageError: there are several.
    """
    found = _called(side, text)
    paths = sorted({artifact.path for artifact in found})
    if len(paths) > 1:
        raise UsageError(f"{text!r} could be any of {_listed(paths)} in {side.label}; give more of it")
    return found[0] if len(found) == 1 else _of_host(found)


def find_artifacts(side: Side, text: str) -> list[Artifact]:
    """All artifacts that `text` can mean: the contents of a folder of that path, else all that `find_artifact` could
    choose from.

    Raises:
        MissError: there is none.
    """
    folder = text.rstrip("/") + "/"
    return [artifact for artifact in side.artifacts if artifact.path.startswith(folder)] or _called(side, text)


def read_artifact(side: Side, artifact: Artifact) -> bytes:
    """The bytes of an artifact as stored: in a relocated file, placeholders stand for absolute paths.

    Raises:
        MissError: they were left in a store below that is not here.
        IntegrityError: they are missing or damaged.
    """
    for _, data in side.fetch({artifact.entry.digest: artifact.entry.size}):
        return data
    if artifact.entry.flags & BELOW:
        raise MissError(
            f"{artifact.path} of {side.label} is in no store here: a store below had it; "
            f"`kstore show {side.scope.key}` names that store"
        )
    raise IntegrityError(f"{artifact.path} of {side.label} is missing or damaged; `kstore verify` says more")


def is_text(data: bytes) -> bool:
    """Whether the bytes are text, not binary."""
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def text_of(path: str, data: bytes) -> str | None:
    """The bytes as text, JSON with a line for each value; None if they are binary."""
    if not is_text(data):
        return None
    text = data.decode()
    if path.endswith(_JSON):
        try:
            return json.dumps(json.loads(text), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        except (ValueError, RecursionError):
            return text
    return text


def _called(side: Side, text: str) -> list[Artifact]:
    found = _by_path(side, text) or _by_kernel(side, text)
    if not found:
        raise MissError(f"{side.label} has no artifact {text!r}; {_near(side, text)}")
    return found


def _by_path(side: Side, text: str) -> list[Artifact]:
    """The artifacts at that path, else those whose path ends with it as whole parts, else those that end with it at
    all.
    """
    exact = [artifact for artifact in side.artifacts if artifact.path == text]
    parts = [artifact for artifact in side.artifacts if artifact.path.endswith(f"/{text}")]
    return exact or parts or [artifact for artifact in side.artifacts if text and artifact.path.endswith(text)]


def _by_kernel(side: Side, text: str) -> list[Artifact]:
    """Files of the kernels that `text` names, with or without the file's suffix."""
    items = items_of(side.artifacts)
    named = [item for item in items.values() if item.kind in _NAMED]
    contents = read_contents(items, [item for item in named if item.kind is not Kind.TRITON_KERNEL], side.fetch)
    paths = set()
    for item in named:
        name = contents[item].name if item in contents else item.label
        for part in item.parts if name and text.startswith(name) else ():
            path = item.path(part)
            suffix = part.name if item.kind is Kind.CPP_KERNEL else path[path.rfind(".") :]
            paths |= {path} if text in (name, name + suffix) else set()
    return [artifact for artifact in side.artifacts if artifact.path in paths]


def _listed(paths: list[str]) -> str:
    """The paths in one line, without their folders if the names alone tell them apart."""
    names = [path.rpartition("/")[2] for path in paths]
    shown = names if len(set(names)) == len(names) else paths
    return ", ".join(shown[:_SHOWN]) + (f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else "")


def _near(side: Side, text: str) -> str:
    """What else might have been meant."""
    wanted = text.rpartition("/")[2]
    names = sorted({artifact.path.rpartition("/")[2] for artifact in side.artifacts})
    place = bisect(names, wanted)
    near = difflib.get_close_matches(wanted, names[max(place - _COMPARED, 0) : place + _COMPARED], _NEAR)
    listed = f"; `kstore files {side.label}` lists them" if side.generation else ""
    return f"there is {', '.join(near)}" if near else f"name a file, or a kernel and the file's suffix{listed}"


def _of_host(versions: list[Artifact]) -> Artifact:
    own = detect_host().fingerprint
    return next((artifact for artifact in versions if artifact.host == own), min(versions))
