"""Makes one system call of kstore's compiled calls fail, by building them specially: see struck.h."""

from __future__ import annotations

import ctypes
import shlex
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from kstore import calls
from tests.faults.injection import Fault, Faults, Reply, Strike, Striker, keep_in_order

_HERE = Path(__file__).parent
_REPLIES = [Reply.REFUSED, Reply.LOST, Reply.LOST_TO_EXISTS, Reply.SHORT]
"""As in struck.c."""


class Struck:
    """kstore's compiled calls, with system calls that can be struck."""

    def __init__(self, library: Path) -> None:
        self.module = _load(library)
        self._library = ctypes.CDLL(str(library))
        self._library.struck_what.restype = ctypes.c_char_p

    @contextmanager
    def strike(self, fault: Fault, number: int) -> Iterator[Striker]:
        """Strike system call `number` among those that they make."""
        striker, library = Striker(fault, number), self._library
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kstore.calls._calls", self.module)
            keep_in_order(patch)
            library.struck_arm(number, fault.code, _REPLIES.index(fault.reply))
            try:
                yield striker
            finally:
                striker.struck = library.struck_what().decode()
                library.struck_arm(-1, 0, 0)

    def of(self, faults: Faults) -> Strike:
        """The fault that strikes each call in turn."""
        return lambda number, folder: self.strike(faults.of_call(number), number)

    @contextmanager
    def without_nameless_links(self) -> Iterator[None]:
        """As on Linux before 6.10, without a capability: a file can get a name only by its descriptor in /proc."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kstore.calls._calls", self.module)
            self._library.struck_refuse_nameless_links(1)
            try:
                yield
            finally:
                self._library.struck_refuse_nameless_links(0)


def build(folder: Path) -> Struck:
    """Compile them into a folder."""
    library, own = folder / "native.so", folder / "struck.o"
    compiler = [*shlex.split(sysconfig.get_config_var("CC") or "cc"), "-fPIC", "-O1"]
    headers = ["-include", str(_HERE / "struck.h"), f"-I{sysconfig.get_path('include')}"]
    sources = map(str, sorted(Path(calls.__file__).parent.glob("*.c")))
    subprocess.run([*compiler, "-c", str(_HERE / "struck.c"), "-o", str(own)], check=True)
    subprocess.run([*compiler, "-shared", *headers, *sources, str(own), "-o", str(library)], check=True)
    return Struck(library)


def _load(library: Path) -> ModuleType:
    loader = ExtensionFileLoader("native", str(library))
    spec = spec_from_loader("native", loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module
