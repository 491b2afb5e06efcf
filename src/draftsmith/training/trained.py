"""What a run ended with: its last weights, cut to a plan and saved as a checkpoint that engines load."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from draftsmith.core.errors import RecordError
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.shapes import model_dtype
from draftsmith.training.checkpoint import Checkpoints
from draftsmith.training.mesh import load_sharded, world
from draftsmith.training.surgery import cut


def cut_trained(base: Path, checkpoints: Path, plan: KeepPlan, folder: Path) -> None:
    """`base` is what was trained, as it was before. Weights are gathered one at a time, and written by the first rank in the
    numbers that `base` was saved in."""
    with world() as ranks:
        source = load_sharded(base, ranks, "float32")
        named = dict(source.model.named_parameters())
        way_out = f"remove {checkpoints.parent.parent} and train again"
        try:
            found = Checkpoints(checkpoints).load({"model": dict(named)})
        except RecordError as error:  # the checkpoint before it is not the end of the run
            raise RecordError(error.problem, way_out) from None
        if not found:
            raise RecordError(f"{checkpoints} holds none of the weights that were trained", way_out)
        whole = _whole(named, getattr(torch, model_dtype(base, "auto")))
        if ranks.rank == 0:
            cut(base, plan, folder, whole)
        else:
            for _ in whole:  # takes part in gathering
                pass
        ranks.wait()


def _whole(named: dict[str, nn.Parameter], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in named.items():
        yield name, parameter.full_tensor().to("cpu", dtype)
