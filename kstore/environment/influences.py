"""Environment variables that change the keys under which torch and Triton look for what they compiled.

Measured with torch 2.13: a tree that hits in full was looked up again with each variable set. What was taken from the
two themselves is in `influences.toml`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from functools import cache

from kstore.packaged import read_packaged

_GRAPHS = "every graph"
_INDUCTOR = "TORCHINDUCTOR_"
_THREADS = "graphs with code for the CPU: they are for one number of threads"
OFF = (
    "AOT_INDUCTOR_DEBUG_COMPILE", "AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER", "AOT_INDUCTOR_DEBUG_SYMBOLS",
    "AOT_INDUCTOR_ENABLE_LTO", "AOT_INDUCTOR_WEIGHT_USE_CACHING_ALLOCATOR", "CUTEDSL_ENABLE_AUTOTUNING",
    "CUTLASS_EPILOGUE_FUSION", "DUMP_AOTI_MINIFIER", "ENABLE_PERSISTENT_TMA_MATMUL", "ENABLE_TEMPLATE_TMA_STORE",
    "ENABLE_TMA_LOAD_FOR_TEMPLATE_EPILOGUE", "INDUCTOR_CK_BACKEND_GENERATE_TEST_RUNNER_CODE",
    "INDUCTOR_CUDA_BACKEND_GENERATE_TEST_RUNNER_CODE", "LOG_TLPARSE",
)  # fmt: skip
"""Variables of torch._inductor.config as well, where "0" is their default."""
EARLIER_OFF = ("AOT_INDUCTOR_COMPILE_WRAPPER_WITH_O0",)
"""The same, of torch 2.7; torch 2.13 lacks it."""
LATER_OFF = ("ENABLE_HOST_SIDE_TMA", "ENABLE_TEMPLATE_AUTOWS", "FLYDSL_ENABLE_AUTOTUNING")
"""The same, of torch 2.15; torch 2.13 lacks them."""
ON = (
    "AOTINDUCTOR_RAISE_ERROR_ON_IGNORED_OPTIMIZATION", "AOT_INDUCTOR_ENABLE_FRAME_POINTER",
    "AOT_INDUCTOR_ENABLE_LINE_TABLES", "TORCHDYNAMO_AUTO_FUNCTIONALIZED_V2",
)  # fmt: skip
"""Those where "1" is."""
_OTHERS = (
    "AOTINDUCTOR_REPRO_LEVEL",
    "AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL",
    "AOT_INDUCTOR_FILTERED_KERNELS_TO_PRINT",
)
_AOT = {
    "AOT_PARTITIONER_DEBUG": "debug_partitioner",
    "FAKE_ALLOW_META": "fake_tensor_allow_meta",
    "PARTITIONER_MEMORY_BUDGET_PARETO": "visualize_memory_budget_pareto",
    "PARTITIONER_MEMORY_BUDGET_PARETO_DIR": "memory_budget_pareto_dir",
    "TORCH_COMPILE_GRAPH_FORMAT": "torch_compile_graph_format",
}
INFLUENCES = {
    **dict.fromkeys((*OFF, *EARLIER_OFF, *LATER_OFF, *ON, *_OTHERS), _GRAPHS),
    **{name: f"AOT entries: it sets torch._functorch.config.{setting}" for name, setting in _AOT.items()},
    "CI": "AOT entries: it sets torch._functorch.config.error_on_custom_op_aliasing",
    "OMP_NUM_THREADS": _THREADS,
    "MKL_NUM_THREADS": _THREADS,
    "CXX": "every graph: it sets torch._inductor.config.cpp.cxx",
    "ATEN_CPU_CAPABILITY": "code for the CPU: it chooses the vector instructions",
    "TORCH_COMPILE_DEBUG": _GRAPHS,
    "INDUCTOR_PROVENANCE": _GRAPHS,
    "TORCH_COMPILE_CACHE_KEY_TAG": _GRAPHS,
}
"""Variable → what it changes the key of."""
OF_THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""Those that say how many threads torch has; the first one that is set counts."""
FOR_THE_CPU = {*OF_THREADS, "ATEN_CPU_CAPABILITY"}
"""They concern only graphs that have code for the CPU."""
_DEFAULTS = {
    **dict.fromkeys((*OFF, *EARLIER_OFF, *LATER_OFF), "0"),
    **dict.fromkeys((*ON, "FAKE_ALLOW_META"), "1"),
    **dict.fromkeys(("AOT_PARTITIONER_DEBUG", "PARTITIONER_MEMORY_BUDGET_PARETO"), "0"),
    "CXX": "g++",
    "TORCH_COMPILE_DEBUG": "0",
    "INDUCTOR_PROVENANCE": "0",
}
_UNSET_IF_EMPTY = {"ATEN_CPU_CAPABILITY", "CI", "FAKE_ALLOW_META", *OF_THREADS, "TORCH_COMPILE_CACHE_KEY_TAG"}
"""As good as not set if they are empty, as Triton's are, and most of those where "0" is the default."""
_EVEN_IF_EMPTY = {"AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER", "AOT_PARTITIONER_DEBUG", "LOG_TLPARSE"}
"""The others of those where "0" is: torch keeps the empty text, or takes it for true."""
KILL_SWITCHES = {
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    "TORCH_COMPILE_FORCE_DISABLE_CACHES": "1",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
    "TORCHINDUCTOR_FX_GRAPH_CACHE_DEFAULT": "0",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
    "TRITON_ALWAYS_COMPILE": "1",
    "TRITON_INTERPRET": "1",
    "VLLM_DISABLE_COMPILE_CACHE": "1",
}
"""Variable → the value with which a cache is not even asked."""
_PRECEDING = {
    "TORCH_COMPILE_FORCE_DISABLE_CACHES": "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
    "TORCHINDUCTOR_FX_GRAPH_CACHE_DEFAULT": "TORCHINDUCTOR_FX_GRAPH_CACHE",
}
"""Switch of torch's → the one that is read instead, if that is set."""
_WORDS = {"1": "true", "on": "true", "0": "false", "off": "false"}
"""Values that Triton treats as equal in a key."""
_LONGEST = 200


