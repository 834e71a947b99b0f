"""The software that decides whether a restored entry can hit: torch, CUDA or HIP, Triton, Python."""

from __future__ import annotations

import ast
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

from kstore.digest import digest_of
from kstore.environment.gpu import is_cpu
from kstore.environment.interpreter import own_interpreter

NONE = "none"
"""The fact for something that is missing."""

_TAG_DIGITS = 8
_TAG_READABLE = 100  # characters; a folder name has at most 255, and no real version comes near
_CPUINFO = Path("/proc/cpuinfo")
_SVE_BYTES = Path("/proc/sys/abi/sve_default_vector_length")
_TRITON_DISTRIBUTIONS = (
    "triton",
    "pytorch-triton",
    "triton-rocm",
    "pytorch-triton-rocm",
    "pytorch-triton-xpu",
)
_NEED_NEITHER = "jax", "warp", "cupy"
"""Packages that compile without torch and Triton."""
_VERSION = re.compile(r"^Version: *(\S+)", re.MULTILINE)
_TORCH_FACTS = {
    "torch": "__version__",
    "torch_git": "git_version",
    "torch_debug": "debug",
    "cuda": "cuda",
    "hip": "hip",
}

_AVX512 = frozenset({"avx512f", "avx512vl", "avx512bw", "avx512dq"})
_VNNI = _AVX512 | {"avx512_vnni"}
_AMX = _VNNI | {"amx_tile"}
_X86_LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("amx_fp16", _AMX | {"amx_fp16"}),
    ("amx", _AMX),
    ("avx512_vnni", _VNNI),
    ("avx512", _AVX512),
    ("avx2", frozenset({"avx2"})),
)


class Environment(NamedTuple):
    """A software environment. A worker never restores what the compilers of another environment built."""

    tag: str
    """Folder name: a readable part, "-", and a short digest of `facts`; made of `[a-z0-9._+-]`."""
    facts: Mapping[str, str]
    """Everything that the digest covers, in full; what is missing is `none`."""


def detect_environment(gpu: str, environ: Mapping[str, str] = os.environ) -> Environment:
    """Describe the installed software, without importing torch; the answer is the same if it is imported.

    A `cpu-*` slug in `gpu` adds the vector instructions that Inductor would use. Inductor leaves them out of its graph
    key, and a graph generated for AVX-512 that is loaded on another CPU ends in a C++ compile error, not in a miss.
    With a GPU they stay out, or a fleet of equal GPUs with unequal CPUs would share nothing.
    """
    facts = _torch_facts() | {
        "triton": _triton_version(),
        "python": _binary_interface() or str(sys.implementation.cache_tag),
        "machine": platform.machine().lower(),
    }
    if is_cpu(gpu):
        isa = vector_isa(facts["machine"], cpu_flags(), environ.get("ATEN_CPU_CAPABILITY"), _sve_bytes())
        facts["vector_isa"] = _as_tried(isa)
    return Environment(f"{_readable(facts)}-{digest_of_facts(facts)[:_TAG_DIGITS]}", facts)


def has_only_kstore(tag: str) -> bool:
    """Whether this process's environment, which has that tag, has no compiler: neither torch nor Triton, nor one that
    needs neither.
    """
    has_neither = tag.startswith(f"{_named('torch', NONE)}-{_named('triton', NONE)}-")
    return has_neither and not any(map(_folder_of, _NEED_NEITHER))


def digest_of_facts(facts: Mapping[str, str]) -> str:
    """Hexadecimal digest of `facts`, whatever their order."""
    return digest_of(json.dumps(dict(facts), sort_keys=True, separators=(",", ":")).encode()).hex()


def _readable(facts: Mapping[str, str]) -> str:
    parts = [_named("torch", facts["torch"]), _named("triton", facts["triton"]), _python(), facts["machine"]]
    return re.sub(r"[^a-z0-9._+-]+", "-", "-".join(parts).lower())[:_TAG_READABLE]


def _named(package: str, version: str) -> str:
    return f"no{package}" if version == NONE else f"{package}{version}"


def _binary_interface() -> str:
    """`SOABI`, from the suffix of extension modules: `sysconfig` would load all of Python's build settings for it."""
    return EXTENSION_SUFFIXES[0].strip(".").rpartition(".")[0]


def _python() -> str:
    name = "cp" if sys.implementation.name == "cpython" else sys.implementation.name
    return f"{name}{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"


# ---- torch and Triton


def torch_folder() -> Path | None:
    """The folder of the torch package, imported or not, or None if it is not installed."""
    return _folder_of("torch")


