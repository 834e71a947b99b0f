"""Stands in for `vllm serve`: compiles what its cache lacks, then answers. Neither vLLM nor a model is used.

`python serving.py PORT LAYOUT [DELAY]`: /health answers 503 until it is ready and 200 from then on, /compiled says
what had to be compiled, and /compile compiles one more shape, as a server does for a request of a new kind. With the
layout "torch" it compiles a small model with the real Inductor, in the folder that vLLM would give it; with "nothing",
nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.components.serving_trees import Sglang, Vllm


class Server(ThreadingHTTPServer):
    """What the server knows about itself."""

    daemon_threads = True
    is_ready = False
    layout = ""
    delay = 0.0
    compiled: tuple[str, ...] = ()

    def start_engine(self, *shapes: tuple[int, int]) -> None:
        """Compile what is missing, and become ready."""
        self.compiled += tuple(self._compile(shapes or ((1, 8192),)))
        self.is_ready = True

    def _compile(self, shapes: tuple[tuple[int, int], ...]) -> list[str]:
        if self.layout == "nothing":
            return []
        if self.layout == "torch":
            return compile_with_torch(Path(os.environ["VLLM_CACHE_ROOT"]))
        if self.layout == "piecewise":
            return Sglang(Path(os.environ["SGLANG_CACHE_DIR"]), os.environ, age=0, delay=self.delay).serve()
        return Vllm(Path(os.environ["VLLM_CACHE_ROOT"]), os.environ, age=0, delay=self.delay).serve(
            self.layout, shapes=shapes
        )


class Handler(BaseHTTPRequestHandler):
    """Three addresses."""

    server: Server

    def do_GET(self) -> None:
        status, body = 200, b""
        if self.path == "/health":
            status = 200 if self.server.is_ready else 503
        elif self.path == "/compiled":
            body = json.dumps(self.server.compiled).encode()
        elif self.path == "/compile":
            self.server.start_engine((1, 8192), (1, 16))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *what: object) -> None:
        """Log nothing."""


def compile_with_torch(root: Path) -> list[str]:
    """The real Inductor, which vLLM has told to keep its cache below vLLM's own (`_support_torch_compile`)."""
    inductor = root / "torch_compile_cache" / "torch_aot_compile" / "0123" / "inductor_cache"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(inductor)
    import torch
    from torch._dynamo.utils import counters

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x * 2 + 1).sum(dim=-1)

    torch.compile(model)(torch.ones(8, 16))
    return ["graph"] * counters["inductor"]["fxgraph_cache_miss"]


def main() -> None:
    """Serve until SIGTERM."""
    server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
    server.layout = sys.argv[2]
    server.delay = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    threading.Thread(target=server.start_engine, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    server.serve_forever()


if __name__ == "__main__":
    main()
