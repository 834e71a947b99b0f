"""Build a corpus of real artifacts with the real compilers, once.

    python -m tools.corpus [DIR] [--kernels N]

DIR/inductor and DIR/triton are the cache folders of torch.compile and Triton. They hold four small models that are
compiled for this CPU, and N Triton kernels that are compiled for NVIDIA sm_90, which needs no GPU. Artifacts hold the
path that they were built under, so build a corpus where it is used, and do not move it. The default DIR is
`KSTORE_CORPUS`, else ~/.cache/kstore-corpus/<torch version>-<triton version>.

Beside DIR are its marker DIR.complete (JSON: recipe and counts), the kernels' DIR.sources, and DIR.lock. If the marker
exists, nothing is built. Progress goes to stderr, the counts to stdout.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib.metadata import version
from pathlib import Path

from tools.corpus.build import Corpus, CorpusError, build
from tools.corpus.census import Census


def default_folder() -> Path:
    if chosen := os.environ.get("KSTORE_CORPUS"):
        return Path(chosen)
    return Path.home() / ".cache" / "kstore-corpus" / f"{version('torch')}-{version('triton')}"


def summary(corpus: Corpus) -> str:
    total = sum(corpus.counts.values(), start=Census(0, 0, 0))
    rows = [*corpus.counts.items(), ("total", total)]
    return "\n".join([corpus.recipe.path, *(row(name, counts) for name, counts in rows)])


def row(name: str, counts: Census) -> str:
    return f"{name:10} {counts.files:6} files {counts.bytes:11} bytes {counts.folders:5} folders"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.corpus", description="Build the corpus.")
    parser.add_argument("folder", nargs="?", type=Path, default=default_folder(), metavar="DIR")
    parser.add_argument("--kernels", type=int, default=1200, metavar="N", help="Triton kernels (1200)")
    arguments = parser.parse_args()
    try:
        corpus = build(arguments.folder.absolute(), kernels=arguments.kernels)
    except CorpusError as error:
        sys.exit(f"corpus: {error}")
    print(summary(corpus))


if __name__ == "__main__":
    main()
