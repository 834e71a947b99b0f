from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kstore.environment import HostUnknown, detect_host, host, host_hint, machine_of
from kstore.environment.software import cpu_flags
from kstore.errors import WaitTimeout
from tests.trees import KEY, Node, shared_object

REPOSITORY = Path(host.__file__).parents[2]

GCC = """\
gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)
COLLECT_GCC_OPTIONS='-march=native' '-E' '-shared-libgcc'
 /usr/lib/gcc/x86_64-linux-gnu/12/cc1plus -E -quiet -D_GNU_SOURCE /dev/null "-march=znver3" -mavx2 -mavx \
-mno-fma4 --param l1-cache-size=32 --param l2-cache-size=1024 -mtune=znver3 -dumpbase null
"""
CLANG = """\
Debian clang version 14.0.6
 (in-process)
 "/usr/lib/llvm-14/bin/clang" "-cc1" "-triple" "x86_64-pc-linux-gnu" "-E" "-mframe-pointer=all" "-target-cpu" \
"znver3" "-target-feature" "-avx512pf" "-target-feature" "+avx2" "-target-feature" "+aes" "-o" "-" "-x" "c++"
"""


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    host._detect.cache_clear()
    host._hint.cache_clear()
    yield
    host._detect.cache_clear()
    host._hint.cache_clear()


