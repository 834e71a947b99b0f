"""Environment variables that change the keys under which torch and Triton look for what they compiled.

Measured with torch 2.13: a tree that hits in full was looked up again with each variable set. Of those that begin with
one of the prefixes, most set a value of `torch._inductor.config`, which is part of every graph's key as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping

INFLUENCES = {
    "CI": "AOT entries: it sets torch._functorch.config.error_on_custom_op_aliasing",
    "OMP_NUM_THREADS": "graphs with code for the CPU: they are for one number of threads",
    "CXX": "every graph: it sets torch._inductor.config.cpp.cxx",
    "ATEN_CPU_CAPABILITY": "code for the CPU: it chooses the vector instructions",
    "TORCH_COMPILE_DEBUG": "every graph",
    "TORCH_COMPILE_CACHE_KEY_TAG": "every graph",
}
"""Variable → what it changes the key of."""
_PREFIXES = {
    "TORCHINDUCTOR_": "every graph, if it sets a value of torch._inductor.config",
    "TRITON_": "Triton's kernels, if it is among those that Triton compiles by",
    "NVPTX_": "Triton's kernels",
    "MLIR_": "Triton's kernels",
    "LLVM_": "Triton's kernels",
    "DISABLE_LLVM_OPT": "Triton's kernels",
    "DISABLE_PTXAS_OPT": "Triton's kernels",
}
_HARMLESS = {
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCHINDUCTOR_COMPILE_THREADS",
    "TORCHINDUCTOR_WORKER_START",
    "TORCHINDUCTOR_FX_GRAPH_CACHE",
    "TORCHINDUCTOR_AUTOGRAD_CACHE",
    "TRITON_CACHE_DIR",
    "TRITON_HOME",
    "TRITON_DUMP_DIR",
    "TRITON_OVERRIDE_DIR",
}
"""They say where caches are, or how compiling is done, and are in no key."""
KILL_SWITCHES = {
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    "TORCH_COMPILE_FORCE_DISABLE_CACHES": "1",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
    "TRITON_ALWAYS_COMPILE": "1",
}
"""Variable → the value with which a cache is not even asked."""
_LONGEST = 200


def influence(name: str) -> str:
    """What a variable changes the key of; empty for nothing that is known."""
    if name in _HARMLESS or name in KILL_SWITCHES:
        return ""
    found = (effect for prefix, effect in _PREFIXES.items() if name.startswith(prefix))
    return INFLUENCES.get(name) or next(found, "")


def influences(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environ` that change keys, with their values."""
    return {name: value[:_LONGEST] for name, value in sorted(environ.items()) if value and influence(name)}
