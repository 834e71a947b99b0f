"""TVM FFI's modules: built with ninja, which goes by times, under a lock file that stays."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstore.environment import Host
from kstore.report import CommitStatus
from tests.components.units import NeverMixed
from tests.ninja import ENVIRON, needs
from tests.trees import Node, contents, held, on_host, shared_object
from tests.waiting import until

FOLDER = "tvmffi/twice_198ce7f90a4b51b3"
BRIDGE = "tvmffi/libtorch_c_dlpack_addon_torch27-cpu-0a1b2c3d.so"
"""Built in another folder, when tvm_ffi is imported, for a torch that lacks what it needs."""
LIBRARY = "tvmffi/sgl_kernel_jit_norm__arch_9.0__tvmffi_0.1.11"
"""SGLang's folder for one of its kernels."""


@pytest.fixture(autouse=True)
def known(host: Host) -> None:
    """A host that is known without running the compiler."""


def build(node: Node, source: str, compiler: str = "g++") -> None:
    """Write what `load_inline` leaves."""
    node.tree.put(f"{FOLDER}/main.cpp", source.encode())
    node.tree.put(f"{FOLDER}/build.ninja", f"cxx = {compiler}".encode())
    node.tree.put(f"{FOLDER}/.ninja_log", f"{source} {compiler}".encode())
    for name in ("cpp_0.o", "twice.so"):
        node.tree.put(f"{FOLDER}/{name}", shared_object() + f"{source} {compiler}".encode())
    node.tree.put(f"{FOLDER}/lock", b"", mode=0o755)  # `FileLock` leaves it, executable


def built(node: Node) -> dict[str, bytes]:
    return {name: data for name, data in contents(node.tree.root / FOLDER).items() if name != "lock"}


def test_a_module_is_stored_though_its_lock_stays(tmp_path: Path) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    build(node, "source")
    assert node.commit().new_files == 5
    other.restore()
    assert built(other) == built(node)
    assert not other.tree.has(f"{FOLDER}/lock")


@pytest.mark.parametrize(("path", "lock"), [(f"{FOLDER}/twice.so", f"{FOLDER}/lock"), (BRIDGE, f"{BRIDGE}.lock")])
def test_one_whose_lock_is_held_waits_for_the_next_commit(tmp_path: Path, path: str, lock: str) -> None:
    node = Node(tmp_path)
    node.tree.put(path, shared_object())
    node.tree.put(lock, b"", mode=0o755)
    with held(node.tree.root / lock):
        assert node.commit().new_files == 0
    assert node.commit().new_files == 1


def test_one_that_ninja_still_builds_waits_though_nobody_holds_the_lock(tmp_path: Path) -> None:
    """Ninja outlives the process that was killed."""
    node = Node(tmp_path)
    build(node, "source")
    node.tree.put(f"{FOLDER}/.ninja_lock", b"", age=0)
    assert node.commit().new_files == 0
    (node.tree.root / FOLDER / ".ninja_lock").unlink()
    assert node.commit().new_files == 5


@pytest.mark.parametrize("name", ["twice.so", "cpp_0.o"])
def test_one_whose_library_or_object_is_cut_short_waits(tmp_path: Path, name: str) -> None:
    node = Node(tmp_path)
    build(node, "source")
    node.tree.put(f"{FOLDER}/{name}", shared_object()[:-100])
    assert node.commit().new_files == 0


class TestSourceAndCompiler(NeverMixed):
    files = 5
    build, built = staticmethod(build), staticmethod(built)


def test_what_sglang_builds_in_is_not_stored_but_the_library(tmp_path: Path) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    node.tree.put(f"{LIBRARY}/sgl_kernel_jit_norm.so", shared_object())
    node.tree.put(f"{LIBRARY}/stage__node-1/main.cpp", b"source")
    assert node.commit().new_files == 1
    other.restore()
    assert contents(other.tree.root / LIBRARY) == {"sgl_kernel_jit_norm.so": shared_object()}


