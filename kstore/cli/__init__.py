"""The command line. Nothing but click is loaded until a command runs, and its help never loads the store."""

from __future__ import annotations

import sys


def main() -> None:
    """The command `kstore`."""
    from kstore.cli.program import run

    sys.exit(run(sys.argv[1:]))
