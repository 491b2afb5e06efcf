"""The pictures of a Prediction: throughput against lookahead, where a step's time goes, and what a draft must reach."""

from typing import Any

from draftsmith.core.protocols import PHASES
from draftsmith.core.records import Prediction
from draftsmith.figures._style import PANEL_HEIGHT, PANEL_WIDTH, altair, lookahead_axis
from draftsmith.figures.page import Section

_LEAST = 0.05  # of a value: a logarithmic axis has no zero for a band to reach


def throughput(prediction: Prediction) -> Any:
    """Tokens per second against lookahead, a line a batch size with a band of two standard errors; dashed: plain decoding."""
    alt = altair()
    values = [
        {
            "lookahead": point.lookahead,
            "batch": f"{point.batch}",
            "context": _context(point.context),
            "tokens_per_second": point.tokens_per_second,
            "low": point.tokens_per_second * max(1 - 2 * point.error, _LEAST),
            "high": point.tokens_per_second * (1 + 2 * point.error),
            "speedup": point.speedup,
        }
        for point in prediction.points
    ]
    plain = [
        {"batch": f"{point.batch}", "context": _context(point.context), "plain": point.tokens_per_second / point.speedup}
        for point in prediction.points
    ]
    batches = sorted({point.batch for point in prediction.points})
    legend = alt.Legend(symbolOpacity=1, symbolType="circle")
    colour = alt.Color("batch:N", title="batch size", sort=[str(batch) for batch in batches], legend=legend)
    base = alt.Chart()
    band = base.mark_area(opacity=0.18).encode(
        x=lookahead_axis(alt, (point.lookahead for point in prediction.points)), y="low:Q", y2="high:Q", color=colour
    )
    line = base.mark_line(point=True).encode(
        x=lookahead_axis(alt, (point.lookahead for point in prediction.points)),
        y=alt.Y("tokens_per_second:Q", title="tokens per second", scale=alt.Scale(type="log", nice=False, padding=12)),
        color=colour,
        tooltip=[
            "batch:N",
            "lookahead:Q",
            alt.Tooltip("tokens_per_second:Q", format=".1f"),
            alt.Tooltip("speedup:Q", format=".2f"),
        ],
    )
    rule = base.mark_rule(strokeDash=[6, 4], strokeWidth=1.5).encode(y=alt.Y("plain:Q"), color=colour)
    panels = [
        alt.layer(
            band.properties(data=alt.Data(values=[one for one in values if one["context"] == context])),
            line.properties(data=alt.Data(values=[one for one in values if one["context"] == context])),
            rule.properties(data=alt.Data(values=[one for one in plain if one["context"] == context])),
        ).properties(width=PANEL_WIDTH, height=PANEL_HEIGHT, title=context)
        for context in dict.fromkeys(one["context"] for one in values)
    ]
    title = {
        "text": f"{prediction.draft} drafting for {prediction.target} on {prediction.engine}",
        "subtitle": "predicted decoding throughput, logarithmic; dashed: plain decoding; band: two standard errors",
    }
    return alt.hconcat(*panels).resolve_scale(y="shared").properties(title=title)


