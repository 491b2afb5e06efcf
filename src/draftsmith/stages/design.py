"""Stage `design`: which shape to cut from a source, for the traffic that it will serve and the training it may have.
Reads a source's config, a Profile of the target, a ShapeProfile and probes; writes a Design. Pure arithmetic, no engine."""

from pathlib import Path
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from draftsmith.core.checkpoints import find_model, model_name
from draftsmith.core.config import StrictConfig
from draftsmith.core.errors import PredictionError
from draftsmith.core.families import family_of
from draftsmith.core.log import log
from draftsmith.core.provenance import timed_on
from draftsmith.core.records import (
    Design,
    DesignCandidate,
    DesignProbe,
    DistilledCheckpoint,
    Profile,
    RowsCard,
    Scorecard,
    ShapeCell,
    ShapeProfile,
)
from draftsmith.core.shapes import Shape, model_shape
from draftsmith.core.store import Store, digest, read_json, read_record
from draftsmith.theory.latency import Pass, fit, shape_arrays
from draftsmith.theory.law import SLOPES, AcceptanceLaw, Probe, fit_law
from draftsmith.theory.search import Bounds, Ranked, Traffic, flops_per_token, legal_shapes, pareto, rank
from draftsmith.theory.throughput import StepTable, throughput

_FRONT = 200  # of the front, what is kept


class ProbeRecords(StrictConfig):
    """A draft that was distilled, and how it was replayed: two records."""

    checkpoint: str
    scorecard: str


class DesignConfig(StrictConfig):
    """`profile` is of the target, with or without a draft; `shapes` times shapes of the source's kind, on the same engine.
    `tokens` is what the draft will be trained on, or `training_flops`, which a small shape makes more tokens of, but no more
    than `most_tokens`. `batches`: batch sizes, each with its share of the tokens that are served. `rows`, a RowsCard of one of
    the probes, lets the number of output rows be chosen as well. `tensor_parallel` is what the draft must be divisible by, if
    not the profile's."""

    source: str
    profile: str
    shapes: str
    probes: tuple[ProbeRecords, ...] = Field(min_length=1)
    tokens: int | None = Field(None, ge=1)
    training_flops: float | None = Field(None, gt=0)
    most_tokens: int | None = Field(None, ge=1)
    batches: dict[Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0)]] = Field({1: 1.0}, min_length=1)
    context: int | None = Field(None, ge=1)
    lookaheads: tuple[Annotated[int, Field(ge=1)], ...] = Field((1, 2, 3, 4, 5, 6, 7, 8), min_length=1)
    rows: str | None = None
    tensor_parallel: int | None = Field(None, ge=1)
    most_parameters: int | None = Field(None, ge=1)
    most_layers: int | None = Field(None, ge=1)
    memory_gb: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _training_is_said_once(self) -> Self:
        if (self.tokens is None) == (self.training_flops is None):
            raise ValueError("say how much the draft will be trained: `tokens`, or `training_flops`, one of them")
        return self


