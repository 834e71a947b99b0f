"""A worker's own host: what is seen of it at once, and what only its compiler can say, which is asked side by side."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future

from kstore.environment.host import Host, HostUnknown, detect_host, host_hint, machine_of
from kstore.lazy import cached_property
from kstore.threads import begin
from kstore.told import warn_once

log = logging.getLogger(__name__)

_UNKNOWN = Host("", {})


class OwnHost:
    """The host that a worker is on. To name it runs the compiler, so that is done only where it is needed."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """`environ` has the variables that the worker's compilers are run with."""
        self._environ = environ
        self._is_needed = False

    def foresee(self) -> None:
        """As `ask`, where it is only likely to be needed: nobody waits for the compiler later. It may be in vain."""
        _ = self._detected

    def ask(self) -> None:
        """Start finding it out, side by side with what comes before it is needed."""
        _ = self._detected
        self._is_needed = True

    @property
    def fingerprint(self) -> str:
        """See `Host`; empty if the compiler cannot be asked just now. Raises WaitTimeout if it hangs."""
        return self._result().fingerprint

    @property
    def facts(self) -> Mapping[str, str]:
        """See `Host`; empty as above."""
        return self._result().facts

    def fingerprint_or(self, remembered: str) -> str:
        """Its fingerprint, if anybody needed that, and it is known; else what is remembered."""
        return (self._is_needed and self.fingerprint) or remembered

    @property
    def hint(self) -> str:
        """What is seen of it without the compiler: see `host_hint`."""
        return host_hint(self._environ)

    @property
    def machine(self) -> str:
        """The part of the hint that no variable changes."""
        return machine_of(self.hint)

    def _result(self) -> Host:
        self.ask()
        return self._known

    @cached_property
    def _known(self) -> Host:
        try:
            return self._detected.result()
        except HostUnknown as error:
            warn_once(log, str(error))
            return _UNKNOWN

    @cached_property
    def _detected(self) -> Future[Host]:
        return begin(detect_host, self._environ)
