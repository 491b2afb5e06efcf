"""The paper's questions asked backwards: which tokens per step, or which draft latency, would give the throughput one wants?

Each answer is a number, or None and why there is none: a step emits at least one token and at most lookahead + 1."""

from dataclasses import dataclass

import numpy as np

from draftsmith.core.records import Inverse, ThroughputPoint
from draftsmith.theory.throughput import StepTable, throughput


@dataclass(frozen=True)
class Answer:
    """The value asked for, or None and why there is none."""

    value: float | None
    reason: str = ""


def required_tokens_per_step(wanted: float, step_ms: float, lookahead: int, batch: int = 1) -> Answer:
    """Tokens per step that give `wanted` tokens per second. A step emits at most lookahead + 1 tokens a row, and at least 1."""
    needed = wanted * step_ms / (1000.0 * batch)
    for end in (1.0, lookahead + 1.0):
        if np.isclose(needed, end, rtol=1e-12, atol=0):
            return Answer(end)
    if needed > lookahead + 1:
        return Answer(
            None, f"it would take {needed:.2f} tokens per step, and lookahead {lookahead} gives {lookahead + 1} at most"
        )
    if needed < 1:
        return Answer(None, f"even one token per step gives more: {throughput(1.0, step_ms, batch):.1f} tokens/s")
    return Answer(needed)


def parity_tokens_per_step(step_ms: float, lookahead: int, other_tokens_per_step: float, other_step_ms: float) -> Answer:
    """Tokens per step at which this draft is as fast as another one (plain decoding is 1 token in plain_ms)."""
    return required_tokens_per_step(1000.0 * other_tokens_per_step / other_step_ms, step_ms, lookahead)


def parity_draft_ms(tokens_per_step: float, wanted: float, verify_ms: float, overhead_ms: float, batch: int = 1) -> Answer:
    """How long the drafted run may take for `wanted` tokens per second (the paper's parity latency)."""
    allowed = 1000.0 * batch * max(tokens_per_step, 1.0) / wanted - verify_ms - overhead_ms
    if allowed < 0:
        return Answer(None, f"verification alone is {-allowed:.2f} ms too slow: not even a draft that costs nothing would do")
    return Answer(allowed)


def inverse(point: ThroughputPoint, plain: StepTable, table: StepTable, wanted: float | None) -> Inverse:
    """All three at one lookahead, batch size and context; parity is with plain decoding."""
    step = float(table.step_ms(point.lookahead, point.batch, point.context))
    baseline = float(plain.step_ms(0, point.batch, point.context))
    parity = parity_tokens_per_step(step, point.lookahead, 1.0, baseline)
    allowed = parity_draft_ms(point.tokens_per_step, 1000.0 / baseline, point.verify_ms, point.overhead_ms)
    required = Answer(None, "no throughput was wished for")
    if wanted is not None:
        required = required_tokens_per_step(wanted, step, point.lookahead, point.batch)
    return Inverse(
        lookahead=point.lookahead,
        batch=point.batch,
        context=point.context,
        parity_tokens_per_step=parity.value,
        parity_tokens_per_step_reason=parity.reason,
        parity_draft_ms=allowed.value,
        parity_draft_ms_reason=allowed.reason,
        wanted_tokens_per_second=wanted,
        required_tokens_per_step=required.value,
        required_tokens_per_step_reason=required.reason,
    )
