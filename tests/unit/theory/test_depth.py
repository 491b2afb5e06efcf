"""Straight lines through measured times."""

import numpy as np
import pytest

from draftsmith.theory.depth import Line, line


def test_a_straight_line_is_found_again() -> None:
    found = line([4, 8, 16, 32], [3.5, 5.5, 9.5, 17.5])
    assert (found.slope, found.intercept, found.r_squared) == pytest.approx((0.5, 1.5, 1.0))


def test_it_is_that_of_least_squares() -> None:
    rng = np.random.default_rng(0)
    x = rng.random(30)
    y = 3 * x + 1 + rng.normal(0, 0.2, 30)
    found = line(x.tolist(), y.tolist())
    slope, intercept = np.linalg.lstsq(np.stack([x, np.ones(30)], axis=1), y, rcond=None)[0]
    assert (found.slope, found.intercept) == pytest.approx((slope, intercept))
    assert found.r_squared == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2)


@pytest.mark.parametrize("y", [2.0, 0.1, 7.3])
def test_where_nothing_varies_there_is_nothing_to_explain(y: float) -> None:
    found = line([1, 2, 3], [y] * 3)
    assert found.slope == pytest.approx(0, abs=1e-12)
    assert found.r_squared == 1.0


def test_two_points_are_a_line() -> None:
    found = line([1, 3], [10, 4])
    assert found == Line(pytest.approx(-3), pytest.approx(13), pytest.approx(1))
