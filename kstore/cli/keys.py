"""What a shell offers where a KEY is expected."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kstore.cli.options import Invocation
    from kstore.published.refs import Unlisted

_PATIENCE = 2.0
"""Seconds that a person waits for a store that hangs."""


def keys_beginning(invocation: Invocation, incomplete: str) -> list[str]:
    """The store's keys that begin with `incomplete`; none if there is any trouble: a shell is no place to report it."""
    from kstore.deadline import Waiting, within

    logging.disable()
    try:
        return within(_PATIENCE, Waiting(), "completing", partial(_keys, invocation, incomplete))
    except Exception:
        return []
    finally:
        logging.disable(logging.NOTSET)


def _keys(invocation: Invocation, incomplete: str) -> list[str]:
    under = incomplete.rpartition("/")[0]
    hidden: list[Unlisted] = []
    scopes = invocation.store().storage.refs.scopes(under, hidden.append)
    return sorted({scope.key for scope in scopes if scope.key.startswith(incomplete)})
