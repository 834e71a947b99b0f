from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kstore.environment import Environment, detect_environment, has_only_kstore, software
from kstore.environment.influences import key_facts
from kstore.environment.software import cpu_flags, digest_of_facts, torch_folder, vector_isa
from tests.compilers.programs import PATH

InstallTorch = Callable[[str], None]

H100 = "nvidia-h100-80gb-hbm3-sm90"
AVX2 = frozenset({"avx2", "fma", "f16c"})
AVX512 = AVX2 | {"avx512f", "avx512vl", "avx512bw", "avx512dq"}
VNNI = AVX512 | {"avx512_vnni"}
AMX = VNNI | {"amx_tile", "amx_bf16", "amx_int8"}


def run(script: str) -> Any:
    """What a fresh interpreter prints as JSON."""
    command = [sys.executable, "-c", "import json, sys\n" + script]
    return json.loads(subprocess.run(command, env=os.environ | PATH, capture_output=True, check=True, text=True).stdout)


@pytest.fixture
def install_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstallTorch:
    """Returns a function that installs a torch with the given version.py."""

    def install(version: str) -> None:
        (tmp_path / "torch").mkdir(exist_ok=True)
        (tmp_path / "torch/__init__.py").write_text("raise RuntimeError('imported')")
        (tmp_path / "torch/version.py").write_text(version)
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        monkeypatch.syspath_prepend(tmp_path)

    return install


# ---- against the real torch


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    """What the installed torch and Triton say about themselves, and what was detected before and after their import."""
    pytest.importorskip("torch", reason="torch is not installed")
    result: dict[str, Any] = run("""
from kstore.environment import detect_environment
before = detect_environment("cpu-x86_64")
torch_was_imported = "torch" in sys.modules
import torch
try:
    import triton
except ImportError:
    triton = None
after = detect_environment("cpu-x86_64")
print(json.dumps({
    "before": [before.tag, before.facts], "after": [after.tag, after.facts],
    "torch_was_imported": torch_was_imported,
    "torch": torch.__version__, "torch_git": torch.version.git_version, "torch_debug": torch.version.debug,
    "cuda": torch.version.cuda, "hip": torch.version.hip, "triton": triton and triton.__version__,
}))
""")
    return result


def test_detection_does_not_import_torch(real: dict[str, Any]) -> None:
    assert real["torch_was_imported"] is False


def test_an_imported_torch_makes_no_difference(real: dict[str, Any]) -> None:
    assert real["before"] == real["after"]


@pytest.mark.parametrize("fact", ["torch", "torch_git", "torch_debug", "cuda", "hip", "triton"])
def test_facts_are_what_torch_says_of_itself(real: dict[str, Any], fact: str) -> None:
    said = real[fact]
    assert real["before"][1][fact] == ("none" if said is None else str(said))


# ---- version.py, read as text


def facts_of(install_torch: InstallTorch, version: str) -> dict[str, str]:
    install_torch(version)
    return dict(detect_environment(H100).facts)


def test_version_py_is_read_without_running_it(install_torch: InstallTorch) -> None:
    facts = facts_of(
        install_torch,
        "from typing import Optional\n"
        "__version__ = '2.9.1+cu130'\n"
        "debug = False\n"
        "cuda: Optional[str] = '13.0'\n"
        "git_version = 'abc'\n"
        "hip: Optional[str] = None\n"
        "raise SystemExit\n",
    )
    expected = {
        "torch": "2.9.1+cu130",
        "torch_git": "abc",
        "torch_debug": "False",
        "cuda": "13.0",
        "hip": "none",
    }
    assert facts.items() >= expected.items()


def test_what_version_py_computes_is_not_a_fact(install_torch: InstallTorch) -> None:
    facts = facts_of(install_torch, "__version__ = '2.9.1'\ncuda = '.'.join('13')\nhip: str\n")
    assert (facts["torch"], facts["cuda"], facts["hip"]) == ("2.9.1", "none", "none")


@pytest.mark.parametrize("version", ["", "this is no python", "\0"])
def test_a_version_py_that_says_nothing_does_no_harm(install_torch: InstallTorch, version: str) -> None:
    assert facts_of(install_torch, version)["torch"] == "none"


def test_without_torch_the_tag_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    environment = detect_environment(H100)
    assert torch_folder() is None
    assert environment.facts["torch"] == environment.facts["cuda"] == "none"
    assert environment.tag.startswith("notorch-")


