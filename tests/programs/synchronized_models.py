"""Run `compile_models NAME...` in a block of `kstore.synchronized(KEY)`.

    python synchronized_models.py KEY [--strict-hits] NAME...

The last line on stdout is JSON: {"restored": status, "committed": status, "usage": as `cache.usage` says, "error": ""}.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys

import kstore


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile models between a restore and a commit.")
    parser.add_argument("key")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--strict-hits", action="store_true")
    arguments = parser.parse_args()
    sys.argv = ["compile_models.py", *arguments.names]
    cache = kstore.synchronized(arguments.key, strict_hits=arguments.strict_hits)
    error = ""
    try:
        with cache:
            importlib.import_module("compile_models").main()
    except kstore.MissError as raised:
        error = str(raised)
    report = {"restored": cache.restored.status, "committed": cache.committed.status, "usage": cache.usage.as_json()}
    print(json.dumps(report | {"error": error}))


if __name__ == "__main__":
    main()
