"""Pruner `recover`: cuts nothing, and trains what the pruners before it left. The last of a chain: depth, width, recover.

Only the small model is in memory, so a draft can be cut from a source that would not fit with its optimiser."""

from pathlib import Path
from typing import Any

from pydantic import Field

from draftsmith.core.config import StrictConfig, parse_config
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.pruning import PruneJob, TrainingCost
from draftsmith.core.shapes import Shape, model_shape
from draftsmith.training.data import TextSource, open_text
from draftsmith.training.loop import STOPPED, TrainSettings, train
from draftsmith.training.mesh import load_sharded, world
from draftsmith.training.notes import TrainingNotes
from draftsmith.training.plan import training_cost
from draftsmith.training.sources import versions
from draftsmith.training.surgery import cut
from draftsmith.training.trained import cut_trained


class RecoverSettings(StrictConfig):
    """What to train on, and how long."""

    text: dict[str, TextSource] = Field(min_length=1)
    train: TrainSettings = TrainSettings()


class _Recover:
    cuts = ()
    versions = staticmethod(versions)

    def plan(self, job: PruneJob, so_far: KeepPlan, settings: dict[str, Any]) -> KeepPlan:
        asked = parse_config(RecoverSettings, settings, "the settings of the pruner recover")
        small = job.scratch / "cut"
        with world() as ranks:
            if ranks.rank == 0 and not small.exists():
                cut(job.source, so_far, small)
            ranks.wait()
            source = load_sharded(small, ranks, asked.train.precision, asked.train.save_activations)
            text = open_text(asked.text, small, job.scratch / "tokens", asked.train.length, asked.train.seed, ranks)
            with TrainingNotes(job.scratch, ranks) as notes:
                if not train(source, text, asked.train, ranks, job.scratch / "checkpoints", note=notes.add):
                    raise SystemExit(STOPPED)
        return so_far

    def expect(self, source: Path, wanted: Shape, settings: dict[str, Any], ranks: int) -> TrainingCost:
        asked = parse_config(RecoverSettings, settings, "the settings of the pruner recover")
        return training_cost(source, asked.train, ranks, cut_to=wanted)

    def cut(self, job: PruneJob, plan: KeepPlan, folder: Path) -> None:
        small = job.scratch / "cut"
        cut_trained(small, job.scratch / "checkpoints", KeepPlan.everything(model_shape(small)), folder)


PLUGIN = _Recover()