class Compiler:
    """A compiler that prints what a test says, and counts how often it runs."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "c++"
        self._runs = folder / "runs"
        self._library = folder / "libstdc++.so.6"
        (folder / "libstdc++.so.6.0.30").touch()
        self._library.symlink_to("libstdc++.so.6.0.30")

    def prints(self, verbose: str, first: str = "") -> dict[str, str]:
        """Returns the environment in which it is used."""
        (self.path.parent / "verbose").write_text(verbose)
        self.path.write_text(
            f"#!/bin/sh\necho run >> {self._runs}\n{first}\n"
            f'case "$*" in\n-print-file-name=*) echo {self._library} ;;\n'
            f"*) cat {self.path.parent}/verbose >&2 ;;\nesac\n"
        )
        self.path.chmod(0o755)
        return {"CXX": str(self.path), "PATH": os.defpath}

    @property
    def runs(self) -> int:
        return len(self._runs.read_text().splitlines())


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path)


# ---- the real compiler


def installed(name: str) -> str:
    path = shutil.which(name)
    if not path or platform.machine() != "x86_64":
        pytest.skip(f"needs {name} on x86-64")
    return path


@pytest.fixture
def gcc() -> str:
    return installed("g++")


@pytest.mark.parametrize(("name", "prefix"), [("g++", "-m"), ("clang++", "+")])
def test_the_cpu_is_what_native_means_to_the_compiler(name: str, prefix: str) -> None:
    compiler = installed(name)
    options = detect_host({"CXX": compiler, "PATH": os.environ["PATH"]}).facts["cpu"].split()
    command = [compiler, "-march=native", "-dM", "-E", "-x", "c++", os.devnull]
    macros = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    for option, macro in [("avx2", "__AVX2__"), ("avx512f", "__AVX512F__"), ("fma", "__FMA__")]:
        assert (prefix + option in options) == (f"#define {macro} 1" in macros)
    assert sum(option.startswith("-march=") for option in options) == 1


def test_the_resolved_options_build_for_the_same_cpu_as_native(gcc: str) -> None:
    options = detect_host({"CXX": gcc, "PATH": os.environ["PATH"]}).facts["cpu"].split()

    def macros(*flags: str) -> set[str]:
        command = [gcc, *flags, "-dM", "-E", "-x", "c++", os.devnull]
        lines = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
        return {line for line in lines if "tune" not in line}

    assert macros("-march=native") - macros(*options) == set()


def test_the_compiler_and_its_library_are_named_with_their_versions(gcc: str) -> None:
    facts = detect_host({"CXX": gcc, "PATH": os.environ["PATH"]}).facts
    version = subprocess.run([gcc, "-dumpfullversion"], capture_output=True, check=True, text=True).stdout
    assert facts["compiler"].startswith(f"gcc version {version.strip()}")
    assert re.fullmatch(r"libstdc\+\+\.so\.6\.\d+\.\d+", facts["libstdc++"])
    found = subprocess.run([gcc, "-print-file-name=libstdc++.so.6"], capture_output=True, check=True, text=True).stdout
    assert facts["libstdc++"] == Path(found.strip()).resolve().name


def test_the_default_compiler_is_the_one_inductor_takes(gcc: str) -> None:
    assert detect_host({"PATH": os.environ["PATH"]}) == detect_host({"CXX": "g++", "PATH": os.environ["PATH"]})


def test_detection_does_not_import_torch() -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n"
        "from kstore.environment import HostUnknown, detect_host; detect_host()\n"
        "print('torch' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout
    assert output.strip() == "False"


# ---- other facts


def test_glibc_is_the_one_that_python_runs_on() -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("not a glibc system")
    assert detect_host().facts["glibc"] == " ".join(platform.libc_ver())


def test_site_packages_is_where_torch_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").touch()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert detect_host({}).facts["site_packages"] == str(tmp_path)


def test_without_torch_site_packages_is_that_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert detect_host({}).facts["site_packages"] == sysconfig.get_path("purelib")


# ---- what compilers print


def test_gcc_is_understood(compiler: Compiler) -> None:
    facts = detect_host(compiler.prints(GCC)).facts
    assert facts["cpu"] == "-march=znver3 -mavx -mavx2"
    assert facts["compiler"] == "gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)"
    assert facts["libstdc++"] == "libstdc++.so.6.0.30"


def test_clang_is_understood(compiler: Compiler) -> None:
    facts = detect_host(compiler.prints(CLANG)).facts
    assert facts["cpu"] == "-march=znver3 +aes +avx2"
    assert facts["compiler"] == "Debian clang version 14.0.6"


@pytest.mark.parametrize(
    "change",
    [("-mavx2", "-mno-avx2"), ("-march=znver3", "-march=znver4"), ("version 12.2.0", "version 12.3.0")],
)
def test_another_cpu_or_compiler_is_another_host(compiler: Compiler, change: tuple[str, str]) -> None:
    first = detect_host(compiler.prints(GCC))
    host._detect.cache_clear()
    assert detect_host(compiler.prints(GCC.replace(*change))).fingerprint != first.fingerprint


@pytest.mark.parametrize("change", [("-mtune=znver3", "-mtune=generic"), ("size=1024", "size=512")])
def test_tuning_makes_no_other_host(compiler: Compiler, change: tuple[str, str]) -> None:
    first = detect_host(compiler.prints(GCC))
    host._detect.cache_clear()
    assert detect_host(compiler.prints(GCC.replace(*change))) == first


@pytest.mark.parametrize("verbose", ["", "gcc version 4.1\n", GCC.replace("-march=znver3", "-march=native")])
def test_where_the_compiler_does_not_resolve_native_the_kernel_is_asked(compiler: Compiler, verbose: str) -> None:
    assert detect_host(compiler.prints(verbose)).facts["cpu"] == " ".join(sorted(cpu_flags()))


def test_a_cpu_that_nobody_describes_is_unlike_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "cpu_flags", lambda: frozenset())
    assert platform.node() in detect_host({"CXX": "no-such-compiler"}).facts["cpu"]


# ---- compilers that fail


@pytest.mark.parametrize("name", ["no-such-compiler", "", " ", "'", "/dev/null", "/"])
def test_without_a_compiler_the_host_says_none(name: str) -> None:
    facts = detect_host({"CXX": name, "PATH": "/nonexistent"}).facts
    assert (facts["compiler"], facts["libstdc++"]) == ("none", "none")


def test_a_compiler_that_hangs_is_given_up(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_COMPILER_TIMEOUT_S", 2)
    environ = compiler.prints(GCC, first="exec sleep 60")
    with pytest.raises(WaitTimeout, match="has taken more than 2 s"):
        detect_host(environ)
    assert compiler.runs == 1


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE])
def test_a_process_at_its_limits_is_not_on_another_host(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    environ = compiler.prints(GCC)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", refuse)
        with pytest.raises(HostUnknown, match="cannot be run just now"):
            detect_host(environ)
    assert detect_host(environ).facts["compiler"] != "none"


def test_a_compiler_that_was_killed_is_not_another_one(compiler: Compiler) -> None:
    with pytest.raises(HostUnknown, match="was killed"):
        detect_host(compiler.prints(GCC, first="kill -9 $$"))


def test_an_interrupt_leaves_no_compiler_running(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[subprocess.Popen[str]]()

    def interrupted(process: subprocess.Popen[str], *_: object, **__: object) -> None:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        detect_host(compiler.prints(GCC, first="exec sleep 60"))
    assert [process.returncode for process in started] == [-signal.SIGKILL]


@pytest.mark.parametrize("name", ["LD_LIBRARY_PATH", "GCC_EXEC_PREFIX", "COMPILER_PATH", "LIBRARY_PATH"])
def test_the_compiler_is_asked_with_the_variables_that_it_goes_by(compiler: Compiler, name: str) -> None:
    """Without LD_LIBRARY_PATH, a compiler with libraries of its own would not even start, and the host have none."""
    first = f'[ -n "${name}" ] || exit 1'
    without, named = compiler.prints(GCC, first), {**compiler.prints(GCC, first), name: "/nonexistent"}
    assert detect_host(without).facts["compiler"] == "none"
    assert detect_host(named).facts["compiler"].startswith("gcc version 12.2.0")


def test_the_compiler_is_asked_in_english(compiler: Compiler) -> None:
    """In German it calls itself "gcc-Version": a host that is asked from another shell would seem to be another one."""
    translated = GCC.replace("gcc version", "gcc-Version")
    environ = compiler.prints(GCC, first=f"[ \"$LC_ALL\" = C ] || {{ echo '{translated}'; exit; }}")
    assert detect_host(environ).facts["compiler"].startswith("gcc version")


def test_a_compiler_may_print_what_is_no_utf_8(compiler: Compiler) -> None:
    """As the path of a folder."""
    environ = compiler.prints(GCC, first="printf '/caf\\351\\n'")
    assert detect_host(environ).facts["compiler"].startswith("gcc version")


def test_a_compiler_without_its_library_has_none(compiler: Compiler) -> None:
    """It then prints the name that it was asked for."""
    environ = compiler.prints(GCC, first='case "$*" in -print-file-name=*) echo libstdc++.so.6; exit;; esac')
    assert detect_host(environ).facts["libstdc++"] == "none"


def test_a_wrapper_with_arguments_is_a_compiler_too(compiler: Compiler) -> None:
    environ = compiler.prints(GCC)
    wrapped = {**environ, "CXX": f"env {environ['CXX']}"}
    assert detect_host(wrapped) == detect_host(environ)


# ---- once per process


def test_the_compiler_runs_once_per_process(compiler: Compiler) -> None:
    environ = compiler.prints(f"{GCC}LIBRARY_PATH=/nonexistent/:{compiler.path.parent}/:/lib/\n")
    assert detect_host(environ) is detect_host({**environ, "UNRELATED": "1"})
    assert detect_host(environ).facts["libstdc++"] == "libstdc++.so.6.0.30"
    assert compiler.runs == 1


@pytest.mark.parametrize("verbose", [CLANG, f"{GCC}LIBRARY_PATH=/nonexistent/\n", f"{GCC}LIBRARY_PATH=\n"])
def test_a_compiler_that_does_not_say_where_its_library_is_runs_once_more(compiler: Compiler, verbose: str) -> None:
    assert detect_host(compiler.prints(verbose)).facts["libstdc++"] == "libstdc++.so.6.0.30"
    assert compiler.runs == 2


def test_another_compiler_is_looked_at_again(compiler: Compiler) -> None:
    with_compiler = detect_host(compiler.prints(GCC))
    without = detect_host({"CXX": "no-such-compiler"})
    assert with_compiler.fingerprint != without.fingerprint


def test_a_worker_is_of_the_host_that_the_variables_of_its_store_name(tmp_path: Path, compiler: Compiler) -> None:
    """For example, where a process restores for a child that is to use another compiler."""
    node = Node(tmp_path)
    node.environ |= compiler.prints(GCC)
    built = node.tree.put("inductor/ab/c1.main.so", shared_object())
    node.commit()
    hosts = node.store.snapshot(node.newest()).manifest.hosts
    assert {name: list(files) for name, files in hosts.items()} == {detect_host(node.environ).fingerprint: [built]}
    worker = node.store.worker(KEY, before_import=False)
    assert worker.host.hint == host.host_hint(node.environ) != host.host_hint()


def test_processes_with_other_compilers_are_in_other_surroundings(compiler: Compiler) -> None:
    environ = compiler.prints(GCC)
    assert host.surroundings(environ) == host.surroundings({**environ, "UNRELATED": "1"}) != host.surroundings()


def no_such_folder() -> str:
    raise FileNotFoundError


def other_root(_: object) -> os.stat_result:
    return os.stat_result(range(10))


def same_number_elsewhere(_: object) -> os.stat_result:
    """The root folders of all images may have one number, each on a device of its own."""
    root = os.lstat("/")
    return os.stat_result((*root[:2], root.st_dev + 1, *root[3:]))


@pytest.mark.parametrize(
    ("name", "elsewhere"),
    [
        ("kstore.environment.host.boot", lambda: "another boot"),
        ("kstore.environment.host._site_packages", lambda: "/another/site-packages"),
        ("os.readlink", lambda _: "mnt:[1]"),
        ("os.stat", other_root),
        ("os.stat", same_number_elsewhere),
    ],
)
def test_processes_of_other_machines_images_and_packages_are_in_other_surroundings(
    monkeypatch: pytest.MonkeyPatch, name: str, elsewhere: Callable[..., object]
) -> None:
    """They may share a cache root all the same: then one must not take the other's restore for its own."""
    here = host.surroundings()
    with monkeypatch.context() as patch:
        patch.setattr(name, elsewhere)
        there = host.surroundings()
    assert here == host.surroundings() != there != ""