def test_an_object_can_be_all_that_was_asked_for(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tree.put(f"{FOLDER}/build.ninja", b"rules")
    assert node.commit().new_files == 0
    node.tree.put(f"{FOLDER}/ops.o", shared_object())
    assert node.commit().new_files == 2


def test_times_matter_to_ninja_and_what_it_writes_in_place_is_copied(tmp_path: Path) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    build(node, "source")
    node.commit()
    other.restore()
    for name in built(node):
        theirs, ours = (owner.tree.root / FOLDER / name for owner in (node, other))
        assert ours.stat().st_mtime_ns == theirs.stat().st_mtime_ns
        assert ours.stat().st_nlink == 1
        assert ours.stat().st_mode & 0o200


# ---- The real TVM FFI


PROGRAM = Path(__file__).parents[1] / "programs" / "load_tvm_ffi.py"
real = [
    pytest.mark.compiler,
    pytest.mark.skipif(importlib.util.find_spec("tvm_ffi") is None, reason="apache-tvm-ffi is not installed"),
    needs("c++"),
]


class Compiler:
    """A compiler that counts its calls and can be held up."""

    def __init__(self, folder: Path) -> None:
        self.path, self._log, self._hold = folder / "c++", folder / "calls", folder / "hold"
        wait = f"while [ -e {self._hold} ]; do sleep 0.02; done"
        self.path.write_text(f'#!/bin/sh\necho call >> {self._log}\n{wait}\nexec c++ "$@"\n')
        self.path.chmod(0o755)

    def calls(self) -> int:
        """How many calls there were since the last time."""
        text = self._log.read_text() if self._log.exists() else ""
        self._log.unlink(missing_ok=True)
        return text.count("call")

    def hold_up(self) -> None:
        self._hold.touch()

    def let_go(self) -> None:
        self._hold.unlink()

    def is_called(self) -> bool:
        return self._log.exists()


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    """One for all tests, because ninja builds again what another compiler has built."""
    return Compiler(tmp_path_factory.mktemp("compiler"))


def start(node: Node, compiler: Compiler) -> subprocess.Popen[str]:
    """A process that builds and loads the module, or only loads it, without importing torch."""
    own = {"CXX": str(compiler.path), "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}
    environ = ENVIRON | {"TVM_FFI_CACHE_DIR": str(node.tree.root / "tvmffi")} | own
    command = [sys.executable, PROGRAM]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True)


def load(node: Node, compiler: Compiler) -> int:
    """How often the compiler was called until the module could be used."""
    assert start(node, compiler).communicate(timeout=300)[0] == "42\n"
    return compiler.calls()


@pytest.fixture(scope="module")
def built_once(tmp_path_factory: pytest.TempPathFactory, compiler: Compiler) -> Path:
    """A folder with what a worker at `worker` in it has built."""
    folder = tmp_path_factory.mktemp("built")
    node = Node(folder, "worker")
    assert load(node, compiler) == 2
    node.tree.root.rename(folder / "kept")
    return folder


@pytest.fixture
def builder(built_once: Path) -> Iterator[Node]:
    """That worker: ninja's files name its cache root."""
    node = Node(built_once, "worker")
    shutil.copytree(built_once / "kept", node.tree.root)
    yield node
    for folder in (node.tree.root, node.location):
        shutil.rmtree(folder, ignore_errors=True)


class TestTheRealOne:
    pytestmark = real

    def test_a_module_is_built_once_for_all_workers_with_the_same_cache_root(
        self, builder: Node, compiler: Compiler
    ) -> None:
        assert builder.commit().new_files == 6
        shutil.rmtree(builder.tree.root)
        builder.restore()
        assert load(builder, compiler) == 0
        assert builder.commit().status is CommitStatus.UNCHANGED

    def test_in_another_cache_root_it_is_built_there(self, builder: Node, compiler: Compiler) -> None:
        other = Node(builder.location.parent, "other")
        builder.commit()
        shutil.rmtree(builder.tree.root)
        other.restore()
        assert load(other, compiler) == 2
        assert not (builder.tree.root / "tvmffi").exists()

    def test_on_a_host_unlike_the_builders_it_is_not_restored(
        self, builder: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        builder.commit()
        shutil.rmtree(builder.tree.root)
        on_host(monkeypatch, "b")
        assert builder.restore().files == 0
        assert not (builder.tree.root / "tvmffi").exists()

    def test_one_of_two_processes_builds(self, tmp_path: Path, compiler: Compiler) -> None:
        node = Node(tmp_path)
        both = [start(node, compiler) for _ in range(2)]
        assert [process.communicate(timeout=300)[0] for process in both] == ["42\n"] * 2
        assert compiler.calls() == 2
        assert node.commit().new_files == 6

    def test_what_a_killed_process_had_begun_is_stored_once_another_has_built_it(
        self, tmp_path: Path, compiler: Compiler
    ) -> None:
        node = Node(tmp_path)
        compiler.hold_up()
        process = start(node, compiler)
        until(compiler.is_called)
        assert node.commit().new_files == 0  # The process holds its lock.
        process.kill()
        process.communicate(timeout=60)
        assert node.commit().new_files == 0  # Ninja goes on, until it has something to say.

        compiler.let_go()
        until(lambda: has_ended(process.pid))
        compiler.calls()
        assert load(node, compiler) == 2
        assert node.commit().new_files == 6


def has_ended(session: int) -> bool:
    """Whether all processes that a process had started have ended."""
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return True
    return False
