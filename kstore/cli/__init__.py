"""The command line. Nothing but click is loaded until a command runs, and its help never loads the store."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def main() -> None:
    """The command `kstore`."""
    try:
        from kstore.cli.program import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # While it is loaded, or once it has said all.
        code = INTERRUPTED
    sys.exit(code)
