"""Which stored kernel is compared with one that was compiled anew, and what is said about the difference."""

from __future__ import annotations

import json

import pytest

from kstore.why.differences import Difference
from kstore.why.kernels import KernelReason, explain_kernels

NAME = "triton_poi_fused_add_3"


def tree(**kernels: dict[str, object]) -> dict[str, bytes]:
    """Folders of one kernel each: metadata, and source if "source" is given."""
    files = {}
    for folder, metadata in kernels.items():
        source = metadata.pop("source", None)
        files[f"triton/{folder}/{NAME}.json"] = json.dumps(metadata).encode()
        files[f"triton/{folder}/__grp__{NAME}.json"] = b"{}"
        if source is not None:
            files[f"triton/{folder}/{NAME}.source"] = str(source).encode()
    return files


def explain(fresh: dict[str, bytes], stored: dict[str, bytes]) -> tuple[KernelReason, str, tuple[Difference, ...]]:
    (found,) = explain_kernels(fresh, stored, (stored | fresh).get)
    assert found.name == NAME
    return found.reason, found.closest.split("/")[1] if found.closest else "", found.differences


def test_the_configuration_that_is_most_like_it_is_compared() -> None:
    stored = tree(A={"num_warps": 4, "num_stages": 1}, B={"num_warps": 2, "num_stages": 3})

    assert explain(tree(C={"num_warps": 8, "num_stages": 3}), stored) == (
        KernelReason.OPTIONS, "B", (Difference("num_warps", "2", "8"),)
    )  # fmt: skip


def test_however_many_configurations_a_name_has_its_own_is_found() -> None:
    """Autotuning compiles one kernel under hundreds."""
    code = '#loc = loc("kernel.py":{line}:0)\nfunc @f() loc(#loc)\n'

    def tuned(folder: str, line: int, **more: int) -> dict[str, bytes]:
        common = {"source": code.format(line=line), **more}
        return tree(**{f"{folder}{n:03}": {"stages": n % 9, "warps": n // 9, **common} for n in range(200)})

    stored, moved, changed = tuned("A", 3), tuned("B", 7), tuned("C", 7, maxnreg=128)
    read: list[str] = []
    found = explain_kernels(moved | changed, stored, lambda path: read.append(path) or (stored | moved | changed)[path])

    assert {(one.reason, one.closest.replace("A", "B")) for one in found[:200]} == {
        (KernelReason.PLACE, path) for path in moved if path.endswith(f"/{NAME}.json") and "__grp__" not in path
    }
    assert {one.differences for one in found[200:]} == {(Difference("maxnreg", None, "128"),)}
    assert len(read) == len(set(read))


def test_target_version_and_variables_are_in_the_metadata() -> None:
    stored = tree(A={"target": {"backend": "cuda", "arch": 90}, "triton_version": "3.6.0"})
    fresh = tree(B={"target": {"backend": "cuda", "arch": 100}, "triton_version": "3.7.1", "DISABLE_PTXAS_OPT": "true"})

    assert explain(fresh, stored)[2] == (
        Difference("target.arch", "90", "100"),
        Difference("triton_version", "3.6.0", "3.7.1"),
        Difference("DISABLE_PTXAS_OPT", None, "true"),
    )


def test_what_came_out_of_the_code_is_no_configuration() -> None:
    results = "shared", "tmem_size", "global_scratch_size", "profile_scratch_size"
    results += "global_scratch_align", "profile_scratch_align"
    stored = tree(A={"num_warps": 4, "hash": "a", "source": "x = 1", **dict.fromkeys(results, 0)})
    fresh = tree(B={"num_warps": 4, "hash": "b", "source": "x = 2", **dict.fromkeys(results, 512)})

    assert explain(fresh, stored) == (KernelReason.CODE, "A", ())


def test_code_that_only_moved_is_the_same() -> None:
    code = '#loc = loc("kernel.py":{line}:0)\nfunc @f() loc(#loc)\n'
    stored = tree(A={"source": "other"}, B={"source": code.format(line=3)})

    assert explain(tree(C={"source": code.format(line=7)}), stored) == (KernelReason.PLACE, "B", ())


def test_the_same_code_under_other_options_is_not_the_same_kernel() -> None:
    stored = tree(A={"num_warps": 8, "source": "x = 1"}, B={"num_warps": 4, "source": "x = 2"})

    assert explain(tree(C={"num_warps": 4, "source": "x = 1"}), stored) == (KernelReason.CODE, "B", ())


def test_of_kernels_that_are_equally_alike_the_first_by_its_path_is_compared() -> None:
    assert explain(tree(C={"num_warps": 4}), tree(B={"num_warps": 2}, A={"num_warps": 1}))[1] == "A"


def test_other_compilers_metadata_is_no_kernels() -> None:
    assert explain_kernels(["tilelang/cache/params.json", f"triton/A/__grp__{NAME}.json"], [], {}.get) == []


def test_without_code_nobody_can_tell_that_it_is_the_same() -> None:
    assert explain(tree(B={"num_warps": 4}), tree(A={"num_warps": 4}))[0] is KernelReason.CODE


def test_a_kernel_that_was_compiled_over_the_stored_one() -> None:
    assert explain(tree(A={"num_warps": 4}), tree(A={"num_warps": 4})) == (KernelReason.REPLACED, "A", ())


def test_a_name_that_was_not_restored() -> None:
    assert explain(tree(A={"num_warps": 4}), {"triton/B/another.json": b"{}"}) == (KernelReason.NOTHING, "", ())


def test_metadata_that_is_gone_since_it_was_listed() -> None:
    fresh, stored = tree(A={"num_warps": 4}), tree(B={"num_warps": 4})

    assert [found.reason for found in explain_kernels(fresh, stored, stored.get)] == [KernelReason.UNREADABLE]
    assert [found.reason for found in explain_kernels(fresh, stored, fresh.get)] == [KernelReason.NOTHING]


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"[" * 9999, b"\xff"])
def test_garbage_in_place_of_metadata(data: bytes) -> None:
    fresh, stored = tree(A={}), tree(B={})
    for path in fresh:
        assert explain({**fresh, path: data}, stored)[0] in (KernelReason.UNREADABLE, KernelReason.CODE)
    for path in stored:
        assert explain(fresh, {**stored, path: data})[0] in (KernelReason.NOTHING, KernelReason.CODE)