def step_split(prediction: Prediction) -> Any:
    """Where the time of a step goes, at each lookahead, batch size and context."""
    alt = altair()
    values = [
        {
            "lookahead": point.lookahead,
            "place": f"batch {point.batch}, {_context(point.context)}",
            "phase": phase,
            "order": order,
            "milliseconds": getattr(point, f"{phase}_ms"),
        }
        for point in prediction.points
        for order, phase in enumerate(PHASES)
    ]
    columns = len({point.batch for point in prediction.points})  # a row a context
    bars = (
        alt.Chart(alt.Data(values=values))
        .mark_bar()
        .encode(
            x=alt.X("lookahead:O", title="lookahead (tokens proposed per step)", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("milliseconds:Q", title="milliseconds per step"),
            color=alt.Color("phase:N", title="phase", sort=list(PHASES)),
            order="order:Q",
            tooltip=["phase:N", "lookahead:O", alt.Tooltip("milliseconds:Q", format=".2f")],
        )
        .properties(width=PANEL_WIDTH // 2 + 40, height=PANEL_HEIGHT)
        .facet(
            facet=alt.Facet("place:N", title=None, sort=list(dict.fromkeys(one["place"] for one in values))), columns=columns
        )
    )
    return bars.properties(title=f"where a step's time goes: {prediction.draft} for {prediction.target} on {prediction.engine}")


def break_even(prediction: Prediction) -> Any:
    """The tokens per step that each batch size needs to be as fast as plain decoding, and those the draft has."""
    alt = altair()
    needed: list[dict[str, Any]] = [
        {
            "lookahead": one.lookahead,
            "context": _context(one.context),
            "line": f"needed at batch {one.batch}",
            "tokens_per_step": one.parity_tokens_per_step,
        }
        for one in prediction.inverses
        if one.parity_tokens_per_step is not None
    ]
    contexts = list(dict.fromkeys(_context(point.context) for point in prediction.points))
    measured = {point.lookahead: point.tokens_per_step for point in prediction.points}
    fixed = [
        {"lookahead": k, "context": context, "line": line, "tokens_per_step": value}
        for context in contexts
        for k, tokens in measured.items()
        for line, value in (("this draft has", tokens), ("most there can be", k + 1.0))
    ]
    batches = [f"needed at batch {b}" for b in sorted({point.batch for point in prediction.points})]
    lines = ["this draft has", *batches, "most there can be"]
    dashes = [[1, 0], *([[1, 0]] * len(batches)), [2, 3]]
    top = 1.1 * max([*measured.values(), *(one["tokens_per_step"] for one in needed)])
    base = (
        alt.Chart()
        .mark_line(point=True, clip=True)
        .encode(
            x=lookahead_axis(alt, (point.lookahead for point in prediction.points)),
            y=alt.Y("tokens_per_step:Q", title="tokens per step", scale=alt.Scale(domain=[1, top])),
            color=alt.Color("line:N", title=None, sort=lines),
            strokeDash=alt.StrokeDash("line:N", legend=None, scale=alt.Scale(domain=lines, range=dashes)),
            strokeWidth=alt.condition(alt.datum.line == "this draft has", alt.value(3), alt.value(1.5)),
            tooltip=["line:N", "lookahead:Q", alt.Tooltip("tokens_per_step:Q", format=".2f")],
        )
    )
    panels = [
        base.properties(
            data=alt.Data(values=[one for one in [*fixed, *needed] if one["context"] == context]),
            width=PANEL_WIDTH,
            height=PANEL_HEIGHT,
            title=context,
        )
        for context in contexts
    ]
    title = {
        "text": f"what {prediction.draft} must reach on {prediction.engine}",
        "subtitle": "speculation pays where the draft's line is above the line of the batch size",
    }
    return alt.hconcat(*panels).resolve_scale(y="shared").properties(title=title)


def page_sections(prediction: Prediction) -> list[Section]:
    """What stands on the page of a prediction, from the answer to the evidence."""
    doubts = [Section("Take it with care", f"Why: {'; '.join(prediction.caveats)}.")] if prediction.caveats else []
    return [
        *doubts,
        Section(
            "How many tokens ahead",
            "The lookahead with the highest throughput; 0 means switched off, with the draft still loaded.",
            columns=("context", "batch size", "lookahead", "tokens/s", "switched off, tokens/s"),
            rows=[
                (
                    str(one.context or "any"),
                    str(one.batch),
                    str(one.lookahead),
                    _number(one.tokens_per_second),
                    _number(one.switched_off_tokens_per_second),
                )
                for one in prediction.schedule
            ],
        ),
        Section("Throughput against lookahead", chart=throughput(prediction)),
        Section("Whose time is it?", chart=step_split(prediction)),
        Section("What a draft must reach", chart=break_even(prediction)),
        Section(
            "Every point",
            columns=("context", "batch size", "lookahead", "tokens per step", "tokens/s", "against plain", "needed for parity"),
            rows=[
                (
                    str(point.context or "any"),
                    str(point.batch),
                    str(point.lookahead),
                    f"{point.tokens_per_step:.3f}",
                    _number(point.tokens_per_second),
                    f"{point.speedup:.2f} ± {2 * point.error * point.speedup:.2f} x",
                    _number(inverse.parity_tokens_per_step, "none: " + inverse.parity_tokens_per_step_reason),
                )
                for point, inverse in zip(prediction.points, prediction.inverses, strict=True)
            ],
        ),
    ]


def _context(context: int) -> str:
    return f"context {context}" if context else "any context"


def _number(value: float | None, otherwise: str = "-") -> str:
    return otherwise if value is None else f"{value:.2f}"
