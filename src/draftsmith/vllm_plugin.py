"""What vLLM loads of us in every one of its processes (entry point `vllm.general_plugins`): our architectures, and two mends.

The CPU build of vLLM 0.32.0 cannot sample while it speculates: `_expand_kernel_impl` writes into a temporary int64 copy of
its output and never copies it back, so logits are divided by uninitialised memory. This puts the result where it belongs.
Nor can it start a second engine in a process: registering its kernels again trips over objects that later imports left
behind, so they are registered once. Both mends touch affected versions only; tests/e2e/test_vllm_plugin.py fails as soon as
upstream needs neither."""

from functools import cache
from typing import Any

AFFECTED_VERSIONS = ("0.32.0",)
TRIMMED = ("Llama", "Mistral", "OPT", "Qwen2", "Qwen3")


def register() -> None:
    """Called by vLLM, possibly several times in a process."""
    import vllm
    from vllm.platforms import current_platform

    import draftsmith.architectures.trimmed  # noqa: F401 (the configs, for transformers' AutoConfig)

    for name in (f"Trimmed{base}ForCausalLM" for base in TRIMMED):
        vllm.ModelRegistry.register_model(name, f"draftsmith.architectures.trimmed_vllm:{name}")

    if vllm.__version__.split("+")[0] in AFFECTED_VERSIONS and current_platform.is_cpu():
        from vllm.utils import cpu_triton_utils

        # vLLM registers its CPU kernels from this module after it has loaded plugins.
        cpu_triton_utils._expand_kernel_impl = expand_kernel
        platform = type(current_platform)
        if not hasattr(platform.register_triton_kernel_overrides, "cache_info"):
            once = cache(current_platform.register_triton_kernel_overrides)
            platform.register_triton_kernel_overrides = staticmethod(once)


def expand_kernel(
    output: Any,
    input_val: Any,
    cu_num_tokens: Any,
    replace_from: Any,
    replace_to: Any,
    MAX_NUM_TOKENS: Any = None,  # noqa: ARG001
) -> None:
    """output[t] = the value of the request that token t belongs to, with `replace_from` replaced by `replace_to`."""
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    values = input_val.masked_fill(input_val == replace_from, replace_to)
    expanded = values.repeat_interleave(counts)
    output[: len(expanded)] = expanded
