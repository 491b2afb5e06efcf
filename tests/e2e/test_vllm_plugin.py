"""Says when upstream no longer needs our mends, so that they can be removed."""

import subprocess
import sys

import pytest

vllm = pytest.importorskip("vllm")

# In a process of its own, where vLLM has loaded no plugin: this is upstream's kernel and not ours.
UPSTREAM_KERNEL = """
import torch
from vllm.platforms import current_platform
current_platform.import_kernels()
from vllm.utils.cpu_triton_utils import _expand_kernel_impl
output = torch.full((4,), -1.0)
_expand_kernel_impl(output, torch.tensor([0.5, 2.0]), torch.tensor([2, 4], dtype=torch.int32), 0, 1)
print("right" if output.tolist() == [0.5, 0.5, 2.0, 2.0] else "wrong")
"""


def test_upstream_still_needs_the_mends() -> None:
    from vllm.platforms import current_platform

    from draftsmith.vllm_plugin import AFFECTED_VERSIONS

    if not current_platform.is_cpu():
        pytest.skip("only the CPU build is affected")
    assert vllm.__version__.split("+")[0] in AFFECTED_VERSIONS, "a new vLLM: try it without draftsmith.vllm_plugin"
    done = subprocess.run([sys.executable, "-c", UPSTREAM_KERNEL], capture_output=True, text=True, timeout=300, check=True)
    said = done.stdout.strip().splitlines()[-1]
    assert said == "wrong", "vLLM expands sampling parameters rightly now: remove draftsmith.vllm_plugin's mends"
