"""What depth costs and what width costs (the paper's Figure 4): straight lines through measured step times."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Line:
    """A least-squares line and how much of the variance it explains."""

    slope: float
    intercept: float
    r_squared: float


def line(x: Sequence[float], y: Sequence[float]) -> Line:
    """R^2 is 1 where y does not vary: there is nothing left to explain."""
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    slope, intercept = np.polyfit(a, b, 1)
    total = float(((b - b.mean()) ** 2).sum())
    rest = float(((b - slope * a - intercept) ** 2).sum())
    flat = total <= len(b) * (1e-12 * float(np.abs(b).max())) ** 2
    return Line(float(slope), float(intercept), 1.0 if flat else 1.0 - rest / total)
