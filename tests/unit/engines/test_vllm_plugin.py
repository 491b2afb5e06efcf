"""The mend for vLLM's CPU build, without vLLM: what the kernel should do."""

import pytest

torch = pytest.importorskip("torch")

from draftsmith.vllm_plugin import expand_kernel


def test_every_token_gets_its_requests_value() -> None:
    output = torch.full((6,), -1.0)
    expand_kernel(output, torch.tensor([0.5, 0.0, 2.0]), torch.tensor([2, 3, 6], dtype=torch.int32), 0.0, 1.0)
    assert output.tolist() == [0.5, 0.5, 1.0, 2.0, 2.0, 2.0]


def test_integers_and_requests_without_tokens() -> None:
    output = torch.zeros(3, dtype=torch.int32)
    expand_kernel(output, torch.tensor([7, 8, 9], dtype=torch.int32), torch.tensor([1, 1, 3], dtype=torch.int32), -1, 0)
    assert output.tolist() == [7, 9, 9]
