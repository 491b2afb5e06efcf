"""The Python face of draftsmith: the same verbs as the command line, as functions.

    from draftsmith import api

    trace = api.record(target="path/to/target", datasets=["hellaswag"], data="path/to/data")
    card = api.evaluate(trace=trace.folder, draft="path/to/draft")
    print(card.record.overall.at(5).tokens_per_step)

Settings are those of the stage's config class, by name; nested ones (`engine`, `sampling`) take a dictionary. Everything is
kept in a store (default: the folder `runs`): the same call again returns the kept record at once. A verb imports its stage
when it is called: an answer from records does not wait for what trains, nor for what draws."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from draftsmith.core.config import ConfigT, parse_config
from draftsmith.core.doctor import Diagnosis, diagnose
from draftsmith.core.records import (
    Design,
    DistilledCheckpoint,
    Forged,
    LiveCard,
    Prediction,
    Profile,
    PrunedCheckpoint,
    RowsCard,
    Scorecard,
    ShapeProfile,
    TrainingPlan,
)
from draftsmith.core.store import Store, read_record
from draftsmith.core.trace import Trace

RecordT = TypeVar("RecordT", bound=BaseModel)


@dataclass(frozen=True)
class Kept(Generic[RecordT]):
    """A record, and the folder of the store where it lies with its provenance and its parts."""

    record: RecordT
    folder: Path


def default_store() -> Path:
    """The folder records go to: DRAFTSMITH_STORE, else `runs` here."""
    return Path(os.environ.get("DRAFTSMITH_STORE", "runs"))


def record(*, store: str | Path | None = None, **settings: Any) -> Kept[Trace]:
    """Run the target once over prompts and keep every token with its log-probability.

    Settings: see [`RecordConfig`][draftsmith.stages.record.RecordConfig]."""
    return _kept(Trace, record_part((0, 1), store=store, **settings))


def record_part(worker: tuple[int, int], *, store: str | Path | None = None, **settings: Any) -> Path:
    """One of n machines' part of `record`: `worker` = (i, n) records every n-th shard from i into a store they share.

    Returns the trace's folder. The trace can be read there once all n parts are done."""
    from draftsmith.stages import record as stage

    config = _checked(stage.RecordConfig, _plain(settings), "record")
    return stage.record(config, Store(store or default_store()), worker)


def evaluate(*, store: str | Path | None = None, **settings: Any) -> Kept[Scorecard]:
    """Replay a draft against a trace: tokens per step at every lookahead, without running speculative decoding.

    Settings: see [`EvaluateConfig`][draftsmith.stages.evaluate.EvaluateConfig]. `draft` may be a path or "ngram"."""
    from draftsmith.stages import evaluate as stage

    config = _checked(stage.EvaluateConfig, _with_draft(settings), "evaluate")
    return _kept(Scorecard, stage.evaluate(config, Store(store or default_store())))


def evaluate_live(*, store: str | Path | None = None, **settings: Any) -> Kept[LiveCard]:
    """Run target and draft together in a real engine, with its own counters and the clock running.

    Settings: see [`EvaluateLiveConfig`][draftsmith.stages.evaluate_live.EvaluateLiveConfig]."""
    from draftsmith.stages import evaluate_live as stage

    config = _checked(stage.EvaluateLiveConfig, _with_draft(settings), "evaluate --live")
    return _kept(LiveCard, stage.evaluate_live(config, Store(store or default_store())))


def evaluate_rows(*, store: str | Path | None = None, **settings: Any) -> Kept[RowsCard]:
    """Replay a draft as if its output head kept fewer rows: all sizes from one pass.

    Settings: see [`EvaluateRowsConfig`][draftsmith.stages.evaluate_rows.EvaluateRowsConfig]."""
    from draftsmith.stages import evaluate_rows as stage

    config = _checked(stage.EvaluateRowsConfig, _with_draft(settings), "evaluate --rows")
    return _kept(RowsCard, stage.evaluate_rows(config, Store(store or default_store())))


def profile(*, store: str | Path | None = None, **settings: Any) -> Kept[Profile]:
    """Measure an engine's step times on this machine: plain decoding, and every lookahead with its draft.

    Settings: see [`ProfileConfig`][draftsmith.stages.profile.ProfileConfig]. `draft` may be a path or "ngram"; a folder that
    holds only a config.json is a shape, timed with random weights."""
    from draftsmith.stages import profile as stage

    config = _checked(stage.ProfileConfig, _with_draft(settings), "profile")
    return _kept(Profile, stage.profile(config, Store(store or default_store())))


