"""The command line. Only click is loaded until a command runs, and a command's help never loads the store."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def main() -> None:
    """The command `kstore`."""
    try:
        from kstore.cli.program import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # During the import, or after all output.
        code = INTERRUPTED
    sys.exit(code)
