"""Finds, for each Triton kernel that was compiled anew, the stored one of its name, and what keeps them apart. Pure.

A kernel's key is made from its source with the number of its first line, its options and target, the versions of ptxas
and of Triton itself, and some variables (`triton.compiler.compile`). Its metadata holds the options, the target,
Triton's version and those variables; its code is beside the metadata.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from kstore.inspect.kernels import Configuration, code_digest, read_configuration
from kstore.inspect.kinds import Kind, kind_of
from kstore.why.differences import Difference

Read = Callable[[str], bytes | None]
"""Reads an artifact by its path; None if it cannot be read, or is too large."""

_RESULTS = {
    "shared", "tmem_size",
    "global_scratch_size", "global_scratch_align", "profile_scratch_size", "profile_scratch_align",
}  # fmt: skip
"""Fields that result from the code and are in no key."""
_MOST = 64
"""Kernels of one name that are compared: autotuning compiles one under many configurations."""


class KernelReason(StrEnum):
    """Why a kernel was compiled anew."""

    OPTIONS = "options"
    """A stored kernel of its name was compiled differently."""
    CODE = "code"
    """A stored kernel was compiled the same way from other code."""
    PLACE = "place"
    """A stored kernel has the same code too: the number of its first line, ptxas or libdevice differs."""
    REPLACED = "replaced"
    """It is the stored kernel, compiled again under the same key."""
    NOTHING = "nothing"
    """No kernel of its name was restored."""
    UNREADABLE = "unreadable"
    """Its metadata cannot be read."""


class KernelExplanation(NamedTuple):
    """Why one kernel was compiled anew."""

    name: str
    path: str
    """The path of its metadata."""
    reason: KernelReason
    closest: str = ""
    """Metadata of the stored kernel that it was compared with."""
    differences: tuple[Difference, ...] = ()


def explain_kernels(fresh: Iterable[str], stored: Iterable[str], read: Read) -> list[KernelExplanation]:
    """Explain each kernel among the artifacts `fresh` by those among `stored`, both given as paths."""
    known = set(stored)
    by_name: dict[str, list[str]] = defaultdict(list)
    for path in sorted(known):
        if is_metadata(path):
            by_name[_name(path)].append(path)
    return [_explain(path, known, by_name, read) for path in fresh if is_metadata(path)]


def is_metadata(path: str) -> bool:
    """Whether an artifact is the metadata of a kernel."""
    name = path.rpartition("/")[2]
    return name.endswith(".json") and not name.startswith("__grp__") and kind_of(path) is Kind.TRITON_KERNEL


def _name(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".json")


def _explain(path: str, known: set[str], by_name: Mapping[str, list[str]], read: Read) -> KernelExplanation:
    name = _name(path)
    if path in known:
        return KernelExplanation(name, path, KernelReason.REPLACED, path)
    ours = _configuration(read(path))
    if ours is None:
        return KernelExplanation(name, path, KernelReason.UNREADABLE)
    candidates = ((other, _configuration(read(other))) for other in by_name.get(name, ())[:_MOST])
    compared = [(other, _differences(theirs, ours)) for other, theirs in candidates if theirs is not None]
    if not compared:
        return KernelExplanation(name, path, KernelReason.NOTHING)
    closest, differences = min(compared, key=lambda pair: len(pair[1]))
    if differences:
        return KernelExplanation(name, path, KernelReason.OPTIONS, closest, differences)
    code = _code(path, read)
    alike = (other for other, differences in compared if not differences)
    same = next((other for other in alike if code and _code(other, read) == code), None)
    return KernelExplanation(name, path, KernelReason.PLACE if same else KernelReason.CODE, same or closest)


def _configuration(data: bytes | None) -> Configuration | None:
    content = read_configuration(data) if data is not None else None
    return content and {name: value for name, value in content.items() if name not in _RESULTS}


def _differences(stored: Configuration, fresh: Configuration) -> tuple[Difference, ...]:
    names = [*fresh, *(name for name in stored if name not in fresh)]
    texts = ((name, _text(stored, name), _text(fresh, name)) for name in names)
    return tuple(Difference(name, old, new) for name, old, new in texts if old != new)


def _text(configuration: Configuration, name: str) -> str | None:
    return str(configuration[name]) if name in configuration else None


def _code(path: str, read: Read) -> bytes | None:
    """The digest of the kernel's code without places; None if Triton was told to keep only the binary."""
    for suffix in (".source", ".ttir"):
        if (data := read(path.removesuffix(".json") + suffix)) is not None:
            return code_digest(data)
    return None
