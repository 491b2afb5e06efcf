"""Packed linear layers compute what plain ones do."""

import pytest

torch = pytest.importorskip("torch")

from draftsmith.engines._packed import pack


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 300])
@pytest.mark.parametrize("bias", [True, False])
def test_same_numbers_for_any_number_of_rows(rows: int, bias: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(96, 160, bias=bias)).bfloat16()
    x = torch.randn(1, rows, 96).bfloat16()
    with torch.inference_mode():
        expected = model(x)
        pack(model)
        torch.testing.assert_close(model(x), expected, atol=0.02, rtol=0.01)
    assert type(model[0]).__name__ == "_PackedLinear"


def test_float32_is_left_alone() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8))
    pack(model)
    assert type(model[0]) is torch.nn.Linear
