"""What a step teaches: samples go through the student, and a loss compares what it says with what the target does.

The output head is applied to a chunk of places at a time, and its gradient is taken at once, so that no more logits than those
of a chunk are ever held, whatever the vocabulary and however many tokens a step has. None are computed twice, unless how well
the student does is to weigh the places."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from draftsmith.core.sampling import DraftMethod
from draftsmith.theory.gains import step_gains
from draftsmith.training.batch import Batch, collate, hidden_at
from draftsmith.training.data import Samples
from draftsmith.training.losses import LOSSES, Views, views
from draftsmith.training.on_policy import num_written, student_samples

LOGITS = 1 << 25  # held at once: 128 MB in float32, of which a loss keeps a few copies


@dataclass(frozen=True)
class Lesson:
    """Samples and a loss. With a `teacher`, a model, it is asked itself; otherwise what was recorded of it must do.
    `acceptance_length` weighs every place of an output by the steps that it would save at `lookahead`, given how the student
    does now. In every `on_policy_every`-th step the student writes what it then learns from, up to a token of `ends`."""

    samples: Samples
    device: torch.device
    loss_name: str = "cross_entropy"
    teacher: Any = None
    method: DraftMethod = "greedy"
    lookahead: int = 5
    on_policy_every: int | None = None
    ends: tuple[int, ...] = ()
    seed: int = 0

    def batch(self, model: Any, step: int, first: int, count: int) -> Batch:
        """Of `count` sequences from the `first` on."""
        numbers = range(first, first + count)
        found = [self.samples.sample(n) for n in numbers]
        if self._is_on_policy(step):
            found = student_samples(model, found, [(self.seed, n) for n in numbers], self.device, self.ends)
        return collate(found, self.device)

    def num_asked(self, step: int, first: int, count: int) -> int:
        """Tokens that are to be predicted in so many sequences; of what the student writes itself, those that it may write."""
        if self._is_on_policy(step):
            return count * num_written(len(self.samples.sample(first).tokens_S))
        return sum(self.samples.num_asked(n) for n in range(first, first + count))

    def _is_on_policy(self, step: int) -> bool:
        return self.on_policy_every is not None and step % self.on_policy_every == 0

    def loss(self, model: Any, batch: Batch) -> Tensor:
        """Summed over all that is predicted."""
        weigh = self._gains if self.loss_name == "acceptance_length" else None
        return summed_loss(model, batch, self.loss_name, self.teacher, weigh)

    def _gains(self, log_q_P: Tensor, batch: Batch) -> Tensor:
        if self.method == "probabilistic":
            log_q_P = (log_q_P - batch.log_p_P.nan_to_num()).clamp_max(0.0)
        chances_P = log_q_P.exp().double().cpu().numpy()
        gains_P = np.concatenate(step_gains([chances_P[run] for run in batch.runs], self.lookahead))
        return torch.from_numpy(gains_P).to(self.device, torch.float32)


def summed_loss(
    model: Any,
    batch: Batch,
    loss_name: str = "cross_entropy",
    teacher: Any = None,
    weigh: Callable[[Tensor, Batch], Tensor] | None = None,
) -> Tensor:
    """A loss over all places of a batch; `weigh` makes weights from the log-probabilities of the emitted tokens."""
    hidden_PH, head = hidden_at(model, batch), model.get_output_embeddings()
    with torch.no_grad():
        teacher_PH = None if teacher is None else hidden_at(teacher, batch)

    def said(hidden_NH: Tensor, part: slice, weights: Mapping[str, Tensor]) -> Views:
        logits_NV, wanted_N = functional_call(head, dict(weights), (hidden_NH,)), batch.wanted_P[part]
        if teacher_PH is not None:
            with torch.no_grad():
                teacher_NV = teacher.get_output_embeddings()(teacher_PH[part])
            return views(logits_NV, wanted_N, teacher_NV)
        if batch.top_ids_PK is None or batch.top_log_p_PK is None:
            return views(logits_NV, wanted_N)
        return views(logits_NV, wanted_N, None, batch.top_ids_PK[part], batch.top_log_p_PK[part])

    size = max(1, LOGITS // model.config.get_text_config().vocab_size)
    chunks = [slice(low, low + size) for low in range(0, len(batch.asked_P), size)]
    weights_of_head = dict(head.named_parameters())
    gains_P = None
    if weigh is not None:
        with torch.no_grad():
            emitted = [views(head(hidden_PH[part]), batch.wanted_P[part]).log_q_N for part in chunks]
            gains_P = weigh(torch.cat(emitted), batch)

    def summed(hidden_NH: Tensor, part: slice, weights: Sequence[Tensor]) -> Tensor:
        loss_N = LOSSES[loss_name](said(hidden_NH, part, dict(zip(weights_of_head, weights, strict=True))))
        return (loss_N if gains_P is None else loss_N * gains_P[part]).sum()

    total: Tensor = _InChunks.apply(summed, chunks, hidden_PH, *weights_of_head.values())
    return total


class _InChunks(torch.autograd.Function):  # type: ignore[misc]
    """A sum over chunks of places. What it is computed from is let go chunk by chunk; its gradients are all that is kept."""

    @staticmethod
    def forward(
        ctx: Any, summed: Callable[..., Tensor], chunks: Sequence[slice], hidden_PH: Tensor, *weights: Tensor
    ) -> Tensor:
        slope_PH, own = torch.zeros_like(hidden_PH), [weight.detach().requires_grad_() for weight in weights]
        total = torch.zeros((), device=hidden_PH.device)
        for part in chunks:
            hidden_NH = hidden_PH[part].detach().requires_grad_()
            with torch.enable_grad():
                value = summed(hidden_NH, part, own)
            value.backward()
            slope_PH[part] = hidden_NH.grad
            total += value.detach()
        ctx.save_for_backward(slope_PH, *(weight.grad for weight in own))
        return total

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(one * slope for one in ctx.saved_tensors)
