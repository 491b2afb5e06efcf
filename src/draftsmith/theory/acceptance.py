"""From acceptance chances to steps, for every lookahead at once. Derivation and proof: docs/explanation/acceptance.md.

Reads, for each output token of each prompt, the chance that it came from the draft; writes sums that add up over prompts
and shards, and the curve they give. Notation, used only here: k the lookahead, j a step's start, n the output's length,
Q_m(j) the chance that the first m proposals from j are accepted, f(j) the chance that a step starts at j, S(j) the
expected steps from j to the end. In any case

    steps = sum f(j) = S(0)          E[steps^2] = sum f(j) (2 S(j) - 1)

A draft that is asked token by token has Q_m(j) = a_j a_{j+1} ... a_{j+m-1}, and then, with S(n) = 0,

    f(i+1)        = 1 - a_i + Q_{k+1}(i-k) f(i-k)                 a step starts after a rejection or after a bonus token
    S(j) - S(j+1) = 1 - a_j + Q_{k+1}(j) (S(j+k+1) - S(j+k+2))    and 1 at j = n-1

so a lookahead costs O(1) per token, and the matrix of chances is never made. Array shapes below: J positions, R prompts
(rows), K lookaheads, M positions within a proposal; arrays are position-major and rows end together, at J."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from draftsmith.core.protocols import DraftScore
from draftsmith.core.records import AcceptanceCurve, AcceptancePoint
from draftsmith.core.sampling import DraftMethod
from draftsmith.core.trace import TraceRow

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Chances = Sequence[np.ndarray[tuple[int, ...], np.dtype[np.floating]]]

_CHUNK_TOKENS = 1 << 16  # keeps a chunk's arrays, about 80 doubles a token, near the processor


@dataclass(frozen=True)
class AcceptanceSums:
    """What a set of prompts adds up to, so that shards and machines can be summed. Arrays are [K] or [K, M].

    `proposed[k, m]` counts steps that looked at their m-th proposal (all before it were accepted) and `accepted[k, m]`
    those that accepted it, with the lookahead clipped to min(k, n-j-1): so accepted tokens are emitted ones, and every step
    emits one more than it accepts. `engine_accepted` does not clip, as vLLM does not: it needs a trace with a tail."""

    lookaheads: tuple[int, ...]
    num_prompts: int
    tokens: float
    tokens_squared: float
    steps_K: Array
    steps_squared_K: Array
    steps_times_tokens_K: Array
    steps_variance_K: Array
    proposed_KM: Array
    accepted_KM: Array
    engine_accepted_KM: Array
    has_tail: bool

    @classmethod
    def empty(cls, lookaheads: Sequence[int], has_tail: bool) -> Self:
        K, M = len(lookaheads), _widest(lookaheads)
        return cls(
            lookaheads=tuple(lookaheads),
            num_prompts=0,
            tokens=0.0,
            tokens_squared=0.0,
            steps_K=np.zeros(K),
            steps_squared_K=np.zeros(K),
            steps_times_tokens_K=np.zeros(K),
            steps_variance_K=np.zeros(K),
            proposed_KM=np.zeros((K, M)),
            accepted_KM=np.zeros((K, M)),
            engine_accepted_KM=np.zeros((K, M)),
            has_tail=has_tail,
        )

    def __add__(self, other: Self) -> Self:
        assert self.lookaheads == other.lookaheads, "sums over different lookaheads do not add up"
        added = {one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)}
        return type(self)(**{**added, "lookaheads": self.lookaheads, "has_tail": self.has_tail and other.has_tail})


@dataclass(frozen=True)
class Replay:
    """Each prompt's expected steps and their exact variance given its tokens, [prompts, K]; and the sums over prompts."""

    steps: Array
    variance: Array
    sums: AcceptanceSums


def acceptance_chances(
    emitted: np.ndarray, proposed: np.ndarray, log_p: np.ndarray, log_q: np.ndarray, method: DraftMethod
) -> Array:
    """a_i: the chance that an emitted token came from the draft, given that it was emitted.

    A draft that proposes its argmax is certain of it, so an emitted token came from it exactly if it is that token. A draft
    that samples from q had its token x accepted with chance min(1, p(x)/q(x)), so min(p, q) / p of the x's are its own."""
    if method == "greedy":
        return (proposed == emitted).astype(np.float64)
    return np.exp(np.minimum(log_q.astype(np.float64) - log_p.astype(np.float64), 0.0))


def row_chances(row: TraceRow, score: DraftScore, method: DraftMethod) -> Array:
    """The same for a recorded row and a draft's scores of it."""
    return acceptance_chances(row.output_ids, score.argmax_ids, row.logprobs, score.logprobs, method)


