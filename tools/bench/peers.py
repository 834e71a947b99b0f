"""What people use instead of kstore, and the floor under all of it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import time
from abc import abstractmethod
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import ClassVar

from tools.bench import floor
from tools.bench.processes import Spec, Step
from tools.bench.sharing import Program, Sharing


class Fal(Program):
    """fal.toolkit's own functions."""

    name = "fal"
    whose: ClassVar[str] = "theirs"

    @staticmethod
    def absent() -> str:
        """See `Sharing`."""
        return "" if importlib.util.find_spec("fal") else "fal is not installed; tools/python installs tools/peers.txt"

    def folders(self, worker: str) -> dict[str, Path]:
        """Without TRITON_CACHE_DIR, Inductor has Triton's kernels of each device in a folder in its own."""
        inductor = self.local(worker) / "inductor-cache"
        return {"inductor": inductor, "triton": inductor / "triton/0"}

    def spec(self, worker: str, host: int, steps: Iterable[Iterable[str]]) -> Spec:
        """See `Program`."""
        self.local(worker).mkdir(parents=True, exist_ok=True)
        folders = {"whose": self.whose, "tmp": str(self.local(worker)), "data": str(self.shared(host))}
        return Spec("fal", folders, [list(step) for step in steps], {})

    def unchanged(self, builder: str) -> Step:
        """A sync knows that nothing is new by the hash that a load in the same process returned."""
        return self.run(f"{builder}-again", 0, ["fetch"], ["publish"]).last

    def later(self, worker: str, kernel: Path, host: int = 0) -> Step:
        """Likewise."""
        target = str(self.folders(worker)["triton"] / kernel.name)
        return self.run(worker, host, ["fetch"], ["copy", str(kernel), target], ["publish"]).last

    def written(self, before: int) -> int:
        """The new zip takes the place of the old one: all of it is written."""
        return self.stored()


class B10(Program):
    """b10-transfer's own functions."""

    name = "b10-transfer"
    whose: ClassVar[str] = "theirs"
    layout: ClassVar[str] = ""

    @staticmethod
    def absent() -> str:
        """See `Sharing`."""
        if importlib.util.find_spec("torch") is None:
            return "b10-transfer needs torch"
        found = importlib.util.find_spec("b10_transfer")
        return "" if found else "b10-transfer is not installed; tools/python installs tools/peers.txt"

    def folders(self, worker: str) -> dict[str, Path]:
        """Triton's kernels are in Inductor's folder."""
        inductor = self.local(worker) / ".cache/torchinductor"
        return {"inductor": inductor, "triton": inductor / "triton/0"}

    def spec(self, worker: str, host: int, steps: Iterable[Iterable[str]]) -> Spec:
        """With what its deployments set, and no more free space asked for than there is on a small machine."""
        home, app, volume = self.local(worker), self.local("app"), self.shared(host) / "cache/model/compile_cache"
        for folder in (home, app, volume):
            folder.mkdir(parents=True, exist_ok=True)
        variables = {
            "HOME": str(home), "TORCHINDUCTOR_CACHE_DIR": str(self.folders(worker)["inductor"]),
            "B10FS_CACHE_DIR": str(volume), "LOCAL_WORK_DIR": str(app), "BASETEN_FS_ENABLED": "1",
            "MIN_B10FS_SPACE_MB": "0", "MIN_LOCAL_SPACE_MB": "0", "MAX_CONCURRENT_SAVES": "1",
        }  # fmt: skip
        if self.layout:
            variables |= {"KSTORE_CACHE_ROOT": str(home / "root"), "KSTORE_LAYOUT": self.layout}
        folders = {"whose": self.whose, "top": str(self.shared(host)), "app": str(app)}
        return Spec("b10", folders, [list(step) for step in steps], variables)


