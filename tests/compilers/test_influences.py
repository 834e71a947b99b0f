"""What kstore says about environment variables, checked with torch and Triton themselves."""

from __future__ import annotations

import json
import mmap
import os
import re
import subprocess
import sys
import tomllib
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kstore.environment.influences import KILL_SWITCHES, OFF, ON, have_same_keys, influence
from tests.compilers.programs import PATH, TIMEOUT

pytestmark = pytest.mark.compiler

ASK_TORCH = """
import importlib, json, os, sys
import torch._functorch.config, torch._inductor.config

def portable(name):
    del sys.modules[name]
    return {k: repr(v) for k, v in importlib.import_module(name).save_config_portable().items()}

def both():
    return [portable(name) for name in ("torch._inductor.config", "torch._functorch.config")]

before, changing = both(), []
for together in json.loads(sys.argv[1]):
    os.environ.update(together)
    if both() != before:
        changing.append(together)
    for name in together:
        del os.environ[name]
print(json.dumps(changing))
"""
ASK_TRITON = """
import json, os, sys
from triton._C.libtriton import get_cache_invalidating_env_vars
os.environ.update(dict.fromkeys(json.loads(sys.argv[1]), "1"))
print(json.dumps(list(get_cache_invalidating_env_vars())))
"""
OPTIONS = {
    "PTXAS_OPTIONS", "TRITON_DEBUG", "TRITON_INSTRUMENTATION_MODE", "TRITON_LIBDEVICE_PATH", "TRITON_MOCK_PTX_VERSION",
    "TRITON_PTXAS_PATH",
}  # fmt: skip
"""They are in a kernel's key indirectly: by its options, or by the version of ptxas."""


def ask(program: str, question: object) -> Any:
    command = [sys.executable, "-c", program, json.dumps(question)]
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    done = subprocess.run(command, env=environ | PATH, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, list[str]]]:
    return tomllib.loads(resources.files("kstore.environment").joinpath("influences.toml").read_text())


def test_torchs_defaults_and_what_is_in_no_key(table: dict[str, dict[str, list[str]]]) -> None:
    flags = {name: [f"TORCHINDUCTOR_{rest}" for rest in rests] for name, rests in table["inductor"].items()}
    same = dict.fromkeys(flags["on"], "1") | dict.fromkeys(flags["off"], "0")
    other = [{name: "0"} for name in flags["on"]] + [{name: "1"} for name in flags["off"]]
    harmless = {name: "2" for name in flags["harmless"] if name != "TORCHINDUCTOR_WORKER_START"}

    assert ask(ASK_TORCH, [same | harmless, *other]) == other


def test_switches_of_torchs_that_bear_other_names() -> None:
    other = [{name: "1"} for name in OFF] + [{name: "0"} for name in ON]

    assert ask(ASK_TORCH, [dict.fromkeys(OFF, "0") | dict.fromkeys(ON, "1"), *other]) == other


def test_no_variable_that_torchs_configuration_reads_is_left_out() -> None:
    asked = [{name: value} for name in sorted(names_in_torch()) for value in ("0", "1")]
    told = [{name: value} for (name, value) in (item for one in asked for item in one.items()) if changes(name, value)]

    assert [one for one in ask(ASK_TORCH, asked) if one not in told] == []


def changes(name: str, value: str) -> bool:
    return name in KILL_SWITCHES or (bool(influence(name)) and not have_same_keys(name, None, value))


def names_in_torch() -> set[str]:
    """Whatever in the files of its configuration looks like the name of a variable, but for those that begin with
    TORCHINDUCTOR_: unless told otherwise, all of these count.
    """
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    files = [Path(spec.origin).with_name(part) / "config.py" for part in ("_inductor", "_functorch")]
    found = {name for file in files for name in re.findall(r"""["']([A-Z][A-Z0-9_]{3,})["']""", file.read_text())}
    return {name for name in found if not name.startswith("TORCHINDUCTOR_")}


def test_tritons_keys(table: dict[str, dict[str, list[str]]]) -> None:
    names = set(table["triton"]["keys"]) - OPTIONS - {"LLVM_PASS_PLUGIN_PATH"}  # Triton would load it

    assert set(ask(ASK_TRITON, sorted(names))) == names


def test_no_key_of_tritons_is_left_out(table: dict[str, dict[str, list[str]]]) -> None:
    known = {name for names in table["triton"].values() for name in names}

    assert set(ask(ASK_TRITON, sorted(names_in_triton()))) - known == set()


def names_in_triton() -> set[str]:
    """Everything in Triton's library that looks like the name of one of its own variables."""
    spec = find_spec("triton")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).with_name("_C") / "libtriton.so"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
        found = re.findall(rb"\0((?:TRITON|MLIR|LLVM|AMDGCN|NVPTX|DISABLE|USE)_[A-Z0-9_]+)(?=\0)", library)
    return {name.decode() for name in found} - {"LLVM_PASS_PLUGIN_PATH"}
