"""Pruner `distill`: cuts nothing, and trains what the pruners before it left. The last of a chain: depth, width, distill.

Only the small model is in memory, so a draft can be cut from a source that would not fit with its optimiser; and its teacher
only if what was recorded of the target does not do."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from draftsmith.core.checkpoints import find_model, model_fingerprint
from draftsmith.core.config import StrictConfig, parse_config
from draftsmith.core.errors import ConfigError, DataError
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.pruning import PruneJob, TrainingCost
from draftsmith.core.sampling import DraftMethod
from draftsmith.core.shapes import Shape, model_shape
from draftsmith.core.trace import TraceReader
from draftsmith.core.vocabulary import check_same_tokens
from draftsmith.engines._checkpoint import Checkpoint
from draftsmith.training.data import Samples, TextSource, open_samples, text_identity
from draftsmith.training.held_out import HeldOut
from draftsmith.training.lessons import Lesson
from draftsmith.training.loop import STOPPED, TrainSettings, shares, train
from draftsmith.training.losses import LOSSES
from draftsmith.training.mesh import World, load_sharded, world
from draftsmith.training.notes import TrainingNotes
from draftsmith.training.plan import training_cost
from draftsmith.training.sources import Source, checked, versions
from draftsmith.training.surgery import cut
from draftsmith.training.trained import cut_trained


class DistillSettings(StrictConfig):
    """What to learn from, by which loss, and how long. `text` may be recorded traces, whose outputs are learnt, and running
    text. Without a `teacher`, a loss that compares probabilities takes those that the traces keep. `method`: how the draft will
    propose. `held_out` is a trace to measure tokens per step on, every `check_every` steps at `lookahead`."""

    text: dict[str, TextSource] = Field(min_length=1)
    loss: str = "cross_entropy"
    teacher: str | None = None
    method: DraftMethod = "greedy"
    lookahead: int = Field(5, ge=1)
    on_policy_every: int | None = Field(None, ge=1)
    held_out: str | None = None
    held_out_rows: int = Field(48, ge=1)
    check_every: int = Field(100, ge=1)
    train: TrainSettings = TrainSettings()


def _settings(settings: dict[str, Any]) -> DistillSettings:
    asked = parse_config(DistillSettings, settings, "the settings of distill")
    if asked.loss not in LOSSES:
        raise ConfigError(f"there is no loss {asked.loss!r}", f"use one of {', '.join(LOSSES)}")
    if asked.on_policy_every is not None and asked.teacher is None:
        raise ConfigError("what the student writes must be judged by a teacher", "name one: `teacher`, usually the target")
    if asked.on_policy_every is not None and asked.loss == "cross_entropy":
        raise ConfigError("cross entropy would teach the student what it writes itself", "take a loss that asks the teacher")
    if asked.held_out is not None:
        _check_held_out(TraceReader(Path(asked.held_out)), asked.text)
    return asked


def _check_held_out(held_out: TraceReader, text: Mapping[str, TextSource]) -> None:
    """What the student is judged by meanwhile is no test prompt, and none that it learns from."""
    held_out.refuse_test()
    prompts = held_out.prompts()
    for name, source in text.items():
        if source.is_trace and (shared := prompts & TraceReader(Path(source.path)).prompts()):
            raise ConfigError(
                f"{len(shared)} of the {len(prompts)} prompts that are held out are what the student learns from ({name})",
                "record another split, such as probe, for what is held out",
            )


class _Distill:
    cuts = ()
    trains = True
    versions = staticmethod(versions)

    def identity(self, settings: dict[str, Any]) -> dict[str, Any]:
        asked = _settings(settings)
        rest = asked.model_dump(mode="json", include={"loss", "method", "lookahead", "on_policy_every"})
        teacher = None if asked.teacher is None else model_fingerprint(find_model(asked.teacher))
        return {**rest, "teacher": teacher, "train": asked.train.identity(), "text": text_identity(asked.text)}

    def plan(self, job: PruneJob, so_far: KeepPlan, settings: dict[str, Any]) -> KeepPlan:
        asked, small = _settings(settings), job.unfinished / "cut"
        run = asked.train
        checkpoint = checked(job, run.length)
        with world(job.engine.threads) as ranks:
            shares(run, ranks.size)
            if ranks.rank == 0 and not small.exists():
                cut(job.source, so_far, small)
            samples = open_samples(asked.text, checkpoint, job.unfinished / "tokens", run.length, run.seed, ranks)
            _check_taught(asked, samples)
            student = load_sharded(small, ranks, run.precision, run.save_activations, run.compile)
            lesson = _lesson(asked, job, samples, checkpoint.eos_ids, ranks)
            with TrainingNotes(job.scratch, ranks) as notes:
                check = _check(asked, student, checkpoint, ranks)
                if not train(student, lesson, run, ranks, job.unfinished / "checkpoints", note=notes.add, check=check):
                    raise SystemExit(STOPPED)
        return so_far

    def expect(self, source: Path, wanted: Shape, settings: dict[str, Any], ranks: int) -> TrainingCost:
        asked = _settings(settings)
        cost = training_cost(source, asked.train, ranks, cut_to=wanted)
        if asked.teacher is None:
            return cost
        teacher = 4 * model_shape(find_model(asked.teacher)).parameters // ranks
        return replace(cost, memory_bytes={**cost.memory_bytes, "teacher": teacher})

    def cut(self, job: PruneJob, plan: KeepPlan, folder: Path) -> None:
        small = job.unfinished / "cut"
        cut_trained(small, job.unfinished / "checkpoints", KeepPlan.everything(model_shape(small)), folder)


def _lesson(asked: DistillSettings, job: PruneJob, samples: Samples, ends: tuple[int, ...], ranks: World) -> Lesson:
    teacher = None
    if asked.teacher is not None:
        path = find_model(asked.teacher)
        checked(replace(job, source=path), asked.train.length)
        teacher = load_sharded(path, ranks, asked.train.precision).model.eval()
    return Lesson(
        samples=samples,
        device=ranks.device,
        loss_name=asked.loss,
        teacher=teacher,
        method=asked.method,
        lookahead=asked.lookahead,
        on_policy_every=asked.on_policy_every,
        ends=ends,
        seed=asked.train.seed,
    )


def _check_taught(asked: DistillSettings, samples: Samples) -> None:
    """A loss that compares probabilities needs them at every place."""
    if asked.loss == "cross_entropy" or asked.teacher is not None:
        return
    for name, domain in zip(asked.text, samples.domains, strict=True):
        if domain.kept == 0:
            raise DataError(
                f"the loss {asked.loss} needs the target's probabilities, and {name} has none",
                "record with `--top-logprobs 16`, name a --teacher, or take the loss cross_entropy",
            )


def _check(asked: DistillSettings, student: Source, checkpoint: Checkpoint, ranks: World) -> Callable[[int], dict[str, float]]:
    if asked.held_out is None:
        return lambda _step: {}
    trace = TraceReader(Path(asked.held_out))
    check_same_tokens(trace.vocabulary(), checkpoint.vocabulary)
    held_out = HeldOut(
        trace,
        asked.held_out_rows,
        asked.lookahead,
        asked.method,
        ranks,
        positions=checkpoint.max_positions,
        vocabulary=student.shape.vocabulary,
    )

    def measured(step: int) -> dict[str, float]:
        if (step + 1) % asked.check_every and step + 1 != asked.train.steps:
            return {}
        return {"tokens_per_step": held_out.tokens_per_step(student.model)}

    return measured


PLUGIN = _Distill()
