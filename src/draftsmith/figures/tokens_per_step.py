"""Tokens per step against lookahead: the replayed curves of one draft, and live runs as points on them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftsmith.core.checkpoints import model_name
from draftsmith.core.records import AcceptanceCurve, LiveCard, Scorecard
from draftsmith.figures._style import HEIGHT, WIDTH, altair, lookahead_axis


def tokens_per_step(card: Scorecard, live: Sequence[LiveCard] = ()) -> Any:
    """One line a data set with a band of two standard errors over prompts; the overall curve is drawn stronger."""
    alt = altair()
    curves = {"all": card.overall, **(card.by_dataset if len(card.by_dataset) > 1 else {})}
    values = [entry for name, one in curves.items() for entry in _points(name, one)]
    lookahead = lookahead_axis(alt, (point.lookahead for point in card.overall.points))
    colour = alt.Color("prompts:N", title="prompts", sort=list(curves), legend=alt.Legend(symbolOpacity=1, symbolType="circle"))
    base = alt.Chart(alt.Data(values=values))
    # One band only: four of them over each other say nothing. The other curves have their errors in the tooltip.
    band = base.transform_filter(alt.datum.prompts == "all").mark_area(opacity=0.2)
    band = band.encode(x=lookahead, y="low:Q", y2="high:Q", color=colour)
    line = base.mark_line(point=True).encode(
        x=lookahead,
        y=alt.Y("tokens_per_step:Q", title="tokens per step", scale=alt.Scale(zero=False)),
        color=colour,
        strokeWidth=alt.condition(alt.datum.prompts == "all", alt.value(3), alt.value(1.5)),
        tooltip=[
            "prompts:N",
            "lookahead:Q",
            *(alt.Tooltip(f"{name}:Q", format=".3f") for name in ("tokens_per_step", "error")),
        ],
    )
    layers = [band, line]
    if measured := [entry for one in live for entry in _live_points(one)]:
        marks = alt.Chart(alt.Data(values=measured)).mark_point(shape="cross", size=90, color="black", filled=True)
        layers.append(marks.encode(x=lookahead, y="tokens_per_step:Q", tooltip=["engine:N", "tokens_per_step:Q"]))
    draft = model_name(Path(card.draft.path)) if card.draft.kind == "model" else "prompt lookup"
    title = {
        "text": f"{draft} drafting for {card.target}",
        "subtitle": f"{card.overall.num_prompts} prompts of the {card.split} split, band: two standard errors"
        + (", crosses: live runs" if measured else ""),
    }
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=title)


def _points(name: str, one: AcceptanceCurve) -> list[dict[str, Any]]:
    entries = []
    for point in one.points:
        error = point.tokens_per_step_error or 0.0
        entries.append(
            {
                "prompts": name,
                "lookahead": point.lookahead,
                "tokens_per_step": point.tokens_per_step,
                "error": error,
                "low": point.tokens_per_step - 2 * error,
                "high": point.tokens_per_step + 2 * error,
            }
        )
    return entries


def _live_points(card: LiveCard) -> list[dict[str, Any]]:
    return [
        {"engine": card.engine.kind, "lookahead": cell.lookahead, "tokens_per_step": cell.tokens_per_step}
        for cell in card.cells
        if cell.lookahead > 0 and cell.tokens_per_step is not None
    ]
