"""Every legal shape that can be cut from a source, ranked by the throughput it would give.

Reads a source's shape, a latency model, an acceptance law, and the steps of the target; writes arrays, a candidate a place. A
million candidates take a second or two: they are worked through in chunks, column by column, without a loop over shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from draftsmith.core.errors import PlanError
from draftsmith.core.families import HiddenRule
from draftsmith.core.records import LatencyModel
from draftsmith.core.shapes import DTYPE_BYTES, Shape
from draftsmith.theory.latency import Array, ShapeArrays, predict_ms
from draftsmith.theory.law import AcceptanceLaw
from draftsmith.theory.throughput import StepTable

_CHUNK = 1 << 18
_WIDTHS = ("heads", "kv_heads", "hidden", "intermediate")
_ROUND = 64  # neurons and hidden dimensions: what matrix units like; for large sources a multiple of it
_MOST = 4_000_000  # candidates, which fit in memory


@dataclass(frozen=True)
class Bounds:
    """What a draft may not exceed, and what it must be divided by."""

    most_parameters: int | None = None
    most_layers: int | None = None
    most_bytes: int | None = None
    tensor_parallel: int = 1


@dataclass(frozen=True)
class Traffic:
    """Where the draft will serve: the share of all tokens that is decoded at each batch size, at a context length."""

    shares: Mapping[int, float]
    context: int


@dataclass(frozen=True)
class Ranked:
    """Candidates with what is expected of them. `acceptance` is that of a step's first proposal; `error` is the relative
    standard deviation of the throughput; `tokens` is what each has learnt from."""

    shapes: ShapeArrays
    tokens_per_second: Array
    error: Array
    lookahead: Array
    tokens_per_step: Array
    acceptance: Array
    draft_ms: Array
    parameters: Array
    tokens: Array

    def shape(self, place: int, source: Shape) -> Shape:
        """One candidate as a shape that is cut from a source."""
        sizes = {name: getattr(self.shapes, name)[place].item() for name in ShapeArrays.__dataclass_fields__}
        rows = sizes.pop("vocabulary")
        return source.model_copy(update=sizes).with_rows(rows)


def legal_shapes(source: Shape, rule: HiddenRule, bounds: Bounds, dtype: str, rows: Sequence[int] = ()) -> ShapeArrays:
    """All shapes that can be cut from a source and that engines load. `rows` are the sizes of the output head to consider."""
    groups = _head_groups(source, bounds.tensor_parallel)
    deepest = min(source.layers, bounds.most_layers or source.layers)
    layers, kept = np.arange(1, deepest + 1), np.array(sorted({source.vocabulary, *rows}))
    step, most = _ROUND, _MOST / (len(layers) * len(groups) * len(kept))
    while len(_sizes(source.hidden, 1, step)) * len(_sizes(source.intermediate, 1, step)) > most and step < source.hidden:
        step *= 2
    hidden, neurons = _sizes(source.hidden, 1, step), _sizes(source.intermediate, bounds.tensor_parallel, step)
    grid = np.meshgrid(layers, np.arange(len(groups)), hidden, neurons, kept, indexing="ij")
    layers_N, group_N, hidden_N, neurons_N, kept_N = (axis.reshape(-1) for axis in grid)
    heads_N, kv_N = (np.array([one[at] for one in groups])[group_N] for at in (0, 1))
    legal = _loads(hidden_N, heads_N, source.head_size, rule)
    arrays = ShapeArrays(
        layers=layers_N, heads=heads_N, kv_heads=kv_N, head_size=np.full(len(layers_N), source.head_size), hidden=hidden_N,
        intermediate=neurons_N, vocabulary=kept_N, gated=np.full(len(layers_N), source.gated),
    )  # fmt: skip
    count = parameters(arrays, source)
    if bounds.most_parameters is not None:
        legal &= count <= bounds.most_parameters
    if bounds.most_bytes is not None:
        legal &= count * DTYPE_BYTES[dtype] <= bounds.most_bytes
    if not legal.any():
        raise PlanError("no shape that can be cut from this source keeps within the limits", "allow more parameters or memory")
    return arrays.at(legal)


def parameters(shapes: ShapeArrays, source: Shape) -> Array:
    """Weights of each shape. Fewer output rows are a head of its own beside embeddings of the whole vocabulary."""
    head = np.where((shapes.vocabulary == source.vocabulary) & source.tied, 0, shapes.head_weights)
    layers = shapes.layers * (shapes.attention_weights + shapes.mlp_weights)
    return layers + shapes.hidden * source.vocabulary + head


def rank(
    shapes: ShapeArrays,
    source: Shape,
    latency: LatencyModel,
    law: AcceptanceLaw,
    tokens: Array | float,
    steps: StepTable,
    traffic: Traffic,
    lookaheads: Sequence[int],
    coverage: Mapping[int, float] | None = None,
) -> Ranked:
    """What each shape would give at its best lookahead at each batch size, after `tokens` tokens of training, its own number or
    one for all. `coverage`: the share of proposals that a head of so many rows can make."""
    total = len(shapes.layers)
    tokens_N = np.broadcast_to(tokens, total)
    chunks = [slice(low, min(low + _CHUNK, total)) for low in range(0, total, _CHUNK)]
    parts = [
        _rank_chunk(
            shapes.at(chunk),
            source, latency, law, tokens_N[chunk], steps, traffic, tuple(lookaheads), coverage or {},
        )
        for chunk in chunks
    ]  # fmt: skip
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in Ranked.__dataclass_fields__
        if name != "shapes"
    }
    return Ranked(shapes, **joined)


def _rank_chunk(
    shapes: ShapeArrays,
    source: Shape,
    latency: LatencyModel,
    law: AcceptanceLaw,
    tokens_N: Array,
    steps: StepTable,
    traffic: Traffic,
    lookaheads: tuple[int, ...],
    coverage: Mapping[int, float],
) -> Ranked:
    count = len(shapes.layers)
    logit_N, std_N = law.logit(shapes, tokens_N)
    sizes, place_N = np.unique(shapes.vocabulary, return_inverse=True)
    coverage_N = np.array([coverage.get(int(size), 1.0) for size in sizes])[place_N]
    per_step_KN = law.tokens_per_step(logit_N, lookaheads, coverage_N)
    above_KN = law.tokens_per_step(logit_N + std_N, lookaheads, coverage_N)
    k_K1 = np.array(lookaheads, dtype=np.float64)[:, None]
    seconds_N, seconds_above_N = np.zeros(count), np.zeros(count)
    first: tuple[Array, Array] | None = None
    for batch, share in traffic.shares.items():
        new, context = np.full(count, float(batch)), np.full(count, float(batch * traffic.context))
        draft_N = predict_ms(latency, shapes, new, context)
        rest_K = steps.phase_ms("verify", np.array(lookaheads), batch, traffic.context)
        rest_K = rest_K + steps.phase_ms("overhead", np.array(lookaheads), batch, traffic.context)
        per_token_KN = (k_K1 * draft_N + rest_K[:, None]) / (1000.0 * batch)
        best_N = (per_token_KN / per_step_KN).argmin(axis=0)
        at = (best_N, np.arange(count))
        seconds_N += share * per_token_KN[at] / per_step_KN[at]
        seconds_above_N += share * per_token_KN[at] / above_KN[at]
        if first is None:
            first = best_N, draft_N
    assert first is not None, "traffic has a batch size"
    best_N, draft_N = first
    scale = sum(traffic.shares.values())
    return Ranked(
        shapes=shapes,
        tokens_per_second=scale / seconds_N,
        error=np.sqrt((seconds_N / seconds_above_N - 1.0) ** 2 + latency.unseen_error_rms**2 / 4),
        lookahead=np.array(lookaheads)[best_N],
        tokens_per_step=per_step_KN[best_N, np.arange(count)],
        acceptance=law.tokens_per_step(logit_N, (1,), coverage_N)[0] - 1.0,
        draft_ms=draft_N,
        parameters=parameters(shapes, source),
        tokens=tokens_N,
    )


def flops_per_token(shapes: ShapeArrays, source: Shape) -> Array:
    """Of training: six for every weight in a matrix product. A draft learns with its whole head; rows are cut afterwards."""
    return 6.0 * (shapes.layers * (shapes.attention_weights + shapes.mlp_weights) + shapes.hidden * source.vocabulary)


def pareto(ranked: Ranked) -> np.ndarray:
    """Places of candidates that no other beats in both draft time and acceptance, fastest first."""
    order = np.lexsort((-ranked.acceptance, ranked.draft_ms))
    best = np.maximum.accumulate(ranked.acceptance[order])
    better = np.concatenate([[True], ranked.acceptance[order][1:] > best[:-1]])
    return order[better]


def half_as_wide(source: Shape, rule: HiddenRule, layers: int, tensor_parallel: int = 1) -> Shape:
    """So many layers of about half the hidden dimensions, heads and neurons."""
    shapes = legal_shapes(source, rule, Bounds(tensor_parallel=tensor_parallel), "float32")
    off = [np.abs(np.log(2.0 * getattr(shapes, name) / getattr(source, name))) for name in _WIDTHS]
    return _at(shapes, np.where(shapes.layers == layers, sum(off), np.inf).argmin(), source)


def deep_equal(source: Shape, rule: HiddenRule, shallow: Shape, tensor_parallel: int = 1, times: int = 4) -> Shape | None:
    """A shape that is `times` as deep as a shallow one and has as many parameters within 3%, proportioned as the source is:
    what a shallow draft is to be measured against. None if there is none."""
    shapes = legal_shapes(source, rule, Bounds(tensor_parallel=tensor_parallel), "float32")
    apart = np.abs(parameters(shapes, source) / shallow.parameters - 1.0)
    fits = (shapes.layers >= times * shallow.layers) & (apart <= 0.03)
    if not fits.any():
        return None
    stretched = [
        np.abs(np.log(getattr(shapes, name) / shapes.hidden) - np.log(getattr(source, name) / source.hidden))
        for name in ("heads", "kv_heads", "intermediate")
    ]
    odd = np.where(fits, sum(stretched) + 10.0 * apart + 0.1 * (shapes.layers - times * shallow.layers), np.inf)
    return _at(shapes, odd.argmin(), source)


def _at(shapes: ShapeArrays, place: np.intp, source: Shape) -> Shape:
    """One candidate, with the source's whole vocabulary."""
    return source.model_copy(update={name: getattr(shapes, name)[place].item() for name in ("layers", *_WIDTHS)})


def _head_groups(source: Shape, ranks: int) -> list[tuple[int, int]]:
    """Heads and kv heads that can be kept together: every kv head serves as many, and no more than in the source."""
    most = source.heads // source.kv_heads
    pairs = [(kv * each, kv) for kv, each in product(range(1, source.kv_heads + 1), range(1, most + 1))]
    return [(heads, kv) for heads, kv in pairs if heads % ranks == 0 and (kv % ranks == 0 or ranks % kv == 0)]


def _sizes(largest: int, ranks: int, step: int) -> np.ndarray:
    """Round numbers up to the source's own size."""
    sizes = [size for size in range(step, largest + 1, step) if size % ranks == 0]
    return np.array(sorted({*sizes, largest}))


def _loads(hidden_N: np.ndarray, heads_N: np.ndarray, head_size: int, rule: HiddenRule) -> np.ndarray:
    if rule == "any":
        return np.ones(len(hidden_N), dtype=bool)
    return hidden_N % heads_N == 0 if rule == "multiple of heads" else hidden_N == heads_N * head_size
