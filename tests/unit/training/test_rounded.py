"""Products in bfloat16 on a processor without units for it: as exact as with them, forward and backward."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import linear, scaled_dot_product_attention

from benchmarks._rounded import _Rounded

_STEP = 2**-8  # of a bfloat16 number to the next


def _numbers(*shape: int) -> "torch.Tensor":
    return torch.randn(shape, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(len(shape))).requires_grad_()


def test_a_linear_layer_is_rounded_once_forward_and_backward() -> None:
    given, weight, bias = _numbers(2, 5, 64), _numbers(8, 64), _numbers(8)
    with _Rounded():
        linear(given, weight, bias).square().sum().backward()
        found = linear(given, weight, bias)
    exact = [one.detach().double().requires_grad_() for one in (given, weight, bias)]
    output = linear(*exact)
    # The gradient of a square is taken of what was rounded.
    (output * (2 * found.detach().double())).sum().backward()
    torch.testing.assert_close(found, output.bfloat16(), rtol=_STEP, atol=1e-6)
    for one, other in zip((given, weight, bias), exact, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(one.grad, other.grad.bfloat16(), rtol=2 * _STEP, atol=2e-2)


def test_attention_is_computed_in_float32_and_other_arithmetic_is_left_alone() -> None:
    queries, mask = _numbers(1, 2, 6, 16), torch.ones(6, 6, dtype=torch.bool).tril()
    with _Rounded():
        found = scaled_dot_product_attention(queries, queries, queries, attn_mask=mask)
        plain = linear(queries.float(), torch.eye(16))
    single = queries.float()
    expected = scaled_dot_product_attention(single, single, single, attn_mask=mask).bfloat16()
    assert torch.equal(found, expected)
    assert torch.equal(plain, single)
