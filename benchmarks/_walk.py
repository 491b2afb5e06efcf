"""Greedy replay as a walk, step by step, to be laid beside a live run; and the rule by which a difference may be excused."""

from dataclasses import dataclass

import numpy as np

from draftsmith.core.protocols import DraftScore
from draftsmith.core.trace import TraceRow

GAP = 1e-4  # how close the two best logits must lie, in fp32, for a difference to be rounding


@dataclass(frozen=True)
class Excuse:
    """One prompt whose live run took another way, and how close the decision was."""

    prompt_id: str
    position: int
    where: str  # "target" if emitted tokens differ, "draft" if only a proposal does
    gap: float


def walk(hits: np.ndarray, n: int, lookahead: int, first: int) -> list[int]:
    """The tokens of each step from token `first` on, given which tokens the draft would have proposed."""
    position, steps = first, []
    while position < n:
        accepted = 0
        while accepted < lookahead and position + accepted < n - 1 and hits[position + accepted]:
            accepted += 1
        steps.append(accepted + 1)
        position += accepted + 1
    return steps


def compare(
    row: TraceRow,
    score: DraftScore,
    target_gaps: np.ndarray,
    live_ids: np.ndarray,
    live_steps: np.ndarray,
    lookahead: int,
    first: int,
) -> Excuse | None:
    """None where replay and live agree in every step; else the first difference."""
    written = row.output_ids[: row.num_output]
    shared = min(len(written), len(live_ids))
    apart = np.flatnonzero(written[:shared] != live_ids[:shared])
    if len(apart) or len(written) != len(live_ids):
        at = int(apart[0]) if len(apart) else shared
        gap = float(target_gaps[at]) if at < len(target_gaps) else float("inf")
        return Excuse(row.prompt_id, at, "target", gap)
    steps = walk(score.argmax_ids == row.output_ids, row.num_output, lookahead, first)
    if steps == live_steps.tolist():
        return None
    position = first
    for mine, theirs in zip(steps, live_steps.tolist(), strict=False):
        if mine != theirs:
            position += min(mine, theirs) - 1
            break
        position += mine
    return Excuse(row.prompt_id, position, "draft", float(score.top_gaps[position]))
