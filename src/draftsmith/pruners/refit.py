"""Pruner `refit`: cuts nothing more, and fits the output head to what is left, without training. The last of a chain.

A head reads what the source's last layer puts out, and a cut puts out something else. So find the matrix A that takes the cut's
hidden states nearest to the source's, by least squares over recorded rows, and let the head W read through it: W A. The tuned
lens does so to look into layers (Belrose et al. 2023); here it becomes a part of the weights, and costs nothing afterwards."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftsmith.core.config import StrictConfig, parse_config
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.log import log
from draftsmith.core.progress import progress
from draftsmith.core.pruning import PruneJob
from draftsmith.core.shapes import Shape, model_shape
from draftsmith.core.trace import TraceReader, TraceRow
from draftsmith.training.batch import hidden_at, text_batch
from draftsmith.training.sources import Source, checked, load_source, versions
from draftsmith.training.surgery import HEAD, cut, cut_source, saved_weights

_TOKENS = 8  # of output to fit to, for every hidden dimension of the cut; their prompts come on top
_LENGTH = 512  # of a row, its end is read
_RIDGE = 0.01  # of the mean square of a hidden dimension: where rows say little the head stays as it was


class RefitSettings(StrictConfig):
    """There is nothing to set."""


class _Refit:
    cuts = ()
    trains = False
    versions = staticmethod(versions)

    def identity(self, settings: dict[str, Any]) -> dict[str, Any]:
        return parse_config(RefitSettings, settings, "the settings of the pruner refit").model_dump(mode="json")

    def expect(self, source: Path, wanted: Shape, settings: dict[str, Any], ranks: int) -> None:
        """It does not train."""

    def plan(self, job: PruneJob, so_far: KeepPlan, settings: dict[str, Any]) -> KeepPlan:
        self.identity(settings)
        return so_far

    def cut(self, job: PruneJob, plan: KeepPlan, folder: Path) -> None:
        if job.wanted.tied:
            log.warning("the output head of %s is its embeddings, which stay as they are: nothing is fitted", job.source.name)
            cut_source(job, plan, folder)
            return
        small = job.unfinished / "cut"
        if not small.exists():
            cut(job.source, plan, small)
        whole, weights = load_source(job), saved_weights(small)
        fitted_DH = _fitted(whole, load_source(replace(job, source=small)), job, plan.hidden)
        if fitted_DH is not None:
            fitted_VD = whole.model.get_output_embeddings().weight.detach().float().cpu() @ fitted_DH.T
            weights = ((name, fitted_VD.to(one.dtype) if name == HEAD else one) for name, one in weights)
        cut(small, KeepPlan.everything(model_shape(small)), folder, weights)


@torch.no_grad()
def _fitted(whole: Source, left: Source, job: PruneJob, kept: Sequence[int]) -> Tensor | None:
    """The matrix [D, H] that takes the cut's hidden states, of the D dimensions that were kept, nearest to the source's. None
    if too little is recorded to say."""
    narrow, wide = left.shape.hidden, whole.shape.hidden
    square_DD, cross_DH = torch.zeros(narrow, narrow, dtype=torch.float64), torch.zeros(narrow, wide, dtype=torch.float64)
    asked, places = _TOKENS * narrow, 0
    longest = min(_LENGTH, checked(job, 1).max_positions)
    with progress("fitting the output head, tokens", asked) as bar:
        for row in _spread(job, asked):
            tokens_S = np.concatenate([row.prompt_ids, row.output_ids[: row.num_output]])[-longest:]
            batch = text_batch(torch.from_numpy(tokens_S[None].astype(np.int64)).to(whole.model.device))
            left_PD, whole_PH = (hidden_at(one.model, batch).float().cpu() for one in (left, whole))
            square_DD += left_PD.T @ left_PD
            cross_DH += left_PD.T @ whole_PH
            places += len(left_PD)
            bar.advance(min(row.num_output, asked - bar.done))
    if places < 2 * narrow:
        log.warning("%d recorded tokens cannot tell what %d dimensions say: the output head stays as it is", places, narrow)
        return None
    ridge = _RIDGE * square_DD.diagonal().mean()
    cross_DH[torch.arange(narrow), torch.tensor(kept)] += ridge
    return torch.linalg.solve(square_DD + ridge * torch.eye(narrow), cross_DH).float()


def _spread(job: PruneJob, tokens: int) -> Iterator[TraceRow]:
    """Rows from all over what was recorded, with so many tokens of output if there are."""
    if job.trace is None:
        return iter(job.rows)
    trace = TraceReader(job.trace)
    return islice(trace.rows(), 0, None, max(1, trace.record.num_tokens // tokens))


PLUGIN = _Refit()
