"""Checkpoints of a run: weights, optimisers and position, written by all ranks while training goes on, read by any number.

One is whole when its `.metadata` is there, which is written last. Torch's distributed checkpoints (DCP) reshard on reading."""

import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException

from draftsmith.core.errors import RecordError

_KEPT = 2  # the last and the one before; a third while it is being written


def optimizer_state(named: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    """Adam's two moments and its step of every weight, by name; made if the optimiser has not run yet, so that they can be
    loaded into."""
    for parameter in named.values():
        state = optimizer.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
    return {name: dict(optimizer.state[parameter]) for name, parameter in named.items()}


def _said(error: CheckpointException) -> str:
    """What went wrong, without the traces of all ranks."""
    return "; ".join(sorted({str(one) for one, _ in error.failures.values()}))


class Checkpoints:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._group = dist.new_group(backend="gloo")
        self._writing: Future[Any] | None = None

    def latest(self) -> Path | None:
        """The newest that is whole."""
        whole = sorted(path.parent for path in self._folder.glob("step-*/.metadata"))
        return whole[-1] if whole else None

    def load(self, state: dict[str, Any]) -> bool:
        """Put the newest into `state`, tensors in place. False if there is none."""
        latest = self.latest()
        if latest is None:
            return False
        try:
            dcp.load(state, checkpoint_id=latest)
        except CheckpointException as error:
            raise RecordError(
                f"the checkpoint {latest} cannot be read: {_said(error)}",
                "remove this folder: the run goes on from the one before",
            ) from None
        return True

    def save(self, state: dict[str, Any], step: int, wait: bool = False) -> None:
        """Begin to write; the one before must be done. `wait` until this one is, too."""
        self.finish()
        path = self._folder / f"step-{step:08d}"
        if dist.get_rank() == 0:
            shutil.rmtree(path, ignore_errors=True)  # of a run that was killed while it wrote
        dist.barrier()
        self._writing = dcp.async_save(state, checkpoint_id=path, process_group=self._group)
        if wait:
            self.finish()

    def finish(self) -> None:
        """Wait for what is being written, and forget what is older."""
        if self._writing is None:
            return
        writing, self._writing = self._writing, None
        try:
            writing.result()
        except CheckpointException as error:
            raise RecordError(
                f"a checkpoint could not be written into {self._folder}: {_said(error)}",
                "see that the disk has room for three of them, and run the same command again",
            ) from None
        if dist.get_rank() == 0:
            for path in sorted(path.parent for path in self._folder.glob("step-*/.metadata"))[:-_KEPT]:
                shutil.rmtree(path)
