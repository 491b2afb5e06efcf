"""A batch in time: rows finish at different steps, so what a batch takes is the sum over its steps of t(active rows, context).

Reads each row's steps, as replay gives them, and a StepTable; follows the engine's batching rule; writes tokens and seconds.
Decode only: a step in which some row is still being prefilled counts neither in time nor in tokens."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from draftsmith.core.errors import PredictionError
from draftsmith.core.protocols import Batching
from draftsmith.theory.throughput import StepTable

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class RowSteps:
    """One prompt: the tokens it has when its first step begins (with the one its prefill wrote, if the engine's does), and
    the tokens that each step emits."""

    first_context: int
    step_tokens: Ints


@dataclass(frozen=True)
class RowChances:
    """One prompt as a trace has it: tokens before its first step, tokens to emit, and the chances that proposals stand."""

    first_context: int
    num_tokens: int
    chances: np.ndarray


@dataclass(frozen=True)
class RealBatches:
    """Tokens per second by lookahead and batch size, of the target alone and with the draft loaded; the rows' mean context."""

    plain: dict[tuple[int, int], float]
    drafted: dict[tuple[int, int], float]
    mean_context: int


@dataclass(frozen=True)
class BatchRun:
    """What a run over many prompts would take."""

    tokens: int
    seconds: float
    steps: int

    @property
    def tokens_per_second(self) -> float:
        if not self.steps:
            raise PredictionError(
                "in every step of this trace some row is still being prefilled, so no step can be timed",
                "record longer outputs, or leave --trace out",
            )
        return self.tokens / self.seconds


@dataclass(frozen=True)
class _Moment:
    """One step of the engine: how many rows it decodes, over which context, at which lookahead, and what they emit."""

    rows: int
    context: float
    lookahead: int
    tokens: int
    counts: bool


def real_batches(
    rows: Iterable[RowChances],
    lookaheads: Sequence[int],
    batches: Sequence[int],
    plain: StepTable,
    table: StepTable,
    batching: Batching,
    max_new_tokens: int,
    draws: int,
) -> RealBatches:
    """Replay every row's steps at each lookahead through each batch size. Where chances lie between 0 and 1 steps are drawn at
    random, `draws` times, and the mean time counts. Rows are read once, and only their steps are kept."""
    rng = np.random.default_rng(0)
    steps: dict[int, list[list[RowSteps]]] = {k: [[] for _ in range(draws)] for k in (0, *lookaheads)}
    for row in rows:
        for k, drawn in steps.items():
            for kept in drawn:
                kept.append(RowSteps(row.first_context, row_steps(row.chances, row.num_tokens, k, rng)))

    def speed(lookahead: int, batch: int, times: StepTable) -> float:
        runs = [run_batches(drawn, lookahead, batch, times, batching, max_new_tokens) for drawn in steps[lookahead]]
        return len(runs) / sum(1.0 / one.tokens_per_second for one in runs)

    one_each = steps[0][0]  # without proposals a step is a token
    tokens = sum(len(row.step_tokens) for row in one_each)
    context = sum(len(row.step_tokens) * (row.first_context + len(row.step_tokens) / 2) for row in one_each) / tokens
    return RealBatches(
        plain={(0, batch): speed(0, batch, plain) for batch in batches},
        drafted={(k, batch): speed(k, batch, table) for k in steps for batch in batches},
        mean_context=round(context),
    )


def row_steps(chances: np.ndarray, num_tokens: int, lookahead: int, rng: np.random.Generator) -> Ints:
    """The steps of one row. `chances` as in `acceptance.replay`; where they are 0 or 1, as for greedy output, nothing is drawn
    at random: these are the steps that a live run takes."""
    sizes, position = [], 0
    draws = (
        rng.random(num_tokens + lookahead) if np.any((chances > 0) & (chances < 1)) else np.full(num_tokens + lookahead, 0.5)
    )
    while position < num_tokens:
        window = chances[position : position + lookahead] if chances.ndim == 1 else chances[position, :lookahead]
        stands = window > draws[position : position + len(window)]
        accepted = len(window) if stands.all() else int(np.argmin(stands))
        sizes.append(min(accepted + 1, num_tokens - position))
        position += sizes[-1]
    return np.array(sizes, dtype=np.int64)


def run_batches(
    rows: Sequence[RowSteps], lookahead: int, batch: int, table: StepTable, batching: Batching, max_new_tokens: int
) -> BatchRun:
    """Put the rows through an engine that decodes `batch` of them at a time."""
    if batching.admission == "static":
        walk = _static(rows, lookahead, batch, batching, max_new_tokens)
    else:
        walk = _continuous(rows, lookahead, batch, batching)
    moments = [one for one in walk if one.counts]
    if not moments:
        return BatchRun(0, 0.0, 0)
    rows_N, context_N, lookahead_N = (
        np.array([getattr(one, name) for one in moments]) for name in ("rows", "context", "lookahead")
    )
    seconds = float(table.step_ms(lookahead_N, rows_N, context_N).sum()) / 1000.0
    return BatchRun(sum(one.tokens for one in moments), seconds, len(moments))


def _static(rows: Sequence[RowSteps], lookahead: int, batch: int, batching: Batching, max_new_tokens: int) -> Iterator[_Moment]:
    """Batches of like prompt length, each decoded until its last row is done."""
    order = sorted(range(len(rows)), key=lambda i: rows[i].first_context)
    for low in range(0, len(order), batch):
        chosen = [rows[i] for i in order[low : low + batch]]
        most = max(len(row.step_tokens) for row in chosen)
        emitted_SR = np.zeros((most + 1, len(chosen)), dtype=np.int64)
        for at, row in enumerate(chosen):
            emitted_SR[1 : len(row.step_tokens) + 1, at] = row.step_tokens.cumsum()
        first_R = np.array([row.first_context for row in chosen])
        steps_R = np.array([len(row.step_tokens) for row in chosen])
        for step in range(most):
            active_R = steps_R > step
            before_R, after_R = emitted_SR[step][active_R], emitted_SR[step + 1][active_R]
            clipped = min(lookahead, max_new_tokens - int(before_R.min()) - 1) if batching.clips_lookahead else lookahead
            context = first_R[active_R] + before_R
            yield _Moment(
                rows=int(active_R.sum()),
                context=float(context.max() if batching.context == "longest" else context.mean()),
                lookahead=clipped,
                tokens=int((after_R - before_R).sum()),
                counts=True,
            )


def _continuous(rows: Sequence[RowSteps], lookahead: int, batch: int, batching: Batching) -> Iterator[_Moment]:
    """A row that ends makes room for the next one in the queue, whose prefill shares a step with the rows that go on."""
    assert not batching.clips_lookahead, "no engine that admits continuously clips"
    waiting = list(range(len(rows)))[::-1]
    running: list[list[int]] = []  # row, its step, tokens in its context
    while running or waiting:
        admitted: list[list[int]] = []
        while waiting and len(running) + len(admitted) < batch:
            row = waiting.pop()
            admitted.append([row, 0, rows[row].first_context])
        if running:
            sizes = [int(rows[row].step_tokens[step]) for row, step, _ in running]
            contexts = [context for _, _, context in running]
            context = max(contexts) if batching.context == "longest" else sum(contexts) / len(contexts)
            yield _Moment(len(running), context, lookahead, sum(sizes), counts=not admitted)
            for one, size in zip(running, sizes, strict=True):
                one[1], one[2] = one[1] + 1, one[2] + size
        running = [one for one in [*running, *admitted] if one[1] < len(rows[one[0]].step_tokens)]
