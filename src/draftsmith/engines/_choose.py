"""Logits to probabilities to tokens: the processing that both recording and speculation use. B rows, V vocabulary."""

import torch
from torch import Tensor

from draftsmith.core.sampling import Sampling


def process(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits after temperature, top-k and top-p, over the last dimension. Greedy leaves them as they are."""
    if sampling.is_greedy:
        return logits
    logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        kth = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    if sampling.top_p < 1.0:
        ordered, order = logits.sort(dim=-1, descending=True)
        before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
        # A token stays while the more likely ones together are below top_p: the best one always stays.
        dropped = (before >= sampling.top_p).scatter(-1, order, before >= sampling.top_p)
        logits = logits.masked_fill(dropped, float("-inf"))
    return logits


def draw(weights_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """One token a row by inverting the cumulative distribution; weights need not be normalised. In double precision,
    because the last of 100,000 single-precision partial sums is off by more than rare tokens weigh."""
    cumulative_BV = weights_BV.double().cumsum(dim=-1)
    threshold_B1 = (uniform_B.double() * cumulative_BV[:, -1]).unsqueeze(-1)
    token_B = torch.searchsorted(cumulative_BV, threshold_B1, right=True).squeeze(-1)
    return token_B.clamp(max=weights_BV.shape[-1] - 1)


def fit_width(logits: Tensor, width: int) -> Tensor:
    """Give logits the target's number of rows: padded rows of one model that the other lacks can never be chosen."""
    have = logits.shape[-1]
    if have == width:
        return logits
    if have > width:
        return logits[..., :width]
    return torch.cat([logits, logits.new_full((*logits.shape[:-1], width - have), float("-inf"))], dim=-1)
