"""What is shared: trees of real artifacts, each with a folder for Inductor and one for Triton."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
from base64 import b32encode
from dataclasses import dataclass, field
from pathlib import Path

from tools.corpus import build as corpora
from tools.corpus.__main__ import default_folder
from tools.corpus.models import build_model, build_releases


def tree_bytes(path: Path) -> int:
    """Bytes of all files below `path`."""
    return sum(file.lstat().st_size for file in files_in(path))


def files_in(path: Path) -> list[Path]:
    """All files below `path`."""
    return [Path(folder, name) for folder, _, names in os.walk(path) for name in names]


def kernels_in(tree: Path) -> list[Path]:
    """The folders of the Triton kernels in a tree, sorted by name."""
    return sorted(group.parent for group in tree.glob("triton/*/__grp__*.json"))


def name_in_place(folder: Path) -> None:
    """Make the file lists of Triton kernels below a folder hold their paths there, as if compiled there."""
    for file in folder.glob("**/__grp__*.json"):
        content, status = json.loads(file.read_bytes()), file.stat()
        content["child_paths"] = {name: str(file.with_name(name)) for name in content["child_paths"]}
        file.write_text(json.dumps(content))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    corpus_kernels: int = 1200
    corpus_models: tuple[str, ...] = corpora.MODELS
    public_models: tuple[str, ...] = ("gpt2", "vit", "unet")
    release_kernels: int = 400
    releases: int = 10
    copies: int = 11
    """How many copies of the corpus the big key has."""
    keys: int = 1000
    far_keys: int = 100
    files_of_a_key: int = 2000
    files_of_a_model: int = 160
    """As many as a diffusion UNet has."""
    commits: int = 200
    """How many commits a key grows by."""
    writers: int = 24
    workers: int = 16
    live_kernels: int = 40


QUICK = Sizes(
    corpus_kernels=12, corpus_models=("mlp-a",), public_models=(), release_kernels=10, releases=2, copies=2, keys=5,
    far_keys=3, files_of_a_key=40, files_of_a_model=16, commits=10, writers=3, workers=2, live_kernels=4,
)  # fmt: skip


@dataclass
class Trees:
    """Trees, built when first needed. The corpus must stay where it was built: artifacts hold its path."""

    sizes: Sizes
    work: Path
    """The folder for what is made from the corpus."""
    corpus_folder: Path = field(default_factory=default_folder)
    is_given: bool = False
    """Whether the corpus is used as it is found."""

    @property
    def corpus(self) -> Path:
        """The mixed corpus: models and kernels."""
        if not self.is_given:
            corpora.build(self.corpus_folder, kernels=self.sizes.corpus_kernels, models=self.sizes.corpus_models)
        return self.corpus_folder

    def model(self, name: str) -> Path:
        """One model alone."""
        return build_model(self.corpus_folder.with_name(self.corpus_folder.name + ".models") / name, name)

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models."""
        return self.sizes.corpus_models

    @property
    def public(self) -> tuple[str, ...]:
        """The names of the models with public configurations that can be built here."""
        needed = {"gpt2": "transformers", "vit": "transformers", "unet": "diffusers"}
        return tuple(name for name in self.sizes.public_models if importlib.util.find_spec(needed[name]))

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of those that cannot be built here."""
        return tuple(name for name in self.sizes.public_models if name not in self.public)

    def releases(self) -> list[Path]:
        """Releases of one set of kernels; each differs from the first in a tenth of them."""
        folder = self.corpus_folder.with_name(f"{self.corpus_folder.name}.releases{self.sizes.release_kernels}")
        return build_releases(folder, kernels=self.sizes.release_kernels, releases=self.sizes.releases)

    def without_one_kernel(self) -> tuple[Path, Path]:
        """A copy of the corpus, and a kernel that was taken out of it."""
        tree, kernel_folder = self.work / "without", self.work / "kernel"
        if not tree.exists():
            shutil.copytree(self.corpus, tree, symlinks=True)
            kernel_folder.mkdir()
            shutil.move(kernels_in(tree)[0], kernel_folder)
        return tree, next(kernel_folder.iterdir())

    def kernels(self, count: int) -> list[Path]:
        """Folders of some kernels."""
        found = kernels_in(self.corpus)
        if len(found) < count:
            raise RuntimeError(f"{self.corpus} has {len(found)} kernels; {count} are needed")
        return found[:count]

    def some(self, files: int) -> Path:
        """A tree of whole kernels that have about `files` files together."""
        tree = self.work / f"some-{files}"
        if not tree.exists():
            taken = 0
            for kernel in kernels_in(self.corpus):
                if taken >= files:
                    break
                shutil.copytree(kernel, tree / "triton" / kernel.name)
                taken += len(list(kernel.iterdir()))
        return tree

    def big(self) -> Path:
        """The corpus with its kernels many times over, each time a little different: for time and memory, not bytes."""
        tree = self.work / "big"
        if not tree.exists():
            shutil.copytree(self.corpus, tree, symlinks=True)
            for number in range(1, self.sizes.copies):
                for kernel in sorted(self.corpus.glob("triton/*/")):
                    vary(kernel, tree / "triton", number)
        return tree


def vary(kernel: Path, folder: Path, number: int) -> Path:
    """Make a kernel's variant in `folder`. Its name differs, wherever it occurs, and so does the end of each file."""
    digest = b32encode(hashlib.sha256(f"{kernel.name} {number}".encode()).digest()).decode()
    target = folder / digest[: len(kernel.name)]
    target.mkdir(parents=True)
    for file in kernel.iterdir():
        # JSON and ELF files may end in line breaks.
        content = file.read_bytes().replace(kernel.name.encode(), target.name.encode()) + b"\n" * number
        (target / file.name).write_bytes(content)
    name_in_place(target)
    return target
