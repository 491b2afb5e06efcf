"""Pruner `l0`: masks on layers, heads, neurons and hidden dimensions, learned together with the weights (Sheared-LLaMA).

Over the first part of the steps the aim moves from the source to the shape wanted; gates that are too many pay for it. In the
last part the masks stand as they will be cut, and the weights settle. So the cut model is the masked one, of an exact shape."""

from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from pydantic import Field, model_validator
from torch import Tensor, nn

from draftsmith.core.config import StrictConfig, parse_config
from draftsmith.core.errors import PlanError
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.log import log
from draftsmith.core.pruning import PruneJob, TrainingCost
from draftsmith.core.shapes import Shape, model_shape
from draftsmith.training.data import TextSource, open_samples, text_identity
from draftsmith.training.hard_concrete import Gates
from draftsmith.training.lessons import Lesson
from draftsmith.training.loop import STOPPED, TrainSettings, shares, train
from draftsmith.training.masks import MaskHooks, Masks
from draftsmith.training.mesh import World, load_sharded, world
from draftsmith.training.notes import TrainingNotes
from draftsmith.training.plan import training_cost
from draftsmith.training.sources import Source, checked, versions
from draftsmith.training.trained import cut_trained

_FAR = 0.1  # of the gates of an axis, in expectation


class L0Settings(StrictConfig):
    """What to train on, how long, and how fast the masks move. `shrink` and `settle` are shares of the steps: until when the
    aim moves, and how long the final masks stand."""

    text: dict[str, TextSource] = Field(min_length=1)
    train: TrainSettings = TrainSettings()
    mask_rate: float = Field(0.1, gt=0)
    price_rate: float = Field(1.0, gt=0)
    shrink: float = Field(0.5, gt=0, le=1)
    settle: float = Field(0.2, ge=0, lt=1)

    @model_validator(mode="after")
    def _aim_is_reached(self) -> Self:
        if self.shrink + self.settle > 1:
            raise ValueError(f"shrink {self.shrink} and settle {self.settle} are more than all steps")
        return self


class L0Task:
    """Gates, their prices, and the masks that a step uses."""

    def __init__(self, source: Source, gates: Gates, hooks: MaskHooks, settings: L0Settings, passes: int, world: World) -> None:
        self._source, self._gates, self._hooks = source, gates, hooks
        self._settings, self._passes, self._world = settings, passes, world
        self.parameters: dict[str, nn.Parameter] = {**gates.log_alphas, **gates.prices}
        self.optimizer = torch.optim.AdamW(
            [
                {"params": list(gates.log_alphas.values()), "lr": settings.mask_rate},
                {"params": list(gates.prices.values()), "lr": settings.price_rate, "maximize": True},
            ],
            weight_decay=0.0,
        )
        self._noise: dict[str, Tensor] | None = None
        self._step, self._stand = 0, False

    def begin(self, step: int) -> None:
        settings = self._settings
        self._step, settles_at = step, round(settings.train.steps * (1 - settings.settle))
        self._noise = self._gates.noise(settings.train.seed, step) if step < settles_at else None
        if self._noise is None and not self._stand:
            plan, self._stand = self._gates.plan(), True
            self._hooks.masks = Masks.of(plan, self._gates.source).to(self._world.device)
            layers = list(self._source.layers)  # those that go would be computed for nothing
            self._source.layers = nn.ModuleList(layers[layer.index] for layer in plan.layers)
        if step == settles_at and self._world.rank == 0 and (off := self._gates.too_many()) > _FAR:
            log.warning(
                "the masks stand now and had not come to the shape: %.0f%% of an axis is cut at once. More steps help, or a "
                "higher mask_rate and price_rate (now %g and %g)",
                100 * off, settings.mask_rate, settings.price_rate,
            )  # fmt: skip

    def prepare(self) -> None:
        if self._noise is not None:
            self._hooks.masks = self._gates.masks(self._noise).to(self._world.device)

    def loss(self, taught: Tensor) -> Tensor:
        if self._noise is None:
            return taught
        progress = min(1.0, (self._step + 1) / (self._settings.shrink * self._settings.train.steps))
        return taught + self._gates.price(progress).to(taught.device) / self._passes

    def after(self, step: int) -> dict[str, float]:
        if self._noise is not None:
            for parameter in self.parameters.values():
                dist.all_reduce(parameter.grad)
                parameter.grad /= self._world.size
            self.optimizer.step()
            self._gates.stay_within()
        self.optimizer.zero_grad()
        return {"off_shape": self._gates.worst()}


def _settings(settings: dict[str, Any]) -> L0Settings:
    return parse_config(L0Settings, settings, "the settings of the pruner l0")


class _L0:
    cuts = ("layers", "heads", "kv_heads", "intermediate", "hidden")
    trains = True
    versions = staticmethod(versions)

    def identity(self, settings: dict[str, Any]) -> dict[str, Any]:
        asked = _settings(settings)
        rest = asked.model_dump(mode="json", include={"mask_rate", "price_rate", "shrink", "settle"})
        return {**rest, "train": asked.train.identity(), "text": text_identity(asked.text)}

    def plan(self, job: PruneJob, so_far: KeepPlan, settings: dict[str, Any]) -> KeepPlan:
        asked = _settings(settings)
        if so_far != KeepPlan.everything(model_shape(job.source)):
            raise PlanError("l0 chooses from the whole source", "let it come first, or leave the pruners before it out")
        run = asked.train
        checkpoint = checked(job, run.length)
        with world(job.engine.threads) as ranks:
            share, size = shares(run, ranks.size)
            samples = open_samples(asked.text, checkpoint, job.unfinished / "tokens", run.length, run.seed, ranks)
            source = load_sharded(job.source, ranks, run.precision, run.save_activations, run.compile)
            gates = Gates(source.shape, job.wanted, run.seed)
            hooks = MaskHooks(source.model, source.layout, source.shape, gates.masks(gates.noise(0, 0)).to(ranks.device))
            task = L0Task(source, gates, hooks, asked, share // size, ranks)
            with TrainingNotes(job.scratch, ranks) as notes:
                lesson, checkpoints = Lesson(samples, ranks.device), job.unfinished / "checkpoints"
                if not train(source, lesson, run, ranks, checkpoints, task, notes.add):
                    raise SystemExit(STOPPED)
            return gates.plan()

    def expect(self, source: Path, wanted: Shape, settings: dict[str, Any], ranks: int) -> TrainingCost:
        return training_cost(source, _settings(settings).train, ranks, masked_to=wanted)

    def cut(self, job: PruneJob, plan: KeepPlan, folder: Path) -> None:
        cut_trained(job.source, job.unfinished / "checkpoints", plan, folder)


PLUGIN = _L0()
