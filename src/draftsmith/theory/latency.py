"""The time of one forward pass from a model's shape: a small physical model, fitted to a dozen measured shapes.

    time = fixed + per layer + weight bytes / bandwidth of the cache + flops / peak + KV bytes / bandwidth
         + (layer bytes + head bytes that are not in the cache) / bandwidth of the memory

A small draft's weights stay in a cache from one step to the next, a large one's do not: see `in_cache`. The size of that cache
is fitted too, and is 0 unless the measurements call for one. Every term is a time, so no coefficient is negative (non-negative
least squares). Relative errors are what counts, so each measurement is weighed by its own size. Depth, width, vocabulary and kv
heads have terms of their own: see `TERMS`. Reads shapes and their measured times; writes a LatencyModel, which knows how far it
was off on shapes it had not seen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftsmith.core.errors import PredictionError
from draftsmith.core.records import LatencyModel
from draftsmith.core.shapes import DTYPE_BYTES, Shape

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

TERMS = ("fixed", "layers", "layer_width", "attention_bytes", "mlp_bytes", "head_bytes", "cache_bytes", "flops", "kv_bytes")
_CACHES_GB = tuple(2.0 ** (half / 2) for half in range(-18, 1))  # 2 MB to 1 GB


@dataclass(frozen=True)
class Pass:
    """One measured forward pass: `tokens` new tokens in all, over `kv_tokens` tokens of context in all (rows x length)."""

    shape: Shape
    tokens: int
    kv_tokens: int
    milliseconds: float


def features(
    shapes: "ShapeArrays", tokens: np.ndarray, kv_tokens: np.ndarray, dtype_bytes: int, cache_gb: float = 0.0
) -> Array:
    """A column for each of `TERMS`, in units that keep the columns of like size (layers, GB, Tflop)."""
    attention, mlp, head = shapes.layers * shapes.attention_weights, shapes.layers * shapes.mlp_weights, shapes.head_weights
    weights_gb = (attention + mlp + head) * dtype_bytes / 1e9
    missed_gb = (1.0 - in_cache(weights_gb, cache_gb)) * dtype_bytes / 1e9
    columns = (
        np.ones(len(tokens)),
        shapes.layers * 1.0,
        shapes.layers * shapes.hidden * tokens / 1e4,
        attention * missed_gb,
        mlp * missed_gb,
        head * missed_gb,
        weights_gb * (cache_gb > 0),
        2.0 * tokens * (attention + mlp + head) / 1e12,
        2.0 * shapes.layers * shapes.kv_heads * shapes.head_size * kv_tokens * dtype_bytes / 1e9,
    )
    return np.stack(columns, axis=1)


def in_cache(weights_gb: Array, cache_gb: float) -> Array:
    """Which share of a model's weights the last step left in the cache. Every step reads all of them in the same order, so
    weights that do not fit push each other out: nothing is left of those twice as large as the cache."""
    return np.clip(2.0 - weights_gb / cache_gb, 0.0, 1.0) if cache_gb > 0 else np.zeros_like(weights_gb)


@dataclass(frozen=True)
class ShapeArrays:
    """Many shapes, a column each."""

    layers: np.ndarray
    heads: np.ndarray
    kv_heads: np.ndarray
    head_size: np.ndarray
    hidden: np.ndarray
    intermediate: np.ndarray
    vocabulary: np.ndarray
    gated: np.ndarray

    @property
    def attention_weights(self) -> Array:
        """Of one layer."""
        return 2.0 * self.hidden * self.head_size * (self.heads + self.kv_heads)

    @property
    def mlp_weights(self) -> Array:
        """Of one layer."""
        return np.where(self.gated, 3.0, 2.0) * self.hidden * self.intermediate

    @property
    def head_weights(self) -> np.ndarray:
        return self.hidden * self.vocabulary

    def at(self, places: Any) -> "ShapeArrays":
        """Some of them: a slice, numbers, or a mask."""
        return ShapeArrays(**{name: getattr(self, name)[places] for name in ShapeArrays.__dataclass_fields__})


def shape_arrays(shapes: Sequence[Shape]) -> ShapeArrays:
    names = list(ShapeArrays.__dataclass_fields__)
    return ShapeArrays(**{name: np.array([getattr(shape, name) for shape in shapes]) for name in names})


def fit(passes: Sequence[Pass], dtype: str) -> LatencyModel:
    """Fit the model, and leave out each shape in turn to see how far off it is on shapes it has not seen."""
    names = sorted({_name(one.shape) for one in passes})
    if len(names) < 4:
        raise PredictionError(
            f"a latency model needs at least 4 different shapes, there are {len(names)}",
            "profile more shapes: vary the depth, the width and the vocabulary",
        )
    arrays = shape_arrays([one.shape for one in passes])
    tokens, kv_tokens = (np.array([getattr(one, name) for one in passes], dtype=np.float64) for name in ("tokens", "kv_tokens"))
    by_cache = {cache: features(arrays, tokens, kv_tokens, DTYPE_BYTES[dtype], cache) for cache in (0.0, *_CACHES_GB)}
    times = np.array([one.milliseconds for one in passes])
    of = np.array([names.index(_name(one.shape)) for one in passes])
    errors = np.empty(len(times))
    for left_out in range(len(names)):
        seen, unseen = of != left_out, of == left_out
        cache, coefficients = _best({cache: rows[seen] for cache, rows in by_cache.items()}, times[seen])
        errors[unseen] = by_cache[cache][unseen] @ coefficients / times[unseen] - 1.0
    cache, coefficients = _best(by_cache, times)
    return LatencyModel(
        dtype=dtype,
        coefficients=dict(zip(TERMS, coefficients.tolist(), strict=True)),
        cache_gb=cache,
        most_tokens=max(one.tokens for one in passes),
        num_shapes=len(names),
        unseen_error_median=float(np.median(np.abs(errors))),
        unseen_error_worst=float(np.abs(errors).max()),
        unseen_error_rms=float(np.sqrt(np.mean(errors**2))),
    )


def predict_ms(model: LatencyModel, shapes: ShapeArrays, tokens: np.ndarray, kv_tokens: np.ndarray) -> Array:
    """Milliseconds of one forward pass of each shape: vectorised, a million in a second."""
    if len(tokens) and tokens.max() > model.most_tokens:
        raise PredictionError(
            f"the latency model was fitted to passes of up to {model.most_tokens} tokens, not {tokens.max():g}",
            "profile the shapes at that batch size too",
        )
    coefficients = np.array([model.coefficients[name] for name in TERMS])
    return features(shapes, tokens, kv_tokens, DTYPE_BYTES[model.dtype], model.cache_gb) @ coefficients


def terms_ms(model: LatencyModel, shape: Shape, tokens: int = 1, kv_tokens: int = 0) -> dict[str, float]:
    """Where one shape's time goes."""
    new, old = np.array([float(tokens)]), np.array([float(kv_tokens)])
    row = features(shape_arrays([shape]), new, old, DTYPE_BYTES[model.dtype], model.cache_gb)[0]
    return {name: float(value * model.coefficients[name]) for name, value in zip(TERMS, row, strict=True)}


