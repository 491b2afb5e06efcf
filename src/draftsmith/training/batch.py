"""Samples side by side, on the device: what goes into a model, and what is asked of it there.

Shapes: B samples of S tokens; P places over all samples where a token is to be predicted; the target's K most likely."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftsmith.training.samples import Sample


@dataclass(frozen=True)
class Batch:
    """`asked_P` counts through all tokens of all samples. `runs` are the places of each recorded row. `log_p_P` is not a number
    where nothing was recorded."""

    tokens_BS: Tensor
    positions_BS: Tensor | None
    mask_B1SS: Tensor | None
    asked_P: Tensor
    wanted_P: Tensor
    log_p_P: Tensor
    top_ids_PK: Tensor | None
    top_log_p_PK: Tensor | None
    runs: tuple[slice, ...]


def collate(samples: Sequence[Sample], device: torch.device) -> Batch:
    """Rows of one sequence do not see each other; running text needs no mask of its own."""
    tokens_BS = np.stack([sample.tokens_S for sample in samples]).astype(np.int64)
    length = tokens_BS.shape[1]
    asked_P = np.concatenate([at * length + sample.asked_P.astype(np.int64) for at, sample in enumerate(samples)])
    positions_BS = mask_B1SS = None
    rows_BS = np.stack([sample.row_S if sample.row_S is not None else np.zeros(length, np.uint32) for sample in samples])
    if rows_BS.any():
        place_S = np.arange(length)
        begins_BS = np.diff(rows_BS.astype(np.int64), axis=1, prepend=-1) != 0
        positions_BS = place_S - np.maximum.accumulate(np.where(begins_BS, place_S, 0), axis=1)
        mask_B1SS = (rows_BS[:, None, :, None] == rows_BS[:, None, None, :]) & (place_S[:, None] >= place_S)

    def on_device(array: np.ndarray | None, kind: torch.dtype) -> Tensor | None:
        return None if array is None else torch.from_numpy(array).to(device, kind)

    def joined(name: str) -> np.ndarray | None:
        parts = [getattr(sample, name) for sample in samples]
        return None if any(part is None for part in parts) else np.concatenate(parts)

    unknown = [np.full(len(sample.asked_P), np.nan, np.float32) for sample in samples]
    log_p_P = np.concatenate([u if s.log_p_P is None else s.log_p_P for s, u in zip(samples, unknown, strict=True)])

    return Batch(
        tokens_BS=torch.from_numpy(tokens_BS).to(device),
        positions_BS=on_device(positions_BS, torch.long),
        mask_B1SS=on_device(mask_B1SS, torch.bool),
        asked_P=torch.from_numpy(asked_P).to(device),
        wanted_P=torch.from_numpy(tokens_BS.reshape(-1)[asked_P + 1]).to(device),
        log_p_P=torch.from_numpy(log_p_P).to(device),
        top_ids_PK=on_device(joined("top_ids_PK"), torch.long),
        top_log_p_PK=on_device(joined("top_log_p_PK"), torch.float32),
        runs=_runs(asked_P),
    )


def text_batch(tokens_BS: Tensor) -> Batch:
    """Running text: every token but the first of each sequence is to be predicted."""
    count, length = tokens_BS.shape
    asked_P = torch.arange(count * length).reshape(count, length)[:, :-1].flatten().to(tokens_BS.device)
    runs = tuple(slice(at * (length - 1), (at + 1) * (length - 1)) for at in range(count))
    unknown_P = torch.full(asked_P.shape, torch.nan, device=tokens_BS.device)
    return Batch(tokens_BS, None, None, asked_P, tokens_BS[:, 1:].flatten(), unknown_P, None, None, runs)


def _runs(asked_P: np.ndarray) -> tuple[slice, ...]:
    """Places that follow one another belong to one output."""
    breaks = np.flatnonzero(np.diff(asked_P) != 1) + 1
    edges = [0, *breaks.tolist(), len(asked_P)]
    return tuple(slice(low, high) for low, high in pairwise(edges) if high > low)


def hidden_at(model: Any, batch: Batch) -> Tensor:
    """What the output head would get at the places asked for, [P, H]: the head itself is left to who wants its logits in
    parts."""
    nothing = torch.zeros(0, dtype=torch.long, device=batch.tokens_BS.device)
    output = model(
        input_ids=batch.tokens_BS,
        position_ids=batch.positions_BS,
        attention_mask=batch.mask_B1SS,
        use_cache=False,
        output_hidden_states=True,
        logits_to_keep=nothing,
    )
    return output.hidden_states[-1].flatten(0, 1)[batch.asked_P]
