"""What a mega-cache cannot hold of a generation, and what becomes of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kstore.components import load_table
from kstore.integrations.megacache.entries import COMPONENT, Artifact, artifact_of
from kstore.published.manifest import GROUP, Entry, Manifest, unit_of
from kstore.report import LeftOut

# A kernel that a graph bundles is named in it by its folder's name (`TritonKernelArtifacts` in torch's
# _inductor/triton_bundler.py): the base32 form of a SHA-256, as pickle writes a string of 52 characters.
_KERNEL_NAME = re.compile(rb"\x8c\x34([A-Z2-7]{52})")


class Reason(NamedTuple):
    """Why files are left out."""

    what: str
    why: str


_OBJECTS = Reason("C++ objects and sources", "the compiler builds them again")
_MODULES = Reason("generated modules", "torch writes them again from its graphs")
_TIMINGS = Reason("timings of GEMM choices", "max-autotune measures them again")
_KERNELS = Reason("Triton kernels that no graph bundles", "Triton compiles them again")
_OTHER = Reason("other files of TorchInductor", "a mega-cache has no kind for them")
_SUFFIXES = {".py": _MODULES} | dict.fromkeys((".cpp", ".h", ".cu", ".so", ".load_ok", ".o", ".a"), _OBJECTS)
"""Why files in `<xx>/`, where Inductor keeps what it generates, are left out, by suffix."""


def bundled_kernels(artifacts: Iterable[Artifact]) -> set[str]:
    """Names of the kernel folders that torch makes again from the graphs. Those are entries, or, with torch's options
    `bundled_autograd_cache` and `caching_precompile`, in entries of other kinds.
    """
    return {name.decode() for artifact in artifacts for name in _KERNEL_NAME.findall(artifact.content)}


def left_out(manifest: Manifest, kernels: set[str]) -> tuple[LeftOut, ...]:
    """What is not carried, including the files of all hosts, by component and reason."""
    found: dict[tuple[str, Reason], list[Entry]] = {}
    for path, entry in _not_carried(manifest):
        if reason := _reason(path, entry, kernels):
            found.setdefault((path.partition("/")[0], reason), []).append(entry)
    return tuple(
        LeftOut(reason.what, component, len(entries), sum(entry.size for entry in entries), reason.why)
        for (component, reason), entries in sorted(found.items())
    )


def _not_carried(manifest: Manifest) -> Iterator[tuple[str, Entry]]:
    yield from ((path, entry) for path, entry in manifest.files.items() if not artifact_of(path))
    for files in manifest.hosts.values():
        yield from files.items()


def _reason(path: str, entry: Entry, kernels: set[str]) -> Reason | None:
    """Why the file at `path`, which is not an entry itself, is left out; None if a graph brings it along."""
    component, _, relative = path.partition("/")
    unit = unit_of(path, entry).rpartition("/")[2] if entry.flags & GROUP else ""
    if unit and component in (COMPONENT, "triton") and "halide" not in unit:
        return None if unit in kernels else _KERNELS
    if component != COMPONENT:
        return Reason(f"files of {_title(component)}", "a mega-cache holds nothing but TorchInductor's files")
    if relative.startswith("cache/"):
        return _TIMINGS
    folder, _, name = relative.partition("/")
    return _SUFFIXES.get(os.path.splitext(name)[1], _OTHER) if len(folder) == 2 else _OTHER


def _title(component: str) -> str:
    known = load_table().get(component)
    return known.title if known else component
