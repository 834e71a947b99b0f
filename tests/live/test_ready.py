"""A commit once a server is ready."""

from __future__ import annotations

import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kstore.errors import StoreUnavailable, UsageError
from kstore.live import ready
from kstore.live.ready import ReadyCommit, check_url
from kstore.report import CommitReport, CommitStatus
from tests.live.test_commits import PATIENCE
from tests.waiting import until

REPORT = CommitReport(CommitStatus.COMMITTED, "my/v1")


class Server(ThreadingHTTPServer):
    """A server that answers as a test says."""

    daemon_threads = True
    status: int | None = 503
    asked = 0
    asked_by: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/health"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked += 1
        self.server.asked_by = self.headers["User-Agent"]
        if self.server.status is None:
            threading.Event().wait(PATIENCE)
        self.send_response(self.server.status or 500)
        self.send_header("Location", "/elsewhere" if self.path == "/health" else "/health")
        self.send_header("Content-Length", "0")
        self.end_headers()
        if self.path == "/elsewhere":
            self.server.status = 200

    def log_message(self, *what: object) -> None:
        """Log nothing."""


@contextmanager
def serving(port: int = 0) -> Iterator[Server]:
    made = Server(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


class Job:
    """What a `ReadyCommit` did."""

    def __init__(self, url: str, *troubles: Exception) -> None:
        self.troubles = list(troubles)
        self.commits = 0
        self.holds: threading.Event | None = None
        self.told: list[tuple[CommitReport, float]] = []
        self.warned: list[str] = []
        self.ready = ReadyCommit(url, self.commit, lambda *what: self.told.append(what), self.warned.append)
        self.ready.start()

    def commit(self) -> CommitReport:
        self.commits += 1
        if self.holds:
            self.holds.wait(PATIENCE)
        if self.troubles:
            raise self.troubles.pop(0)
        return REPORT

    @property
    def is_over(self) -> bool:
        return not self.ready._thread.is_alive()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "_PAUSE", 0.02)


def test_it_commits_once_when_the_server_first_answers_200(server: Server) -> None:
    begun = time.monotonic()
    job = Job(server.url)
    until(lambda: server.asked > 3)
    assert job.commits == 0
    server.status = 200
    until(lambda: job.is_over)
    asked = server.asked
    assert job.commits == 1
    assert job.told == [(REPORT, job.ready.seconds)]
    assert job.ready.seconds and 0 < job.ready.seconds <= time.monotonic() - begun
    assert job.ready.report is REPORT
    assert (server.asked, server.asked_by) == (asked, "kstore")


def test_a_port_that_is_still_closed_is_asked_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    job = Job(f"http://127.0.0.1:{port}/health")
    time.sleep(0.1)
    with serving(port) as later:
        later.status = 200
        until(lambda: job.is_over)
    assert job.commits == 1


@pytest.mark.parametrize("status", [204, 301, 302, 307, 401, 404, 500])
def test_nothing_but_200_is_an_answer_and_no_redirection_is_followed(server: Server, status: int) -> None:
    server.status = status
    job = Job(server.url)
    until(lambda: server.asked > 3)
    job.ready.stop()
    until(lambda: job.is_over)
    assert job.commits == 0
    assert server.status == status


def test_a_proxy_is_not_asked(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    server.status = 200
    job = Job(server.url)
    until(lambda: job.is_over)
    assert job.commits == 1


def test_a_server_that_never_answers_holds_up_nobody(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "_PATIENCE", 0.1)
    server.status = None
    job = Job(server.url)
    until(lambda: server.asked > 2)  # and it goes on asking
    job.ready.stop()
    assert (job.commits, job.ready.seconds) == (0, None)


def test_a_commit_that_fails_is_reported_once_and_tried_again(server: Server) -> None:
    server.status = 200
    job = Job(server.url, OSError("the store is away"), StoreUnavailable("still"), OSError("still"))
    until(lambda: job.is_over)
    assert job.commits == 4
    assert job.warned == ["the commit of a ready server failed: the store is away"]
    assert job.ready.report is REPORT


def test_after_the_job_no_commit_is_tried_again_and_none_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*asked: object) -> bool:
        monkeypatch.setattr(ready, "_PAUSE", PATIENCE * 60)
        return True

    monkeypatch.setattr(ready, "is_ready", answer)
    monkeypatch.setattr(ready, "_LONGEST_PAUSE", PATIENCE * 60)
    job = Job("http://127.0.0.1:9/health", OSError("the store is away"), OSError("still"))
    until(lambda: job.warned or job.commits)
    job.ready.stop()
    until(lambda: job.is_over)
    assert job.commits == 1


def test_each_pause_between_two_attempts_is_twice_as_long_up_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "_PAUSE", 1.0)
    troubles, pauses = [OSError("the store is away")] * 8, list[float]()

    def commit() -> CommitReport:
        if troubles:
            raise troubles.pop()
        return REPORT

    made = ReadyCommit("http://127.0.0.1:9/health", commit, lambda *what: None, lambda text: None)
    monkeypatch.setattr(made._over, "wait", pauses.append)
    made._commit_until_done()
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


