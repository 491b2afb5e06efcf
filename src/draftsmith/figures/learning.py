"""What a run has learnt: tokens per step on held-out output against training tokens, and the loss beside it."""

from collections.abc import Mapping
from typing import Any

from draftsmith.core.records import DistilledCheckpoint
from draftsmith.figures._style import PANEL_HEIGHT, PANEL_WIDTH, altair


def learning(runs: Mapping[str, DistilledCheckpoint]) -> Any:
    """One colour a run, by the name it is given. Losses of different kinds are numbers of different kinds: they are only drawn
    where all runs have the same."""
    alt = altair()
    points = [{"run": name, **point.model_dump()} for name, run in runs.items() for point in run.curve]
    lookahead = next(iter(runs.values())).lookahead
    tokens = alt.X("tokens:Q", title="training tokens", axis=alt.Axis(format="~s"))
    colour = alt.Color("run:N", title=None, sort=list(runs), legend=None if len(runs) == 1 else alt.Legend())
    panels = []
    if measured := [point for point in points if point["tokens_per_step"] is not None]:
        title = f"tokens per step, held out, lookahead {lookahead}"
        line = alt.Chart(alt.Data(values=measured)).mark_line(point=True)
        panels.append(
            line.encode(x=tokens, y=alt.Y("tokens_per_step:Q", title=title, scale=alt.Scale(zero=False)), color=colour)
        )
    if len({run.loss for run in runs.values()}) == 1:
        name = next(iter(runs.values())).loss.replace("_", " ")
        line = alt.Chart(alt.Data(values=points)).mark_line()
        panels.append(line.encode(x=tokens, y=alt.Y("loss:Q", title=name, scale=alt.Scale(zero=False)), color=colour))
    return alt.hconcat(*(panel.properties(width=PANEL_WIDTH, height=PANEL_HEIGHT) for panel in panels)).properties(
        title=", ".join(dict.fromkeys(run.student for run in runs.values())) + " learns"
    )
