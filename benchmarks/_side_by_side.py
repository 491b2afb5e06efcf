"""Drafts of equal parameters side by side, as the paper's Table 2: a table for the results page, and a picture."""

from typing import Any

from draftsmith.figures._style import altair

LOOKAHEAD = 3  # at which tokens per step are compared
_PANELS = {
    "draft ms": "milliseconds per proposed token",
    "tokens per step": f"tokens per step at lookahead {LOOKAHEAD}",
    "x plain": "predicted throughput, x plain decoding",
}


def table(drafts: list[dict[str, Any]]) -> list[list[str]]:
    """A head, and a row a draft."""
    rows = [_row(one) for one in drafts]
    return [list(rows[0]), *(list(row.values()) for row in rows)]


def _row(one: dict[str, Any]) -> dict[str, str]:
    shape, tokens = one["shape"], one["tokens_per_step"]
    return {
        "target": one["target"],
        "draft": one["draft"],
        "layers x hidden": f"{shape['layers']} x {shape['hidden']}",
        "M parameters": f"{one['parameters'] / 1e6:.1f}",
        "M tokens trained": f"{one['tokens_trained'] / 1e6:.2f}",
        **{f"tokens/step at {k}": f"{tokens[str(k)]:.3f}" for k in (1, LOOKAHEAD, 8)},
        **{f"{dataset} at {LOOKAHEAD}": f"{value:.2f}" for dataset, value in one["by_dataset"].items()},
        "draft ms/token": f"{one['draft_ms_per_token']:.1f}",
        "best lookahead": str(one["best_lookahead"]),
        "predicted x plain": f"{one['speedup']:.2f} ± {one['speedup'] * one['speedup_error']:.2f}",
    }


def picture(drafts: list[dict[str, Any]]) -> Any:
    """What a draft costs, what it is worth, and what comes of it: a row of panels a target."""
    alt = altair()
    values = [{"target": one["target"], "draft": _name(one), "kind": one["draft"], **_measured(one)} for one in drafts]
    colour = alt.Color("kind:N", legend=None, scale=alt.Scale(domain=["wide", "deep"], range=["#3b7dd8", "#9aa4b2"]))
    rows = []
    for target in dict.fromkeys(one["target"] for one in values):
        base = alt.Chart(alt.Data(values=[one for one in values if one["target"] == target]))
        panels = []
        for at, (name, title) in enumerate(_PANELS.items()):
            y = alt.Y("draft:N", title=None, sort=None, axis=alt.Axis(labelLimit=260) if at == 0 else None)
            x = alt.X(f"{name}:Q", title=title, scale=alt.Scale(zero=True))
            layers = [base.mark_bar().encode(x=x, y=y, color=colour)]
            if name != "draft ms":
                layers.append(base.mark_rule().encode(x=f"{name} low:Q", x2=f"{name} high:Q", y=y))
            if name == "x plain":
                plain = alt.Chart(alt.Data(values=[{name: 1.0}])).mark_rule(color="#d8613b", strokeWidth=2)
                layers.append(plain.encode(x=f"{name}:Q"))
            panels.append(alt.layer(*layers).properties(width=210, height=70))
        rows.append(alt.hconcat(*panels).resolve_scale(y="shared").properties(title=target))
    heading = {
        "text": "Shallow and wide against deep and thin, at equal parameters",
        "subtitle": "rules: two standard errors either way; red: plain decoding",
    }
    return alt.vconcat(*rows).properties(title=heading)


def _name(one: dict[str, Any]) -> str:
    return f"{one['draft']}: {one['shape']['layers']} layers x {one['shape']['hidden']}"


def _measured(one: dict[str, Any]) -> dict[str, float]:
    tokens, error = (one[name][str(LOOKAHEAD)] for name in ("tokens_per_step", "tokens_per_step_error"))
    speedup = one["speedup"]
    return {
        "draft ms": one["draft_ms_per_token"],
        "tokens per step": tokens,
        "tokens per step low": tokens - 2 * error,
        "tokens per step high": tokens + 2 * error,
        "x plain": speedup,
        "x plain low": speedup * (1 - 2 * one["speedup_error"]),
        "x plain high": speedup * (1 + 2 * one["speedup_error"]),
    }