def test_it_pauses_before_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, did = [True, False, False], list[str]()

    def answer(*asked: object) -> bool:
        did.append("ask")
        return answers.pop()

    monkeypatch.setattr(ready, "is_ready", answer)
    made = ReadyCommit("http://127.0.0.1:9/health", lambda: REPORT, lambda *what: None, lambda text: None)
    monkeypatch.setattr(made._over, "wait", lambda pause: did.append("pause"))
    made._run()
    assert did == ["pause", "ask"] * 3


def test_whoever_ends_the_job_waits_until_what_is_being_said_is_said(server: Server) -> None:
    """So that two lines do not mix, and nothing is said to what is closed."""
    stopped = list[bool]()

    def tell(*what: object) -> None:
        stopping = threading.Thread(target=made.stop)
        stopping.start()
        stopping.join(0.1)
        stopped.append(not stopping.is_alive())

    made = ReadyCommit(server.url, lambda: REPORT, tell, lambda text: None)
    server.status = 200
    made.start()
    until(lambda: not made._thread.is_alive())
    assert stopped == [False]


def test_nobody_waits_for_its_thread_and_no_signal_is_handled_there(server: Server) -> None:
    job = Job(server.url)
    status = Path(f"/proc/self/task/{job.ready._thread.native_id}/status").read_text()
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    assert job.ready._thread.daemon
    assert all(blocked >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGINT))
    job.ready.stop()


@pytest.mark.parametrize("troubles", [[], [OSError("the store is away")]], ids=["committed", "failed"])
def test_after_the_job_nothing_is_said(server: Server, troubles: list[Exception]) -> None:
    job = Job(server.url, *troubles)
    job.holds = threading.Event()
    server.status = 200
    until(lambda: job.commits)
    job.ready.stop()
    job.holds.set()
    until(lambda: job.is_over)
    assert (job.told, job.warned, job.ready.report) == ([], [], None)


def test_what_is_no_answer_in_http_is_none_that_it_is_ready() -> None:
    """Another program may have taken the port."""
    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor(1) as threads:

        def greet() -> None:
            with other.accept()[0] as asking:
                asking.sendall(b"SSH-2.0-OpenSSH\r\n")
                asking.recv(1 << 16)

        greeted = threads.submit(greet)
        url = f"http://127.0.0.1:{other.getsockname()[1]}/health"
        assert not ready.is_ready(ready.opener_of(url), url)
        greeted.result(PATIENCE)


def test_a_host_that_cannot_be_looked_up_is_not_ready() -> None:
    url = check_url("http://no..host/health")
    assert not ready.is_ready(ready.opener_of(url), url)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/health", "https://host/ready?deep=1", "http://[::1]:80/", "http://host"]
)
def test_good_addresses(url: str) -> None:
    assert check_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "", "8000", "/health", "127.0.0.1:8000/health", "file:///etc/passwd", "ftp://host/x", "http://", "http:///x",
        "http://host:port/", "http://host:99999/", "http://host:0/", "http://user:word@host/", "http://[::1/",
        "http://host/a b", "http://host/\n", "http://hóst/",
    ],
)  # fmt: skip
def test_bad_addresses(url: str) -> None:
    with pytest.raises(UsageError, match="is not a URL such as"):
        check_url(url)


@pytest.mark.parametrize("error", [OSError("no certificates"), ImportError("no TLS")], ids=str)
def test_it_reports_what_keeps_it_from_asking(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str) -> None:
        raise error

    monkeypatch.setattr(ready, "opener_of", refuse)
    job = Job("https://127.0.0.1:9/health")
    until(lambda: job.is_over)
    assert job.warned == [f"https://127.0.0.1:9/health cannot be asked: {error}"]


def test_after_the_job_it_is_not_said_what_kept_it_from_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def refuse_late(url: str) -> None:
        ended.wait(PATIENCE)
        raise OSError("no certificates")

    monkeypatch.setattr(ready, "opener_of", refuse_late)
    job = Job("https://127.0.0.1:9/health")
    job.ready.stop()
    ended.set()
    until(lambda: job.is_over)
    assert job.warned == []


def test_a_thread_that_cannot_be_started_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as refusing:
        refusing.setattr(threading.Thread, "start", refuse)
        job = Job("http://127.0.0.1:9/health")
    assert job.warned == ["the server is not asked whether it is ready: can't start new thread"]


def test_https_is_asked_with_certificates_verified() -> None:
    (handler,) = ready.opener_of("https://host/").handle_open["https"]
    assert handler._context.verify_mode == ssl.CERT_REQUIRED  # type: ignore[attr-defined]
    for url in ("http://host/", "HTTP://host/"):
        assert ready.opener_of(url).handle_open.keys() == {"http"}
