"""Where shapes lie: how fast a draft is against how much of it is accepted."""

from typing import Any

from draftsmith.core.records import Design, DesignCandidate
from draftsmith.figures._style import HEIGHT, WIDTH, altair


def design(made: Design) -> Any:
    """The front, the best shape of every depth with its number of layers, and the next probe."""
    alt = altair()
    best = made.by_depth[0]
    x = alt.X("draft_ms:Q", title="draft, milliseconds per token", scale=alt.Scale(zero=False))
    y = alt.Y("acceptance:Q", title="first proposal accepted", scale=alt.Scale(zero=False), axis=alt.Axis(format="%"))
    front = alt.Chart(alt.Data(values=[_value(one) for one in made.front])).mark_line(opacity=0.6, interpolate="step-after")
    points = alt.Chart(alt.Data(values=[_value(one) for one in made.by_depth]))
    colour = alt.Color("speedup:Q", title="x plain", scale=alt.Scale(scheme="viridis"))
    tooltip = [
        "shape:N",
        "parameters:N",
        "tokens:N",
        *(alt.Tooltip(f"{name}:Q", format=".3f") for name in ("speedup", "error", "tokens_per_step")),
    ]
    marks = points.mark_point(filled=True, size=110).encode(x=x, y=y, color=colour, tooltip=tooltip)
    labels = points.mark_text(dy=-12).encode(x=x, y=y, text="layers:N")
    probe = alt.Chart(alt.Data(values=[_value(made.next_probe)])).mark_point(shape="diamond", size=260, strokeWidth=2)
    title = {
        "text": f"Drafts cut from {made.source}, after {made.training}",
        "subtitle": [
            f"best: {best.shape.depth}, {best.speedup:.2f} x plain at lookahead {best.lookahead}",
            "numbers: layers; line: no shape is both faster and accepted more; diamond: what to try next",
        ],
    }
    layers = alt.layer(front.encode(x=x, y=y), marks, labels, probe.encode(x=x, y=y))
    return layers.properties(width=WIDTH, height=HEIGHT, title=title)


def _value(one: DesignCandidate) -> dict[str, Any]:
    return {
        "draft_ms": one.draft_ms,
        "acceptance": one.acceptance,
        "tokens_per_step": one.tokens_per_step,
        "tokens": one.tokens,
        "speedup": one.speedup,
        "error": one.error,
        "layers": one.shape.layers,
        "shape": one.shape.sizes,
        "parameters": f"{one.parameters / 1e6:.1f} M",
    }
