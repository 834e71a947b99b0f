"""The things that a cache holds, as people count them: a kernel, not its eight files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kstore.inspect.kinds import Kind, kind_of
from kstore.published.manifest import Entry, unit_of

_LIST = "__grp__"
_METADATA = ".json"


class Artifact(NamedTuple):
    """One file of a side."""

    path: str
    host: str
    """Fingerprint of the hosts that it is for; empty for any host."""
    entry: Entry

    def describe(self) -> dict[str, Any]:
        """For machines."""
        return {
            "path": self.path,
            "host": self.host or None,
            "bytes": self.entry.size,
            "digest": self.entry.digest.hex(),
            "mode": f"{self.entry.mode:04o}",
        }


class Part(NamedTuple):
    """One file of an item."""

    name: str
    """What distinguishes it from the item's other files: the end of its path, which two kernels of one name share."""
    host: str
    digest: bytes
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Item:
    """A kernel, the answers to one graph's key, or a file that stands for itself."""

    kind: Kind
    unit: str
    """The path of its folder or its file, or what its files' paths begin with."""
    parts: frozenset[Part]

    @property
    def component(self) -> str:
        """The JIT cache that it belongs to."""
        return self.unit.partition("/")[0]

    @property
    def label(self) -> str:
        """Its name as far as paths tell it: the kernel's name, the graph's key, or else the path."""
        if self.kind is Kind.TRITON_KERNEL:
            return self._kernel() or self.unit
        return self.unit.rpartition("/")[2] if self.kind in (Kind.FX_GRAPH, Kind.AOT_ENTRY) else self.unit

    @property
    def substance(self) -> frozenset[Part]:
        """Its files without the list of them, which holds the path of their folder."""
        return frozenset(part for part in self.parts if not part.name.startswith(_LIST))

    @property
    def hosts(self) -> set[str]:
        """The hosts that any of its files is bound to."""
        return {part.host for part in self.parts if part.host}

    def metadata(self) -> Part | None:
        """The file with a Triton kernel's options."""
        plain = [part for part in self.parts if part.name.endswith(_METADATA) and not part.name.startswith(_LIST)]
        return min(plain, default=None)

    def code(self) -> Part | None:
        """The first form of a Triton kernel's code that it has."""
        forms = {part.name.rpartition(".")[2]: part for part in sorted(self.parts, reverse=True)}
        return forms.get("source") or forms.get("ttir")

    def path(self, part: Part) -> str:
        """The path of one of its files."""
        slash = "" if self.kind is Kind.CPP_KERNEL or not part.name else "/"
        return f"{self.unit}{slash}{part.name}"

    def _kernel(self) -> str:
        """The name of a Triton kernel: its files are named after it."""
        lists = sorted(part.name for part in self.parts if part.name.startswith(_LIST))
        if lists:
            return lists[0].removeprefix(_LIST).removesuffix(_METADATA)
        return min(part.name for part in self.parts).partition(".")[0]


Items = dict[tuple[Kind, str], Item]


def items_of(artifacts: Iterable[Artifact]) -> Items:
    """The items that these artifacts make up, by kind and unit."""
    parts: dict[tuple[Kind, str], list[Part]] = {}
    for path, host, entry in artifacts:
        kind = kind_of(path)
        unit = _stem(path) if kind is Kind.CPP_KERNEL else unit_of(path, entry)
        name = path.removeprefix(unit).removeprefix("/")
        parts.setdefault((kind, unit), []).append(Part(name, host, entry.digest, entry.size))
    return {key: Item(*key, frozenset(found)) for key, found in parts.items()}


def _stem(path: str) -> str:
    """What the paths of a C++ kernel's files begin with: Inductor names source and objects alike to the first dot."""
    folder, slash, name = path.rpartition("/")
    return folder + slash + name.partition(".")[0]
