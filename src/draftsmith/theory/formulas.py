"""The formulas that people know, beside ours: the paper's, and Leviathan's with one acceptance for every token.

Reads tokens per step by lookahead and StepTables; writes FormulaPoints. All are for batch 1, and decode only."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from draftsmith.core.records import FormulaPoint
from draftsmith.theory.throughput import StepTable, throughput


def leviathan_tokens_per_step(acceptance: Any, lookahead: Any) -> Any:
    """Tokens per step if every token were accepted with the same chance, independently (Leviathan et al. 2023, eq. 1)."""
    acceptance, lookahead = np.broadcast_arrays(np.asarray(acceptance, dtype=np.float64), lookahead)
    certain = acceptance >= 1.0
    safe = np.where(certain, 0.0, acceptance)
    return np.where(certain, lookahead + 1.0, (1.0 - safe ** (lookahead + 1)) / (1.0 - safe))


def leviathan_throughput(acceptance: Any, lookahead: Any, plain_ms: Any, draft_ms: Any) -> Any:
    """Their walltime formula: verification costs what a plain step costs, and there is no overhead. `draft_ms` per token."""
    cost = np.asarray(draft_ms) / plain_ms
    return 1000.0 / plain_ms * leviathan_tokens_per_step(acceptance, lookahead) / (lookahead * cost + 1.0)


def paper_throughput(tokens_per_step: Any, verify_ms: Any, draft_ms: Any) -> Any:
    """The paper's formula. `draft_ms` is the whole drafted run."""
    return 1000.0 * np.maximum(tokens_per_step, 1.0) / (verify_ms + draft_ms)


def leviathan_acceptance(tokens_per_step: float, lookahead: int) -> float:
    """The one acceptance that gives these tokens per step, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if float(leviathan_tokens_per_step(middle, lookahead)) < tokens_per_step:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def compare_formulas(tokens_per_step: Mapping[int, float], plain: StepTable, table: StepTable) -> tuple[FormulaPoint, ...]:
    """Each formula's tokens per second at batch 1 and the shortest context, if batch 1 was timed. Leviathan's single acceptance
    is the one that gives the first lookahead's tokens per step."""
    if plain.batches[0] != 1 or table.batches[0] != 1:
        return ()
    context, first = table.contexts[0], min(tokens_per_step)
    acceptance, baseline = leviathan_acceptance(tokens_per_step[first], first), float(plain.step_ms(0, 1, context))
    points = []
    for k, tokens in tokens_per_step.items():
        draft, verify = (float(table.phase_ms(name, k, 1, context)) for name in ("draft", "verify"))
        points.append(
            FormulaPoint(
                lookahead=k,
                ours=float(throughput(tokens, table.step_ms(k, 1, context))),
                paper=float(paper_throughput(tokens, verify, draft)),
                leviathan=float(leviathan_throughput(acceptance, k, baseline, draft / k)),
            )
        )
    return tuple(points)
