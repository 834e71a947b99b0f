"""Makes entries like those that torch writes, as far as their lines go."""

from __future__ import annotations

import base64
import hashlib
import pickle


def digest(value: str) -> str:
    """As torch names a value: base32 of a SHA-256, in lower case."""
    return base64.b32encode(hashlib.sha256(value.encode()).digest())[:51].decode().lower()


def line(name: str, value: str) -> str:
    return f"[{digest(value)}] {name}: {value}"


def entry(code: str = "code", **attributes: str) -> bytes:
    """A pickled graph. In names "__" stands for a bracket: `inductor_config__debug`."""
    lines = [line("gm", code)]
    for name, value in attributes.items():
        outer, _, inner = name.partition("__")
        lines.append(line(f"{outer}[{inner}]" if inner else outer, value))
    return pickle.dumps({"_fx_graph_cache_debug_lines": lines, "noise": code})