@pytest.mark.parametrize(("name", "unknown"), [("boot", lambda: ""), ("_site_packages", no_such_folder)])
def test_surroundings_that_are_not_known_are_like_no_others(
    monkeypatch: pytest.MonkeyPatch, name: str, unknown: Callable[[], str]
) -> None:
    monkeypatch.setattr(host, name, unknown)
    assert host.surroundings() == ""


@pytest.mark.parametrize(
    ("name", "other"), [("cpu_flags", lambda: frozenset({"avx2"})), ("_glibc", lambda: "glibc 2.17")]
)
def test_another_processor_or_glibc_is_another_machine(
    monkeypatch: pytest.MonkeyPatch, name: str, other: Callable[[], object]
) -> None:
    """A root, or a folder on a volume, that comes to it brings objects that might not run there."""
    here = host_hint()
    host._hint.cache_clear()
    monkeypatch.setattr(host, name, other)
    assert host_hint() != here
    assert machine_of(host_hint()) != machine_of(here)


def test_another_compiler_is_another_hint_on_the_same_machine(compiler: Compiler) -> None:
    """A program may choose its compiler at any time: that alone does not make what was built another machine's."""
    with_compiler, without = host_hint(compiler.prints(GCC)), host_hint({"CXX": "no-such-compiler"})
    assert with_compiler != without
    assert machine_of(with_compiler) == machine_of(without)
    host._hint.cache_clear()
    assert host_hint(compiler.prints(f"{GCC}another release\n", first="# of another size")) != with_compiler


@pytest.mark.parametrize("change", [lambda path: os.utime(path, (1, 1)), lambda path: keep_time(path, b"longer")])
def test_a_compiler_that_was_replaced_is_another_hint(compiler: Compiler, change: Callable[[Path], None]) -> None:
    """As by an upgrade, which may keep its size, or, where images are made reproducible, its time."""
    environ = compiler.prints(GCC)
    before = host_hint(environ)
    change(compiler.path)
    host._hint.cache_clear()
    assert host_hint(environ) != before


def keep_time(path: Path, more: bytes) -> None:
    status = path.stat()
    path.write_bytes(path.read_bytes() + more)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_the_fingerprint_is_short_and_stable(compiler: Compiler) -> None:
    environ = compiler.prints(GCC)
    first = detect_host(environ)
    host._detect.cache_clear()
    assert detect_host(environ) == first
    assert re.fullmatch(r"[0-9a-f]{16}", first.fingerprint)
