"""Ways to share a cache tree between workers: kstore, and what people use instead. Each has the same interface."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import ClassVar

from tools.bench import floor, processes
from tools.bench.places import Place
from tools.bench.processes import Spec, Step, Told
from tools.bench.trees import tree_bytes


class Sharing(ABC):
    """Workers of some hosts that share caches by one way, in one round."""

    name: ClassVar[str]

    def __init__(self, place: Place, label: str) -> None:
        self._place = place
        self._label = label
        for folder in {self.shared(0), self.local("")}:
            folder.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def absent() -> str:
        """Why it cannot be measured here; empty if it can."""
        return ""

    def shared(self, host: int) -> Path:
        """What all workers share, as a host sees it."""
        return self._place.shared(host) / self._label

    def local(self, worker: str) -> Path:
        """What a worker has for itself."""
        return self._place.local / self._label / worker

    @abstractmethod
    def folders(self, worker: str) -> dict[str, Path]:
        """Where the compilers of a worker write: component → folder."""

    @abstractmethod
    def publish(self, worker: str, host: int = 0) -> Step:
        """What a worker does after it has compiled."""

    @abstractmethod
    def fetch(self, worker: str, host: int = 0) -> Step:
        """What a worker does before it compiles."""

    def unchanged(self, builder: str) -> Step:
        """Publish with nothing new, by the worker that has published."""
        return self.publish(builder)

    def later(self, worker: str, kernel: Path, host: int = 0) -> Step:
        """A new worker fetches, compiles one more kernel, and publishes."""
        self.fetch(worker, host)
        self.add(worker, kernel)
        return self.publish(worker, host)

    def fill(self, worker: str, tree: Path) -> None:
        """What the compilers would have written."""
        for component, folder in self.folders(worker).items():
            if (tree / component).is_dir():
                folder.parent.mkdir(parents=True, exist_ok=True)
                subprocess.run(["cp", "-a", f"{tree / component}/.", folder], check=True)

    def add(self, worker: str, kernel: Path) -> None:
        """One more of Triton's kernels."""
        folder = self.folders(worker)["triton"]
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", str(kernel), str(folder)], check=True)

    def empty(self) -> None:
        """Take away all that is shared."""
        shutil.rmtree(self.shared(0))
        self.shared(0).mkdir()

    def stored(self) -> int:
        """Bytes that are shared."""
        return tree_bytes(self.shared(0))

    def written(self, before: int) -> int:
        """Bytes that a publication has written, after which so many were there."""
        return self.stored() - before


class Program(Sharing):
    """A way whose functions run in a process of our own."""

    @abstractmethod
    def spec(self, worker: str, host: int, steps: Iterable[Iterable[str]]) -> Spec:
        """What a worker's process needs to know."""

    def run(self, worker: str, host: int, *steps: Iterable[str]) -> Told:
        """Take steps in a process."""
        return processes.run(self.spec(worker, host, steps))

    def publish(self, worker: str, host: int = 0) -> Step:
        """See `Sharing`."""
        return self.run(worker, host, ["publish"]).last

    def fetch(self, worker: str, host: int = 0) -> Step:
        """See `Sharing`."""
        return self.run(worker, host, ["fetch"]).last


class Kstore(Program):
    """kstore."""

    layout: ClassVar[str]

    def folders(self, worker: str) -> dict[str, Path]:
        """See `Sharing`."""
        return {name: self.local(worker) / name for name in ("inductor", "triton")}

    def spec(self, worker: str, host: int, steps: Iterable[Iterable[str]]) -> Spec:
        """See `Program`."""
        folders = {"store": self.shared(host) / "store", "root": self.local(worker)}
        texts = {name: str(folder) for name, folder in folders.items()} | {"layout": self.layout}
        return Spec("kstore", texts, [list(step) for step in steps], {})

    def publish_as(self, worker: str, key: str) -> Step:
        """Publish under another key."""
        plain = self.spec(worker, 0, [["publish"]])
        return processes.run(Spec(plain.way, {**plain.folders, "key": key}, plain.steps, plain.variables)).last

    def unchanged(self, builder: str) -> Step:
        """The third publication: the second looks again at what was too young to be trusted in the first."""
        self.publish(builder)
        return self.publish(builder)


class KstoreLoose(Kstore):
    """As it is chosen where the cache root can link from the store."""

    name = "kstore, loose"
    layout = "loose"


class KstorePacked(Kstore):
    """As it is chosen elsewhere."""

    name = "kstore, packed"
    layout = "packed"


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


class KstoreAsFal(Fal):
    """kstore's functions of fal's names."""

    whose = "ours"
    layout: ClassVar[str]

    @staticmethod
    def absent() -> str:
        """It is ours."""
        return ""

    def folders(self, worker: str) -> dict[str, Path]:
        """Triton has a folder of its own."""
        local = self.local(worker)
        return {"inductor": local / "inductor-cache", "triton": local / "inductor-cache-triton"}

    def spec(self, worker: str, host: int, steps: Iterable[Iterable[str]]) -> Spec:
        """With the settings of a user of kstore."""
        plain = super().spec(worker, host, steps)
        settings = {"KSTORE_ROOT": str(self.shared(host) / "kstore"), "KSTORE_LAYOUT": self.layout}
        # A GPU's scope, as fal's apps have it.
        return Spec(plain.way, plain.folders, plain.steps, settings | {"KSTORE_GPU": "nvidia-bench-sm90"})

    def written(self, before: int) -> int:
        """Only what is new."""
        return self.stored() - before


class LooseAsFal(KstoreAsFal):
    """On a filesystem from which files can be linked."""

    name = "kstore for fal, loose"
    layout = "loose"


class PackedAsFal(KstoreAsFal):
    """Elsewhere."""

    name = "kstore for fal, packed"
    layout = "packed"


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


class LooseAsB10(B10):
    """kstore's functions of b10-transfer's names, where files can be linked."""

    name = "kstore for b10, loose"
    whose = "ours"
    layout = "loose"

    @staticmethod
    def absent() -> str:
        """It is ours."""
        return "" if importlib.util.find_spec("torch") else "torch is not installed"


class PackedAsB10(LooseAsB10):
    """Elsewhere."""

    name = "kstore for b10, packed"
    layout = "packed"


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
        return ["rsync", "-a", f"{tree}/", f"{shared}/tree/"]

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


class LinkFloor(Copy):
    """No way to share, but what the bare system calls of a restore by link take."""

    name = "bare link(2)"
    what: ClassVar[str] = "link"

    @staticmethod
    def absent() -> str:
        """See `Sharing`."""
        return _not_installed("cc")

    def fetch(self, worker: str, host: int = 0) -> Step:
        """Folders first, and one call after the other."""
        seconds = floor.run(self.what, self.shared(host) / "tree", self.local(worker))
        return Step(seconds, "")


class CopyFloor(LinkFloor):
    """Likewise of a restore that copies."""

    name = "bare open, write, close"
    what = "copy"


def present(ways: Iterable[type[Sharing]]) -> tuple[list[type[Sharing]], list[str]]:
    """Those that can be measured here, and for the others why not."""
    all_ways = list(ways)
    reasons = [f"{way.name} is not measured: {way.absent()}." for way in all_ways if way.absent()]
    return [way for way in all_ways if not way.absent()], reasons


@cache
def _not_installed(program: str) -> str:
    return "" if shutil.which(program) else f"{program} is not installed"


def _timed(*command: str) -> Step:
    started = time.perf_counter()
    subprocess.run(command, check=True, env=os.environ | {"LC_ALL": "C"})
    return Step(time.perf_counter() - started, "")
