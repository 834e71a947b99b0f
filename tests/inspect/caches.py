"""What real compilers would leave of a kernel: the files that kstore looks into."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from tests.trees import Node, Tree

OPTIONS = {
    "target": {"backend": "cuda", "arch": 90, "warp_size": 32}, "num_warps": 4, "num_stages": 2, "num_ctas": 1,
    "shared": 1024, "extern_libs": [["libdevice", "/builder/libdevice.bc"]],
}  # fmt: skip
CPP = '\n#include <torch/csrc/inductor/cpp_prefix.h>\nextern "C"  void  kernel(float* out)\n{{\n    {body}\n}}\n'


SOURCE = """#loc = loc("kernel.py":{line}:0)
module {{
  {code} loc(#loc1)
}} loc("x"(#loc))
#loc1 = loc("kernel.py":{line}:4)
"""


def address(*words: str) -> str:
    """A name like those that Triton gives a kernel's folder."""
    return base64.b32encode(hashlib.sha256("/".join(words).encode()).digest()).decode().rstrip("=")


def put_kernel(
    tree: Tree,
    name: str,
    *,
    code: str = "add",
    line: int = 1,
    below: str = "triton",
    metadata: bytes = b"",
    **options: Any,
) -> str:
    """A Triton kernel; returns its folder. Everything that went into it is in the folder's name."""
    content = OPTIONS | options | {"hash": address(name, code, str(line), str(options)), "name": name}
    folder = f"{below}/{address(name, code, str(line), str(options))}"
    source = SOURCE.format(line=line, code=code)
    files = {
        "source": source.encode(),
        "ttir": source.encode(),
        "ptx": f"{code} {options} line {line}".encode(),
        "cubin": b"\x7fELF\0" + f"{code} {options} line {line}".encode(),
        "json": metadata or json.dumps(content).encode(),
    }
    for suffix, data in files.items():
        tree.put(f"{folder}/{name}.{suffix}", data)
    children = {f"{name}.{suffix}": f"{tree.root}/{folder}/{name}.{suffix}" for suffix in files}
    tree.put(f"{folder}/__grp__{name}.json", json.dumps({"child_paths": children}).encode())
    return folder


def put_module(tree: Tree, kernels: dict[str, str]) -> str:
    """The module of a graph that calls C++ kernels, which are given as name → body."""
    blocks = [
        f"{name} = async_compile.cpp_pybinding(['float*'], r'''{CPP.format(body=body)}''')\n"
        for name, body in kernels.items()
    ]
    return put_named(tree, ".py", "import torch\n" + "\n\n".join(blocks) + "\ndef call(args):\n    pass\n")


def put_cpp(tree: Tree, body: str, flags: str = "") -> str:
    """What is compiled from a kernel; the command line is in its name."""
    return put_named(tree, ".main.cpp", CPP.format(body=body) + "// Python bindings to call kernel():\n", flags)


def put_named(tree: Tree, suffix: str, text: str, flags: str = "") -> str:
    """A file of Inductor's, named by its content."""
    name = address(text, flags).lower()
    return tree.put(f"inductor/{name[1:3]}/c{name}{suffix}", text.encode())


def put_choice(tree: Tree, name: str, **choice: Any) -> str:
    content = {"num_warps": 4, "num_stages": 1, "time_taken_ms": 3, "configs_hash": "x", **choice}
    return tree.put(f"inductor/ab/{name}.best_config", json.dumps(content).encode())


def publish(node: Node, key: str) -> None:
    assert node.commit(key).status == "committed"
