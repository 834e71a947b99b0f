"""A process that reads manifests that may end a process. Run as a program, it answers each with one letter."""

from __future__ import annotations

import select
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

REPOSITORY = Path(__file__).parents[2]
LENGTH = struct.Struct("<I")
MANIFEST, REFUSED = b"m", b"i"
PATIENCE = 20.0
"""Seconds after which a reader is taken to hang."""
MEMORY = 1 << 30


class Reader:
    """The process, seen from outside."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def read(self, data: bytes) -> bytes:
        """The outcome: `MANIFEST` or `REFUSED`. Anything else, above all a signal, is a failure."""
        requests, answers = self._process.stdin, self._process.stdout
        assert requests
        assert answers
        try:
            requests.write(LENGTH.pack(len(data)) + data)
            requests.flush()
            ready, _, _ = select.select([answers], [], [], PATIENCE)
        except BrokenPipeError:
            ready = [answers]
        assert ready, "the reader hangs"
        answer = answers.read(1)
        assert answer in (MANIFEST, REFUSED), f"the reader ended with {self._process.wait()}"
        return answer


@contextmanager
def reader() -> Iterator[Reader]:
    """A reader that lives as long as the context."""
    command = [sys.executable, "-m", "tests.hostile.reader"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY)
    try:
        yield Reader(process)
    finally:
        process.kill()
        process.communicate()


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    from kstore.errors import IntegrityError
    from kstore.published.manifest import Manifest

    while head := requests.read(LENGTH.size):
        data = requests.read(LENGTH.unpack(head)[0])
        try:
            Manifest.load(data).for_host("host")
            answers.write(MANIFEST)
        except IntegrityError:
            answers.write(REFUSED)
        answers.flush()


if __name__ == "__main__":
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(sys.stdin.buffer, sys.stdout.buffer)
