"""kstore itself, and its functions that have the names of the packages that it takes over from."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from tools.bench import floor, processes
from tools.bench.peers import B10, CopyFloor, Fal
from tools.bench.processes import Spec, Step
from tools.bench.sharing import Program


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
        """The third publication: the second one looks again at what was too young to be trusted in the first."""
        self.publish(builder)
        return self.publish(builder)


class KstoreLoose(Kstore):
    """The layout that kstore chooses where the cache root can link from the store."""

    name = "kstore, loose"
    layout = "loose"


class LinkFloor(KstoreLoose):
    """The bare system calls of a restore by link: kstore's links, and the writes of the files that it copies.

    A file is copied because it holds paths, is executable, or is changed in place.
    """

    name = "bare link, open, write, close"

    @staticmethod
    def absent() -> str:
        """See `Sharing`."""
        return CopyFloor.absent()

    def fetch(self, worker: str, host: int = 0) -> Step:
        """Make the tree of a root that kstore has restored."""
        if not (model := self.local("model")).exists():
            self.run("model", host, ["fetch"])
        return Step(floor.run("link", model, self.local(worker)), "")


class KstorePacked(Kstore):
    """The layout that kstore chooses elsewhere."""

    name = "kstore, packed"
    layout = "packed"


class KstoreAsFal(Fal):
    """kstore's functions that have fal's names."""

    whose = "ours"
    layout: ClassVar[str]

    @staticmethod
    def absent() -> str:
        """Empty: it is part of kstore."""
        return ""

    def folders(self, worker: str) -> dict[str, Path]:
        """Triton has a folder of its own."""
        local = self.local(worker)
        return {"inductor": local / "inductor-cache", "triton": local / "inductor-cache-triton"}

    def spec(self, worker: str, host: int, steps: Iterable[Iterable[str]]) -> Spec:
        """The same as fal's, with the settings of a kstore user."""
        plain = super().spec(worker, host, steps)
        settings = {"KSTORE_ROOT": str(self.shared(host) / "kstore"), "KSTORE_LAYOUT": self.layout}
        # A GPU's scope, as fal's apps have it.
        return Spec(plain.way, plain.folders, plain.steps, settings | {"KSTORE_GPU": "nvidia-bench-sm90"})

    def written(self, before: int) -> int:
        """Only what is new."""
        return self.stored() - before


class LooseAsFal(KstoreAsFal):
    """On a filesystem where files can be linked."""

    name = "kstore for fal, loose"
    layout = "loose"


class PackedAsFal(KstoreAsFal):
    """Elsewhere."""

    name = "kstore for fal, packed"
    layout = "packed"


class LooseAsB10(B10):
    """kstore's functions that have b10-transfer's names, where files can be linked."""

    name = "kstore for b10, loose"
    whose = "ours"
    layout = "loose"

    @staticmethod
    def absent() -> str:
        """It is part of kstore, but needs torch."""
        return "" if importlib.util.find_spec("torch") else "torch is not installed"


class PackedAsB10(LooseAsB10):
    """Elsewhere."""

    name = "kstore for b10, packed"
    layout = "packed"
