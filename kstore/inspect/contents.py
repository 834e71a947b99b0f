"""What the small files of a side say about its items: names, configurations, which module calls which kernels."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from kstore.errors import StoreUnavailable
from kstore.inspect.items import Item, Items, Part
from kstore.inspect.kernels import (
    MAX_METADATA,
    MAX_SOURCE,
    Configuration,
    chosen_kernel,
    code_digest,
    definitions,
    jitted_name,
    read_choice,
    read_configuration,
    source_digest,
)
from kstore.inspect.kinds import Kind
from kstore.inspect.sides import Fetch, Sizes

log = logging.getLogger(__name__)

_CPP = ".cpp"
_TELLING = {Kind.AUTOTUNE: ".best_config", Kind.GENERATED_CODE: ".py"}
"""How those files end that say more about themselves."""


@dataclass(frozen=True, slots=True)
class Content:
    """What is known about one item."""

    name: str = ""
    """The kernel's name; empty if unknown."""
    configuration: Configuration = field(default_factory=dict)
    """The options of a Triton kernel, or what tuning chose."""
    calls: tuple[str, ...] = ()
    """The kernels that a generated module defines."""
    is_readable: bool = True
    """Whether the file that would tell could be fetched and understood."""


UNKNOWN = Content()
"""For an item that no small file says anything about."""
_UNREAD = Content(is_readable=False)


def read_contents(items: Items, wanted: Collection[Item], fetch: Fetch) -> dict[Item, Content]:
    """Read what can be said about the `wanted` items of a side; all of its modules too, if C++ kernels need names.

    This is one batch; nothing is kept but what is returned.
    """
    reader = _Reader(items)
    parts = telling = {item: part for item in wanted if (part := _telling(item))}
    if any(item.kind is Kind.CPP_KERNEL for item in telling):
        modules = (item for item in items.values() if item.kind is Kind.GENERATED_CODE)
        parts = {item: part for item in modules if (part := _telling(item))} | telling
    of_blob: dict[bytes, list[Item]] = defaultdict(list)
    for item, part in parts.items():
        of_blob[part.digest].append(item)
    for digest, data in _readable(fetch, {part.digest: part.size for part in parts.values()}):
        for item in of_blob[digest]:
            reader.read(item, data)
    return {item: reader.content(item) if item in telling else _unread(item) for item in wanted}


def _unread(item: Item) -> Content:
    """What is known of an item without a file to read: too little if that is too large, or a kernel's is missing."""
    return _UNREAD if item.kind is Kind.TRITON_KERNEL or _description(item) else UNKNOWN


def read_codes(items: Collection[Item], fetch: Fetch) -> dict[Item, bytes]:
    """Digests of the code of Triton kernels, as far as it can be fetched, without the lines and paths it came from."""
    parts = {item: part for item in items if (part := item.code()) and part.size <= MAX_SOURCE}
    sizes = {part.digest: part.size for part in parts.values()}
    found = {digest: code_digest(data) for digest, data in _readable(fetch, sizes)}
    return {item: found[part.digest] for item, part in parts.items() if part.digest in found}


def _readable(fetch: Fetch, sizes: Sizes) -> Iterator[tuple[bytes, bytes]]:
    """Fetch what can be read. What cannot be read just now is left out, like what is damaged."""
    try:
        yield from fetch(sizes)
    except StoreUnavailable as error:
        log.warning("some files that describe others cannot be read: %s", error)


def _telling(item: Item) -> Part | None:
    """The file of an item that is worth reading."""
    limit = MAX_METADATA if item.kind in (Kind.TRITON_KERNEL, Kind.AUTOTUNE) else MAX_SOURCE
    part = _description(item)
    return part if part and part.size <= limit else None


def _description(item: Item) -> Part | None:
    """The file of an item that says more about it, however large."""
    if item.kind is Kind.TRITON_KERNEL:
        return item.metadata()
    if item.kind is Kind.CPP_KERNEL:
        return min((part for part in item.parts if part.name.endswith(_CPP)), default=None)
    ending = _TELLING.get(item.kind)
    return min(item.parts) if ending and item.unit.endswith(ending) else None


class _Reader:
    """Takes in the telling files of a side's items, one after another, and then says what is known about each."""

    def __init__(self, items: Items) -> None:
        self._contents: dict[Item, Content] = {}
        self._sources: dict[Item, bytes] = {}
        self._names: dict[bytes, str] = {}
        self._kernels = {
            item.unit.rpartition("/")[2]: item.label for item in items.values() if item.kind is Kind.TRITON_KERNEL
        }

    def read(self, item: Item, data: bytes) -> None:
        """Take in the telling file of an item."""
        if item.kind is Kind.CPP_KERNEL:
            self._sources[item] = source_digest(data)
        elif item.kind is Kind.GENERATED_CODE:
            self._contents[item] = self._module(data.decode(errors="replace"))
        elif item.kind is Kind.AUTOTUNE:
            found = read_choice(data)
            name = self._kernels.get(chosen_kernel(data), "")
            self._contents[item] = _UNREAD if found is None else Content(name, found)
        else:
            found = read_configuration(data)
            self._contents[item] = _UNREAD if found is None else Content(item.label, found)

    def _module(self, text: str) -> Content:
        found = list(definitions(text))
        self._names |= {definition.digest: definition.name for definition in found}
        return Content(calls=tuple(definition.name for definition in found)) if found else Content(jitted_name(text))

    def content(self, item: Item) -> Content:
        """What is known about an item, once everything is read."""
        if item in self._sources:
            return Content(self._names.get(self._sources[item], ""))
        return self._contents.get(item, _UNREAD)