def profile_shapes(*, store: str | Path | None = None, **settings: Any) -> Kept[ShapeProfile]:
    """Measure the step times of models that need not exist, from a file of shapes.

    Settings: see [`ProfileShapesConfig`][draftsmith.stages.profile_shapes.ProfileShapesConfig]."""
    from draftsmith.stages import profile_shapes as stage

    config = _checked(stage.ProfileShapesConfig, _plain(settings), "profile --shapes")
    return _kept(ShapeProfile, stage.profile_shapes(config, Store(store or default_store())))


def prune(*, store: str | Path | None = None, **settings: Any) -> Kept[PrunedCheckpoint]:
    """Cut a source to a smaller shape, judged by recorded output of the target. The model is in `model` beside the record.

    Settings: see [`PruneConfig`][draftsmith.stages.prune.PruneConfig]."""
    from draftsmith.stages import prune as stage

    config = _checked(stage.PruneConfig, _plain(settings), "prune")
    return _kept(PrunedCheckpoint, stage.prune(config, Store(store or default_store())))


def distill(*, store: str | Path | None = None, **settings: Any) -> Kept[DistilledCheckpoint]:
    """Let a draft learn from recorded output of its target. The model is in `model` beside the record.

    Settings: see [`DistillConfig`][draftsmith.stages.distill.DistillConfig]."""
    from draftsmith.stages import distill as stage

    config = _checked(stage.DistillConfig, _plain(settings), "distill")
    return _kept(DistilledCheckpoint, stage.distill(config, Store(store or default_store())))


def plan_training(*, store: str | Path | None = None, **settings: Any) -> Kept[TrainingPlan]:
    """What a pruner that trains would take on so many devices: memory of a rank, tokens per second, hours. Nothing is loaded.

    Settings: see [`PlanTrainingConfig`][draftsmith.stages.plan_training.PlanTrainingConfig]."""
    from draftsmith.stages import plan_training as stage

    config = _checked(stage.PlanTrainingConfig, _plain(settings), "prune --plan")
    return _kept(TrainingPlan, stage.plan_training(config, Store(store or default_store())))


def design(*, store: str | Path | None = None, **settings: Any) -> Kept[Design]:
    """Rank every shape that can be cut from a source by the throughput it would give; needs no engine.

    Settings: see [`DesignConfig`][draftsmith.stages.design.DesignConfig]."""
    from draftsmith.stages import design as stage

    config = _checked(stage.DesignConfig, _plain(settings), "design")
    return _kept(Design, stage.design(config, Store(store or default_store())))


def forge(*, store: str | Path | None = None, **settings: Any) -> Kept[Forged]:
    """Make the fastest draft for a target that can be had in the time given, and prove it. It is in `model` beside the record.

    Settings: see [`ForgeConfig`][draftsmith.forge.ground.ForgeConfig]."""
    from draftsmith.forge.ground import ForgeConfig
    from draftsmith.forge.run import forge as run_forge

    config = _checked(ForgeConfig, _plain(settings), "forge")
    return _kept(Forged, run_forge(config, Store(store or default_store())))


def predict(*, store: str | Path | None = None, **settings: Any) -> Kept[Prediction]:
    """Throughput, a verdict, the best lookaheads and the inverses, from records or from numbers; needs no engine.

    Settings: see [`PredictConfig`][draftsmith.stages.predict.PredictConfig]."""
    from draftsmith.stages import predict as stage

    config = _checked(stage.PredictConfig, _plain(settings), "predict")
    return _kept(Prediction, stage.predict(config, Store(store or default_store())))


def predict_pictures(kept: Kept[Prediction]) -> list[Path]:
    """Draw a prediction beside its record: one page with everything, and each picture as PNG and SVG. Needs `report`."""
    from draftsmith.figures.page import write_page
    from draftsmith.figures.prediction import break_even, page_sections, step_split, throughput
    from draftsmith.figures.save import save_chart

    page = kept.folder / "prediction.html"
    title = f"{kept.record.draft} drafting for {kept.record.target}"
    write_page(page, title, kept.record.verdict.sentence, page_sections(kept.record))
    charts = {"throughput": throughput, "step_split": step_split, "break_even": break_even}
    pictures = [save_chart(draw(kept.record), kept.folder, name, page=False) for name, draw in charts.items()]
    return [page, *(path for paths in pictures for path in paths)]


