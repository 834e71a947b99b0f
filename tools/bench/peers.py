"""What people use instead of kstore, and the bare system calls as the floor under everything."""

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
        """Without TRITON_CACHE_DIR, Inductor keeps each device's Triton kernels in a folder inside its own."""
        inductor = self.local(worker) / "inductor-cache"
        return {"inductor": inductor, "triton": inductor / "triton/0"}

    def spec(self, worker: str, host: int, steps: Iterable[Iterable[str]]) -> Spec:
        """See `Program`."""
        self.local(worker).mkdir(parents=True, exist_ok=True)
        folders = {"whose": self.whose, "tmp": str(self.local(worker)), "data": str(self.shared(host))}
        return Spec("fal", folders, [list(step) for step in steps], {})

    def unchanged(self, builder: str) -> Step:
        """A sync sees that nothing is new from the hash that a load in the same process returned."""
        return self.run(f"{builder}-again", 0, ["fetch"], ["publish"]).last

    def later(self, worker: str, kernel: Path, host: int = 0) -> Step:
        """The same, with one more kernel between the load and the sync."""
        target = str(self.folders(worker)["triton"] / kernel.name)
        return self.run(worker, host, ["fetch"], ["copy", str(kernel), target], ["publish"]).last

    def written(self, before: int) -> int:
        """The new zip replaces the old one: everything is written."""
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
        """With what its deployments set, but with no limit on free space, which a small machine might not meet."""
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
        """The command that makes the tree again."""


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
    """`cp -al`, where everything is on one filesystem."""

    name = "cp -al"
    options = "-al"


class Rsync(Shell):
    """`rsync -a`, which itself looks for what is new."""

    name = "rsync -a"

    @staticmethod
    def absent() -> str:
        """See `Sharing`."""
        return _not_installed("rsync")

    def upload(self, tree: Path, shared: Path) -> list[str]:
        """See `Shell`."""
        # If two found no folder, one of them would fail to make it.
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
        # The archive appears whole or not at all, as people do it once a reader has got half of one.
        script = 'tar -C "$1" -c . | zstd -q -o "$2.$$" && mv "$2.$$" "$2"'
        return ["sh", "-c", script, "sh", str(tree), str(shared / "tree.tar.zst")]

    def download(self, shared: Path, tree: Path) -> list[str]:
        """See `Shell`."""
        script = 'mkdir -p "$1" && zstd -q -d -c "$2" | tar -C "$1" -x'
        return ["sh", "-c", script, "sh", str(tree), str(shared / "tree.tar.zst")]

    def written(self, before: int) -> int:
        """Everything, again."""
        return self.stored()


class CopyFloor(Copy):
    """No way to share, but the bare system calls of a restore that copies.

    What it copies is read before its clock starts.
    """

    name = "bare open, write, close"

    @staticmethod
    def absent() -> str:
        """See `Sharing`."""
        return _not_installed("cc")

    def fetch(self, worker: str, host: int = 0) -> Step:
        """Copy the builder's own folder, one call after the other."""
        return Step(floor.run("copy", self.local("builder"), self.local(worker)), "")

    def publish(self, worker: str, host: int = 0) -> Step:
        """Nothing."""
        return Step(0.0, "")


class StoreFloor(CopyFloor):
    """The bare system calls of a first commit that makes a file for each artifact.

    It reads every artifact, and makes as many folders as a store has. Each file is whole before it gets its name, and
    replaces no other.
    """

    name = "bare read, write, link"

    def publish(self, worker: str, host: int = 0) -> Step:
        """Make one file after the other."""
        return Step(floor.run("store", self.local(worker), self.shared(host) / "tree"), "")


@cache
def _not_installed(program: str) -> str:
    return "" if shutil.which(program) else f"{program} is not installed"


def _timed(*command: str) -> Step:
    started = time.perf_counter()
    subprocess.run(command, check=True, env=os.environ | {"LC_ALL": "C"})
    return Step(time.perf_counter() - started, "")
