"""Tokens per step against the output rows that a draft keeps."""

from typing import Any

from draftsmith.core.records import RowsCard
from draftsmith.figures._style import HEIGHT, WIDTH, altair


def rows(card: RowsCard) -> Any:
    """One line a lookahead; dashed, what the whole head gives."""
    alt = altair()
    whole = card.points[-1]
    chosen = [point.lookahead for point in whole.curve.points if point.lookahead in (1, 3, 5, 8)] or [
        whole.curve.points[0].lookahead
    ]
    values = [
        {"rows": one.rows, "lookahead": str(k), "tokens_per_step": one.curve.at(k).tokens_per_step, "ceiling": one.ceiling}
        for one in card.points
        for k in chosen
    ]
    limits = [{"lookahead": str(k), "tokens_per_step": whole.curve.at(k).tokens_per_step} for k in chosen]
    axis = alt.Axis(values=[one.rows for one in card.points], format=",d")
    x = alt.X("rows:Q", title="output rows kept", scale=alt.Scale(type="log", nice=False), axis=axis)
    y = alt.Y("tokens_per_step:Q", title="tokens per step", scale=alt.Scale(zero=False))
    colour = alt.Color("lookahead:N", title="lookahead", sort=[str(k) for k in chosen])
    tooltip = ["rows:Q", "lookahead:N", *(alt.Tooltip(f"{name}:Q", format=".3f") for name in ("tokens_per_step", "ceiling"))]
    line = alt.Chart(alt.Data(values=values)).mark_line(point=True).encode(x=x, y=y, color=colour, tooltip=tooltip)
    limit = alt.Chart(alt.Data(values=limits)).mark_rule(strokeDash=[5, 4]).encode(y=y, color=colour)
    title = {
        "text": f"{card.draft} drafting for {card.target}, with fewer output rows",
        "subtitle": f"{whole.curve.num_prompts} prompts of the {card.split} split; dashed: the whole head, {whole.rows} rows",
    }
    return alt.layer(limit, line).properties(width=WIDTH, height=HEIGHT, title=title)
