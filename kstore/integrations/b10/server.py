"""For a vLLM server that something else starts: restore beside it, wait until it serves, save."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from kstore.errors import UsageError
from kstore.integrations.b10.deployment import Deployment, start_here
from kstore.integrations.b10.status import CacheValidationError, OperationStatus, log, never_raises
from kstore.live.ready import check_url, is_ready, opener_of

FAILED, NOT_READY = 1, 2


@dataclass(frozen=True, slots=True)
class Readiness:
    """When a server counts as ready: it answers a GET of `url` with 200."""

    url: str
    timeout: float
    """Seconds after which waiting is given up."""
    interval: float
    """Seconds between looks."""

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> Readiness:
        """What the variables of b10-compile-cache say.

        Raises:
            CacheValidationError: a variable is malformed.
        """
        return cls(
            url=_url(environ, "B10_TRANSFER_VLLM_URL", "http://127.0.0.1:8000/v1/models"),
            timeout=_seconds(environ, "B10_TRANSFER_TIMEOUT_S", "1800"),
            interval=_seconds(environ, "B10_TRANSFER_INTERVAL_S", "2"),
        )

    def wait(self) -> bool:
        """Wait for the server; returns whether it is ready."""
        end, opener = time.monotonic() + self.timeout, opener_of(self.url)
        while not is_ready(opener, self.url):
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(self.interval, left))
        return True


def save_vllm_compile_cache() -> None:
    """Load vLLM's cache folder and Triton's, wait until the server is ready, and save what it has compiled.

    The server should be started at the same time, and may compile what is just being restored. It finds every file
    whole or not at all. For it to find every file, use `kstore-b10-compile-cache -- vllm serve …`.

    Raises:
        SystemExit: with 2 if the server was not ready in time, with 1 if a variable is malformed.
    """
    level = os.environ.get("B10_TRANSFER_CLI_LOGLEVEL", "INFO").upper()
    logging.basicConfig(
        level=logging.getLevelNamesMapping().get(level, logging.INFO),
        format="%(asctime)s | %(levelname)s | %(message)s",
    )
    try:
        readiness = Readiness.of_environment(os.environ)
    except CacheValidationError as error:
        log.error("kstore: %s", error)
        raise SystemExit(FAILED) from error
    log.info("kstore: vLLM's compile cache: load %s", _load().name)
    if not readiness.wait():
        log.error("kstore: no server was ready at %s within %g s", readiness.url, readiness.timeout)
        raise SystemExit(NOT_READY)
    log.info("kstore: vLLM's compile cache: save %s", _save().name)


@never_raises("loading vLLM's compile cache", lambda _: OperationStatus.ERROR)
def _load() -> OperationStatus:
    start_here()
    return Deployment.of_vllm().load()


@never_raises("saving vLLM's compile cache", lambda _: OperationStatus.ERROR)
def _save() -> OperationStatus:
    return Deployment.of_vllm().save()


def _url(environ: Mapping[str, str], name: str, default: str) -> str:
    try:
        return check_url(environ.get(name, default))
    except UsageError as error:
        raise CacheValidationError(f"{name}: {error}") from error


def _seconds(environ: Mapping[str, str], name: str, default: str) -> float:
    with suppress(ValueError):
        seconds = float(environ.get(name, default))
        if 0 <= seconds <= threading.TIMEOUT_MAX:
            return seconds
    raise CacheValidationError(f"{name} is {environ[name]!r}, which is not a number of seconds")
