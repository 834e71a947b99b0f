"""`python -m kstore` is the command `kstore`."""

from __future__ import annotations

from kstore.cli import main

if __name__ == "__main__":
    main()
