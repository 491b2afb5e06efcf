"""Losses of distillation: one function each, a number for every place, from what both models say of the next token.

Each sees the next token as one of B outcomes: all of the vocabulary where the teacher runs beside the student; where its most
likely K tokens were recorded, those and, as one, all others. p is the teacher's, q the student's. Which loss is what a draft
lives by depends on how it proposes: one that samples is rejected with chance TV(p, q), one that proposes its most likely token
with chance 1 - p(argmax q)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_LEAST = 1e-7  # probability of all other tokens, below which float32 cannot tell it from none
_SHARPNESS = 4.0  # of the stand-in for an argmax


@dataclass(frozen=True)
class Views:
    """What is said at N places: of the emitted token, and of the B outcomes if there is a teacher. The last outcome may be `all
    others`."""

    log_q_N: Tensor
    log_p_NB: Tensor | None = None
    log_q_NB: Tensor | None = None
    others_last: bool = False

    def both(self) -> tuple[Tensor, Tensor]:
        assert self.log_p_NB is not None, "the loss needs a teacher"
        assert self.log_q_NB is not None
        return self.log_p_NB, self.log_q_NB


def views(
    logits_NV: Tensor,
    wanted_N: Tensor,
    teacher_logits_NV: Tensor | None = None,
    top_ids_NK: Tensor | None = None,
    top_log_p_NK: Tensor | None = None,
) -> Views:
    """Of a student's logits, beside a teacher's or what was recorded of it."""
    if teacher_logits_NV is not None:
        log_q_NV = logits_NV.float().log_softmax(dim=-1)
        log_q_N = log_q_NV.gather(1, wanted_N[:, None])[:, 0]
        rows = min(log_q_NV.shape[1], teacher_logits_NV.shape[1])  # the one may be padded further than the other
        return Views(log_q_N, teacher_logits_NV[:, :rows].float().log_softmax(dim=-1), log_q_NV[:, :rows])
    if top_ids_NK is None or top_log_p_NK is None:
        return Views(_LogProbabilities.apply(logits_NV, wanted_N[:, None])[:, 0])
    log_q_NM: Tensor = _LogProbabilities.apply(logits_NV, torch.cat([wanted_N[:, None], top_ids_NK], dim=1))
    log_q_N, log_q_NK = log_q_NM[:, 0], log_q_NM[:, 1:]
    # A sampler that cut the tail off left tokens without any probability: as good as none must do, for logarithms.
    recorded_NK = top_log_p_NK.clamp_min(math.log(_LEAST))
    return Views(log_q_N, _with_others(recorded_NK), _with_others(log_q_NK), others_last=True)


class _LogProbabilities(torch.autograd.Function):  # type: ignore[misc]
    """Of M tokens at each of N places. PyTorch's own gradient would fill several arrays as wide as the vocabulary; one will
    do."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, ids_NM: Tensor) -> Tensor:
        log_q_NV = logits_NV.float().log_softmax(dim=-1)
        ctx.save_for_backward(log_q_NV, ids_NM)
        ctx.dtype = logits_NV.dtype
        return log_q_NV.gather(1, ids_NM)

    @staticmethod
    def backward(ctx: Any, slope_NM: Tensor) -> tuple[Tensor, None]:
        log_q_NV, ids_NM = ctx.saved_tensors
        slope_NV = log_q_NV.exp_().mul_(-slope_NM.sum(dim=1, keepdim=True)).scatter_add_(1, ids_NM, slope_NM)
        return slope_NV.to(ctx.dtype), None


def _with_others(log_NK: Tensor) -> Tensor:
    others_N1 = (1.0 - log_NK.exp().sum(dim=-1, keepdim=True)).clamp_min(_LEAST)
    return torch.cat([log_NK, others_N1.log()], dim=-1)


def cross_entropy(said: Views) -> Tensor:
    """Of the token that was emitted."""
    return -said.log_q_N


def forward_kl(said: Views) -> Tensor:
    """KL(p, q): q must cover all that p may write."""
    log_p_NB, log_q_NB = said.both()
    return (log_p_NB.exp() * (log_p_NB - log_q_NB)).sum(dim=-1)


def reverse_kl(said: Views) -> Tensor:
    """KL(q, p): q must propose only what p may write."""
    log_p_NB, log_q_NB = said.both()
    return (log_q_NB.exp() * (log_q_NB - log_p_NB)).sum(dim=-1)


def jensen_shannon(said: Views) -> Tensor:
    """Half of either, against the mean of both."""
    log_p_NB, log_q_NB = said.both()
    log_m_NB = torch.logaddexp(log_p_NB, log_q_NB) - math.log(2.0)
    return 0.5 * (log_p_NB.exp() * (log_p_NB - log_m_NB) + log_q_NB.exp() * (log_q_NB - log_m_NB)).sum(dim=-1)


def total_variation(said: Views) -> Tensor:
    """The chance that a token drawn from q is rejected."""
    log_p_NB, log_q_NB = said.both()
    return 0.5 * (log_p_NB.exp() - log_q_NB.exp()).abs().sum(dim=-1)


def argmax_miss(said: Views) -> Tensor:
    """The chance that q's most likely token is rejected, 1 - p(argmax q), with a sharpened q in the place of the argmax, which
    has no slope."""
    log_p_NB, log_q_NB = said.both()
    p_NB = log_p_NB.exp()
    if said.others_last:  # no single one of them is likely
        p_NB = torch.cat([p_NB[:, :-1], torch.zeros_like(p_NB[:, -1:])], dim=-1)
    return 1.0 - (p_NB * (_SHARPNESS * log_q_NB).softmax(dim=-1)).sum(dim=-1)


LOSSES: dict[str, Callable[[Views], Tensor]] = {
    "cross_entropy": cross_entropy,
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "jensen_shannon": jensen_shannon,
    "total_variation": total_variation,
    "argmax_miss": argmax_miss,
    "acceptance_length": forward_kl,  # each place by the steps that it would save: see lessons.Lesson
}