@cache
def _text() -> str:
    return read_packaged(__package__, "influences.toml").decode()


@cache
def _table() -> dict[str, set[str]]:
    content = tomllib.loads(_text())
    flags = {name: {_INDUCTOR + rest for rest in rests} for name, rests in content["inductor"].items()}
    return {**flags, "triton": {name for names in content["triton"].values() for name in names}}


def influence(name: str) -> str:
    """What a variable changes the key of; empty if nothing is known."""
    if name in KILL_SWITCHES or name in _table()["harmless"]:
        return ""
    if name in _table()["triton"]:
        return "Triton's kernels"
    return INFLUENCES.get(name) or (_GRAPHS if name.startswith(_INDUCTOR) else "")


def influences(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environ` that change keys, with their values."""
    named = {name: value[:_LONGEST] for name, value in sorted(environ.items()) if _may_influence(name)}
    return {name: value for name, value in named.items() if influence(name) and (value or not _is_unset(name))}


def key_facts(environ: Mapping[str, str]) -> dict[str, object]:
    """What changes keys in a process besides its software, for the manifest."""
    return {"variables": influences(environ), "processors": processors()}


def processors() -> int:
    """How many processors this process may run on; all of them if the system does not say, as in some containers."""
    with suppress(AttributeError, OSError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads(variables: Mapping[str, str], of: int) -> int:
    """How many threads torch would have on `of` processors: torch asks MKL, which has no more than these (Intel's
    manual, MKL_DYNAMIC).
    """
    said = (variables.get(name, "").partition(",")[0].strip() for name in OF_THREADS)
    return next((min(int(text), of) for text in said if text.isdecimal() and int(text)), of)


def _may_influence(name: str) -> bool:
    """Whether a variable may change keys, judged without parsing the table: parsing costs a worker a millisecond, and
    most have no variable that is in it.
    """
    return name in INFLUENCES or name.startswith(_INDUCTOR) or f'"{name}"' in _text()


def have_same_keys(name: str, one: str | None, other: str | None) -> bool:
    """Whether two values of a variable, None if `influences` does not have it, make the same keys."""
    return _meaning(name, one) == _meaning(name, other)


def _meaning(name: str, value: str | None) -> str | None:
    if name == "CI":
        return "set" if value else None
    if value == _default(name):
        return None
    is_word = name in _table()["triton"] and value is not None
    return _word(str(value)) if is_word else value


def _default(name: str) -> str | None:
    return _DEFAULTS.get(name) or ("1" if name in _table()["on"] else "0" if name in _table()["off"] else None)


def _is_unset(name: str) -> bool:
    """Whether a variable that is empty is as good as not set."""
    table = _table()
    is_off = _default(name) == "0" and name not in _EVEN_IF_EMPTY | table["even_if_empty"]
    return is_off or name in _UNSET_IF_EMPTY | table["unset_if_empty"] | table["triton"]


def _word(value: str) -> str:
    return _WORDS.get(value.lower(), value.lower())


def switched_off(environ: Mapping[str, str]) -> list[str]:
    """The kill switches that are set so that a cache is not asked."""
    read = (name for name in KILL_SWITCHES if _PRECEDING.get(name, "") not in environ)
    return [name for name in read if _is_off(name, environ.get(name))]


def _is_off(name: str, value: str | None) -> bool:
    if value is not None and name.startswith("TORCH"):  # To torch 2.13 any other text is true, "false" as well.
        return (value not in ("0", "")) == (KILL_SWITCHES[name] == "1")
    word = _word(value or "")
    return {"yes": "true", "y": "true", "no": "false", "n": "false"}.get(word, word) == _word(KILL_SWITCHES[name])
