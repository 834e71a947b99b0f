"""Writes the cache trees of vLLM and SGLang, file by file as their source does. Neither is run.

Read from vLLM 0.33.0 and SGLang 0.5.23; the function that writes a file, or sets a variable, is named beside it.
An engine compiles only what is missing and says what that was, so that a restored tree can be told from a cold one.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import os
import pprint
import secrets
import time
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOUR = 3600.0
RANKS = ("rank_0_0", "rank_1_0")
"""`rank_<rank>_<data parallel index>`: `VllmBackend.__call__`, and `_support_torch_compile` for whole models."""
PARTS = ("backbone", "eagle_head")
"""The parts that are compiled separately; `VllmBackend.prefix`."""
KERNEL_FILES = ("source", "ttir", "ttgir", "llir", "ptx", "cubin", "json")


@dataclass
class Engine:
    """An engine that starts."""

    root: Path
    """What the engine's variable says."""
    environ: MutableMapping[str, str]
    """The engine changes these variables, as the real one does."""
    age: float = HOUR
    """The age, in seconds, of the files it writes: kstore reads young files again."""
    delay: float = 0.0
    """How many seconds compiling one thing takes."""
    compiled: list[str] = field(default_factory=list)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file in place, under its final name."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        then = time.time() - self.age
        os.utime(path, (then, then))

    def publish(self, path: Path, data: bytes) -> None:
        """Write a file under a temporary name first."""
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self.write(temporary, data)
        temporary.replace(path)

    def needs(self, what: str, path: Path) -> bool:
        """Whether it has to be compiled, which takes time."""
        if path.is_file() or any(path.glob("*")):
            return False
        self.compiled.append(what)
        time.sleep(self.delay)
        return True

    # ---- What torch and Triton do below a folder that the engine chose

    def inductor(self, folder: Path, graph: str) -> None:
        """One graph: the files of `FxGraphCache`, `AOTAutogradCache`, `PyCodeCache`, `AutotuneCache`."""
        key = f"f{_hex(graph)}"
        if self.needs(f"graph {graph}", folder / "fxgraph" / key[1:3] / key):
            pickled = f"{graph} {secrets.token_hex(8)}".encode()  # never the same bytes twice
            self.publish(folder / "fxgraph" / key[1:3] / key / _base32(pickled), pickled)
            self.publish(folder / "aotautograd" / f"a{_hex(graph)}" / _base32(pickled), pickled)
            self.publish(folder / "ab" / f"c{_hex(graph)}.py", f"# {graph}\n".encode())
            self.publish(folder / "ab" / f"{_hex(graph)}.best_config", b"{}")
            self.publish(folder / "cache" / _hex("system"), json.dumps({graph: {"mm": 1}}).encode())
            self.write(folder / "locks" / f"{key}.lock", b"")
            self.write(folder / "cd" / f"c{_hex(graph)}.cu.error", b"no such kernel")

    def triton(self, folder: Path, kernel: str) -> None:
        """One kernel: a folder of files, one of which lists the others by absolute path (`FileCacheManager`)."""
        place = folder / _base32(kernel.encode())
        if self.needs(f"kernel {kernel}", place / "__grp__k.json"):
            for suffix in KERNEL_FILES:
                self.publish(place / f"k.{suffix}", f"{suffix} of {kernel}\n".encode())
            children = {f"k.{suffix}": str(place / f"k.{suffix}") for suffix in KERNEL_FILES}
            self.publish(place / "__grp__k.json", json.dumps({"child_paths": children}).encode())
        listed = json.loads((place / "__grp__k.json").read_text())["child_paths"]
        assert all(Path(path).parent == place and Path(path).exists() for path in listed.values()), listed


