"""`kstore-b10-compile-cache`: a server that is its child, or one that somebody else starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from kstore.integrations.b10.hardware import archive_key
from kstore.store import Store

REPOSITORY = Path(__file__).parents[2]
SERVER = REPOSITORY / "tests/programs/serve_models.py"
_COMMAND = """
import sys
from kstore.integrations.b10 import variables
variables.VOLUME = sys.argv.pop(1)
from kstore.integrations.b10.command import main
sys.exit(main())
"""


class Deployment:
    """Replicas of one deployment, which share a volume. Each has a home folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.volume = folder / "cache/model/server"
        self.started: list[subprocess.Popen[str]] = []

    def environ(self, replica: str, **variables: str) -> dict[str, str]:
        home = self.folder / replica
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("KSTORE_", "B10", "VLLM")) and v}
        return kept | {
            "HOME": str(home), "B10FS_CACHE_DIR": str(self.volume), "BASETEN_FS_ENABLED": "1",
            "PYTHONPATH": ":".join(sys.path),
            "MIN_B10FS_SPACE_MB": "0", "MIN_LOCAL_SPACE_MB": "0", "MAX_CONCURRENT_SAVES": "1",
            "KSTORE_CACHE_ROOT": str(home / "root"), "KSTORE_GPU": "cpu-test", "KSTORE_ENVIRONMENT": "torch-test",
            "B10_TRANSFER_INTERVAL_S": "0.1", **variables,
        }  # fmt: skip

    def command(self, *arguments: str, replica: str = "first", **variables: str) -> subprocess.Popen[str]:
        """The console script."""
        return self.start(self.script(*arguments), replica, **variables)

    def script(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", _COMMAND, str(self.folder / "cache/model"), *arguments]

    def start(self, command: list[str], replica: str, **variables: str) -> subprocess.Popen[str]:
        environ = self.environ(replica, **variables)
        Path(environ["HOME"]).mkdir(exist_ok=True)
        process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def server(self, name: str, *options: str) -> list[str]:
        """The command line of a server that compiles `name`."""
        return [sys.executable, str(SERVER), str(self.folder / f"{name}.port"), name, *options]

    def url(self, name: str) -> str:
        """Where that server says what models it has."""
        port = self.folder / f"{name}.port"
        deadline = time.monotonic() + 60
        while not port.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return f"http://127.0.0.1:{port.read_text()}/v1/models"

    def saved(self) -> set[str]:
        """Names of the files in the newest generation."""
        store = Store(self.volume / "kstore")
        (scope,) = store.scopes("b10/server")
        ref = store.newest(scope)
        assert ref
        return {path.rpartition("/")[2] for path in store.snapshot(ref).manifest.files}


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


def test_the_script_is_installed_with_the_package() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["kstore-b10-compile-cache"].partition(":")

    assert callable(getattr(import_module(module), function))


def test_a_server_that_is_the_child_finds_everything_when_it_starts(deployment: Deployment) -> None:
    first = deployment.command("--", *deployment.server("one", "--once"))
    assert (first.communicate(timeout=60)[0], first.returncode) == ("\n", 7)

    second = deployment.command("-q", "--", *deployment.server("two", "--once"), replica="second")
    assert second.communicate(timeout=60) == ("one\n", "")
    assert (second.returncode, deployment.saved()) == (7, {"one", "two"})


def test_a_server_that_is_the_child_keeps_its_cache_where_it_would_without_us(deployment: Deployment) -> None:
    """What b10-transfer has saved was built under that path."""
    process = deployment.command("--", "sh", "-c", 'echo "$VLLM_CACHE_ROOT"')

    assert process.communicate(timeout=60)[0] == f"{deployment.folder}/first/.cache/vllm\n"


def test_a_server_that_is_the_child_finds_what_b10_transfer_has_saved(deployment: Deployment) -> None:
    """b10-transfer's archive for a vLLM server holds vLLM's folder, under the same name."""
    saved = deployment.folder / "saved/torch_compile_cache/torch_aot_compile/old/rank_0_0"
    saved.mkdir(parents=True)
    (saved / "old").write_text("compiled")
    deployment.volume.mkdir(parents=True)
    with tarfile.open(deployment.volume / f"cache_{archive_key()}.latest.tar.gz", "w:gz") as archive:
        archive.add(deployment.folder / "saved", ".")
    process = deployment.command("--", *deployment.server("one", "--once"))

    assert process.communicate(timeout=60)[0] == "old\n"
    assert deployment.saved() == {"old", "one"}


def test_a_server_that_is_the_child_finds_what_an_image_below_has(deployment: Deployment) -> None:
    """KSTORE_ROOT names the shared store and, after a colon, the image's."""
    for store, replica in (("base", "builder"), ("shared:base", "first")):
        stores = ":".join(str(deployment.folder / name) for name in store.split(":"))
        process = deployment.command("--", *deployment.server(replica, "--once"), replica=replica, KSTORE_ROOT=stores)
        output = process.communicate(timeout=60)[0]

    assert (output, process.returncode) == ("builder\n", 7)


def test_a_server_that_serves_is_committed_before_it_ends(deployment: Deployment) -> None:
    process = deployment.command("--settle", "1s", "--", *deployment.server("one"))
    deployment.url("one")
    deadline = time.monotonic() + 60
    while not list((deployment.volume / "kstore/refs").rglob("1")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert deployment.saved() == {"one"}

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM


def test_without_a_volume_the_server_runs_all_the_same(deployment: Deployment) -> None:
    process = deployment.command("--", *deployment.server("one", "--once"), BASETEN_FS_ENABLED="0")
    output, errors = process.communicate(timeout=60)

    assert (output, process.returncode) == ("\n", 7)
    assert "BASETEN_FS_ENABLED is not 1" in errors
    assert not deployment.volume.exists()


def test_without_a_volume_and_a_stdout_the_server_runs_all_the_same(deployment: Deployment) -> None:
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *deployment.script("--", "sh", "-c", "exit 7")]
    process = deployment.start(closed, "first", BASETEN_FS_ENABLED="0")

    assert "Traceback" not in process.communicate(timeout=60)[1]
    assert process.returncode == 7


def test_a_server_that_cannot_be_started_is_told_as_by_a_shell(deployment: Deployment) -> None:
    for enabled in ("0", "1"):
        process = deployment.command("--", "no-such-server", BASETEN_FS_ENABLED=enabled)
        assert "no-such-server" in process.communicate(timeout=60)[1]
        assert process.returncode == 127


def test_a_server_s_script_without_a_first_line_that_says_so_is_for_the_shell(deployment: Deployment) -> None:
    script = deployment.folder / "serve"
    script.write_text('echo "$1, $#"; exit 7\n')
    script.chmod(0o755)
    for enabled in ("0", "1"):
        process = deployment.command("--", str(script), "two words", "more", BASETEN_FS_ENABLED=enabled)
        assert process.communicate(timeout=60)[0] == "two words, 2\n"
        assert process.returncode == 7


def test_beside_a_server_it_waits_until_that_is_ready_and_saves(deployment: Deployment) -> None:
    deployment.start(deployment.server("one"), "first")
    process = deployment.command(B10_TRANSFER_VLLM_URL=deployment.url("one"))
    output, errors = process.communicate(timeout=60)

    assert (output, process.returncode) == ("", 0), errors
    assert "load DOES_NOT_EXIST" in errors and "save SUCCESS" in errors
    assert deployment.saved() == {"one"}


def test_beside_a_server_what_it_compiles_after_a_restore_is_saved_too(deployment: Deployment) -> None:
    deployment.command("--", *deployment.server("one", "--once")).communicate(timeout=60)
    deployment.start(deployment.server("two"), "second")
    process = deployment.command(replica="second", B10_TRANSFER_VLLM_URL=deployment.url("two"))
    errors = process.communicate(timeout=60)[1]

    assert "load SUCCESS" in errors and "save SUCCESS" in errors
    restored = deployment.folder / "second/.cache/vllm/torch_compile_cache/torch_aot_compile/one/rank_0_0/one"
    assert restored.read_text() == "compiled"
    assert deployment.saved() == {"one", "two"}


def test_a_server_beside_it_is_asked_without_a_proxy(deployment: Deployment) -> None:
    deployment.start(deployment.server("one"), "first")
    url, proxy = deployment.url("one"), "http://127.0.0.1:9"
    process = deployment.command(
        B10_TRANSFER_VLLM_URL=url, B10_TRANSFER_TIMEOUT_S="20", http_proxy=proxy, HTTP_PROXY=proxy, no_proxy=""
    )

    assert "save SUCCESS" in process.communicate(timeout=60)[1]
    assert deployment.saved() == {"one"}


def test_a_server_that_is_not_ready_in_time_is_given_up(deployment: Deployment) -> None:
    url = "http://127.0.0.1:9/v1/models"
    process = deployment.command(B10_TRANSFER_VLLM_URL=url, B10_TRANSFER_TIMEOUT_S="0.2", B10_TRANSFER_INTERVAL_S="600")

    assert f"no server was ready at {url} within 0.2 s" in process.communicate(timeout=60)[1]
    assert process.returncode == 2


@pytest.mark.parametrize("seconds", ["soon", "-1", "nan", "inf", "1e300"])
def test_text_that_is_not_a_time_is_reported(deployment: Deployment, seconds: str) -> None:
    process = deployment.command(B10_TRANSFER_TIMEOUT_S=seconds)

    assert f"B10_TRANSFER_TIMEOUT_S is '{seconds}'" in process.communicate(timeout=60)[1]
    assert process.returncode == 1


@pytest.mark.parametrize("url", ["localhost:8000/v1/models", "ftp://host/x", "http://[::1/"])
def test_text_that_is_not_an_address_is_reported(deployment: Deployment, url: str) -> None:
    process = deployment.command(B10_TRANSFER_VLLM_URL=url)

    assert f"B10_TRANSFER_VLLM_URL: {url!r} is not a URL" in process.communicate(timeout=60)[1]
    assert process.returncode == 1


def test_a_command_without_its_dashes_is_a_mistake(deployment: Deployment) -> None:
    process = deployment.command("vllm", "serve")

    assert "after '--'" in process.communicate(timeout=60)[1]
    assert process.returncode == 2


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--help", "--", "server"]])
def test_help_says_what_it_does(deployment: Deployment, arguments: list[str]) -> None:
    process = deployment.command(*arguments)
    output, errors = process.communicate(timeout=60)

    assert "Usage: kstore-b10-compile-cache [OPTIONS] -- CMD..." in output
    assert (errors, process.returncode) == ("", 0)


def test_help_that_nobody_reads_to_its_end_is_no_traceback(deployment: Deployment) -> None:
    process = deployment.start(["sh", "-c", '"$@" | true', "sh", *deployment.script("--help")], "first")

    assert process.communicate(timeout=60) == ("", "")
