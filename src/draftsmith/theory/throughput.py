"""Throughput from acceptance and measured step times.

Reads tokens per step (from a Scorecard, or a row's own steps) and a StepTable (from a Profile, or from numbers typed in).
Everything is decode only. In the paper's words TAR is tokens per step, and its formula is

    throughput = max(TAR, 1) / (t_target(k) + t_draft(k))

where t_target is the time to verify k + 1 tokens; ours adds the overhead of a step and multiplies by the rows of a full
batch. Array shapes: K lookaheads, B batch sizes, C context lengths."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from draftsmith.core.errors import PredictionError
from draftsmith.core.protocols import PHASES
from draftsmith.core.records import ProfileCell

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True)
class StepTable:
    """Milliseconds of a step by phase on a grid, and between its points by linear interpolation. Lookahead 0 is a step without
    proposals. `error_KBC` is the relative standard error of a whole step."""

    lookaheads: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    phases_KBC: dict[str, Array]
    error_KBC: Array

    @classmethod
    def from_cells(cls, cells: Sequence[ProfileCell]) -> Self:
        names = ("lookahead", "batch", "context")
        axes = [sorted({getattr(cell, name) for cell in cells}) for name in names]
        size = tuple(len(axis) for axis in axes)
        if len({tuple(getattr(cell, name) for name in names) for cell in cells}) != np.prod(size):
            raise PredictionError(
                f"the profile has {len(cells)} cells, and its lookaheads, batches and contexts make {np.prod(size)}",
                "profile every combination, or leave the odd ones out",
            )
        phases = {name: np.empty(size) for name in PHASES}
        error = np.empty(size)
        for cell in cells:
            at = tuple(axis.index(getattr(cell, name)) for axis, name in zip(axes, names, strict=True))
            for name in PHASES:
                phases[name][at] = getattr(cell, f"{name}_ms")
            error[at] = cell.error
        return cls(tuple(axes[0]), tuple(axes[1]), tuple(axes[2]), phases, error)

    @classmethod
    def from_numbers(cls, plain_ms: float, verify_ms: float, draft_ms: float, overhead_ms: float, most: int) -> Self:
        """Batch 1, any context (0), lookahead up to `most`: `draft_ms` a token, the rest whatever the lookahead. 0 is plain."""
        k = np.arange(most + 1, dtype=np.float64)[:, None, None]
        phases = {
            "draft": k * draft_ms,
            "verify": np.where(k == 0, plain_ms, verify_ms),
            "overhead": np.where(k == 0, 0.0, overhead_ms),
        }
        return cls(tuple(range(most + 1)), (1,), (0,), phases, np.zeros(k.shape))

    def with_draft_ms(self, draft_ms: float) -> Self:
        """The same steps with a draft that takes `draft_ms` a token, whatever the batch and the context."""
        draft = np.broadcast_to(draft_ms * np.array(self.lookaheads)[:, None, None], self.error_KBC.shape)
        return replace(self, phases_KBC={**self.phases_KBC, "draft": draft})

    def phase_ms(self, phase: str, lookahead: Any, batch: Any, context: Any) -> Array:
        return self._at(self.phases_KBC[phase], lookahead, batch, context)

    def step_ms(self, lookahead: Any, batch: Any, context: Any) -> Array:
        """A whole step. Arguments may be arrays that broadcast against each other."""
        return self._at(sum(self.phases_KBC.values(), start=np.zeros(1)), lookahead, batch, context)

    def relative_error(self, lookahead: Any, batch: Any, context: Any) -> Array:
        return self._at(self.error_KBC, lookahead, batch, context)

    def doubt_of(self, context: int) -> str | None:
        """What a step's time at this context stands on, where it was not measured."""
        longest = self.contexts[-1]
        if context <= longest or longest == 0:
            return None
        how = "go on in a straight line" if len(self.contexts) > 1 else f"are those of {longest}"
        return f"context {context} was not profiled: beyond {longest}, step times {how}"

    def _at(self, values_KBC: Array, lookahead: Any, batch: Any, context: Any) -> Array:
        lookahead, batch, context = np.broadcast_arrays(lookahead, batch, context)
        self._check("lookahead", lookahead, self.lookaheads)
        self._check("batch size", batch, self.batches)
        corners = [
            _around(np.array(axis, dtype=np.float64), points)
            for axis, points in ((self.lookaheads, lookahead), (self.batches, batch), (self.contexts, context))
        ]
        total = np.zeros(lookahead.shape)
        longest = self.contexts[-1]
        for k, k_weight in corners[0]:
            for b, b_weight in corners[1]:
                for c, c_weight in corners[2]:
                    total += k_weight * b_weight * c_weight * values_KBC[k, b, c]
        if np.any(context > longest):  # noise may let times fall with the context: never below what was measured
            total = np.where(context > longest, np.maximum(total, self._at(values_KBC, lookahead, batch, longest)), total)
        return total

    @staticmethod
    def _check(what: str, wanted: Any, axis: tuple[int, ...]) -> None:
        if wanted.size and (wanted.min() < axis[0] or wanted.max() > axis[-1]):
            outside = wanted.min() if wanted.min() < axis[0] else wanted.max()
            raise PredictionError(
                f"{what} {outside:g} was not profiled: the profile goes from {axis[0]} to {axis[-1]}",
                f"profile it, or ask for a {what} in between",
            )


def _around(axis: Array, points: Any) -> list[tuple[Any, Any]]:
    """The grid points on both sides of each point, with their weights. Contexts beyond the grid go on in a straight line, and
    never below the shortest one measured."""
    if len(axis) == 1:
        return [(np.zeros(points.shape, dtype=np.intp), np.ones(points.shape))]
    points = np.maximum(points, axis[0])
    low = np.clip(np.searchsorted(axis, points, side="right") - 1, 0, len(axis) - 2)
    weight = (points - axis[low]) / (axis[low + 1] - axis[low])
    return [(low, 1.0 - weight), (low + 1, weight)]


def throughput(tokens_per_step: Any, step_ms: Any, batch: Any = 1) -> Any:
    """Tokens per second of a full batch."""
    return 1000.0 * batch * np.maximum(tokens_per_step, 1.0) / step_ms
