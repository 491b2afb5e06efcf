"""What was forged, beside what it must beat: tokens per second of every contender, and plain decoding."""

from typing import Any

from draftsmith.core.records import Forged
from draftsmith.figures._style import WIDTH, altair
from draftsmith.figures.page import Section


def forged(made: Forged) -> Any:
    """A bar a contender, the fastest first, each against plain decoding in its own run."""
    alt = altair()
    values = [{**one.model_dump(), "ours": one.name == made.best} for one in made.contenders]
    y = alt.Y("name:N", title=None, sort=[one.name for one in made.contenders], axis=alt.Axis(labelLimit=260))
    x = alt.X("speedup:Q", title=f"x plain decoding, batch {made.batch}, {made.engine}")
    base = alt.Chart(alt.Data(values=values))
    colour = alt.condition(alt.datum.ours, alt.value("#3b7dd8"), alt.value("#9aa4b2"))
    bars = base.mark_bar().encode(
        x=x, y=y, color=colour, tooltip=["name:N", "lookahead:Q", "tokens_per_step:Q", "tokens_per_second:Q"]
    )
    plain = alt.Chart(alt.Data(values=[{"speedup": 1.0}])).mark_rule(color="#d8613b", strokeWidth=2).encode(x="speedup:Q")
    title = {
        "text": f"{made.best}: {made.speedup:.2f} x plain decoding of {made.target}",
        "subtitle": "red: plain decoding, in the same run",
    }
    return alt.layer(bars, plain).properties(width=WIDTH, title=title)


def page_sections(made: Forged) -> list[Section]:
    """The one-page result."""
    columns = ("draft", "layers", "M weights", "lookahead", "tokens/step", "tokens/s", "x plain", "outputs that differ")
    rows = [
        (
            one.name,
            "" if one.layers is None else str(one.layers),
            "" if one.parameters is None else f"{one.parameters / 1e6:.1f}",
            str(one.lookahead),
            "" if one.tokens_per_step is None else f"{one.tokens_per_step:.2f}",
            f"{one.tokens_per_second:.1f}",
            f"{one.speedup:.2f}",
            str(one.differing_outputs),
        )
        for one in made.contenders
    ]
    told = (
        f"{made.shape.sizes}, {made.shape.vocabulary} output rows; trained on {made.tokens / 1e6:.2f}M tokens. "
        f"{made.shapes_trained} trainings led to it, in {made.seconds / 3600:.1f} hours. All ran live on prompts of "
        "the test split, each beside plain decoding."
    )
    return [Section("Before and after", told, forged(made)), Section("All contenders", "", None, columns, rows)]