class Shell(Sharing):
    """Commands that copy the folder."""

    def folders(self, worker: str) -> dict[str, Path]:
        """See `Sharing`."""
        return {name: self.local(worker) / name for name in ("inductor", "triton")}

    def publish(self, worker: str, host: int = 0) -> Step:
        """See `Sharing`."""
        return _timed(*self.upload(self.local(worker), self.shared(host)))

    def fetch(self, worker: str, host: int = 0) -> Step:
        """See `Sharing`."""
        return _timed(*self.download(self.shared(host), self.local(worker)))

    @abstractmethod
    def upload(self, tree: Path, shared: Path) -> list[str]:
        """The command that shares a tree."""

    @abstractmethod
    def download(self, shared: Path, tree: Path) -> list[str]:
        """The command that makes the tree anew."""


class Copy(Shell):
    """`cp -a`."""

    name = "cp -a"
    options: ClassVar[str] = "-a"

    def upload(self, tree: Path, shared: Path) -> list[str]:
        """See `Shell`."""
        return ["cp", self.options, f"{tree}/.", str(shared / "tree")]

    def download(self, shared: Path, tree: Path) -> list[str]:
        """See `Shell`."""
        return ["cp", self.options, str(shared / "tree"), str(tree)]


class Link(Copy):
    """`cp -al`, where all is on one filesystem."""

    name = "cp -al"
    options = "-al"


class Rsync(Shell):
    """`rsync -a`, which looks for what is new by itself."""

    name = "rsync -a"

    @staticmethod
    def absent() -> str:
        """See `Sharing`."""
        return _not_installed("rsync")

    def upload(self, tree: Path, shared: Path) -> list[str]:
        """See `Shell`."""
        # Of two that find no folder, one would fail to make it.
        return ["sh", "-ec", 'mkdir -p "$2" && rsync -a "$1" "$2"', "sh", f"{tree}/", f"{shared}/tree/"]

    def download(self, shared: Path, tree: Path) -> list[str]:
        """See `Shell`."""
        return ["rsync", "-a", f"{shared}/tree/", f"{tree}/"]


class Tar(Shell):
    """`tar` through `zstd`, as CI caches do it."""

    name = "tar, zstd"

    @staticmethod
    def absent() -> str:
        """See `Sharing`."""
        return _not_installed("zstd")

    def upload(self, tree: Path, shared: Path) -> list[str]:
        """See `Shell`."""
        # Whole or not at all, as whoever has had a reader of half an archive does it.
        script = 'tar -C "$1" -c . | zstd -q -o "$2.$$" && mv "$2.$$" "$2"'
        return ["sh", "-c", script, "sh", str(tree), str(shared / "tree.tar.zst")]

    def download(self, shared: Path, tree: Path) -> list[str]:
        """See `Shell`."""
        script = 'mkdir -p "$1" && zstd -q -d -c "$2" | tar -C "$1" -x'
        return ["sh", "-c", script, "sh", str(tree), str(shared / "tree.tar.zst")]

    def written(self, before: int) -> int:
        """All of it, again."""
        return self.stored()


class CopyFloor(Copy):
    """No way to share, but what the bare system calls of a restore that copies take. Wherever from it copies, that is
    read before its clock starts.
    """

    name = "bare open, write, close"

    @staticmethod
    def absent() -> str:
        """See `Sharing`."""
        return _not_installed("cc")

    def fetch(self, worker: str, host: int = 0) -> Step:
        """Of the builder's own folder: one call after the other."""
        return Step(floor.run("copy", self.local("builder"), self.local(worker)), "")

    def publish(self, worker: str, host: int = 0) -> Step:
        """Nothing."""
        return Step(0.0, "")


class StoreFloor(CopyFloor):
    """Likewise of a first commit that makes a file of each, which is whole before it has a name that replaces none: it
    reads them all, and has as many folders as a store.
    """

    name = "bare read, write, link"

    def publish(self, worker: str, host: int = 0) -> Step:
        """One file after the other."""
        return Step(floor.run("store", self.local(worker), self.shared(host) / "tree"), "")


@cache
def _not_installed(program: str) -> str:
    return "" if shutil.which(program) else f"{program} is not installed"


def _timed(*command: str) -> Step:
    started = time.perf_counter()
    subprocess.run(command, check=True, env=os.environ | {"LC_ALL": "C"})
    return Step(time.perf_counter() - started, "")
