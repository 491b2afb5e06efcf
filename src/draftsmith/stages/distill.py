"""Stage `distill`: a checkpoint learns to write what the target writes.
Reads a student, Traces or text, and a teacher if one is wanted; writes a checkpoint, in `model` beside its record."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from pydantic import Field

from draftsmith.core import registry
from draftsmith.core.checkpoints import find_model, model_fingerprint, model_name
from draftsmith.core.config import StrictConfig
from draftsmith.core.errors import ConfigError
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.log import log
from draftsmith.core.protocols import EngineConfig
from draftsmith.core.pruning import PruneJob, Pruner, forget_unfinished, wait_for
from draftsmith.core.records import DistilledCheckpoint, LearningPoint
from draftsmith.core.sampling import DraftMethod
from draftsmith.core.shapes import model_shape
from draftsmith.core.store import Store
from draftsmith.core.trace import TraceReader


class DistillConfig(StrictConfig):
    """Who learns, from what, and how long. `trace` is recorded output of the target, of the train split; `held_out` another, by
    which tokens per step are measured meanwhile. More to learn from goes into `text`, by name: a path and a weight."""

    student: str
    trace: str
    held_out: str | None = None
    text: dict[str, dict[str, Any]] = Field(default_factory=dict)
    loss: str = "forward_kl"
    teacher: str | None = None
    method: DraftMethod = "greedy"
    lookahead: int = Field(5, ge=1)
    on_policy_every: int | None = Field(None, ge=1)
    check_every: int = Field(100, ge=1)
    train: dict[str, Any] = Field(default_factory=dict)
    trust_remote_code: bool = False


def distill(config: DistillConfig, store: Store) -> Path:
    """The folder of the finished checkpoint record. Under torchrun every rank calls this; the first one writes."""
    student, trace = find_model(config.student), TraceReader(Path(config.trace))
    trace.refuse_test()
    shape, fingerprint = model_shape(student), model_fingerprint(student)
    distiller: Pruner = registry.load("pruners", "distill")
    settings = _settings(config, trace.folder)
    held_out = TraceReader(Path(config.held_out)).record.fingerprint if config.held_out else None
    inputs = {
        "student": fingerprint,
        "trace": trace.record.fingerprint,
        "held_out": [held_out, config.check_every],
        "settings": _identity(distiller, settings),
    }
    run = store.run("distilled", inputs)
    if run.is_current:
        log.info("already distilled: %s", run.path)
        return run.path
    began, first = time.monotonic(), os.environ.get("RANK", "0") == "0"
    if first:
        run.begin(distiller.versions())
    job = PruneJob(
        source=student,
        wanted=shape,
        rows=(),
        sampling=trace.record.sampling,
        vocabulary=trace.vocabulary(),
        engine=EngineConfig(trust_remote_code=config.trust_remote_code),
        scratch=run.path / "training",
        searches=store.root / "searches",
    )
    everything = KeepPlan.everything(shape)
    distiller.plan(job, everything, settings)
    if first:
        shutil.rmtree(run.path / "model", ignore_errors=True)
    distiller.cut(job, everything, run.path / "model")
    if not first:
        wait_for(run.path / "record.json")
        return run.path
    curve = _curve(job.scratch / "training.jsonl")
    record = DistilledCheckpoint(
        student=model_name(student),
        student_fingerprint=fingerprint,
        trace=trace.record.fingerprint,
        held_out=held_out,
        loss=config.loss,
        lookahead=config.lookahead,
        shape=shape,
        parameters=shape.parameters,
        tokens=curve[-1].tokens,
        curve=curve,
        fingerprint=model_fingerprint(run.path / "model"),
    )
    run.finish(record, time.monotonic() - began)
    forget_unfinished(run.path)
    return run.path


def _settings(config: DistillConfig, trace: Path) -> dict[str, Any]:
    """As the distiller takes them."""
    if "trace" in config.text:
        raise ConfigError("a text is named `trace`, which is the name of the trace", "give it another name")
    own = config.model_dump(
        mode="json", include={"loss", "teacher", "method", "lookahead", "on_policy_every", "held_out", "check_every", "train"}
    )
    return {**own, "text": {"trace": {"path": str(trace)}, **config.text}}


def _identity(distiller: Pruner, settings: dict[str, Any]) -> dict[str, Any]:
    """What the outcome depends on. Settings that only the distiller can check are this verb's to its user."""
    try:
        return distiller.identity(settings)
    except ConfigError as error:
        raise ConfigError(error.problem, error.way_out, "distill", error.settings) from None


def _curve(path: Path) -> tuple[LearningPoint, ...]:
    """About a hundred points of a run, and every one at which tokens per step were measured. The loss is the mean since the one
    before."""
    steps = [json.loads(line) for line in path.read_text().splitlines()]
    every, points, losses = max(1, len(steps) // 100), [], []
    for at, step in enumerate(steps):
        losses.append(step["loss"])
        measured = step.get("tokens_per_step")
        if measured is not None or (at + 1) % every == 0 or at + 1 == len(steps):
            points.append(LearningPoint(tokens=step["tokens"], loss=sum(losses) / len(losses), tokens_per_step=measured))
            losses = []
    return tuple(points)
