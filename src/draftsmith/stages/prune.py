"""Stage `prune`: a source becomes a smaller checkpoint of the shape that was asked for.
Reads a source and a Trace of the train or probe split; writes a Checkpoint, with the model in the folder `model` beside it."""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from draftsmith.core import registry
from draftsmith.core.checkpoints import find_model, model_fingerprint
from draftsmith.core.config import StrictConfig
from draftsmith.core.errors import ConfigError, DataError, PlanError, RecordError
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.log import log
from draftsmith.core.protocols import EngineConfig
from draftsmith.core.pruning import PruneJob, Pruner, PrunerChoice, WantedShape
from draftsmith.core.records import PrunedCheckpoint
from draftsmith.core.shapes import Shape
from draftsmith.core.store import Run, Store, write_json
from draftsmith.core.trace import TraceReader


class PruneConfig(StrictConfig):
    """What to cut, to which shape, and by what. Without `pruners`, those without training that the shape needs: `depth` for
    layers, then `width` for the rest. `trace` is recorded output of the target, `num_rows` of its rows are looked at."""

    source: str
    trace: str
    shape: WantedShape
    pruners: tuple[PrunerChoice, ...] | None = None
    num_rows: int = Field(32, ge=1)
    engine: EngineConfig = EngineConfig()


def prune(config: PruneConfig, store: Store) -> Path:
    """The folder of the finished checkpoint record."""
    source, trace = find_model(config.source), TraceReader(Path(config.trace))
    if trace.record.split == "test":
        raise DataError(
            f"{config.trace} holds prompts of the test split, by which drafts are judged in the end",
            "record the train or the probe split: `draftsmith record --split train`",
        )
    whole, wanted = config.shape.of(source)
    choices = config.pruners or _needed(whole, wanted)
    pruners: list[tuple[PrunerChoice, Pruner]] = [(choice, registry.load("pruners", choice.kind)) for choice in choices]
    _check_they_can(pruners, whole, wanted)
    inputs = {
        "source": model_fingerprint(source),
        "trace": trace.record.fingerprint,
        "shape": wanted.model_dump(mode="json"),
        "pruners": [choice.model_dump(mode="json") for choice in choices],
        "settings": config.model_dump(mode="json", include={"num_rows", "engine"}),
    }
    run = store.run("checkpoints", inputs)
    if run.is_current:
        log.info("already pruned: %s", run.path)
        return run.path
    began, first = time.monotonic(), os.environ.get("RANK", "0") == "0"  # under torchrun all ranks are here
    if first:
        run.begin(pruners[-1][1].versions())
    rows = [row for row, _ in zip(trace.rows(), range(config.num_rows), strict=False) if row.num_output > 0]
    job = PruneJob(source, wanted, rows, trace.record.sampling, trace.vocabulary(), config.engine, run.path)
    plan = KeepPlan.everything(whole)
    for choice, pruner in pruners:
        job = replace(job, scratch=run.path / choice.kind)
        plan = pruner.plan(job, plan, choice.settings)
    if plan.shape(whole) != wanted:
        raise PlanError(f"the pruners ended at {plan.shape(whole)}, not at {wanted}", "report this: it is a fault of a pruner")
    model = run.path / "model"
    if first:
        shutil.rmtree(model, ignore_errors=True)
    pruners[-1][1].cut(job, plan, model)
    if not first:
        _wait_for(run)
        return run.path
    write_json(run.path / "plan.json", plan.model_dump(mode="json"))
    record = PrunedCheckpoint(
        source=source.name,
        source_fingerprint=inputs["source"],
        trace=trace.record.fingerprint,
        shape=wanted,
        parameters=wanted.parameters,
        layers_kept=tuple(layer.index for layer in plan.layers),
        pruners=tuple(choice.kind for choice in choices),
        fingerprint=model_fingerprint(model),
    )
    run.finish(record, time.monotonic() - began)
    return run.path


def _wait_for(run: Run) -> None:
    """The first rank writes the record; the others find it."""
    for _ in range(600):
        if run.is_complete:
            return
        time.sleep(1.0)
    raise RecordError(f"the first rank has not finished {run.path}", "see what it says, and run the same command again")


def _needed(source: Shape, wanted: Shape) -> tuple[PrunerChoice, ...]:
    kinds = (["depth"] if wanted.layers < source.layers else []) + (["width"] if _others(source, wanted) else [])
    if not kinds:
        raise ConfigError("the shape asked for is the source's own", "say what to cut: --layers, --hidden, --intermediate")
    return tuple(PrunerChoice(kind=kind) for kind in kinds)


def _others(source: Shape, wanted: Shape) -> bool:
    return wanted.model_copy(update={"layers": source.layers}) != source


def _check_they_can(pruners: list[tuple[PrunerChoice, Pruner]], source: Shape, wanted: Shape) -> None:
    for name in ("layers", "heads", "kv_heads", "hidden", "intermediate"):
        if getattr(wanted, name) != getattr(source, name) and not any(name in pruner.cuts for _, pruner in pruners):
            named = " and ".join(choice.kind for choice, _ in pruners)
            raise ConfigError(
                f"{named} cannot cut {name.replace('_', ' ')}", "add a pruner that can: depth for layers, width else"
            )
