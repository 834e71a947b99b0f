from __future__ import annotations

import tomllib
from importlib import resources

import pytest

from kstore.inspect.kinds import Kind, kind_of

KERNEL = "BODBAN5OVUTO3VB44TVKJ57VY4UBFBGJBDDJ4PT4VUVZCPN4IDCA"
KINDS = {
    "inductor/fxgraph/mt/fmtrxhsx/hzfn2wjy": Kind.FX_GRAPH,
    "vllm/torch_compile_cache/torch_aot_compile/ab12/inductor_cache/fxgraph/mt/fmtrxhsx/hzfn2wjy": Kind.FX_GRAPH,
    "inductor/aotautograd/am2yzihk/vsyvrycs": Kind.AOT_ENTRY,
    f"triton/{KERNEL}/triton_poi_fused_add_3.json": Kind.TRITON_KERNEL,
    f"triton/{KERNEL}/__grp__triton_poi_fused_add_3.json": Kind.TRITON_KERNEL,
    f"triton/{KERNEL}/triton_poi_fused_add_3.cubin": Kind.TRITON_KERNEL,
    f"inductor/triton/0/{KERNEL}/triton_poi_fused_add_3.ptx": Kind.TRITON_KERNEL,
    f"vllm/torch_compile_cache/0a1b2c3d4e/rank_0_0/triton_cache/{KERNEL}/triton_.ttir": Kind.TRITON_KERNEL,
    f"sglang/torch_compile_cache/x/rank_0_0/triton/{KERNEL}/k.ttir": Kind.TRITON_KERNEL,
    f"helion/triton/0/{KERNEL}/k.ttgir": Kind.TRITON_KERNEL,
    f"triton/{KERNEL}/cuda_utils.cpython-311-x86_64-linux-gnu.so": Kind.TRITON_HELPER,
    f"inductor/triton/0/{KERNEL}/__triton_launcher.cpython-311-x86_64-linux-gnu.so": Kind.TRITON_HELPER,
    f"triton/{KERNEL}/matmul.autotune.json": Kind.AUTOTUNE,
    "inductor/ab/0123.best_config": Kind.AUTOTUNE,
    "inductor/cache/0123": Kind.AUTOTUNE,
    "tunableop/tunableop_results0.csv": Kind.AUTOTUNE,
    "b12x/preparation/0a1b.json": Kind.AUTOTUNE,
    "inductor/w6/cw6jr5b7.main.cpp": Kind.CPP_KERNEL,
    "inductor/w6/cw6jr5b7.main.so": Kind.CPP_KERNEL,
    "inductor/w6/cw6jr5b7.so.load_ok": Kind.CPP_KERNEL,
    "inductor/w6/cw6jr5b7.py": Kind.GENERATED_CODE,
    "vllm/torch_compile_cache/torch_aot_compile/ab12/rank_0_0/model": Kind.COMPILED_MODEL,
    "inductor/ab/cabc.cu": Kind.CUDA_KERNEL,
    "inductor/quack/0a1b/2c3d.o": Kind.CUDA_KERNEL,
    "quack/0a1b/2c3d.o": Kind.CUDA_KERNEL,
    "flashattn/0a1b/fwd/2c3d.o": Kind.CUDA_KERNEL,
    "cudnn/v2/0a1b/2c3d/kernel.o": Kind.CUDA_KERNEL,
    "b12x/0a/0a1b.o": Kind.CUDA_KERNEL,
    "msa/prefill_q8kv4/v2/0a1b/prefill-2c3d/prefill-4e5f.so": Kind.CUDA_KERNEL,
    "inductor/flydsl_compile_cache/gemm/2c3d.pkl": Kind.CUDA_KERNEL,
    "deepgemm/cache/kernel.fp8/kernel.cubin": Kind.CUDA_KERNEL,
    "cuda/0/1/abcdef": Kind.CUDA_KERNEL,
    "extensions/py311_cu130/mine/mine.so": Kind.NATIVE_OBJECT,
    "extensions/py311_cu130/mine/build.ninja": Kind.OTHER,
    "tvmffi/twice_198ce7f90a4b51b3/twice.so": Kind.NATIVE_OBJECT,
    "inductor/dynamo/code_state_job_0.pkl": Kind.DYNAMO_STATE,
    "elsewhere/anything": Kind.OTHER,
}


@pytest.mark.parametrize(("path", "kind"), KINDS.items())
def test_a_path_tells_what_the_artifact_is(path: str, kind: Kind) -> None:
    assert kind_of(path) is kind


@pytest.mark.parametrize("path", ["", "/", "inductor", "inductor/fxgraph", "triton/" + "a/" * 500, "inductor/\n.py"])
def test_what_no_compiler_writes_is_something_else(path: str) -> None:
    assert kind_of(path) is Kind.OTHER


def test_every_kind_has_a_label_and_the_table_names_no_others() -> None:
    table = tomllib.loads(resources.files("kstore.inspect").joinpath("kinds.toml").read_text())

    assert {*table, "other"} == set(Kind)
    assert len({kind.label for kind in Kind}) == len(Kind)