def shape_picture(kept: Kept[ShapeProfile]) -> list[Path]:
    """Draw step time against depth and width beside a shape profile. Needs the extra `report`."""
    from draftsmith.figures.save import save_chart
    from draftsmith.figures.shapes import shapes as shapes_chart

    return save_chart(shapes_chart(kept.record), kept.folder, "shapes")


def picture(card: Kept[Scorecard], live: tuple[Kept[LiveCard], ...] = ()) -> list[Path]:
    """Draw tokens per step against lookahead beside the scorecard, as PNG, SVG and HTML. Needs the extra `report`."""
    from draftsmith.figures.save import save_chart
    from draftsmith.figures.tokens_per_step import tokens_per_step

    chart = tokens_per_step(card.record, [one.record for one in live])
    return save_chart(chart, card.folder, "tokens_per_step")


def forge_page(kept: Kept[Forged]) -> list[Path]:
    """Draw the one-page result beside a forged draft, and its picture as PNG and SVG. Needs the extra `report`."""
    from draftsmith.figures.forged import forged as forged_chart
    from draftsmith.figures.forged import page_sections as forged_sections
    from draftsmith.figures.page import write_page
    from draftsmith.figures.save import save_chart

    page, made = kept.folder / "forged.html", kept.record
    lead = f"{made.speedup:.2f} x plain decoding at lookahead {made.lookahead}, batch {made.batch}, on {made.engine}."
    write_page(page, f"A draft for {made.target}", lead, forged_sections(made))
    return [page, *save_chart(forged_chart(made), kept.folder, "forged", page=False)]


def rows_picture(kept: Kept[RowsCard]) -> list[Path]:
    """Draw tokens per step against output rows beside a card. Needs the extra `report`."""
    from draftsmith.figures.rows import rows as rows_chart
    from draftsmith.figures.save import save_chart

    return save_chart(rows_chart(kept.record), kept.folder, "rows")


def design_picture(kept: Kept[Design]) -> list[Path]:
    """Draw draft time against acceptance beside a design. Needs the extra `report`."""
    from draftsmith.figures.design import design as design_chart
    from draftsmith.figures.save import save_chart

    return save_chart(design_chart(kept.record), kept.folder, "design")


def learning_picture(kept: Kept[DistilledCheckpoint], **others: Kept[DistilledCheckpoint]) -> list[Path]:
    """Draw tokens per step against training tokens beside a distilled checkpoint, with other runs by name. Needs `report`."""
    from draftsmith.figures.learning import learning
    from draftsmith.figures.save import save_chart

    runs = {kept.record.loss: kept.record, **{name: one.record for name, one in others.items()}}
    return save_chart(learning(runs), kept.folder, "learning")


def doctor() -> Diagnosis:
    """Which engines, devices and versions are usable here, and what to install for the rest."""
    return diagnose()


def _kept(kind: type[RecordT], folder: Path) -> Kept[RecordT]:
    return Kept(read_record(kind, folder), folder)


def _checked(kind: type[ConfigT], settings: dict[str, Any], verb: str) -> ConfigT:
    """The settings of a verb, which may be followed by the option that makes it another one: `evaluate --live`."""
    return parse_config(kind, settings, f"the settings of {verb}", verb.split()[0])


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Paths as text, which is how configs keep them."""
    plain: dict[str, Any] = {}
    for name, value in settings.items():
        plain[name] = _plain(value) if isinstance(value, dict) else str(value) if isinstance(value, Path) else value
    return plain


def _with_draft(settings: dict[str, Any]) -> dict[str, Any]:
    """Let a draft be named by one word: a path, or `ngram`."""
    settings = _plain(settings)
    draft = settings.get("draft")
    if isinstance(draft, str):
        draft = {"kind": "ngram"} if draft == "ngram" else {"path": draft}
    if isinstance(draft, dict):
        settings["draft"] = {"kind": "model", **draft}
    return settings
