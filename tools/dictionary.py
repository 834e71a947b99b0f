"""Make a dictionary from real artifacts of Inductor and Triton.

    python -m tools.dictionary NUMBER

It is made from what two programs compile in a minute, which stands for what packs hold. These artifacts are not in the
corpus, and no benchmark measures them. NUMBER is hexadecimal. An existing dictionary is never overwritten.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import zstandard

from kstore.components import load_table
from kstore.local.cacheroot import CacheRoot
from kstore.local.index import Index
from kstore.local.scan import scan

PROGRAMS = {
    "compile_dictionary_models.py": ("inductor", "TORCHINDUCTOR_CACHE_DIR"),
    "compile_dictionary_kernels.py": ("triton", "TRITON_CACHE_DIR"),
}
REPOSITORY = Path(__file__).parents[1]
DICTIONARIES = REPOSITORY / "kstore/blobs/dictionaries"
SIZE = 512 << 10
"""Bytes. With half as many, small models take a sixth more; with twice as many, a tenth less."""
SEGMENT, STEP = 2000, 6
"""How many bytes the pieces have that are taken, and how exactly they are compared: zstd's `k` and `d`."""
LEVEL = 19
LARGEST = 400_000
"""Bytes. Larger samples would crowd out all others."""


def compile_all(folder: Path) -> None:
    """Run the compilers."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "TRITON"))}
    environment |= {variable: str(folder / component) for component, variable in PROGRAMS.values()}
    for program in PROGRAMS:
        subprocess.run([sys.executable, str(REPOSITORY / "tests/programs" / program)], env=environment, check=True)


def samples(folder: Path) -> Iterator[bytes]:
    """The artifacts in their stored form, as an image would have them that was not built here."""
    root = CacheRoot(str(folder), {component: str(folder / component) for component, _ in PROGRAMS.values()}, {})
    stored: dict[bytes, bytes] = {}
    found = scan(root, load_table(), Index(), dict, offer=lambda blobs, _: stored.update(blobs))
    for _, entry in sorted(found.files.items()):
        if entry.size <= LARGEST:
            yield elsewhere(stored[entry.digest], folder)


def elsewhere(data: bytes, folder: Path) -> bytes:
    """The data with the paths of a plain image instead of this machine's."""
    found = places(folder)
    longest_first = sorted(found, key=len, reverse=True)
    expression = "|".join(map(re.escape, longest_first)).encode()
    return re.sub(expression, lambda here: found[here[0].decode()].encode(), data)


def places(folder: Path) -> Mapping[str, str]:
    """This machine's paths → the paths that stand for them."""
    python = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
    found = {
        sysconfig.get_path("purelib"): f"/usr/local/{python}/site-packages",
        str(REPOSITORY): "/app",
        str(folder): "/tmp/kernels",
        sys.base_prefix: "/usr/local",
    }
    return {here: there for here, there in found.items() if here not in ("/usr", "/usr/local")}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.dictionary", description="Make a dictionary.")
    parser.add_argument("number", type=lambda text: int(text, 16), metavar="NUMBER")
    number: int = parser.parse_args().number
    with tempfile.TemporaryDirectory(prefix="kernels-") as folder:
        compile_all(Path(folder))
        found: list[bytes | bytearray | memoryview[int]] = [*samples(Path(folder))]
        private = list(places(Path(folder)))
    made = zstandard.train_dictionary(SIZE, found, k=SEGMENT, d=STEP, level=8, dict_id=number).as_bytes()
    if left := [path for path in private if path.encode() in made]:
        sys.exit(f"the dictionary has paths of this machine: {', '.join(left)}")
    DICTIONARIES.mkdir(exist_ok=True)
    with (DICTIONARIES / f"{number:08x}.zst").open("xb") as file:
        packed = file.write(zstandard.compress(made, LEVEL))
        print(f"{file.name}: {len(found)} artifacts, {len(made)} bytes, {packed} packed")


if __name__ == "__main__":
    main()
