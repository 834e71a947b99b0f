"""Finds, for each Triton kernel that was compiled anew, the stored one of its name, and what keeps them apart. Pure.

A kernel's key is made from its source with the number of its first line, its options and target, the versions of ptxas
and of Triton itself, and some variables (`triton.compiler.compile`). Its metadata holds the options, the target,
Triton's version and those variables; its code is beside the metadata.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cache, partial
from itertools import islice
from typing import NamedTuple

from kstore.inspect.kernels import code_digest, read_configuration
from kstore.inspect.kinds import Kind, kind_of
from kstore.why.differences import Difference

Read = Callable[[str], bytes | None]
"""Reads an artifact by its path; None if it cannot be read, or is too large."""

_RESULTS = {
    "shared", "tmem_size",
    "global_scratch_size", "global_scratch_align", "profile_scratch_size", "profile_scratch_align",
}  # fmt: skip
"""Fields that result from the code and are in no key."""
_MOST = 512
"""Configurations of one name that another one is compared with: autotuning compiles a kernel under many."""

Texts = Mapping[str, str]
"""A configuration, with its values as text."""


class KernelReason(StrEnum):
    """Why a kernel was compiled anew."""

    OPTIONS = "options"
    """A stored kernel of its name was compiled differently."""
    CODE = "code"
    """A stored kernel was compiled the same way from other code."""
    PLACE = "place"
    """A stored kernel has the same code too: the number of its first line, ptxas or libdevice differs."""
    REPLACED = "replaced"
    """It is the stored kernel, compiled again under the same key: some of it was damaged, or not there."""
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
    known = _Stored(stored, read)
    return [_explain(path, known, read) for path in fresh if is_metadata(path)]


class _Alike(NamedTuple):
    """Stored kernels of one name and one configuration."""

    configuration: Texts
    paths: list[str]
    """Of their metadata, in order."""


class _Stored:
    """The stored kernels. Each of their files is read once, however many kernels are compared with it."""

    def __init__(self, paths: Iterable[str], read: Read) -> None:
        self.paths = frozenset(paths)
        self._read = read
        self._named: dict[str, list[str]] = defaultdict(list)
        for path in sorted(filter(is_metadata, self.paths)):
            self._named[_name(path)].append(path)
        self.by_configuration = cache(self._by_configuration)
        self.code = cache(partial(_code, read=read))

    def _by_configuration(self, name: str) -> Mapping[frozenset[tuple[str, str]], _Alike]:
        """The kernels of that name whose metadata can be read."""
        found: dict[frozenset[tuple[str, str]], _Alike] = {}
        for path in self._named.get(name, ()):
            configuration = _configuration(self._read(path))
            if configuration is not None:
                items = frozenset(configuration.items())
                found.setdefault(items, _Alike(configuration, [])).paths.append(path)
        return found


def is_metadata(path: str) -> bool:
    """Whether an artifact is the metadata of a kernel."""
    name = path.rpartition("/")[2]
    return name.endswith(".json") and not name.startswith("__grp__") and kind_of(path) is Kind.TRITON_KERNEL


def _name(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".json")


def _explain(path: str, stored: _Stored, read: Read) -> KernelExplanation:
    name = _name(path)
    if path in stored.paths:
        return KernelExplanation(name, path, KernelReason.REPLACED, path)
    ours = _configuration(read(path))
    if ours is None:
        return KernelExplanation(name, path, KernelReason.UNREADABLE)
    known, items = stored.by_configuration(name), frozenset(ours.items())
    if not known:
        return KernelExplanation(name, path, KernelReason.NOTHING)
    if items not in known:
        _, closest = min(islice(known.items(), _MOST), key=lambda other: len(dict(other[0] ^ items)))
        differences = tuple(_differences(closest.configuration, ours))
        return KernelExplanation(name, path, KernelReason.OPTIONS, closest.paths[0], differences)
    code, alike = _code(path, read), known[items].paths
    same = next((other for other in alike if code and stored.code(other) == code), None)
    return KernelExplanation(name, path, KernelReason.PLACE if same else KernelReason.CODE, same or alike[0])


def _configuration(data: bytes | None) -> Texts | None:
    content = read_configuration(data) if data is not None else None
    if content is None:
        return None
    return {name: str(value) for name, value in content.items() if name not in _RESULTS}


def _differences(stored: Texts, fresh: Texts) -> Iterator[Difference]:
    for name in dict.fromkeys((*fresh, *stored)):
        if stored.get(name) != fresh.get(name):
            yield Difference(name, stored.get(name), fresh.get(name))


def _code(path: str, read: Read) -> bytes | None:
    """The digest of the kernel's code without places; None if Triton was told to keep only the binary."""
    for suffix in (".source", ".ttir"):
        if (data := read(path.removesuffix(".json") + suffix)) is not None:
            return code_digest(data)
    return None