def _folder_of(package: str) -> Path | None:
    """The folder of any package, found without the interpreter's import lock: a thread that commits for a signal
    handler might not get that lock (see `live.imports`).
    """
    if (imported := sys.modules.get(package, ...)) is not ...:  # or something that stands in for it
        file = getattr(imported, "__file__", None)
        return Path(file).parent if file else None
    try:
        found = (finder.find_spec(package, None) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next(filter(None, found), None)
    except (ImportError, ValueError):  # from a finder that hides it
        return None
    return Path(spec.origin).parent if spec and spec.origin else None


def _torch_facts() -> dict[str, str]:
    folder = torch_folder()
    if folder is None:
        return dict.fromkeys(_TORCH_FACTS, NONE)
    constants = _constants(folder / "version.py")
    return {fact: _as_fact(constants.get(name)) for fact, name in _TORCH_FACTS.items()}


def _as_fact(value: object) -> str:
    return NONE if value is None else str(value)


def _constants(path: Path) -> dict[str, object]:
    """Names that a module sets to literals, read without running it; nothing if it cannot be read."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[str, object] = {}
    for statement in body:
        found |= _assigned(statement)
    return found


def _assigned(statement: ast.stmt) -> dict[str, object]:
    if isinstance(statement, ast.Assign):
        targets, value = statement.targets, statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value:
        targets, value = [statement.target], statement.value
    else:
        return {}
    if not isinstance(value, ast.Constant):
        return {}
    return {target.id: value.value for target in targets if isinstance(target, ast.Name)}


def _triton_version() -> str:
    """Triton's version from its package metadata; builds for nightly torch and ROCm have their own names."""
    return _recorded_version() or _registered_version()


def _recorded_version() -> str:
    """The version recorded beside the package, where pip puts it; empty if there is none."""
    folder = _folder_of("triton")
    records = _records(folder.parent) if folder else []
    return next(filter(None, map(_version_in, records)), "")


def _records(installed: Path) -> list[str]:
    """Triton's metadata in a folder of packages, whatever the name of its distribution."""
    prefixes = tuple(f"{name.replace('-', '_')}-" for name in _TRITON_DISTRIBUTIONS)
    try:
        found = [name for name in os.listdir(installed) if name.startswith(prefixes) and name.endswith(".dist-info")]
    except OSError:
        return []
    ordered = (name for prefix in prefixes for name in found if name.startswith(prefix))
    return [os.path.join(installed, name, "METADATA") for name in ordered]


def _version_in(record: str) -> str:
    try:
        found = _VERSION.search(Path(record).read_text("utf-8", "replace"))
    except (OSError, ValueError):
        return ""
    return found[1] if found else ""


def _registered_version() -> str:
    """The version that Python finds, wherever it is: importing what finds it takes longer than a whole commit."""
    from importlib import metadata

    for name in _TRITON_DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return NONE


# ---- the CPU


def cpu_flags(cpuinfo: Path = _CPUINFO) -> frozenset[str]:
    """Instruction set extensions as Linux names them; empty if it does not say."""
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:  # the first core's; a large machine has megabytes of them
                name, _, value = line.partition(":")
                if name.strip() in ("flags", "Features", "features"):
                    return frozenset(value.split())
    except OSError:
        pass
    return frozenset()


def vector_isa(machine: str, flags: frozenset[str], capability: str | None, sve_bytes: int) -> str:
    """The vector instructions that Inductor generates code for, by the rules of `pick_vec_isa` in torch 2.13.

    `capability` is ATEN_CPU_CAPABILITY, which can lower the choice to AVX2 or to none; "avx512" means the
    best of AVX-512, and a value that the CPU lacks is ignored. `sve_bytes` is the length of an SVE vector.
    """
    levels = _supported_levels(machine, flags, sve_bytes)
    if not levels or capability == "default":
        return NONE
    return "avx2" if capability == "avx2" and "avx2" in levels else levels[0]


def _as_tried(isa: str) -> str:
    """The instructions as a fact. Inductor tries them by running the program of its process as Python. A server with
    Python embedded, such as uWSGI, or a bundle may fail at that: then it does without them, and shares no graphs with
    processes that use them.
    """
    if isa == NONE or own_interpreter():
        return isa
    return f"{isa}, tried by {os.path.basename(sys.executable or NONE)}"


def _supported_levels(machine: str, flags: frozenset[str], sve_bytes: int) -> list[str]:
    """The levels that a processor supports, best first."""
    if machine in ("x86_64", "amd64"):
        return [level for level, needed in _X86_LEVELS if needed <= flags]
    if machine in ("aarch64", "arm64"):
        return [_arm_level(flags, sve_bytes)]
    return {"ppc64le": ["vsx"], "s390x": ["zvector"] if "vxe" in flags else []}.get(machine, [])


def _arm_level(flags: frozenset[str], sve_bytes: int) -> str:
    if "bf16" not in flags or not flags & {"sve", "sve2"}:
        return "neon"
    return "sve128" if sve_bytes == 16 else "sve256"


def _sve_bytes() -> int:
    try:
        return int(_SVE_BYTES.read_text("utf-8"))
    except (OSError, ValueError):
        return 0
