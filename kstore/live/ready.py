"""A commit once a server is ready.

When a server first answers, it has compiled what it compiles at its start, and may then run for weeks. So that is a
good moment for a commit, whatever else commits. Later shapes may still be compiled: this commit is not the last one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, OpenerDirector, Request

from kstore.deadline import signals_blocked, start
from kstore.errors import UsageError, reason_of
from kstore.report import CommitReport

log = logging.getLogger(__name__)

_PAUSE = 1.0
"""Seconds between two requests: what is asked is most often a closed port of this host."""
_LONGEST_PAUSE = 60.0
"""The most seconds between two attempts to commit. Each pause is twice as long as the one before."""
_PATIENCE = 5.0
"""Seconds that a server may be silent before it counts as not ready."""
_OK = 200


def check_url(url: str) -> str:
    """Return `url` if it is one that can be asked.

    Raises:
        UsageError: it is not an HTTP or HTTPS address.
    """
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or "@" in parts.netloc or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError(f"{url!r} is not a URL such as http://127.0.0.1:8000/health")
    return url


class ReadyCommit:
    """Asks a server whether it is ready, in a thread of its own, and commits once when it is.

    It asks directly, without a proxy, and a redirection is no answer. Nobody waits for the thread.
    """

    def __init__(
        self,
        url: str,
        commit: Callable[[], CommitReport],
        tell: Callable[[CommitReport, float], object],
        warn: Callable[[str], object],
    ) -> None:
        """The thread calls `tell` with the commit's report and the seconds since `start`, or `warn`."""
        self.url = url
        self.seconds: float | None = None
        """From `start` to the first answer 200; None before."""
        self.report: CommitReport | None = None
        """The commit's report, once it is done."""
        self._commit = commit
        self._tell = tell
        self._warn = warn
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._started = 0.0
        self._thread = threading.Thread(target=self._run, name="kstore ready", daemon=True)

    def start(self) -> None:
        """Begin to ask. If it cannot, it warns: the job runs all the same."""
        self._started = time.monotonic()
        try:
            with signals_blocked():
                start(self._thread)
        except RuntimeError as error:
            self._warn(f"the server is not asked whether it is ready: {error}")

    def stop(self) -> None:
        """Ask no more, and say no more."""
        with self._lock:
            self._over.set()

    def _run(self) -> None:
        try:
            opener = opener_of(self.url)
        except Exception as error:  # Such as a Python without TLS, or certificates that cannot be read.
            log.debug("%s cannot be asked", self.url, exc_info=error)
            self._say(partial(self._warn, f"{self.url} cannot be asked: {reason_of(error)}"))
            return
        while not self._over.wait(_PAUSE):
            if is_ready(opener, self.url):
                self.seconds = time.monotonic() - self._started
                self._commit_until_done()
                return

    def _commit_until_done(self) -> None:
        """A failure is reported once: the store may come back before the job ends."""
        pause = _PAUSE
        while not self._over.is_set():
            try:
                report = self._commit()
            except Exception as error:
                log.debug("the commit of a ready server failed", exc_info=error)
                if pause == _PAUSE:
                    self._say(partial(self._warn, f"the commit of a ready server failed: {reason_of(error)}"))
                self._over.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                self._say(partial(self._done, report))
                return

    def _done(self, report: CommitReport) -> None:
        self.report = report
        self._tell(report, self.seconds or 0.0)

    def _say(self, words: Callable[[], object]) -> None:
        with self._lock:
            if not self._over.is_set():
                words()


def opener_of(url: str) -> OpenerDirector:
    """An opener that knows the URL's protocol, and neither files, proxies nor redirections."""
    opener = OpenerDirector()
    if urlsplit(url).scheme == "http":
        opener.add_handler(HTTPHandler())
    else:
        from ssl import create_default_context
        from urllib.request import HTTPSHandler

        opener.add_handler(HTTPSHandler(context=create_default_context()))
    return opener


def is_ready(opener: OpenerDirector, url: str) -> bool:
    """Whether it answers 200."""
    try:
        with opener.open(Request(url, headers={"User-Agent": "kstore"}), timeout=_PATIENCE) as response:
            return bool(response.status == _OK)
    except (OSError, HTTPException, ValueError):
        return False
