"""Reads from Inductor's entries what their keys were made from.

With each graph torch keeps the lines that describe its key, one for each attribute: "[hash] name: value"
(`FxGraphCachePickler.debug_lines`, `OutputCode._fx_graph_cache_debug_lines`; AOT entries hold those of their graphs).
The entries are pickles, and loading a pickle runs what is in it. So none is loaded: `pickletools.genops` walks through
the opcodes of one as data and calls nothing, and the lines are plain strings among them.
"""

from __future__ import annotations

import ast
import pickletools
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_LINE = re.compile(r"\[([a-z2-7]{40,64})\] ([^\s:\[]+(?:\[[^\]\n]*\])?): ?(.*)", re.DOTALL)
_MAX_LITERAL = 64 << 10
"""The most characters of a dictionary that is taken apart: the parser recurses."""
CODE = "gm"
"""The attribute that is the graph's code, and the first of each graph's lines (`FxGraphHashDetails`)."""


class Attribute(NamedTuple):
    """One thing that a graph's key depends on."""

    digest: str
    """Torch's digest of the value; texts may hold addresses, and then differ although the values do not."""
    text: str


class Graph(NamedTuple):
    """What the key of one compiled graph was made from."""

    path: str
    """The artifact that it was read from."""
    attributes: Mapping[str, Attribute]

    @property
    def digests(self) -> frozenset[tuple[str, str]]:
        """Name and digest of each attribute: two graphs that agree in these have the same key."""
        return frozenset((name, attribute.digest) for name, attribute in self.attributes.items())


def read_graphs(path: str, data: bytes) -> list[Graph]:
    """The graphs of an FX or AOT entry: one for a forward or inference graph, one for a backward graph.

    Empty if the bytes are not a pickle, or are one without such lines.
    """
    graphs: list[dict[str, Attribute]] = []
    for text in _strings(data):
        found = _LINE.fullmatch(text)
        if not found:
            continue
        digest, name, value = found.groups()
        if name == CODE:
            graphs.append({})
        if graphs:
            graphs[-1].update(_flat(name, digest, value))
    return [Graph(path, attributes) for attributes in graphs]


def _strings(data: bytes) -> Iterator[str]:
    try:
        yield from (argument for _, argument, _ in pickletools.genops(data) if isinstance(argument, str))
    except (ValueError, TypeError, OverflowError, MemoryError, RecursionError):  # It is not a pickle.
        return


def _flat(name: str, digest: str, value: str) -> dict[str, Attribute]:
    """An attribute under the name that people know: `inductor_config.max_autotune`, `system_info.version.triton`."""
    name = name.replace("[", ".").replace("]", "")
    members = _members(name, value) if name != CODE else {}
    return members or {name: Attribute(digest, value)}


def _members(name: str, value: str) -> dict[str, Attribute]:
    """The members of a dictionary; none if it is not a dictionary, or not a small one."""
    if not value.startswith("{") or len(value) > _MAX_LITERAL:
        return {}
    try:
        content = ast.literal_eval(value)
        if not isinstance(content, dict):
            return {}
        texts = {f"{name}.{key}": str(inner) for key, inner in content.items()}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return {}
    return {name: Attribute(text, text) for name, text in texts.items()}
