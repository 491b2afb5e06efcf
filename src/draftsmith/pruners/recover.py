"""Pruner `recover`: cuts nothing, and trains what the pruners before it left. The last of a chain: depth, width, recover.

Only the small model is in memory, so a draft can be cut from a source that would not fit with its optimiser."""

from pathlib import Path
from typing import Any

from pydantic import Field

from draftsmith.core.config import StrictConfig, parse_config
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.pruning import PruneJob, TrainingCost
from draftsmith.core.shapes import Shape, model_shape
from draftsmith.training.data import TextSource, open_text, text_identity
from draftsmith.training.loop import STOPPED, TrainSettings, shares, train
from draftsmith.training.mesh import load_sharded, world
from draftsmith.training.notes import TrainingNotes
from draftsmith.training.plan import training_cost
from draftsmith.training.sources import checked, versions
from draftsmith.training.surgery import cut
from draftsmith.training.trained import cut_trained


class RecoverSettings(StrictConfig):
    """What to train on, and how long."""

    text: dict[str, TextSource] = Field(min_length=1)
    train: TrainSettings = TrainSettings()


def _settings(settings: dict[str, Any]) -> RecoverSettings:
    return parse_config(RecoverSettings, settings, "the settings of the pruner recover")


class _Recover:
    cuts = ()
    trains = True
    versions = staticmethod(versions)

    def identity(self, settings: dict[str, Any]) -> dict[str, Any]:
        asked = _settings(settings)
        return {"train": asked.train.identity(), "text": text_identity(asked.text)}

    def plan(self, job: PruneJob, so_far: KeepPlan, settings: dict[str, Any]) -> KeepPlan:
        asked, small = _settings(settings), job.scratch / "cut"
        run = asked.train
        checkpoint = checked(job, run.length)
        with world() as ranks:
            shares(run, ranks.size)
            if ranks.rank == 0 and not small.exists():
                cut(job.source, so_far, small)
            text = open_text(asked.text, checkpoint, job.scratch / "tokens", run.length, run.seed, ranks)
            source = load_sharded(small, ranks, run.precision, run.save_activations, run.compile)
            with TrainingNotes(job.scratch, ranks) as notes:
                if not train(source, text, asked.train, ranks, job.scratch / "checkpoints", note=notes.add):
                    raise SystemExit(STOPPED)
        return so_far

    def expect(self, source: Path, wanted: Shape, settings: dict[str, Any], ranks: int) -> TrainingCost:
        return training_cost(source, _settings(settings).train, ranks, cut_to=wanted)

    def cut(self, job: PruneJob, plan: KeepPlan, folder: Path) -> None:
        small = job.scratch / "cut"
        cut_trained(small, job.scratch / "checkpoints", KeepPlan.everything(model_shape(small)), folder)


PLUGIN = _Recover()