def replay(chances: Chances, lengths: Sequence[int], lookaheads: Sequence[int], has_tail: bool | None = None) -> Replay:
    """Replay prompts against a draft.

    `chances[i]` belongs to prompt i, from the first drafted token on; `lengths[i]` is that prompt's n, counted from there.
    One dimension: a_j, for a draft asked token by token (tail included). Two dimensions: entry [j, m] is the chance that
    the m-th proposal of a step from j is accepted, given that those before it were: any other kind of proposer. Whether the
    chances reach past the end, as an engine's raw counters do, shows in the first form and must be said in the second."""
    autoregressive = all(one.ndim == 1 for one in chances)
    widest = _widest(lookaheads)
    if has_tail is None:
        has_tail = all(one.ndim == 1 and len(one) >= n + widest - 1 for one, n in zip(chances, lengths, strict=True))
    steps, variance = np.zeros((len(lengths), len(lookaheads))), np.zeros((len(lengths), len(lookaheads)))
    total = AcceptanceSums.empty(lookaheads, has_tail)
    for chunk in _chunks_of_like_length(lengths):
        span = lengths[chunk[-1]]
        starts_R = np.array([span - lengths[i] for i in chunk])
        runs_MJR = _runs([chances[i] for i in chunk], starts_R, span, widest)
        steps[chunk], variance[chunk], part = _replay_chunk(runs_MJR, starts_R, lookaheads, autoregressive, has_tail)
        total = total + part
    return Replay(steps, variance, total)


def curve(sums: AcceptanceSums) -> AcceptanceCurve:
    """The figures people ask for. Over prompts, tokens per step is a ratio of sums, never a mean of ratios."""
    points = []
    for at, k in enumerate(sums.lookaheads):
        steps = float(sums.steps_K[at])
        ratio = sums.tokens / steps
        accepted, proposed = sums.accepted_KM[at, :k], sums.proposed_KM[at, :k]
        points.append(
            AcceptancePoint(
                lookahead=k,
                steps=steps,
                steps_std=float(np.sqrt(sums.steps_variance_K[at])),
                tokens_per_step=ratio,
                tokens_per_step_error=_ratio_error(sums, at, ratio),
                accepted_per_step=float(accepted.sum()) / steps,
                acceptance_by_position=tuple((accepted / steps).tolist()),
                conditional_acceptance_by_position=tuple(
                    np.divide(accepted, proposed, out=np.zeros(k), where=proposed > 0).tolist()
                ),
                engine_accepted_by_position=tuple(sums.engine_accepted_KM[at, :k].tolist()) if sums.has_tail else None,
            )
        )
    return AcceptanceCurve(num_prompts=sums.num_prompts, num_tokens=round(sums.tokens), points=tuple(points))


def _widest(lookaheads: Sequence[int]) -> int:
    return max(1, *lookaheads)


def _ratio_error(sums: AcceptanceSums, at: int, ratio: float) -> float | None:
    """Standard error of sum n / sum S over prompts (the usual linearisation of a ratio of means)."""
    if sums.num_prompts < 2:
        return None
    squares = sums.tokens_squared - 2 * ratio * sums.steps_times_tokens_K[at] + ratio**2 * sums.steps_squared_K[at]
    count = sums.num_prompts
    return float(np.sqrt(max(squares, 0.0) * count / (count - 1)) / sums.steps_K[at])


def _chunks_of_like_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Prompts in groups of about equal length, shortest first, so that aligning them wastes little."""
    chunk: list[int] = []
    for i in sorted((i for i, n in enumerate(lengths) if n > 0), key=lambda i: lengths[i]):
        if chunk and (len(chunk) + 1) * lengths[i] > _CHUNK_TOKENS:
            yield chunk
            chunk = []
        chunk.append(i)
    if chunk:
        yield chunk


def _runs(chances: Chances, starts_R: np.ndarray, span: int, widest: int) -> Array:
    """Q_m(j) for m up to widest + 1. Before a row's start all chances are zero: each such position makes one step of its
    own, so a step starts at the row's start for certain, and no run reaches into the row from outside."""
    runs = np.empty((widest + 2, span, len(chances)))
    runs[0] = 1.0
    if chances[0].ndim == 1:
        a_JR = np.zeros((span + widest + 1, len(chances)))
        for row, (one, start) in enumerate(zip(chances, starts_R, strict=True)):
            kept = one[: span + widest + 1 - start]
            a_JR[start : start + len(kept), row] = kept
        for m in range(widest + 1):
            np.multiply(runs[m], a_JR[m : m + span], out=runs[m + 1])
        return runs
    runs[1:] = 0.0
    for row, (one, start) in enumerate(zip(chances, starts_R, strict=True)):
        runs[1 : widest + 1, start:, row] = np.cumprod(one[: span - start, :widest], axis=1).T
    return runs


