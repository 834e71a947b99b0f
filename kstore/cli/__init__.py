"""The command line. Nothing but click is loaded until a command runs, and its help never loads the store."""

from __future__ import annotations

import sys

_INTERRUPTED = 130


def main() -> None:
    """The command `kstore`."""
    try:
        from kstore.cli.program import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # While it is loaded, or once it has said all.
        code = _INTERRUPTED
    sys.exit(code)
