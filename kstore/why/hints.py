"""What sets the attributes that torch's keys are made from: where to look when one differs."""

from __future__ import annotations

_HINTS = {
    "torch_version": "another build of torch: its version, its sources or its Python",
    "system_info": "another GPU, CUDA or Triton",
    "cpp_runtime_thread_count": "torch.get_num_threads(): the processors, OMP_NUM_THREADS, MKL_NUM_THREADS",
    "cache_key_tag": "TORCH_COMPILE_CACHE_KEY_TAG",
    "deterministic_algorithms_settings": "torch.use_deterministic_algorithms",
    "default_dtype": "torch.set_default_dtype",
    "cuda_matmul_settings": "torch.backends.cuda.matmul, torch.set_float32_matmul_precision",
    "example_inputs": "the inputs: shape, stride, dtype, device",
    "fx_kwargs": "how torch.compile was called, cudagraphs among it",
    "fx_kwargs.is_inference": "torch.no_grad(), torch.inference_mode(), requires_grad",
    "fx_kwargs.static_input_idxs": "the inputs, and which of them are parameters",
    "provenance_tracking_level": "INDUCTOR_PROVENANCE, TORCH_COMPILE_DEBUG",
    "gm": "the graph: the model's code, dtypes, dynamic shapes, autocast, torch.no_grad()",
    "inductor_config.cpp.cxx": "CXX",
    "inductor_config.compile_threads": "TORCHINDUCTOR_COMPILE_THREADS",
    "inductor_config.trace.enabled": "TORCH_COMPILE_DEBUG",
    "inductor_config.max_autotune": "torch.compile(mode=…), TORCHINDUCTOR_MAX_AUTOTUNE",
    "inductor_config.max_autotune_gemm": "torch.compile(mode=…), TORCHINDUCTOR_MAX_AUTOTUNE_GEMM",
    "inductor_config.coordinate_descent_tuning": "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING",
    "inductor_config.triton.cudagraphs": "torch.compile(mode=…)",
    "inductor_config": "torch._inductor.config, or a variable, mostly TORCHINDUCTOR_…",
}

AUTOGRAD = (
    "AOTAutograd's key also holds torch._functorch.config, the state of autograd and autocast, and whether Triton is "
    "installed; CI=true changes it (error_on_custom_op_aliasing), and so does TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE"
)


def hint(name: str) -> str:
    """What sets the attribute; empty if it is not recorded here."""
    while name not in _HINTS and "." in name:
        name = name.rpartition(".")[0]
    return _HINTS.get(name, "")