def test_a_torch_without_version_py_does_no_harm(install_torch: InstallTorch, tmp_path: Path) -> None:
    install_torch("")
    (tmp_path / "torch/version.py").unlink()
    assert detect_environment(H100).facts["torch"] == "none"


def test_a_folder_that_only_has_the_name_of_a_package_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a job's own folder beside its program."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in ("torch", "triton", "jax", "warp", "cupy"):
        (tmp_path / name).mkdir()
        monkeypatch.delitem(sys.modules, name, raising=False)
    tag = detect_environment(H100).tag
    assert tag.startswith("notorch-notriton-")
    assert has_only_kstore(tag)


@pytest.mark.parametrize("error", [ImportError, ValueError])
def test_a_package_that_may_not_be_imported_is_none(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(sys, "meta_path", [object(), SimpleNamespace(find_spec=refuse)])
    for name in ("torch", "triton"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert detect_environment(H100).tag.startswith("notorch-")


@pytest.mark.parametrize("name", ["jax", "warp", "cupy"])
def test_a_worker_that_compiles_without_torch_and_triton_has_not_only_kstore(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = "notorch-notriton-cp311-x86_64-0a1b2c3d"
    for package in ("jax", "warp", "cupy"):
        monkeypatch.setitem(sys.modules, package, None)
    assert has_only_kstore(tag)
    assert not has_only_kstore(tag.replace("notriton", "triton3.5.0"))
    package = ModuleType(name)
    package.__file__ = f"/site-packages/{name}/__init__.py"
    monkeypatch.setitem(sys.modules, name, package)
    assert not has_only_kstore(tag)


def test_something_that_stands_in_for_torch_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", object())
    assert detect_environment(H100).facts["torch"] == "none"


def test_an_imported_torch_is_the_one_described(
    install_torch: InstallTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_torch("__version__ = 'on the path'")
    imported = ModuleType("torch")
    imported.__file__ = str(tmp_path / "imported/__init__.py")
    (tmp_path / "imported").mkdir()
    (tmp_path / "imported/version.py").write_text("__version__ = 'imported'")
    monkeypatch.setitem(sys.modules, "torch", imported)
    assert detect_environment(H100).facts["torch"] == "imported"


# ---- Triton


def install_distribution(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("name", ["triton", "pytorch-triton", "triton-rocm", "pytorch-triton-rocm"])
@pytest.mark.parametrize("has_package", [True, False], ids=["beside the package", "elsewhere"])
def test_triton_is_found_by_any_of_its_names(
    name: str, has_package: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_distribution(tmp_path, name, "3.5.0+gitabc")
    if has_package:
        (tmp_path / "triton").mkdir()
        (tmp_path / "triton" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    assert detect_environment(H100).facts["triton"] == "3.5.0+gitabc"


def test_a_triton_whose_record_is_lost_has_the_version_that_python_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_distribution(tmp_path, "pytorch-triton", "3.5.0+gitabc")
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").touch()
    (tmp_path / "triton-3.4.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    assert detect_environment(H100).facts["triton"] == "3.5.0+gitabc"


def test_without_triton_the_tag_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    environment = detect_environment(H100)
    assert environment.facts["triton"] == "none"
    assert "-notriton-" in environment.tag


# ---- the tag


def tag_of(install_torch: InstallTorch, version: str) -> str:
    install_torch(version)
    return detect_environment(H100).tag


def test_python_is_its_binary_interface() -> None:
    assert detect_environment(H100).facts["python"] == sysconfig.get_config_var("SOABI")


def test_the_tag_reads_well() -> None:
    pattern = r"(torch[0-9][^-]*|notorch)-(triton[0-9][^-]*|notriton)-[a-z]+3\d+t?-[a-z0-9_]+-[0-9a-f]{8}"
    assert re.fullmatch(pattern, detect_environment(H100).tag)


@pytest.mark.parametrize("version", ["2.9.1+cu130", "2.9.0A0+Git/1 x", "@", "..", "9" * 300, "ü"])
def test_the_tag_is_a_safe_folder_name(install_torch: InstallTorch, version: str) -> None:
    tag = tag_of(install_torch, f"__version__ = {version!r}")
    assert re.fullmatch(r"[a-z0-9_][a-z0-9._+-]*-[0-9a-f]{8}", tag)
    assert len(tag) <= 200


@pytest.mark.parametrize("change", ["cuda = '13.1'", "git_version = 'def'", "debug = True", "hip = '7.0'"])
def test_the_digest_covers_what_the_tag_does_not_spell_out(install_torch: InstallTorch, change: str) -> None:
    version = "__version__ = '2.9.1'\ncuda = '13.0'\n"
    first = tag_of(install_torch, version)
    second = tag_of(install_torch, version + change)
    assert first != second
    assert first.rpartition("-")[0] == second.rpartition("-")[0]


def test_a_nightly_build_stays_readable(install_torch: InstallTorch) -> None:
    assert tag_of(install_torch, "__version__ = '2.9.0A0+Git/1 x'").startswith("torch2.9.0a0+git-1-x-triton")


def test_the_digest_does_not_depend_on_the_order_of_facts() -> None:
    assert digest_of_facts({"a": "1", "b": "2"}) == digest_of_facts({"b": "2", "a": "1"})


def test_the_same_software_has_the_same_tag() -> None:
    assert detect_environment(H100) == detect_environment(H100)


def test_gpus_of_one_software_share_its_tag() -> None:
    assert detect_environment(H100) == detect_environment("amd-instinct-mi300x-gfx942")


# ---- the CPU


def detect_with(flags: frozenset[str], gpu: str, monkeypatch: pytest.MonkeyPatch) -> Environment:
    monkeypatch.setattr(software, "cpu_flags", lambda: flags)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return detect_environment(gpu, {})


def test_cpus_with_other_vectors_are_other_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    with_avx2 = detect_with(AVX2, "cpu-x86_64", monkeypatch)
    with_avx512 = detect_with(AVX512, "cpu-x86_64", monkeypatch)
    assert (with_avx2.facts["vector_isa"], with_avx512.facts["vector_isa"]) == ("avx2", "avx512")
    assert with_avx2.tag != with_avx512.tag


def test_equal_gpus_share_whatever_their_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert detect_with(AVX2, H100, monkeypatch) == detect_with(AVX512, H100, monkeypatch)


def test_a_lowered_capability_is_another_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "cpu_flags", lambda: AVX512)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    lowered = detect_environment("cpu-x86_64", {"ATEN_CPU_CAPABILITY": "avx2"})
    assert lowered.facts["vector_isa"] == "avx2"


def test_a_program_that_is_not_python_shares_no_graphs_with_one_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor runs it to try the vector instructions: in uWSGI a graph that uses them would not compile."""
    python = detect_with(AVX2, "cpu-x86_64", monkeypatch)
    monkeypatch.setattr(sys, "executable", "/usr/bin/uwsgi")
    server = detect_with(AVX2, "cpu-x86_64", monkeypatch)
    assert python.facts["vector_isa"] == "avx2" and python.tag != server.tag
    monkeypatch.setattr(sys, "executable", "/opt/venv/bin/uwsgi")
    assert detect_with(AVX2, "cpu-x86_64", monkeypatch).tag == server.tag, "wherever it is installed"


def test_which_program_it_is_matters_only_where_it_may_try_vector_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    without_any = [(AVX2, H100), (frozenset[str](), "cpu-x86_64")]
    before = [detect_with(flags, gpu, monkeypatch) for flags, gpu in without_any]
    monkeypatch.setattr(sys, "executable", "/usr/bin/uwsgi")
    assert before == [detect_with(flags, gpu, monkeypatch) for flags, gpu in without_any]


@pytest.mark.parametrize(
    ("machine", "flags", "capability", "sve_bytes", "expected"),
    [
        ("x86_64", frozenset({"sse2"}), None, 0, "none"),
        ("x86_64", AVX2, None, 0, "avx2"),
        ("x86_64", AVX512, None, 0, "avx512"),
        *(("x86_64", AVX512 - {part}, None, 0, "avx2") for part in sorted(AVX512 - AVX2)),
        ("x86_64", AVX2 | {"avx512_vnni"}, None, 0, "avx2"),
        ("x86_64", AVX512 | {"amx_tile", "amx_fp16"}, None, 0, "avx512"),
        ("x86_64", VNNI | {"amx_fp16"}, None, 0, "avx512_vnni"),
        ("amd64", AVX2, None, 0, "avx2"),
        ("x86_64", VNNI, None, 0, "avx512_vnni"),
        ("x86_64", AMX, None, 0, "amx"),
        ("x86_64", AMX | {"amx_fp16"}, None, 0, "amx_fp16"),
        ("x86_64", AMX, "avx512", 0, "amx"),
        ("x86_64", AMX, "avx2", 0, "avx2"),
        ("x86_64", AMX, "default", 0, "none"),
        ("x86_64", AVX2, "avx512", 0, "avx2"),
        ("x86_64", AMX, "nonsense", 0, "amx"),
        ("aarch64", frozenset({"asimd"}), None, 0, "neon"),
        ("aarch64", frozenset({"asimd", "sve", "bf16"}), None, 32, "sve256"),
        ("aarch64", frozenset({"asimd", "sve", "sve2", "bf16"}), None, 16, "sve128"),
        ("aarch64", frozenset({"asimd", "sve"}), None, 32, "neon"),
        ("aarch64", frozenset({"asimd", "sve2", "bf16"}), None, 32, "sve256"),
        ("aarch64", frozenset({"asimd", "bf16"}), None, 32, "neon"),
        ("aarch64", frozenset({"asimd"}), "default", 0, "none"),
        ("aarch64", frozenset({"asimd"}), "avx2", 0, "neon"),
        ("arm64", frozenset(), None, 0, "neon"),
        ("ppc64le", frozenset(), None, 0, "vsx"),
        ("s390x", frozenset({"vxe"}), None, 0, "zvector"),
        ("s390x", frozenset({"vx"}), None, 0, "none"),
        ("riscv64", frozenset(), None, 0, "none"),
    ],
)
def test_the_vector_isa_follows_inductors_rules(
    machine: str, flags: frozenset[str], capability: str | None, sve_bytes: int, expected: str
) -> None:
    assert vector_isa(machine, flags, capability, sve_bytes) == expected


def test_the_vector_isa_is_the_one_that_inductor_picks_on_this_cpu() -> None:
    """All of Inductor's choice except the compiler's part: its trial compilations take many seconds."""
    if detect_environment("cpu-").facts["machine"] != "x86_64":
        pytest.skip("written for x86-64")
    pytest.importorskip("torch", reason="torch is not installed")
    picked = run("""
import warnings; warnings.simplefilter("ignore")
from torch._inductor import cpu_vec_isa as isa
cpu = isa.x86_isa_checker()
valid = [i for i in isa.supported_vec_isa_list if "asimd" not in str(i) and set(str(i).split()) <= set(cpu)]
values = ["", "default", "avx2", "avx512", "nonsense"]
pick = isa.get_isa_from_cpu_capability
print(json.dumps({v: str(pick(v or None, valid, isa.invalid_vec_isa)) if valid else "" for v in values}))
""")
    names = {
        "avx512 avx512_vnni amx_tile": "amx",
        "avx512 avx512_vnni": "avx512_vnni",
        "INVALID_VEC_ISA": "none",
        "": "none",
    }
    for capability, choice in picked.items():
        ours = vector_isa("x86_64", cpu_flags(), capability or None, 0)
        assert ours.replace("amx_fp16", "amx") == names.get(choice, choice)


def test_cpu_flags_are_those_of_the_first_core(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2\nbugs\t\t: none\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert cpu_flags(cpuinfo) == {"fpu", "avx2"}


@pytest.mark.parametrize("name", ["Features", "features"], ids=["ARM", "s390x"])
def test_others_call_their_flags_features(tmp_path: Path, name: str) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{name}\t: asimd sve\n")
    assert cpu_flags(cpuinfo) == {"asimd", "sve"}


def test_where_the_kernel_says_nothing_there_are_no_flags(tmp_path: Path) -> None:
    assert cpu_flags(tmp_path / "missing") == frozenset()


def test_no_text_is_read_in_an_encoding_that_the_locale_chooses() -> None:
    """Where Python is told to treat that as an error (PEP 597), nothing could be restored."""
    script = (
        "from kstore.environment import detect_environment, detect_host, host_hint\n"
        "print(detect_environment('cpu-x86_64').tag and detect_host().fingerprint and host_hint())"
    )
    command = [sys.executable, "-X", "warn_default_encoding", "-W", "error::EncodingWarning", "-c", script]
    subprocess.run(command, env=os.environ | PATH, capture_output=True, check=True)


@pytest.mark.parametrize("error", [PermissionError, AttributeError])
def test_a_process_of_unknown_affinity_counts_as_allowed_on_every_processor(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """A container's filter of system calls may refuse to say, and torch compiles all the same."""

    def refuse(process: int) -> None:
        raise error

    monkeypatch.setattr(os, "sched_getaffinity", refuse)
    assert key_facts({})["processors"] == os.cpu_count()
