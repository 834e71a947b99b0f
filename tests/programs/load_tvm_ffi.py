"""Build a C++ function with TVM FFI, load it and call it with 21: prints the result."""

from __future__ import annotations

import tvm_ffi.cpp

SOURCE = "int64_t twice(int64_t x) { return 2 * x; }"


def main() -> None:
    module = tvm_ffi.cpp.load_inline(name="twice", cpp_sources=SOURCE, functions="twice")
    print(module.twice(21))


main()
