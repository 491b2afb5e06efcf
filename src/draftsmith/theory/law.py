"""What acceptance a shape would reach, from a few shapes that were trained a little: a law with its uncertainty.

Reads probes: shapes, the tokens they were trained on, and their conditional acceptance by position. The first proposal's is

    logit c_1 = b_0 + b_layers log2(layers / L) + b_hidden log2(hidden / H) + ... + b_tokens log2(tokens / T) + noise

over sizes relative to the source's, because acceptance saturates at one and every doubling brings less. The slopes have priors
(more of anything helps), so that one probe is enough to say something and every further one says it surer: Bayesian linear
regression, in closed form. Later proposals are accepted more often than the first, given that they are looked at: text that was
easy so far stays easy. How much more is taken from the probes, position by position."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftsmith.core.errors import PredictionError
from draftsmith.core.shapes import Shape
from draftsmith.theory.latency import Array, ShapeArrays, shape_arrays

_SIZES = ("layers", "hidden", "intermediate", "heads")
SLOPES = ("constant", *_SIZES, "tokens")
_PRIOR_MEAN = np.array([0.0, 0.35, 0.35, 0.15, 0.10, 0.30])  # of a half-way draft, then a doubling of each size and of tokens
_PRIOR_STD = np.array([2.0, 0.30, 0.30, 0.15, 0.15, 0.20])
_NOISE = 0.10  # in logits: what two trainings of like shapes differ by
_CERTAIN = 1e-3
_ENOUGH = 30  # proposals looked at, for a rate to be one


@dataclass(frozen=True)
class Probe:
    """A shape that was trained and replayed. `conditional`: the m-th proposal's acceptance, given that it was looked at, and
    `looked_at` how often that was."""

    shape: Shape
    tokens: float
    conditional: tuple[float, ...]
    looked_at: tuple[float, ...]


@dataclass(frozen=True)
class AcceptanceLaw:
    """Fitted to probes. `rises` are added to the first proposal's logit at each position."""

    source: Shape
    reference_tokens: float
    mean: Array
    covariance: Array
    rises: Array

    def logit(self, shapes: ShapeArrays, tokens: Array | float) -> tuple[Array, Array]:
        """Of the first proposal's acceptance after training on so many tokens, each shape on its own number of them or all on
        one: the expected one, and its standard deviation."""
        rows = _features(shapes, np.broadcast_to(tokens, len(shapes.layers)), self.source, self.reference_tokens)
        variance = np.einsum("nf,fg,ng->n", rows, self.covariance, rows) + _NOISE**2
        return rows @ self.mean, np.sqrt(variance)

    def tokens_per_step(self, logit_N: Array, lookaheads: Sequence[int], coverage_N: Array | float = 1.0) -> Array:
        """[K, N]: one, and the chance of every proposal that it and all before it are accepted. `coverage` is the share of the
        target's tokens that a draft with fewer output rows can propose at all."""
        widest = max(lookaheads)
        run_N, total_N = np.ones_like(logit_N), np.ones_like(logit_N)
        found = np.empty((len(lookaheads), len(logit_N)))
        for m in range(1, widest + 1):
            rise = self.rises[min(m, len(self.rises)) - 1]
            run_N = run_N * coverage_N / (1.0 + np.exp(-(logit_N + rise)))
            total_N = total_N + run_N
            if m in lookaheads:
                found[list(lookaheads).index(m)] = total_N
        return found


def fit_law(source: Shape, probes: Sequence[Probe]) -> AcceptanceLaw:
    """The posterior given the probes."""
    if not probes:
        raise PredictionError("nothing is known of acceptance", "train and evaluate one shape at least, and give it as a probe")
    reference = float(np.exp(np.mean([np.log(max(probe.tokens, 1.0)) for probe in probes])))
    arrays = shape_arrays([probe.shape for probe in probes])
    rows = _features(arrays, np.array([max(probe.tokens, 1.0) for probe in probes]), source, reference)
    logits = [_logit(np.array(probe.conditional)) for probe in probes]
    seen = np.array([one[0] for one in logits])
    precision = np.diag(_PRIOR_STD**-2.0)
    covariance = np.asarray(np.linalg.inv(precision + rows.T @ rows / _NOISE**2), dtype=np.float64)
    mean = covariance @ (precision @ _PRIOR_MEAN + rows.T @ seen / _NOISE**2)
    return AcceptanceLaw(source, reference, mean, covariance, _rises(probes, logits))


def _rises(probes: Sequence[Probe], logits: Sequence[Array]) -> Array:
    """How much more than the first each later proposal is accepted, over all probes by how often it was looked at. Where that
    was seldom, the last position that is known stands for those behind it."""
    shortest = min(len(one) for one in logits)
    rise_PM = np.stack([one[:shortest] - one[0] for one in logits])
    count_PM = np.stack([np.array(probe.looked_at[:shortest]) for probe in probes])
    rises = (rise_PM * count_PM).sum(axis=0) / np.maximum(count_PM.sum(axis=0), 1e-9)
    for m in range(1, shortest):
        if count_PM[:, m].sum() < _ENOUGH:
            rises[m] = rises[m - 1]
    return rises


def _features(shapes: ShapeArrays, tokens: Array, source: Shape, reference: float) -> Array:
    sizes = [np.log2(getattr(shapes, name) / getattr(source, name)) for name in _SIZES]
    return np.stack([np.ones(len(tokens)), *sizes, np.log2(tokens / reference)], axis=1)


def _logit(chance: Array) -> Array:
    safe = np.clip(chance, _CERTAIN, 1.0 - _CERTAIN)
    return np.log(safe / (1.0 - safe))
