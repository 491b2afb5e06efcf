"""Pruner `rows`: of the output head, the rows of the tokens that the target really writes, by how often it was recorded to.

The last of a chain: what it leaves is an architecture of its own (`draftsmith.architectures`), which is not cut further."""

from pathlib import Path
from typing import Any

import numpy as np

from draftsmith.core.config import StrictConfig, parse_config
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.pruning import PruneJob
from draftsmith.core.shapes import Shape
from draftsmith.core.trace import TraceReader
from draftsmith.theory.kept_rows import token_ranks
from draftsmith.training.sources import checked, versions
from draftsmith.training.surgery import cut_source


class RowsSettings(StrictConfig):
    """There is nothing to set: how many rows stay is part of the shape, and how often tokens were written is in the trace."""


class _Rows:
    cuts = ("vocabulary",)
    trains = False
    versions = staticmethod(versions)

    def identity(self, settings: dict[str, Any]) -> dict[str, Any]:
        return parse_config(RowsSettings, settings, "the settings of the pruner rows").model_dump(mode="json")

    def plan(self, job: PruneJob, so_far: KeepPlan, settings: dict[str, Any]) -> KeepPlan:
        self.identity(settings)
        checked(job, 1)
        written = job.rows if job.trace is None else TraceReader(job.trace).rows()  # every one counts
        ranks = token_ranks(written, job.wanted.embedded or job.wanted.vocabulary)
        return so_far.model_copy(update={"rows": tuple(np.flatnonzero(ranks < job.wanted.vocabulary).tolist())})

    def expect(self, source: Path, wanted: Shape, settings: dict[str, Any], ranks: int) -> None:
        return None

    def cut(self, job: PruneJob, plan: KeepPlan, folder: Path) -> None:
        cut_source(job, plan, folder)


PLUGIN = _Rows()
