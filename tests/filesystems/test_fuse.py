"""A store on FUSE whose mount hangs while kstore has a file open: closing it hangs as well, in whichever process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.commandline import REPOSITORY
from tests.trees import ENVIRONMENT, GPU, KEY, Node

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="there is no /dev/fuse"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]
PATIENCE = 60


@contextmanager
def served(folder: Path, target: Path, text: str) -> Iterator[subprocess.Popen[str]]:
    """Calls that hang go on when the server is killed: they fail with ENOTCONN."""
    target.mkdir()
    program = REPOSITORY / "tests/programs/serve_fuse.py"
    command = (sys.executable, program, folder, target, text)
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout and server.stdout.readline() == "ready\n"
        yield server
    finally:
        server.kill()
        server.wait()
        subprocess.run(["umount", "--lazy", target], check=True)


@pytest.fixture
def builder(tmp_path: Path) -> Node:
    node = Node(tmp_path, "builder", layout="packed")
    node.tree.kernel()
    node.commit()
    return node


@pytest.mark.parametrize("text", ["/packs/", "/refs/"])
def test_the_command_of_exec_runs_all_the_same(builder: Node, tmp_path: Path, text: str) -> None:
    mount = tmp_path / "mount"
    variables = {
        "KSTORE_ROOT": str(mount), "KSTORE_CACHE_ROOT": str(tmp_path / "worker"), "KSTORE_MODE": "read",
        "KSTORE_TIMEOUT": "5", "KSTORE_GPU": GPU, "KSTORE_ENVIRONMENT": ENVIRONMENT,
    }  # fmt: skip
    command = (sys.executable, "-m", "kstore", "exec", KEY, "--", "sh", "-c", "echo runs; exit 7")
    with served(builder.location, mount, text) as server:
        job = subprocess.Popen(
            command, cwd=REPOSITORY, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert job.stdout and server.stdout
        assert server.stdout.readline() == "hangs\n"
        assert job.stdout.readline() == "runs\n"
        server.kill()  # No process ends while it has a file of the mount open.
        _, err = job.communicate(timeout=PATIENCE)
    assert job.returncode == 7
    assert "nothing is restored, the command runs cold" in err