def _replay_chunk(
    runs_MJR: Array, starts_R: np.ndarray, lookaheads: Sequence[int], autoregressive: bool, has_tail: bool
) -> tuple[Array, Array, AcceptanceSums]:
    _, span, rows = runs_MJR.shape
    num, widest = len(lookaheads), _widest(lookaheads)
    position_J1 = np.arange(span)[:, None]
    inside_JR = position_J1 >= starts_R
    starts_at_KJR = np.empty((num, span, rows))
    variance_RK = np.empty((rows, num))
    for at, k in enumerate(lookaheads):
        solve = _solve_autoregressive if autoregressive else _solve_general
        f_JR, remaining_JR = solve(runs_MJR, k)
        np.multiply(f_JR, inside_JR, out=starts_at_KJR[at])
        second_R = np.einsum("jr,jr->r", starts_at_KJR[at], 2.0 * remaining_JR - 1.0)
        variance_RK[:, at] = second_R - starts_at_KJR[at].sum(axis=0) ** 2
    np.maximum(variance_RK, 0.0, out=variance_RK)
    steps_RK = starts_at_KJR.sum(axis=1).T
    n_R = (span - starts_R).astype(np.float64)

    flat_KN = starts_at_KJR.reshape(num, -1)
    fits_MJ1 = position_J1 + np.arange(widest)[:, None, None] < span - 1  # a proposal and a token after it remain
    within_KM = np.arange(widest) < np.array(lookaheads)[:, None]

    def expected_KM(chance_MJR: Array) -> Array:
        return np.where(within_KM, flat_KN @ chance_MJR.reshape(widest, -1).T, 0.0)

    sums = AcceptanceSums(
        lookaheads=tuple(lookaheads),
        num_prompts=rows,
        tokens=float(n_R.sum()),
        tokens_squared=float((n_R**2).sum()),
        steps_K=steps_RK.sum(axis=0),
        steps_squared_K=(steps_RK**2).sum(axis=0),
        steps_times_tokens_K=n_R @ steps_RK,
        steps_variance_K=variance_RK.sum(axis=0),
        proposed_KM=expected_KM(runs_MJR[:widest] * fits_MJ1),
        accepted_KM=expected_KM(runs_MJR[1 : widest + 1] * fits_MJ1),
        engine_accepted_KM=expected_KM(runs_MJR[1 : widest + 1]),
        has_tail=has_tail,
    )
    return steps_RK, variance_RK, sums


def _solve_autoregressive(runs_MJR: Array, k: int) -> tuple[Array, Array]:
    """f and S of the recurrences above. They reach k+1 positions back, so k+1 positions are solved at a time."""
    span, width = runs_MJR.shape[1], k + 1
    run_JR = runs_MJR[width]
    drop_JR = 1.0 - runs_MJR[1]
    f_JR = np.empty_like(run_JR)
    f_JR[0] = 1.0
    f_JR[1:] = drop_JR[:-1]
    for low in range(width, span, width):
        high = min(low + width, span)
        f_JR[low:high] += run_JR[low - width : high - width] * f_JR[low - width : high - width]
    drop_JR[-1] = 1.0
    for high in range(span - width, 0, -width):
        low = max(high - width, 0)
        drop_JR[low:high] += run_JR[low:high] * drop_JR[low + width : high + width]
    return f_JR, np.cumsum(drop_JR[::-1], axis=0)[::-1]


def _solve_general(runs_MJR: Array, k: int) -> tuple[Array, Array]:
    """f and S by their definitions: from j a step advances m+1 with the chance that exactly m proposals are accepted."""
    _, span, rows = runs_MJR.shape
    advance_MJR = runs_MJR[: k + 1].copy()
    advance_MJR[:k] -= runs_MJR[1 : k + 1]
    f_JR = np.zeros((span + k + 1, rows))
    f_JR[0] = 1.0
    for j in range(span):
        f_JR[j + 1 : j + k + 2] += advance_MJR[:, j] * f_JR[j]
    remaining_JR = np.zeros((span + k + 1, rows))
    for j in reversed(range(span)):
        remaining_JR[j] = 1.0 + np.einsum("mr,mr->r", advance_MJR[:, j], remaining_JR[j + 1 : j + k + 2])
    return f_JR[:span], remaining_JR[:span]
