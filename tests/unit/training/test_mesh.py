"""The arithmetic that a run uses where nobody said which."""

import pytest

torch = pytest.importorskip("torch")

from draftsmith.training.mesh import Precision, arithmetic, world


@pytest.mark.parametrize(
    ("precision", "can", "dtype"),
    [
        ("auto", {"avx512_f": True}, torch.float32),
        ("auto", {"avx512_f": True, "amx_bf16": False}, torch.float32),
        ("auto", {"amx_bf16": True}, torch.bfloat16),
        ("auto", {"bf16": True}, torch.bfloat16),
        ("bfloat16", {}, torch.bfloat16),
        ("float32", {"amx_bf16": True}, torch.float32),
    ],
)
def test_a_processor_without_units_for_bfloat16_is_not_made_to_use_it(
    monkeypatch: pytest.MonkeyPatch, precision: Precision, can: dict[str, bool], dtype: "torch.dtype"
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: can)
    with world():
        assert arithmetic(precision, torch.device("cpu")) is dtype


def test_accelerators_are_taken_to_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    with world():
        assert arithmetic("auto", torch.device("cuda")) is torch.bfloat16