def _name(shape: Shape) -> str:
    return shape.model_dump_json()


def _best(by_cache: dict[float, Array], times: Array) -> tuple[float, Array]:
    """The cache that explains the times best. One at all has to earn its two parameters (Schwarz 1978): among noise, some size
    always fits a little better than none."""
    count, found = len(times), {cache: _weighted(rows, times) for cache, rows in by_cache.items()}
    left = {cache: float(np.mean((by_cache[cache] @ one / times - 1.0) ** 2)) for cache, one in found.items()}
    best = min(left, key=lambda cache: left[cache])
    if count * np.log(max(left[best], 1e-12) / max(left[0.0], 1e-12)) + 2 * np.log(count) >= 0:
        best = 0.0
    return best, found[best]


def _weighted(rows: Array, times: Array) -> Array:
    """Relative errors count alike. A term that the others make up is left out: at one new token a pass, flops are bytes by
    another name, and only bytes are known to be what is waited for."""
    scaled, coefficients = rows / times[:, None], np.zeros(rows.shape[1])
    used = _independent(scaled)
    coefficients[used] = nnls(scaled[:, used], np.ones(len(times)))
    return coefficients


def _independent(rows: Array) -> list[int]:
    """The columns that add something to those before them; flops, which bytes may make up, come last."""
    unit = rows / np.maximum(np.linalg.norm(rows, axis=0), 1e-300)
    used: list[int] = []
    for column in sorted(range(rows.shape[1]), key=lambda column: TERMS[column] == "flops"):
        if np.linalg.matrix_rank(unit[:, [*used, column]], tol=1e-9) > len(used):
            used.append(column)
    return sorted(used)


def nnls(a: Array, b: Array, most_rounds: int = 200) -> Array:
    """min |a x - b| with x >= 0 (Lawson and Hanson 1974, ch. 23): free one variable at a time, step back where it turns
    negative."""
    scale = np.linalg.norm(a, axis=0)
    a = a / np.where(scale > 0, scale, 1.0)
    x, free = np.zeros(a.shape[1]), np.zeros(a.shape[1], dtype=bool)
    for _ in range(most_rounds):
        gradient = a.T @ (b - a @ x)
        gradient[free] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= 1e-10:
            break
        free[best] = True
        while free.any():
            trial = np.zeros_like(x)
            trial[free] = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
            if (trial[free] > 0).all():
                x = trial
                break
            falling = free & (trial <= 0)
            step = float(np.min(x[falling] / (x[falling] - trial[falling])))
            x = x + step * (trial - x)
            free &= x > 1e-14
            x[~free] = 0.0
    return x / np.where(scale > 0, scale, 1.0)