def design(config: DesignConfig, store: Store) -> Path:
    """The folder of the finished design."""
    source = find_model(config.source)
    shape, family = model_shape(source), family_of(read_json(source / "config.json"), str(source))
    profile, shapes = read_record(Profile, Path(config.profile)), read_record(ShapeProfile, Path(config.shapes))
    _check_they_belong(profile, shapes)
    probes = [_probe(one, shape) for one in config.probes]
    coverage = _coverage(config)
    inputs = {
        "source": digest(read_json(source / "config.json")),
        "records": [digest(one.model_dump(mode="json")) for one in (profile, shapes)],
        "coverage": coverage,
        "probes": [[probe.shape.model_dump(mode="json"), probe.tokens, probe.conditional] for probe in probes],
        "settings": config.model_dump(mode="json", exclude={"source", "profile", "shapes", "probes", "rows"}),
    }
    run = store.run("designs", inputs)
    run.begin({})
    bounds = Bounds(
        most_parameters=config.most_parameters,
        most_layers=config.most_layers,
        most_bytes=None if config.memory_gb is None else int(config.memory_gb * 1e9),
        tensor_parallel=config.tensor_parallel or profile.engine.tensor_parallel,
    )
    latency = fit([_pass(cell) for cell in shapes.cells], profile.dtype)
    law = fit_law(shape, probes)
    steps = StepTable.from_cells(profile.cells)
    traffic = Traffic(config.batches, config.context or steps.contexts[0])
    if doubt := steps.doubt_of(traffic.context):
        log.warning(doubt)
    lookaheads = sorted({k for k in config.lookaheads if k <= steps.lookaheads[-1]})
    if not lookaheads:
        raise PredictionError(
            f"the profile goes up to lookahead {steps.lookaheads[-1]}, and none of {list(config.lookaheads)} is among that",
            "ask for smaller ones, or profile the target further",
        )
    candidates = legal_shapes(shape, family.hidden_rule, bounds, profile.dtype, list(coverage))
    learnt = _learnt(config, flops_per_token(candidates, shape))
    ranked = rank(candidates, shape, latency, law, learnt, steps, traffic, lookaheads, coverage)
    plain = _plain(profile, traffic)
    record = Design(
        source=model_name(source),
        engine=profile.engine.kind,
        considered=len(candidates.layers),
        tokens=config.tokens,
        training_flops=config.training_flops,
        shares=dict(config.batches),
        context=traffic.context,
        plain_tokens_per_second=plain,
        by_depth=_candidates(ranked, _by_depth(ranked), shape, plain),
        front=_candidates(ranked, _thinned(pareto(ranked)), shape, plain),
        next_probe=_candidates(ranked, _next_probe(ranked, probes), shape, plain)[0],
        probes=_probes(probes, law),
        law=_slopes(law),
        latency=latency,
    )
    run.finish(record)
    return run.path


def _learnt(config: DesignConfig, flops_N: np.ndarray) -> np.ndarray:
    """The tokens that each shape has learnt from when its training ends."""
    if config.training_flops is None:
        return np.full(len(flops_N), float(config.tokens or 0))
    return np.minimum(config.training_flops / flops_N, config.most_tokens or np.inf)


def _check_they_belong(profile: Profile, shapes: ShapeProfile) -> None:
    for what in ("kind", "tensor_parallel"):
        ours, theirs = getattr(profile.engine, what), getattr(shapes.engine, what)
        if ours != theirs:
            raise PredictionError(
                f"the target was profiled with {what.replace('_', ' ')} {ours}, the shapes with {theirs}",
                "profile the shapes as the target is served",
            )
    if timed_on(profile.machine) != timed_on(shapes.machine):
        raise PredictionError("the target and the shapes were profiled on different machines", "profile both on one")


def _probe(records: ProbeRecords, source: Shape) -> Probe:
    made, card = read_record(DistilledCheckpoint, Path(records.checkpoint)), read_record(Scorecard, Path(records.scorecard))
    if made.fingerprint != card.draft_fingerprint:
        raise PredictionError(
            f"{records.scorecard} is of another draft than {records.checkpoint}",
            "evaluate that checkpoint, and give its scorecard",
        )
    sizes = [(name, getattr(made.shape, name), getattr(source, name)) for name in ("layers", "heads", "hidden", "intermediate")]
    larger = [f"{probe} {name} of {whole}" for name, probe, whole in sizes if probe > whole]
    if larger or (made.shape.embedded or made.shape.vocabulary) != (source.embedded or source.vocabulary):
        raise PredictionError(
            f"{records.checkpoint} was not cut from this source: it has {larger[0] if larger else 'another vocabulary'}",
            "give the --source that the probes were cut from",
        )
    widest = max(card.overall.points, key=lambda point: point.lookahead)
    return Probe(made.shape, made.tokens, widest.conditional_acceptance_by_position, widest.looked_at_by_position)


