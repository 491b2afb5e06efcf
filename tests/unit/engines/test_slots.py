"""Prompts of different lengths, read side by side."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from draftsmith.core.protocols import EngineConfig
from draftsmith.engines import _slots
from draftsmith.engines._checkpoint import Checkpoint
from draftsmith.engines._slots import SlotModel
from draftsmith.engines.transformers import _load

LENGTHS = torch.tensor([30, 1, 2, 9, 30, 17])


@pytest.fixture
def model(target: Path, monkeypatch: pytest.MonkeyPatch) -> SlotModel:
    monkeypatch.setattr(_slots, "_PREFILL_TOKENS", 16)
    return _load(Checkpoint(target, False), EngineConfig(dtype="float32", device="cpu"))


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(4, 64, (len(LENGTHS), 40), generator=torch.Generator().manual_seed(0))


def last_logits(model: SlotModel, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    model.prefill(tokens, lengths)
    positions = lengths[:, None] - 1
    return model.forward(tokens.gather(1, positions), positions, keep_logits=1)[:, 0]


def test_a_prompt_beside_others_is_read_as_if_alone(model: SlotModel, tokens: torch.Tensor) -> None:
    together = last_logits(model, tokens, LENGTHS)
    for row in range(len(LENGTHS)):
        alone = last_logits(model, tokens[row : row + 1], LENGTHS[row : row + 1])
        torch.testing.assert_close(together[row], alone[0], rtol=1e-5, atol=1e-5)


def test_short_prompts_are_not_read_to_the_length_of_the_longest(
    model: SlotModel, tokens: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    forward = model.forward

    def counted(tokens_BQ: torch.Tensor, *args: object, **more: object) -> torch.Tensor:
        read.append(tokens_BQ.numel())
        return forward(tokens_BQ, *args, **more)

    monkeypatch.setattr(model, "forward", counted)
    model.prefill(tokens, LENGTHS)
    assert max(read) <= 16
    assert int(LENGTHS.sum()) - len(LENGTHS) <= sum(read) < 1.25 * int(LENGTHS.sum())
