"""What the student itself writes, to be judged by the teacher: it then learns in the contexts that it gets itself into.

Every sequence is drawn with a seed of its own, so that how sequences are spread over passes and ranks changes nothing."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from draftsmith.training.samples import Sample

WRITTEN = 64  # tokens a sequence, at most half of it


def num_written(length: int) -> int:
    """Of a sequence of so many tokens."""
    return min(WRITTEN, length // 2)


def student_samples(
    model: Any,
    samples: Sequence[Sample],
    seeds: Sequence[tuple[int, ...]],
    device: torch.device,
    ends: Collection[int] = (),
) -> list[Sample]:
    """The first prompt of each sample, continued by the student at temperature 1, to the first token that ends an output."""
    length = len(samples[0].tokens_S)
    count = num_written(length)
    prompts = [_prompt(sample)[-(length - count) :] for sample in samples]
    written_BN = _write(model, prompts, count, [np.random.default_rng(seed) for seed in seeds], device)
    return [_sample(prompt, _ended(written, ends), length) for prompt, written in zip(prompts, written_BN, strict=True)]


def _prompt(sample: Sample) -> np.ndarray:
    """Of recorded output, what was before it; of text, its first half."""
    if sample.row_S is None:
        return sample.tokens_S[: len(sample.tokens_S) // 2]
    return sample.tokens_S[: int(sample.asked_P[0]) + 1]


@torch.no_grad()
def _write(
    model: Any, prompts: Sequence[np.ndarray], count: int, noise: Sequence[np.random.Generator], device: torch.device
) -> np.ndarray:
    """One token after the other, with a cache; prompts are padded on the left."""
    longest = max(len(prompt) for prompt in prompts)
    tokens_BS = torch.zeros(len(prompts), longest, dtype=torch.long)
    seen_BS = torch.zeros(len(prompts), longest, dtype=torch.long)
    for at, prompt in enumerate(prompts):
        tokens_BS[at, longest - len(prompt) :] = torch.from_numpy(prompt.astype(np.int64))
        seen_BS[at, longest - len(prompt) :] = 1
    cache, written, now_BS = DynamicCache(), [], tokens_BS.to(device)
    seen_BS = seen_BS.to(device)
    model.eval()  # with activations computed again, a model that trains keeps no cache
    for _ in range(count):
        positions_BS = (seen_BS.cumsum(dim=1) - 1).clamp_min(0)[:, -now_BS.shape[1] :]
        output = model(
            input_ids=now_BS,
            attention_mask=seen_BS,
            position_ids=positions_BS,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        now_BS = _draw(output.logits[:, -1], noise)[:, None]
        written.append(now_BS)
        seen_BS = torch.cat([seen_BS, torch.ones_like(now_BS)], dim=1)
    model.train()
    return torch.cat(written, dim=1).cpu().numpy()


def _draw(logits_BV: Tensor, noise: Sequence[np.random.Generator]) -> Tensor:
    """One token for each row: where a number between 0 and 1 falls among the probabilities, added up."""
    up_to_BV = logits_BV.float().softmax(dim=-1).cumsum(dim=-1)
    drawn_B1 = torch.tensor([[one.random()] for one in noise], dtype=up_to_BV.dtype, device=up_to_BV.device)
    found_B1 = torch.searchsorted(up_to_BV, drawn_B1 * up_to_BV[:, -1:], right=True)
    return found_B1[:, 0].clamp_max(logits_BV.shape[1] - 1)


def _ended(written: np.ndarray, ends: Collection[int]) -> np.ndarray:
    """Without what would follow the end: no draft is asked about it."""
    places = np.flatnonzero(np.isin(written, list(ends)))
    return written[: places[0] + 1] if len(places) else written


def _sample(prompt: np.ndarray, written: np.ndarray, length: int) -> Sample:
    used = len(prompt) + len(written)
    tokens_S, row_S = np.zeros(length, np.uint32), np.arange(length, dtype=np.uint32) + 1
    tokens_S[:used] = np.concatenate([prompt, written])
    row_S[:used] = 0
    return Sample(tokens_S, np.arange(len(prompt) - 1, used - 1), row_S)
