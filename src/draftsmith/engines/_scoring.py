"""One teacher-forced pass over recorded rows: what a model thinks of every output token."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from draftsmith.core.protocols import DraftScore
from draftsmith.core.sampling import Sampling
from draftsmith.core.trace import Ints, TraceRow
from draftsmith.engines._choose import process

_LOGITS = 1 << 26  # held at once: 256 MB in float32
_KEPT = 8  # and of what else is kept, so many times that


def batches_to_score(rows: Sequence[TraceRow], size: int, vocabulary: int, kept_per_token: int = 0) -> Iterator[list[int]]:
    """Rows of like prompt length together, as many as fit the batch size and what we are willing to hold: the logits of
    outputs, and `kept_per_token` numbers of every token."""
    batch: list[int] = []
    for i in sorted(range(len(rows)), key=lambda i: len(rows[i].prompt_ids)):
        first = len(rows[(batch or [i])[0]].prompt_ids)
        longest = max(len(rows[at].prompt_ids) + len(rows[at].output_ids) for at in [*batch, i])
        held = (len(batch) + 1) * max((longest - first) * vocabulary, longest * kept_per_token // _KEPT)
        if batch and (len(batch) == size or held > _LOGITS):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def real_tokens(rows: Sequence[TraceRow]) -> torch.Tensor:
    """Which of the positions that a batch of these rows is padded to hold a token: [rows, width]."""
    lengths = torch.tensor([len(row.prompt_ids) + len(row.output_ids) - 1 for row in rows])
    return torch.arange(int(lengths.max())) < lengths[:, None]


def _first_rank_above(logits_NV: torch.Tensor, emitted_N: torch.Tensor, ranks: Ints) -> Ints:
    """Of tokens as likely as the emitted one, an argmax takes the one with the lowest id."""
    width = logits_NV.shape[1]
    ranks_V, ids_V = torch.from_numpy(ranks).to(logits_NV.device), torch.arange(width, device=logits_NV.device)
    own_N1 = logits_NV.gather(1, emitted_N[:, None])
    above_NV = (logits_NV > own_N1) | ((logits_NV == own_N1) & (ids_V < emitted_N[:, None]))
    lowest_N = torch.where(above_NV, ranks_V, width).amin(dim=1)
    return lowest_N.cpu().numpy().astype(np.int32)


@torch.no_grad()
def score_batch(model: Any, rows: Sequence[TraceRow], sampling: Sampling, ranks: Ints | None = None) -> list[DraftScore]:
    """Of a loaded model, which may be one that is being trained: hence no inference mode, whose tensors know no gradient."""
    device = model.device
    low = min(len(row.prompt_ids) for row in rows) - 1
    width = max(len(row.prompt_ids) + len(row.output_ids) for row in rows) - 1
    tokens = torch.zeros((len(rows), width), dtype=torch.long)
    for at, row in enumerate(rows):
        text = np.concatenate([row.prompt_ids, row.output_ids])[:-1]
        tokens[at, : len(text)] = torch.from_numpy(text.astype(np.int64))
    # Rows are padded on the right: causal attention never looks there, so no mask is needed.
    keep = torch.arange(low, width, device=device)
    logits = model(input_ids=tokens.to(device), use_cache=False, logits_to_keep=keep).logits
    results = []
    for at, row in enumerate(rows):
        begin = len(row.prompt_ids) - 1 - low
        logits_NV = logits[at, begin : begin + len(row.output_ids)].float()
        emitted = torch.from_numpy(row.output_ids.astype(np.int64)).to(device)
        best = logits_NV.topk(2, dim=-1)
        logprobs = process(logits_NV, sampling).log_softmax(dim=-1).gather(1, emitted[:, None])[:, 0]
        results.append(
            DraftScore(
                argmax_ids=best.indices[:, 0].cpu().numpy().astype(np.int32),
                logprobs=logprobs.cpu().numpy(),
                top_gaps=(best.values[:, 0] - best.values[:, 1]).cpu().numpy(),
                first_rank_above=None if ranks is None else _first_rank_above(logits_NV, emitted, ranks),
            )
        )
    return results
