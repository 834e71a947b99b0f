"""The command line. Only click is loaded until a command runs, and a command's help never loads the store."""

from __future__ import annotations

import sys
from gc import set_threshold

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
_COLLECTED_AFTER = 100_000
"""Objects after which Python looks for unreachable cycles, of which a command makes few. Its own number, 700 before
Python 3.13, costs a first commit 9 % of its processor time.
"""


def main() -> None:
    """The command `kstore`."""
    set_threshold(_COLLECTED_AFTER)
    try:
        from kstore.cli.program import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # During the import, or after all output.
        code = INTERRUPTED
    sys.exit(code)
