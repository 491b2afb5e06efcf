"""What all pictures share: their size, their import, and the one way to name things."""

from collections.abc import Iterable
from typing import Any

from draftsmith.core.errors import MissingDependencyError

WIDTH, HEIGHT = 560, 340
PANEL_WIDTH, PANEL_HEIGHT = 300, 240


def altair() -> Any:
    """Altair, or the error that says how to get it."""
    try:
        import altair as alt
    except ModuleNotFoundError:
        raise MissingDependencyError("pictures need Altair", "pip install 'draftsmith[report]'") from None
    return alt


def lookahead_axis(alt: Any, lookaheads: Iterable[int]) -> Any:
    """A tick at each lookahead there is: left to itself, the axis puts some in between and labels them as their neighbours. The
    outermost points are not cut off by the frame."""
    axis = alt.Axis(values=sorted(set(lookaheads)), format="d")
    scale = alt.Scale(zero=False, nice=False, padding=8)
    return alt.X("lookahead:Q", title="lookahead (tokens proposed per step)", axis=axis, scale=scale)
