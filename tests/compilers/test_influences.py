"""What kstore says about environment variables, checked with torch and Triton themselves."""

from __future__ import annotations

import json
import mmap
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kstore.environment.influences import KILL_SWITCHES, OFF, ON, have_same_keys, influences, switched_off
from tests.compilers.programs import PATH, TIMEOUT

pytestmark = pytest.mark.compiler

ASK_TORCH = """
import importlib, json, os, sys
from contextlib import suppress
import torch._functorch.config, torch._inductor.config

def portable(name):
    sys.modules.pop(name, None)
    return {k: repr(v) for k, v in importlib.import_module(name).save_config_portable().items()}

def both():
    return [portable(name) for name in ("torch._inductor.config", "torch._functorch.config")]

before = both()
for question in sys.stdin:
    changing = []
    for together in json.loads(question):
        os.environ.update(together)
        with suppress(AssertionError, ValueError):  # Then no job has these variables.
            if both() != before:
                changing.append(together)
        for name in together:
            del os.environ[name]
    print(json.dumps(changing), flush=True)
"""
"""Answers each line, some sets of variables, with those that change what is in torch's keys."""
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


Ask = Callable[[object], Any]


@contextmanager
def asking(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process without variables of the user's."""
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    command = [sys.executable, "-c", program, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environ | PATH, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()  # It may hang, and would be waited for.


@pytest.fixture(scope="module")
def ask_torch() -> Iterator[Ask]:
    """Asks one process, which has to import torch, one question after another."""
    with asking(ASK_TORCH) as process:
        assert process.stdin and process.stdout
        answers = process.stdout

        def ask(question: object) -> Any:
            print(json.dumps(question), file=process.stdin, flush=True)
            return json.loads(answers.readline())

        yield ask


def ask_triton(question: object) -> Any:
    with asking(ASK_TRITON, json.dumps(question)) as process:
        return json.loads(process.communicate(timeout=TIMEOUT)[0])


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, list[str]]]:
    return tomllib.loads(resources.files("kstore.environment").joinpath("influences.toml").read_text())


def test_torchs_defaults_and_what_is_in_no_key(table: dict[str, dict[str, list[str]]], ask_torch: Ask) -> None:
    flags = {name: [f"TORCHINDUCTOR_{rest}" for rest in rests] for name, rests in table["inductor"].items()}
    same = dict.fromkeys(flags["on"], "1") | dict.fromkeys(flags["off"], "0")
    other = [{name: "0"} for name in flags["on"]] + [{name: "1"} for name in flags["off"]]
    harmless = {name: "2" for name in flags["harmless"] if name != "TORCHINDUCTOR_WORKER_START"}

    assert ask_torch([same | harmless, *other]) == other


def test_switches_of_torchs_that_bear_other_names(ask_torch: Ask) -> None:
    other = [{name: "1"} for name in OFF] + [{name: "0"} for name in ON]

    assert ask_torch([dict.fromkeys(OFF, "0") | dict.fromkeys(ON, "1"), *other]) == other


INDUCTOR_OFF, COMPILE_OFF = "TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCH_COMPILE_FORCE_DISABLE_CACHES"
GRAPHS, GRAPHS_DEFAULT = "TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_FX_GRAPH_CACHE_DEFAULT"


@pytest.mark.parametrize(
    "environ",
    [
        *({name: value for name in KILL_SWITCHES if name.startswith("TORCH")} for value in ("", "false")),
        {GRAPHS_DEFAULT: "0", INDUCTOR_OFF: "0", COMPILE_OFF: "1"},
        {GRAPHS_DEFAULT: "0", GRAPHS: "1", COMPILE_OFF: "1"},
    ],
)
def test_what_switches_torchs_caches_off(environ: dict[str, str]) -> None:
    program = "import torch._functorch.config as f, torch._inductor.config as i\n"
    program += "print(bool(i.force_disable_caches), not i.fx_graph_cache, not f.enable_autograd_cache)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=PATH | environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True,
        timeout=TIMEOUT,
    )  # fmt: skip
    caches = ({INDUCTOR_OFF, COMPILE_OFF}, {GRAPHS, GRAPHS_DEFAULT}, {"TORCHINDUCTOR_AUTOGRAD_CACHE"})

    assert done.stdout.split() == [str(not switches.isdisjoint(switched_off(environ))) for switches in caches]


def test_no_variable_that_torchs_configuration_reads_is_left_out(ask_torch: Ask) -> None:
    asked = [{name: value} for name in sorted(names_in_torch()) for value in values(name)]
    told = [{name: value} for (name, value) in (item for one in asked for item in one.items()) if changes(name, value)]

    assert [one for one in ask_torch(asked) if one not in told] == []


def values(name: str) -> tuple[str, ...]:
    """Those to ask for; unless told otherwise, "0" and "1" count for all that begin with TORCHINDUCTOR_."""
    return ("",) if name.startswith("TORCHINDUCTOR_") else ("", "0", "1")


def changes(name: str, value: str) -> bool:
    return name in KILL_SWITCHES or not have_same_keys(name, None, influences({name: value}).get(name))


def names_in_torch() -> set[str]:
    """Whatever in the files of its configuration looks like the name of a variable."""
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    files = [Path(spec.origin).with_name(part) / "config.py" for part in ("_inductor", "_functorch")]
    return {name for file in files for name in re.findall(r"""["']([A-Z][A-Z0-9_]{3,})["']""", file.read_text())}


def test_tritons_keys(table: dict[str, dict[str, list[str]]]) -> None:
    names = set(table["triton"]["keys"]) - OPTIONS - {"LLVM_PASS_PLUGIN_PATH"}  # Triton would load it

    assert set(ask_triton(sorted(names))) == names


def test_no_key_of_tritons_is_left_out(table: dict[str, dict[str, list[str]]]) -> None:
    known = {name for names in table["triton"].values() for name in names}

    assert set(ask_triton(sorted(names_in_triton()))) - known == set()


def names_in_triton() -> set[str]:
    """Everything in Triton's library that looks like the name of one of its own variables."""
    spec = find_spec("triton")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).with_name("_C") / "libtriton.so"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
        found = re.findall(rb"\0((?:TRITON|MLIR|LLVM|AMDGCN|NVPTX|DISABLE|USE)_[A-Z0-9_]+)(?=\0)", library)
    return {name.decode() for name in found} - {"LLVM_PASS_PLUGIN_PATH"}
