"""Step time of shapes (the paper's Figure 4): one panel a group, against the axis that the group varies."""

from typing import Any

from draftsmith.core.records import ShapeCell, ShapeProfile
from draftsmith.figures._style import PANEL_HEIGHT, PANEL_WIDTH, altair
from draftsmith.theory.depth import line

_AXES = {
    "layers": "layers",
    "hidden": "hidden size",
    "vocabulary": "vocabulary",
    "kv_heads": "kv heads",
    "intermediate": "intermediate size",
}


def varied_axis(cells: list[ShapeCell]) -> str:
    """What a group is about: its depth if that varies, else the first axis that does."""
    return next((name for name in _AXES if len({getattr(cell.shape, name) for cell in cells}) > 1), "layers")


def shapes(profile: ShapeProfile) -> Any:
    """Milliseconds per step with two standard errors, and the straight line through them. Where two shapes share a value of the
    axis, something else varies too, and a line would say what is not so."""
    alt = altair()
    first = (profile.cells[0].batch, profile.cells[0].context)
    panels = []
    for group in dict.fromkeys(cell.group for cell in profile.cells):
        cells = [cell for cell in profile.cells if cell.group == group and (cell.batch, cell.context) == first]
        axis = varied_axis(cells)
        values = [_value(cell, axis) for cell in cells]
        x = alt.X("x:Q", title=_AXES[axis], scale=alt.Scale(zero=False))
        base = alt.Chart(alt.Data(values=values))
        points = base.mark_point(filled=True, size=70).encode(
            x=x,
            y=alt.Y("milliseconds:Q", title="milliseconds per step"),
            tooltip=["shape:N", "parameters:N", alt.Tooltip("milliseconds:Q", format=".2f")],
        )
        bars = base.mark_rule().encode(x=x, y="low:Q", y2="high:Q")
        at = [one["x"] for one in values]
        title, layers = {"text": group}, [bars, points]
        if 1 < len(set(at)) == len(at):
            fitted = line(at, [cell.step_ms for cell in cells])
            title["subtitle"] = f"{fitted.slope:.3g} ms per {_unit(axis)}, R² {fitted.r_squared:.3f}"
            drawn = [{"x": end, "milliseconds": fitted.slope * end + fitted.intercept} for end in (min(at), max(at))]
            trend = alt.Chart(alt.Data(values=drawn)).mark_line(strokeDash=[6, 4], opacity=0.7)
            layers.insert(0, trend.encode(x=x, y="milliseconds:Q"))
        panels.append(alt.layer(*layers).properties(width=PANEL_WIDTH, height=PANEL_HEIGHT, title=title))
    heading = f"{profile.architecture} shapes on {profile.engine.kind}, batch {first[0]}, context {first[1]}"
    return alt.concat(*panels, columns=3).properties(title=heading)


def _value(cell: ShapeCell, axis: str) -> dict[str, Any]:
    shape = cell.shape
    return {
        "x": getattr(shape, axis),
        "milliseconds": cell.step_ms,
        "low": cell.step_ms * (1 - 2 * cell.error),
        "high": cell.step_ms * (1 + 2 * cell.error),
        "shape": ", ".join(f"{label} {getattr(shape, name)}" for name, label in _AXES.items()),
        "parameters": f"{shape.parameters / 1e6:.0f} M",
    }


def _unit(axis: str) -> str:
    return {"layers": "layer", "kv_heads": "kv head", "vocabulary": "token of vocabulary"}.get(axis, f"unit of {_AXES[axis]}")
