"""A way to share a cache tree between workers: the interface that kstore and its peers have here."""

from __future__ import annotations

import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from tools.bench import processes
from tools.bench.places import Place, folder_name
from tools.bench.processes import Spec, Step, Told
from tools.bench.trees import name_in_place, tree_bytes


class Sharing(ABC):
    """Workers on several hosts that share caches in one way, in one round."""

    name: ClassVar[str]

    def __init__(self, place: Place) -> None:
        self._place = place
        self._label = folder_name(self.name)
        for folder in {self.shared(0), self.local("")}:
            folder.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def absent() -> str:
        """Why it cannot be measured here; empty if it can."""
        return ""

    def shared(self, host: int) -> Path:
        """The folder that all workers share, as a host sees it."""
        return self._place.shared(host) / self._label

    def local(self, worker: str) -> Path:
        """The folder that a worker has for itself."""
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
        """The worker that has published publishes again, with nothing new."""
        return self.publish(builder)

    def later(self, worker: str, kernel: Path, host: int = 0) -> Step:
        """A new worker fetches, compiles one more kernel, and publishes."""
        self.fetch(worker, host)
        self.add(worker, kernel)
        return self.publish(worker, host)

    def fill(self, worker: str, tree: Path) -> None:
        """Put into a worker's folders what the compilers would have written."""
        for component, folder in self.folders(worker).items():
            if (tree / component).is_dir():
                folder.parent.mkdir(parents=True, exist_ok=True)
                subprocess.run(["cp", "-a", f"{tree / component}/.", folder], check=True)
                name_in_place(folder)

    def add(self, worker: str, kernel: Path) -> None:
        """Add one more Triton kernel."""
        folder = self.folders(worker)["triton"]
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", str(kernel), str(folder)], check=True)
        name_in_place(folder / kernel.name)

    def empty(self) -> None:
        """Remove everything that is shared."""
        shutil.rmtree(self.shared(0))
        self.shared(0).mkdir()

    def stored(self) -> int:
        """Bytes that are shared."""
        return tree_bytes(self.shared(0))

    def written(self, before: int) -> int:
        """Bytes that a publication has written; `before` is how many were stored before it."""
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


def present(ways: Iterable[type[Sharing]]) -> tuple[list[type[Sharing]], list[str]]:
    """The ways that can be measured here, and why the others cannot."""
    all_ways = list(ways)
    reasons = [f"{way.name} is not measured: {way.absent()}." for way in all_ways if way.absent()]
    return [way for way in all_ways if not way.absent()], reasons
