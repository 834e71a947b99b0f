"""What an artifact is, judged by its path alone: `kinds.toml` says how.

kind_of("inductor/fxgraph/mt/fmtr…/c6lv…") is Kind.FX_GRAPH
"""

from __future__ import annotations

import re
import tomllib
from enum import StrEnum
from functools import cache

from kstore.components.table import Patterns
from kstore.packaged import read_packaged


class Kind(StrEnum):
    """What an artifact is, in the order in which people look at them."""

    FX_GRAPH = "fx-graph"
    """A pickled graph, an answer to the key that its folder is named after."""
    AOT_ENTRY = "aot-entry"
    """What AOTAutograd makes of a graph, also an answer to the key that its folder is named after."""
    TRITON_KERNEL = "triton-kernel"
    """A file of a kernel that Triton compiled: its metadata, or one of its forms from Triton's own to machine code."""
    TRITON_HELPER = "triton-helper"
    """C code that Triton builds for itself, once per host."""
    CPP_KERNEL = "cpp-kernel"
    """C++ that Inductor generated, as source or built."""
    CUDA_KERNEL = "cuda-kernel"
    """CUDA code that is not Triton's: CUTLASS, DeepGEMM, CuTe DSL, the driver's own cache."""
    GENERATED_CODE = "generated-code"
    """An Inductor Python module: a graph's, or the source of one Triton kernel."""
    AUTOTUNE = "autotune"
    """What was measured, or chosen by measuring."""
    COMPILED_MODEL = "compiled-model"
    """Graphs that a serving engine, AOTInductor or XLA keeps in its own form."""
    NATIVE_OBJECT = "native-object"
    """Sources and objects of extensions."""
    DYNAMO_STATE = "dynamo-state"
    """What Dynamo learnt about dynamic shapes, and precompiled packages."""
    OTHER = "other"

    @property
    def label(self) -> str:
        """What people call several of them: "FX graphs"."""
        entry = _table().get(self)
        return str(entry["label"]) if entry else "other files"


def kind_of(path: str) -> Kind:
    """What the artifact at `path`, `<component>/…`, is."""
    found = _expression().fullmatch(path)
    return Kind[found.lastgroup] if found and found.lastgroup else Kind.OTHER


@cache
def _table() -> dict[Kind, dict[str, object]]:
    text = read_packaged(__package__, "kinds.toml").decode()
    return {Kind(name): entry for name, entry in tomllib.loads(text).items()}


@cache
def _expression() -> re.Pattern[str]:
    """All patterns as one expression, with a group named for each kind."""
    parts = []
    for kind, entry in _table().items():
        patterns = entry["patterns"]
        assert isinstance(patterns, list)
        parts.append(f"(?P<{kind.name}>{Patterns(patterns).text})")
    return re.compile("|".join(parts))