class Vllm(Engine):
    """vLLM, in one of the three layouts."""

    def serve(self, layout: str, model: str = "llama", shapes: Iterable[tuple[int, int]] = ((1, 8192),)) -> list[str]:
        """Start, and return what had to be compiled."""
        getattr(self, layout)(model, tuple(shapes))
        return self.compiled

    def whole(self, model: str, shapes: tuple[tuple[int, int], ...]) -> None:
        """The default since torch 2.12 (VLLM_USE_AOT_COMPILE, VLLM_USE_MEGA_AOT_ARTIFACT): a file for each rank."""
        folder = self.root / "torch_compile_cache" / "torch_aot_compile" / hashlib.sha256(model.encode()).hexdigest()
        inductor = folder / "inductor_cache"
        inductor.mkdir(parents=True, exist_ok=True)
        self.environ["TORCHINDUCTOR_CACHE_DIR"] = str(inductor)  # _support_torch_compile, whatever it was before
        triton = Path(self.environ.get("TRITON_CACHE_DIR") or inductor / "triton" / "0")  # torch's triton_cache_dir
        for rank in RANKS:
            whole = folder / rank / "model"
            if self.needs(f"{rank} of {model}", whole):
                for shape in shapes:
                    self.inductor(inductor, f"{model} {rank} {shape}")
                self._describe(self._short(model) / rank / PARTS[0])
                self.publish(
                    whole, f"{model} {rank} {secrets.token_hex(8)}".encode() * 50
                )  # save_aot_compiled_function
            self.triton(triton, f"{model} {rank}")

    def listed(self, model: str, shapes: tuple[tuple[int, int], ...]) -> None:
        """VLLM_USE_MEGA_AOT_ARTIFACT=0: an artifact for each graph and range, and a list of these artifacts."""
        for rank in RANKS:
            for part in PARTS:
                folder = self._short(model) / rank / part
                known = self._read_list(folder)
                for shape in shapes:
                    name = f"artifact_compile_range_{shape[0]}_{shape[1]}_subgraph_0"  # CompilerManager.compile
                    if (shape, 0, "inductor_standalone") in known:
                        assert (folder / name).exists(), "CompiledArtifact.load: vLLM does not start"
                        continue
                    self.needs(f"{rank} {part} {shape}", folder / "never")
                    self.publish(folder / name, f"{model} {rank} {part} {shape} {secrets.token_hex(8)}".encode())
                    known[shape, 0, "inductor_standalone"] = {
                        "graph_handle": (name, str(folder / name)),
                        "cache_key": f"a{_hex(name)}",
                    }
                self._describe(folder)
                self._write_list(folder, known)

    def classic(self, model: str, shapes: tuple[tuple[int, int], ...]) -> None:
        """Before AOT compilation: a list of graphs in Inductor's own cache (`InductorAdaptor`)."""
        for rank in RANKS:
            base = self._short(model) / rank
            inductor, triton = base / "inductor_cache", base / "triton_cache"
            for folder in (inductor, triton):
                folder.mkdir(parents=True, exist_ok=True)
            self.environ["TORCHINDUCTOR_CACHE_DIR"] = str(inductor)  # initialize_cache, whatever they were before
            self.environ["TRITON_CACHE_DIR"] = str(triton)
            for part in PARTS:
                known = self._read_list(base / part)
                for shape in shapes:
                    graph = f"{model} {part} {shape}"
                    key = f"f{_hex(graph)}"
                    entries = any((inductor / "fxgraph" / key[1:3] / key).glob("*"))
                    assert entries or (shape[1], 0, "inductor") not in known, "Inductor cache lookup failed"
                    self.inductor(inductor, graph)
                    self.triton(triton, graph)
                    handle = (key, str(inductor / "ab" / f"c{_hex(graph)}.py"))
                    known.setdefault((shape[1], 0, "inductor"), handle)
                self._describe(base / part)
                self._write_list(base / part, known)

    def beside(self) -> None:
        """Everything else below VLLM_CACHE_ROOT."""
        put = self.publish
        put(self.root / "modelinfos" / "vllm-model_executor-models-llama-LlamaForCausalLM.json", b"{}")  # registry
        put(self.root / "startup_plan" / "startup_plan_0123456789abcdef.json", b"{}")  # _plan_path
        put(self.root / "gpu_p2p_access_cache_for_0,1.json", b"{}")  # gpu_p2p_access_check
        put(
            self.root / "deep_gemm" / "cache" / "kernel.a" / "kernel.cubin", b"cubin"
        )  # _lazy_init, unless its variable is set
        put(self.root / "assets" / "image.jpg", b"jpg")
        (self.root / "dummy_cache").mkdir(exist_ok=True)
        put(self.root / "flashinfer_autotune_cache" / "0.7.2" / "90a" / _hex("config") / "autotune_configs.json", b"{}")
        tuned = self.root / "rocm_segmented_attention"
        put(tuned / f"{_hex('identity')}.json", b'{"records": []}')
        self.write(tuned / f"{_hex('identity')}.json.lock", b"")
        self.write(tuned / f"{_hex('identity')}.json.tp1.part", b"{")
        self.write(tuned / "tmp_0f1e2d3", b"{")  # _save, before it is renamed
        self.triton(tuned / "triton", "segmented attention")  # RocmSegmentedAttentionImpl, unless its variable is set

    def _short(self, model: str) -> Path:
        return self.root / "torch_compile_cache" / _hex(model)[:10]

    def _describe(self, folder: Path) -> None:
        """`VllmBackend.__call__`: for people, in place, once."""
        for name in ("computation_graph.py", "cache_key_factors.json"):
            if not (folder / name).exists():
                self.write(folder / name, b"{}")

    def _read_list(self, folder: Path) -> dict[Any, Any]:
        path = folder / "vllm_compile_cache.py"
        known: dict[Any, Any] = ast.literal_eval(path.read_text()) if path.exists() else {}
        return known

    def _write_list(self, folder: Path, known: dict[Any, Any]) -> None:
        """`CompilerManager.save_to_file`: in place, if there is anything new."""
        if known != self._read_list(folder):
            self.write(folder / "vllm_compile_cache.py", pprint.pformat(known, indent=4).encode())


