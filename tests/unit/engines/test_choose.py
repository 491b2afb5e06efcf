"""Logits to tokens: temperature, top-k, top-p and the draw."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from draftsmith.core.sampling import Sampling
from draftsmith.engines._choose import draw, fit_width, process


def test_temperature_divides_logits() -> None:
    logits = torch.tensor([[1.0, 2.0, 4.0]])
    torch.testing.assert_close(process(logits, Sampling(temperature=0.5)), logits * 2)


def test_greedy_leaves_logits_alone() -> None:
    logits = torch.randn(3, 7)
    assert process(logits, Sampling(top_k=2)) is logits


def test_top_k_keeps_the_k_best() -> None:
    out = process(torch.tensor([[1.0, 3.0, 2.0, 0.0]]), Sampling(temperature=1.0, top_k=2))
    assert torch.isfinite(out).tolist() == [[False, True, True, False]]


@pytest.mark.parametrize(("top_p", "kept"), [(0.4, 1), (0.55, 2), (0.9, 3), (0.97, 4)])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, kept: int) -> None:
    logits = torch.log(torch.tensor([[0.1, 0.5, 0.05, 0.35]]))
    out = process(logits, Sampling(temperature=1.0, top_p=top_p))
    assert int(torch.isfinite(out).sum()) == kept
    assert torch.isfinite(out[0, 1])


def test_top_p_works_on_every_position_of_a_batch() -> None:
    logits = torch.randn(2, 3, 11)
    out = process(logits, Sampling(temperature=1.0, top_p=0.7))
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(out[i, j], process(logits[i, j][None], Sampling(temperature=1.0, top_p=0.7))[0])


def test_draw_inverts_the_cumulative_distribution() -> None:
    weights = torch.tensor([[0.2, 0.0, 0.5, 0.3]]).repeat(5, 1) * 7
    uniform = torch.tensor([0.0, 0.19, 0.21, 0.69, 0.71])
    assert draw(weights, uniform).tolist() == [0, 0, 2, 2, 3]


def test_draw_never_gives_an_impossible_token() -> None:
    weights = torch.zeros(1000, 50)
    weights[:, 10:20] = 1e-6
    tokens = draw(weights, torch.from_numpy(np.random.default_rng(0).random(1000)))
    assert set(tokens.tolist()) <= set(range(10, 20))


def test_padded_rows_can_never_be_chosen() -> None:
    logits = torch.randn(2, 5)
    assert fit_width(logits, 5) is logits
    assert torch.isinf(fit_width(logits, 8)[:, 5:]).all()
    assert fit_width(logits, 3).shape == (2, 3)
