"""How the student does while it learns: tokens per step on recorded output that it is not taught from."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from draftsmith.core.errors import DataError
from draftsmith.core.sampling import DraftMethod, Sampling
from draftsmith.core.trace import TraceReader, TraceRow
from draftsmith.engines._scoring import batches_to_score, score_batch
from draftsmith.theory.acceptance import replay, row_chances
from draftsmith.training.mesh import World

_AT_ONCE = 8  # rows of one rank


class HeldOut:
    """So many rows of a trace, from one end to the other, replayed. Ranks share them, so many at a time."""

    def __init__(
        self,
        trace: TraceReader,
        num_rows: int,
        lookahead: int,
        method: DraftMethod,
        world: World,
        positions: int,
        vocabulary: int,
    ) -> None:
        greedy = trace.record.sampling.is_greedy
        self._method: DraftMethod = "greedy" if greedy else method
        self._sampling = Sampling() if self._method == "greedy" else trace.record.sampling
        self._first, self._lookahead, self._world = trace.record.first_drafted, lookahead, world
        rows = _rows(trace, num_rows, self._first)
        longest = max(len(row.prompt_ids) + len(row.output_ids) for row in rows)
        if longest > positions:
            raise DataError(
                f"{trace.folder} has rows of {longest} tokens, and the student {positions} positions", "record shorter ones"
            )
        batches = batches_to_score(rows, world.size * _AT_ONCE, vocabulary // world.size)
        self._batches = [[rows[i] for i in batch] for batch in batches]

    def tokens_per_step(self, model: Any) -> float:
        """All ranks must ask together."""
        totals = torch.zeros(2, dtype=torch.float64, device=self._world.device)
        for batch in self._batches:
            mine = batch[self._world.rank :: self._world.size] or batch[:1]
            scores = score_batch(model, mine, self._sampling)
            if len(batch) > self._world.rank:
                totals += torch.tensor(self._sums(mine, scores), dtype=torch.float64, device=self._world.device)
        dist.all_reduce(totals)
        model.reshard()  # so that the next step gathers weights that know of gradients
        tokens, steps = totals.tolist()
        return tokens / steps

    def _sums(self, rows: Sequence[TraceRow], scores: Sequence[Any]) -> tuple[float, float]:
        pairs = zip(rows, scores, strict=True)
        chances = [row_chances(row, score, self._method)[self._first :] for row, score in pairs]
        sums = replay(chances, [row.num_output - self._first for row in rows], [self._lookahead]).sums
        return sums.tokens, float(sums.steps_K[0])


def _rows(trace: TraceReader, count: int, first: int) -> list[TraceRow]:
    found = [row for row in trace.rows() if row.num_output > first]
    if not found:
        raise DataError(f"{trace.folder} has no token that a draft could propose", "record more than one new token")
    chosen = np.linspace(0, len(found) - 1, min(count, len(found))).round().astype(int)
    return [found[place] for place in chosen]
