"""Stands in for a vLLM server: compiles into its cache folder, then answers GET /v1/models.

    python serve_models.py PORT_FILE NAME [--once]

When it starts, it prints the names of the files in `torch_compile_cache`, writes NAME there as a compiler would, and
serves. The first answer is 503: it is still loading. It leaves its port in PORT_FILE. With --once it exits with code 7
instead of serving.
"""

from __future__ import annotations

import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


class Models(BaseHTTPRequestHandler):
    answers = 0

    def do_GET(self) -> None:
        Models.answers += 1
        self.send_response(503 if Models.answers == 1 else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def main() -> int:
    port_file, name = Path(sys.argv[1]), sys.argv[2]
    root = os.environ.get("VLLM_CACHE_ROOT") or os.path.expanduser("~/.cache/vllm")
    cache = Path(root, "torch_compile_cache", "torch_aot_compile")
    print(*sorted(path.name for path in cache.rglob("*") if path.is_file()), flush=True)
    (cache / name / "rank_0_0").mkdir(parents=True, exist_ok=True)
    (cache / name / "rank_0_0" / name).write_text("compiled")
    if "--once" in sys.argv:
        return 7
    server = HTTPServer(("127.0.0.1", 0), Models)
    partial = port_file.with_suffix(".tmp")
    partial.write_text(str(server.server_address[1]))
    partial.replace(port_file)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
