"""The host as C++ code built on it sees it: which CPU, compiler and libraries a `.so` may rely on.

Inductor compiles with `-march=native`, and leaves both what that means and the compiler's version out of the key of the
`.so`. On another CPU such a file can die of an illegal instruction, and one built with a newer libstdc++ or glibc does
not load at all. So these files are kept per host fingerprint.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kstore.environment.software import NONE, cpu_flags, digest_of_facts, torch_folder
from kstore.errors import KstoreError, WaitTimeout

_FINGERPRINT_DIGITS = 16
_COMPILER_TIMEOUT_S = 30.0  # it answers in 5 ms; from a network filesystem, or on a loaded machine, it can take long
_DESCRIBE_TARGET = ("-march=native", "-###", "-E", "-x", "c++", os.devnull)
"""Only the driver runs: it says how it would call the compiler, in a fifth of the time that `-v` takes."""
_FOR_NOW = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
"""Errors of a process that is at its limits, which say nothing about the compiler."""
_LIBSTDCXX = "libstdc++.so.6"
_COMPILER_VARIABLES = (
    "CXX",
    "PATH",
    "LD_LIBRARY_PATH",
    "GCC_EXEC_PREFIX",
    "COMPILER_PATH",
    "LIBRARY_PATH",
)


class Host(NamedTuple):
    """What a compiled C++ file may rely on."""

    fingerprint: str
    """Short hexadecimal digest of `facts`."""
    facts: Mapping[str, str]
    """CPU, compiler, libstdc++, glibc, site-packages; what is missing is `none`."""


class HostUnknown(KstoreError):
    """The compiler cannot be asked just now."""


def detect_host(environ: Mapping[str, str] = os.environ) -> Host:
    """Describe this host. Runs the compiler's driver, for some 3 ms; the answer is kept for the process.

    Raises:
        WaitTimeout, HostUnknown: the compiler does not answer; that must not be taken for another host.
    """
    return _detect(tuple(_compiler_environment(environ).items()), _site_packages())


def boot() -> str:
    """The same text from one start of this machine to the next; empty if it cannot be known."""
    with suppress(OSError):  # not Linux
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    return ""


def surroundings(environ: Mapping[str, str] = os.environ) -> str:
    """Equal for processes that see the same processor, files and compiler: same boot, same mount namespace, same root
    folder, same compiler variables and torch. The compiler is not asked; empty if it cannot be known.
    """
    try:
        root = os.stat("/")
        facts = {
            "boot": boot(),
            "mounts": os.readlink("/proc/self/ns/mnt"),
            "root": f"{root.st_dev} {root.st_ino}",
            "site_packages": _site_packages(),
        }
    except OSError:
        return ""
    return digest_of_facts(facts | _compiler_environment(environ)) if facts["boot"] else ""


def host_hint(environ: Mapping[str, str] = os.environ) -> str:
    """Equal for hosts that run the same compiled C++ files, as far as can be seen without running the compiler: by its
    file, the processor's extensions and glibc. The answer is kept for the process.
    """
    return _hint(tuple(_compiler_environment(environ).items()))


def machine_of(hint: str) -> str:
    """The part of a `host_hint` that no variable changes: the processor's extensions and glibc."""
    return hint.partition(" ")[0]


def _compiler_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in _COMPILER_VARIABLES if name in environ}


@functools.cache
def _hint(compiler_environment: tuple[tuple[str, str], ...]) -> str:
    command = _compiler(dict(compiler_environment))
    compiler = NONE
    with suppress(OSError):
        if command:
            status = os.stat(command[0])
            compiler = f"{status.st_size} {status.st_mtime_ns}"
    machine = digest_of_facts({"cpu": _reported_cpu(), "glibc": _glibc()})
    return f"{machine} {digest_of_facts({'compiler': compiler})}"


@functools.cache
def _detect(compiler_environment: tuple[tuple[str, str], ...], site_packages: str) -> Host:
    facts = _compiler_facts(dict(compiler_environment)) | {"glibc": _glibc(), "site_packages": site_packages}
    return Host(digest_of_facts(facts)[:_FINGERPRINT_DIGITS], facts)


def _site_packages() -> str:
    """Inductor names torch's headers by this path on the command line, which is part of the key of the `.so`."""
    torch = torch_folder()
    return str(torch.parent) if torch else sysconfig.get_path("purelib")


