"""Gains are the slope of the expected steps that replay computes."""

import numpy as np
import pytest

from draftsmith.theory.acceptance import replay
from draftsmith.theory.gains import step_gains


@pytest.mark.parametrize("lookahead", [1, 2, 5])
def test_a_gain_is_the_slope_of_replayed_steps(lookahead: int) -> None:
    rng = np.random.default_rng(0)
    chances = [rng.uniform(0.05, 0.9, size=n) for n in (1, 7, 12)]
    found = step_gains(chances, lookahead)
    for one, gains in zip(chances, found, strict=True):
        for j in range(len(one)):
            moved = [one.copy(), one.copy()]
            moved[0][j] -= 1e-5
            moved[1][j] += 1e-5
            less, more = replay(moved, [len(one)] * 2, [lookahead]).steps[:, 0]
            assert gains[j] == pytest.approx((less - more) / 2e-5, abs=1e-6)


def test_where_nothing_is_accepted_every_token_but_the_last_is_worth_a_step() -> None:
    (gains,) = step_gains([np.zeros(6)], 4)
    assert gains.tolist() == [1, 1, 1, 1, 1, 0]
