"""Pruner `l0`: masks on layers, heads, neurons and hidden dimensions, learned together with the weights (Sheared-LLaMA).

Over the first part of the steps the aim moves from the source to the shape wanted; gates that are too many pay for it. In the
last part the masks stand as they will be cut, and the weights settle. So the cut model is the masked one, of an exact shape."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor, nn

from draftsmith.core.config import StrictConfig, parse_config
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.log import log
from draftsmith.core.pruning import PruneJob, TrainingCost
from draftsmith.core.shapes import Shape
from draftsmith.training.data import TextSource, open_text
from draftsmith.training.hard_concrete import Gates
from draftsmith.training.loop import STOPPED, TrainSettings, train
from draftsmith.training.masks import MaskHooks, Masks
from draftsmith.training.mesh import World, load_sharded, world
from draftsmith.training.notes import TrainingNotes
from draftsmith.training.plan import training_cost
from draftsmith.training.sources import versions
from draftsmith.training.trained import cut_trained


class L0Settings(StrictConfig):
    """What to train on, how long, and how fast the masks move. `shrink` and `settle` are shares of the steps: until when the
    aim moves, and how long the final masks stand."""

    text: dict[str, TextSource] = Field(min_length=1)
    train: TrainSettings = TrainSettings()
    mask_rate: float = Field(0.1, gt=0)
    price_rate: float = Field(0.1, gt=0)
    shrink: float = Field(0.5, gt=0, le=1)
    settle: float = Field(0.2, ge=0, lt=1)


class L0Task:
    """Gates, their prices, and the masks that a step uses."""

    def __init__(self, gates: Gates, hooks: MaskHooks, settings: L0Settings, passes: int, world: World) -> None:
        self._gates, self._hooks, self._settings, self._passes, self._world = gates, hooks, settings, passes, world
        self.parameters: dict[str, nn.Parameter] = {**gates.log_alphas, **gates.prices}
        self.optimizer = torch.optim.AdamW(
            [
                {"params": list(gates.log_alphas.values()), "lr": settings.mask_rate},
                {"params": list(gates.prices.values()), "lr": settings.price_rate, "maximize": True},
            ],
            weight_decay=0.0,
        )
        self._noise: dict[str, Tensor] | None = None
        self._step = 0

    def begin(self, step: int) -> None:
        settings = self._settings
        self._step, settles_at = step, round(settings.train.steps * (1 - settings.settle))
        self._noise = self._gates.noise((settings.train.seed << 32) + step) if step < settles_at else None
        if self._noise is None:
            self._hooks.masks = Masks.of(self._gates.plan(), self._gates.source).to(self._world.device)

    def prepare(self) -> None:
        if self._noise is not None:
            self._hooks.masks = self._gates.masks(self._noise).to(self._world.device)

    def loss(self, lm_loss: Tensor) -> Tensor:
        if self._noise is None:
            return lm_loss
        progress = min(1.0, (self._step + 1) / (self._settings.shrink * self._settings.train.steps))
        return lm_loss + self._gates.price(progress).to(lm_loss.device) / self._passes

    def after(self, step: int) -> dict[str, float]:
        if self._noise is not None:
            for parameter in self.parameters.values():
                dist.all_reduce(parameter.grad)
                parameter.grad /= self._world.size
            self.optimizer.step()
        self.optimizer.zero_grad()
        return {"off_shape": self._gates.worst()}


class _L0:
    cuts = ("layers", "heads", "kv_heads", "intermediate", "hidden")
    versions = staticmethod(versions)

    def plan(self, job: PruneJob, so_far: KeepPlan, settings: dict[str, Any]) -> KeepPlan:
        asked = parse_config(L0Settings, settings, "the settings of the pruner l0")
        if so_far != KeepPlan.everything(so_far.shape(job.wanted)):
            log.warning("l0 chooses anew from the whole source: what pruners before it kept does not count")
        with world() as ranks:
            source = load_sharded(job.source, ranks, asked.train.precision, asked.train.save_activations)
            gates = Gates(source.shape, job.wanted, asked.train.seed)
            hooks = MaskHooks(source.model, source.layout, source.shape, gates.masks(gates.noise(0)).to(ranks.device))
            passes = asked.train.batch // ranks.size // asked.train.micro_batch
            task = L0Task(gates, hooks, asked, max(1, passes), ranks)
            text = open_text(asked.text, job.source, job.scratch / "tokens", asked.train.length, asked.train.seed, ranks)
            with TrainingNotes(job.scratch, ranks) as notes:
                if not train(source, text, asked.train, ranks, job.scratch / "checkpoints", task, notes.add):
                    raise SystemExit(STOPPED)
            return gates.plan()

    def expect(self, source: Path, wanted: Shape, settings: dict[str, Any], ranks: int) -> TrainingCost:
        asked = parse_config(L0Settings, settings, "the settings of the pruner l0")
        return training_cost(source, asked.train, ranks, masked_to=wanted)

    def cut(self, job: PruneJob, plan: KeepPlan, folder: Path) -> None:
        cut_trained(job.source, job.scratch / "checkpoints", plan, folder)


PLUGIN = _L0()
