"""`--ready-url`: what a server compiled is published once it answers, though it goes on running.

The server is `tests/programs/serving.py`, which writes the trees of vLLM and SGLang; they are not run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import urlopen

import pytest

from tests.cli.commandline import REPOSITORY, Cli, compiling, is_held
from tests.cli.test_exec_live import LATE, PATIENCE, WAITING, compiling_in_python, published, wait_until_published
from tests.cli.test_exec_live import start as start_command
from tests.compilers.programs import QUICK
from tests.waiting import until

LAYOUTS = ["whole", "listed", "classic", "piecewise"]
Start = Callable[..., "Serving"]


class Serving:
    """The stand-in server, as the child of `kstore exec` or by itself."""

    def __init__(self, layout: str, *options: str, command: str = "exec", delay: float = 0.05) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"http://127.0.0.1:{free.getsockname()[1]}"
        program = [sys.executable, "-m", "tests.programs.serving", self.address.rpartition(":")[2], layout, str(delay)]
        kstore = [sys.executable, "-m", "kstore", command, "my/v1", *options, "--ready-url", f"{self.address}/health"]
        self.process = subprocess.Popen(
            [*kstore, "--", *program] if command == "exec" else kstore,
            cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.said: list[str] = []

    def says(self, words: str) -> str:
        """Wait for a line with these words."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if words in line:
                return line
        raise AssertionError(f"it never said {words!r}, but {self.said}")

    def get(self, path: str) -> Any:
        with urlopen(self.address + path, timeout=PATIENCE) as answer:
            return json.loads(answer.read() or "null")

    def compiled(self) -> list[str]:
        """What had to be compiled, once the server is ready."""
        found: list[str] = self.get("/compiled")
        return found

    def end(self) -> str:
        """End it as an orchestrator does; returns the rest of the output."""
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0
        return err

    def kill(self) -> None:
        """Kill kstore, the server and everything else."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=PATIENCE)


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def begin(*arguments: Any, **options: Any) -> Serving:
        serving = Serving(*arguments, **options)
        started.append(serving)
        return serving

    yield begin
    for serving in started:
        if serving.process.poll() is None:
            serving.kill()


@pytest.mark.parametrize("options", [LATE, ("--no-live",)], ids=["live", "not live"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_server_that_is_killed_after_it_was_ready_has_compiled_for_all(
    cli: Cli, start: Start, layout: str, options: tuple[str, ...]
) -> None:
    first = start(layout, *options)
    said = first.says("kstore: ready after ")
    assert "committed my/v1 generation 1" in said
    assert first.compiled()
    first.kill()
    assert first.process.returncode == -signal.SIGKILL
    shutil.rmtree(cli.cache_root)

    second = start(layout, *options)
    assert "nothing new for my/v1" in second.says("kstore: ready after ")
    assert second.compiled() == []
    assert "nothing new for my/v1" in second.end()


@pytest.mark.parametrize("options", [LATE, ("--no-live",)], ids=["live", "not live"])
def test_what_is_compiled_after_that_is_committed_at_the_end(cli: Cli, start: Start, options: tuple[str, ...]) -> None:
    serving = start("listed", *options)
    serving.says("ready after ")
    at_first = published(cli)
    serving.get("/compile")
    assert "committed my/v1 generations 1 to " in serving.end()  # at SIGTERM, or after it
    assert published(cli) == at_first + 4  # an artifact for each rank and part; the lists are rewritten


def test_live_commits_go_on_after_that(cli: Cli, start: Start) -> None:
    serving = start("listed", "--settle", "1s")
    serving.says("ready after ")
    at_first = published(cli)
    serving.get("/compile")
    wait_until_published(cli, at_first + 4)
    assert serving.process.poll() is None


def test_nothing_is_committed_before_the_server_is_ready(cli: Cli, start: Start) -> None:
    serving = start("whole", *LATE, delay=600)
    serving.says("nothing is published for my/v1")
    time.sleep(2.5)
    assert published(cli) == 0


def test_for_a_server_that_is_never_ready_others_wait_as_long_as_for_one_that_is_slow(cli: Cli) -> None:
    """Not for ever, nor as briefly as for what is done once nothing changes."""
    limits = "commits._DONE_AFTER, commits._DONE_UNRELEASED_AFTER = 1e9, 0.0"
    (cli.folder / "sitecustomize.py").write_text(f"from kstore.live import commits; {limits}")
    process = start_command(
        cli, "--settle", "1s", "--wait", "1h", "--ready-url", "http://127.0.0.1:9/health",
        program=f"{compiling_in_python('one')}; {WAITING}", PYTHONPATH=f"{cli.folder}:{REPOSITORY}",
    )  # fmt: skip
    wait_until_published(cli, 1)
    until(lambda: not is_held(cli))
    process.communicate("\n", timeout=PATIENCE)


def test_a_server_that_dies_before_it_is_ready_is_not_waited_for(cli: Cli) -> None:
    url = "http://127.0.0.1:9/health"
    result = cli.process("exec", "my/v1", "--ready-url", url, "--", "sh", "-ec", f"{compiling('one')}; exit 7")
    assert result.code == 7
    assert f"kstore: {url} never answered 200" in result.err
    assert "committed my/v1 generation 1: 1 new file of 1" in result.err


def test_json_tells_when_it_was_ready(cli: Cli, start: Start) -> None:
    serving = start("whole", "--json", *LATE)
    wait_until_published(cli, 1)
    time.sleep(3)  # so that the report is back
    ready = json.loads(serving.end().splitlines()[-1])["ready"]
    assert ready["url"] == f"{serving.address}/health"
    assert ready["seconds"] > 0
    assert (ready["commit"]["status"], ready["commit"]["generation"]) == ("committed", 1)


def test_json_says_nothing_of_it_unless_asked_to(cli: Cli) -> None:
    result = cli.process("exec", "my/v1", "--json", "--", "true")
    assert json.loads(result.err.splitlines()[-1])["ready"] is None


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/", "8000", "http://"])
@pytest.mark.parametrize("command", ["exec", "watch"])
def test_a_bad_address_is_a_mistake(cli: Cli, command: str, url: str) -> None:
    result = cli(command, "my/v1", "--ready-url", url, *(("--", "true") if command == "exec" else ()))
    assert result.code == 2
    assert "is not a URL such as http://127.0.0.1:8000/health" in result.err


def test_a_worker_that_only_reads_asks_nobody(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.publish("my/v1", "one")
    monkeypatch.setenv("KSTORE_MODE", "read")
    result = cli.process("exec", "my/v1", "--ready-url", "http://127.0.0.1:9/", "--", "true")
    assert result.code == 0
    assert "never answered" not in result.err


def test_a_store_that_is_away_is_reported_and_the_server_runs_on(cli: Cli, start: Start) -> None:
    serving = start("whole", "--store", "/nowhere/at/all", *LATE)
    serving.says("warning: the commit of a ready server failed: ")
    assert serving.compiled()
    serving.end()


def test_a_sidecar_commits_when_the_server_beside_it_is_ready(cli: Cli, start: Start) -> None:
    cli.write("inductor/ab/cone.py")
    cli.write("inductor/cache/torn", '{"one": 1.0, "tw')
    watching = start("", *LATE, command="watch")
    watching.says("watching the cache root of my/v1")
    port = watching.address.rpartition(":")[2]
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.programs.serving", port, "listed"],
        cwd=REPOSITORY, env=os.environ | {"VLLM_CACHE_ROOT": str(cli.cache_root / "vllm")},
    )  # fmt: skip
    try:
        assert "committed my/v1 generation 1" in watching.says("ready after ")
        assert "warning: left out inductor/cache/torn: " in "".join(watching.said)
        assert published(cli) > 10
        watching.end()
    finally:
        server.kill()
        server.wait()


def test_a_ready_server_that_compiled_nothing_is_not_waited_for(cli: Cli, start: Start) -> None:
    """Though it had nothing to publish, its commit lets the next waiting worker go on."""
    leader = start("nothing", "--wait", "1h", *LATE)
    leader.says("the others wait for what this worker compiles")
    leader.says("ready after ")
    waiter = cli.process("exec", "my/v1", "--wait", "1h", "--", "sh", "-ec", compiling("one"))
    assert (waiter.code, published(cli)) == (0, 1)
    assert leader.process.poll() is None


@pytest.mark.compiler
def test_with_the_real_inductor(cli: Cli, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder that vLLM would give it: what is restored there is a hit."""
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    first = start("torch", *LATE)
    first.says("ready after ")
    assert first.compiled() == ["graph"]
    first.kill()
    shutil.rmtree(cli.cache_root)

    second = start("torch", *LATE)
    second.says("ready after ")
    assert second.compiled() == []
    assert "nothing new for my/v1" in second.end()
