"""Who publishes a generation: for people only."""

from __future__ import annotations

import getpass
import socket


def creator() -> str:
    """`user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "?"
    return f"{user}@{socket.gethostname()}"