class Sglang(Engine):
    """SGLang with piecewise graphs."""

    def serve(self, layout: str = "piecewise", model: str = "llama") -> list[str]:
        """Start, and return what had to be compiled."""
        defaults = {
            "TRITON_CACHE_DIR": "triton",
            "TORCHINDUCTOR_CACHE_DIR": "inductor",
            "TILELANG_CACHE_DIR": "tilelang",
        }
        for name, below in defaults.items():  # redirect_third_party_caches
            self.environ.setdefault(name, str(self.root / below))
        self.triton(Path(self.environ["TRITON_CACHE_DIR"]), f"{model} attention")
        self.environ["DG_JIT_CACHE_DIR"] = str(self.root / "deep_gemm")  # deep_gemm_wrapper, whatever it was before
        gemm = self.root / "deep_gemm" / "cache" / "kernel.gemm.0123"
        if self.needs("gemm", gemm / "kernel.cubin"):
            self.publish(gemm / "kernel.cu", b"// gemm")
            self.publish(gemm / "kernel.cubin", b"gemm")
        getattr(self, layout)(model)
        return self.compiled

    def piecewise(self, model: str) -> None:
        """`SGLangBackend.__call__` and `InductorAdaptor.initialize_cache`."""
        folder = self.root / "torch_compile_cache" / _hex("inductor factors")[:10] / "rank_0_0" / "backbone"
        for name in ("inductor_cache", "triton_cache"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor_cache")
        self.environ["TRITON_CACHE_DIR"] = str(folder / "triton_cache")
        self.inductor(folder / "inductor_cache", model)
        self.triton(folder / "triton_cache", model)
        handles = {(None, 0, "inductor"): (f"f{_hex(model)}", str(folder / "inductor_cache" / "ab" / "c.py"))}
        self.write(folder / "sglang_compile_cache.py", pprint.pformat(handles, indent=4).encode())
        self.write(folder / f"computation_graph_{time.time()}.py", b"# for people")

    def beside(self) -> None:
        """Everything else below SGLANG_CACHE_DIR."""
        put = self.publish
        put(self.root / "flashinfer" / "autotune" / "0.7.2" / "90a" / "0123" / "rank_tp0_pp0_dp0.json", b"{}")
        put(self.root / "flashinfer" / "autotune" / "0.7.2" / "90a" / "0123" / "rank_tp0_pp0_dp0_gpuGPU-1.json", b"{}")
        put(self.root / "rust_extensions" / "targets" / "0123" / "release" / "lib.d", b"big")
        put(self.root / "ple" / "model" / "table.bin", b"weights")
        put(self.root / "model_streamer" / "model" / "config.json", b"{}")
        put(self.root / "gpu_p2p_access_cache_for_0,1.json", b"{}")


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _base32(data: bytes) -> str:
    return base64.b32encode(hashlib.sha256(data).digest()).decode().rstrip("=")
