"""The arithmetic that a run uses where nobody said which."""

import pytest

torch = pytest.importorskip("torch")

from draftsmith.training import mesh
from draftsmith.training.mesh import Precision, arithmetic, world


@pytest.mark.parametrize(
    ("precision", "units", "dtype"),
    [
        ("auto", False, torch.float32),
        ("auto", True, torch.bfloat16),
        ("auto", None, torch.bfloat16),
        ("bfloat16", False, torch.bfloat16),
        ("float32", True, torch.float32),
    ],
)
def test_a_processor_without_units_for_bfloat16_is_not_made_to_use_it(
    monkeypatch: pytest.MonkeyPatch, precision: Precision, units: bool | None, dtype: "torch.dtype"
) -> None:
    monkeypatch.setattr(mesh, "has_bf16_units", lambda: units)
    with world():
        assert arithmetic(precision, torch.device("cpu")) is dtype


def test_accelerators_are_taken_to_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "has_bf16_units", lambda: False)
    with world():
        assert arithmetic("auto", torch.device("cuda")) is torch.bfloat16


def test_apples_units_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    with world() as ranks:
        assert ranks.device == torch.device("cpu")