def _glibc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or NONE
    except (AttributeError, OSError, ValueError):  # not Linux, or musl
        return NONE


# ---- the compiler


def _compiler_facts(environ: Mapping[str, str]) -> dict[str, str]:
    command = _compiler(environ)
    verbose = _run([*command, *_DESCRIBE_TARGET], environ) if command else ""
    version = _version(verbose)
    return {
        "cpu": _target_options(verbose) or _reported_cpu(),
        "compiler": version,
        "libstdc++": NONE if version == NONE else _libstdcxx(command, verbose, environ),
    }


def _compiler(environ: Mapping[str, str]) -> list[str]:
    """The command that Inductor would compile with, or nothing."""
    name = environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    try:
        command = shlex.split(name)
    except ValueError:  # an unbalanced quote
        return []
    found = shutil.which(command[0], path=environ.get("PATH", os.defpath)) if command else None
    return [found, *command[1:]] if found else []


def _run(command: list[str], environ: Mapping[str, str]) -> str:
    """Everything that the command prints, in English; nothing if it cannot run."""
    try:
        done = subprocess.run(
            command,
            env={**environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            close_fds=False,  # In a vfork, which all threads wait for, a close may hang: FUSE asks the mount for each.
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=_COMPILER_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise WaitTimeout(
            f"{shlex.join(command)} has taken more than {_COMPILER_TIMEOUT_S:g} s: it is not known which compiled "
            "C++ files run on this host; check the compiler, or set CXX to another one"
        ) from error
    except OSError as error:
        if error.errno in _FOR_NOW:
            raise _unknown(command, f"cannot be run just now: {error.strerror}") from error
        return ""
    except subprocess.SubprocessError:
        return ""
    if done.returncode == -signal.SIGKILL:
        raise _unknown(command, "was killed, for want of memory perhaps")
    return done.stdout


def _unknown(command: list[str], trouble: str) -> HostUnknown:
    return HostUnknown(
        f"{command[0]} {trouble}; C++ objects are neither restored nor published until it says which of them run here"
    )


def _version(verbose: str) -> str:
    """Such as "gcc version 12.2.0 (Debian 12.2.0-14)": what `--version` says, without another run."""
    match = re.search(r"^.*\b(?:gcc|clang) version .*$", verbose, re.MULTILINE)
    return match[0].strip() if match else NONE


def _target_options(verbose: str) -> str:
    """What `-march=native` stands for on this CPU; empty if the compiler does not say.

    Every extension is listed as either present or absent, so the present ones say everything.
    """
    for line in verbose.splitlines():
        if re.search(r"\bcc1plus\"? |\"-cc1\" ", line):
            words = [word.strip('"') for word in line.split()]  # shlex takes a hundred times as long
            options = _clang_options(words) if "-target-cpu" in words else _gcc_options(words)
            return "" if any(option.endswith("=native") for option in options) else " ".join(options)
    return ""


def _gcc_options(words: list[str]) -> list[str]:
    """Tuning and cache sizes are left out: they make code faster or slower, not invalid."""
    return sorted({word for word in words if re.match(r"-m(?!no-|tune=)", word)})


def _clang_options(words: list[str]) -> list[str]:
    pairs = list(itertools.pairwise(words))
    cpus = [f"-march={value}" for name, value in pairs if name == "-target-cpu"]
    features = {value for name, value in pairs if name == "-target-feature" and value.startswith("+")}
    return [*cpus, *sorted(features)]


def _reported_cpu() -> str:
    """What the kernel says about the CPU; if it says nothing, no other host may be taken for this one."""
    return " ".join(sorted(cpu_flags())) or f"unknown, of {platform.node()}"


def _libstdcxx(command: list[str], verbose: str, environ: Mapping[str, str]) -> str:
    """File name with the full version, such as libstdc++.so.6.0.30.

    gcc has already said in which folders it looks for libraries, which saves a second run; clang has not.
    """
    folders = re.search(r"^LIBRARY_PATH=(.+)$", verbose, re.MULTILINE)
    beside = (f"{folder}/{_LIBSTDCXX}" for folder in folders[1].split(os.pathsep)) if folders else ()
    asked = [*command, f"-print-file-name={_LIBSTDCXX}"]
    path = next(filter(os.path.isfile, beside), "") or _run(asked, environ).strip()
    return os.path.basename(os.path.realpath(path)) if os.path.isabs(path) else NONE