def _coverage(config: DesignConfig) -> dict[int, float]:
    """The first proposal's acceptance with fewer rows, as a share of that with all: what a smaller head costs."""
    if config.rows is None:
        return {}
    card = read_record(RowsCard, Path(config.rows))
    chances = {one.rows: one.curve.points[0].conditional_acceptance_by_position[0] for one in card.points}
    whole = chances[card.points[-1].rows]
    return {rows: chance / max(whole, 1e-9) for rows, chance in chances.items()}


def _pass(cell: ShapeCell) -> Pass:
    """Of the model alone: a draft has no scheduler around it."""
    return Pass(cell.shape, cell.batch, cell.batch * cell.context, cell.forward_ms)


def _plain(profile: Profile, traffic: Traffic) -> float:
    """Tokens per second without a draft, over the same traffic."""
    table, total = StepTable.from_cells(profile.plain), sum(traffic.shares.values())
    seconds = sum(
        share / float(throughput(1.0, table.step_ms(0, b, traffic.context), b)) for b, share in traffic.shares.items()
    )
    return total / seconds


def _by_depth(ranked: Ranked) -> np.ndarray:
    """The best of every depth, the best first."""
    order = np.argsort(-ranked.tokens_per_second, kind="stable")
    _, first = np.unique(ranked.shapes.layers[order], return_index=True)
    return order[np.sort(first)]


def _thinned(places: np.ndarray) -> np.ndarray:
    """As many of the front as a picture shows, from end to end."""
    return places[np.unique(np.linspace(0, len(places) - 1, min(_FRONT, len(places))).round().astype(int))]


def _next_probe(ranked: Ranked, probes: list[Probe]) -> np.ndarray:
    """The shape that might be the best if it turns out one standard deviation better than expected, and was not tried yet."""
    tried = np.zeros(len(ranked.parameters), dtype=bool)
    for probe in probes:
        same = [
            getattr(ranked.shapes, name) == getattr(probe.shape, name) for name in ("layers", "heads", "hidden", "intermediate")
        ]
        tried |= np.logical_and.reduce(same)
    hope = np.where(tried, -np.inf, ranked.tokens_per_second * (1.0 + ranked.error))
    return np.array([hope.argmax()])


def _candidates(ranked: Ranked, places: np.ndarray, source: Shape, plain: float) -> tuple[DesignCandidate, ...]:
    return tuple(
        DesignCandidate(
            shape=ranked.shape(place, source),
            parameters=int(ranked.parameters[place]),
            tokens_per_second=float(ranked.tokens_per_second[place]),
            speedup=float(ranked.tokens_per_second[place]) / plain,
            error=float(ranked.error[place]),
            lookahead=int(ranked.lookahead[place]),
            tokens_per_step=float(ranked.tokens_per_step[place]),
            acceptance=float(ranked.acceptance[place]),
            draft_ms=float(ranked.draft_ms[place]),
            tokens=int(ranked.tokens[place]),
        )
        for place in places.tolist()
    )


def _probes(probes: list[Probe], law: AcceptanceLaw) -> tuple[DesignProbe, ...]:
    fitted = [float(law.logit(shape_arrays([probe.shape]), probe.tokens)[0][0]) for probe in probes]
    return tuple(
        DesignProbe(
            shape=probe.shape,
            tokens=int(probe.tokens),
            acceptance=probe.conditional[0],
            fitted_acceptance=float(1.0 / (1.0 + np.exp(-logit))),
        )
        for probe, logit in zip(probes, fitted, strict=True)
    )


def _slopes(law: AcceptanceLaw) -> dict[str, tuple[float, float]]:
    errors = np.sqrt(np.diag(law.covariance))
    return {name: (float(mean), float(error)) for name, mean, error in zip(SLOPES, law.mean, errors, strict=True)}
