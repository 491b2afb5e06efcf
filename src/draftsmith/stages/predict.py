"""Stage `predict`: what a draft's acceptance and an engine's step times give together, without running either.
Reads a Profile and a Scorecard, or numbers typed in; writes a Prediction: throughput, verdict, schedule and inverses.

With the trace as well, each row's steps go through the engine's batching rule; without it, batches count as full."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from draftsmith.core.config import StrictConfig
from draftsmith.core.errors import ConfigError, PredictionError
from draftsmith.core.log import log
from draftsmith.core.protocols import PHASES
from draftsmith.core.records import (
    MemoryCost,
    Prediction,
    Profile,
    Scorecard,
    ThroughputPoint,
)
from draftsmith.core.store import Store, digest, read_record
from draftsmith.core.trace import TraceReader, TraceRow
from draftsmith.theory.acceptance import Array, row_chances
from draftsmith.theory.batches import RealBatches, RowChances, real_batches
from draftsmith.theory.formulas import compare_formulas, leviathan_tokens_per_step
from draftsmith.theory.inverses import inverse
from draftsmith.theory.ngram import ngram_chances
from draftsmith.theory.schedule import best_lookaheads, memory_cost, vllm_schedule
from draftsmith.theory.throughput import StepTable, throughput
from draftsmith.theory.verdict import judge

_DRAWS = 8  # of a sampled trace's steps, whose mean is taken


class StepNumbers(StrictConfig):
    """Step times typed in, for batch 1: a plain step, a verification, one token of the draft, and what a step costs besides."""

    plain_ms: float | None = Field(None, gt=0)
    verify_ms: float | None = Field(None, gt=0)  # default: that of a plain step
    draft_ms: float | None = Field(None, ge=0)
    overhead_ms: float | None = Field(None, ge=0)  # default: none


class PredictConfig(StrictConfig):
    """Step times from `profile` or `numbers`; acceptance from `scorecard`, from `tokens_per_step` by lookahead, or from one
    `acceptance` for every token (an assumption: real tokens are not alike). `trace` replays real batches."""

    profile: str | None = None
    numbers: StepNumbers = StepNumbers()
    scorecard: str | None = None
    trace: str | None = None
    tokens_per_step: dict[Annotated[int, Field(ge=1)], float] | None = None
    acceptance: float | None = Field(None, ge=0, le=1)
    lookaheads: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    batches: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    contexts: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    wanted_tokens_per_second: float | None = Field(None, gt=0)
    memory_gb: float | None = Field(None, gt=0)


def predict(config: PredictConfig, store: Store) -> Path:
    """The folder of the finished prediction."""
    profile = read_record(Profile, Path(config.profile)) if config.profile else None
    scorecard = read_record(Scorecard, Path(config.scorecard)) if config.scorecard else None
    inputs = {
        "profile": digest(profile.model_dump(mode="json")) if profile else None,
        "scorecard": digest(scorecard.model_dump(mode="json")) if scorecard else None,
        "trace": TraceReader(Path(config.trace)).record.fingerprint if config.trace else None,
        "settings": config.model_dump(mode="json", exclude={"profile", "scorecard", "trace"}),
    }
    prediction = _predict(config, profile, scorecard)
    run = store.run("predictions", inputs)
    run.begin({})
    run.finish(prediction)
    return run.path


def _predict(config: PredictConfig, profile: Profile | None, scorecard: Scorecard | None) -> Prediction:
    plain, table = _step_times(config, profile, scorecard)
    tokens_per_step, errors = _acceptance(config, scorecard, table)
    caveats = _doubts(profile, scorecard) if profile else []
    batches, contexts = config.batches or table.batches, config.contexts or table.contexts
    replayed = _replay(config, profile, scorecard, plain, table, list(tokens_per_step), batches)
    if replayed is not None:
        contexts = (replayed.mean_context,)
    if doubt := table.doubt_of(max(contexts)):
        caveats.append(doubt)
    baseline, idle = (_without_proposals(one, batches, contexts) for one in (plain, table))
    if replayed is not None:
        baseline, idle = ({(b, contexts[0]): speeds[0, b] for b in batches} for speeds in (replayed.plain, replayed.drafted))
    places = [(lookahead, batch, context) for context in contexts for batch in batches for lookahead in tokens_per_step]
    points = _points(places, tokens_per_step, errors, baseline, plain, table, replayed)
    schedule = best_lookaheads(points, idle)
    return Prediction(
        target=profile.target if profile else "your target",
        draft=(profile.draft if profile else None) or "your draft",
        engine=profile.engine.kind if profile else "numbers typed in",
        replayed_batches=replayed is not None,
        plain_tokens_per_second=tuple((batch, context, speed) for (batch, context), speed in baseline.items()),
        points=tuple(points),
        schedule=tuple(schedule),
        vllm_schedules={c: tuple(vllm_schedule([cell for cell in schedule if cell.context == c])) for c in contexts},
        inverses=tuple(inverse(point, plain, table, config.wanted_tokens_per_second) for point in points),
        formulas=compare_formulas(tokens_per_step, plain, table),
        memory=_memory(config, profile, contexts),
        verdict=judge(points),
        caveats=tuple(caveats),
    )


def _without_proposals(table: StepTable, batches: tuple[int, ...], contexts: tuple[int, ...]) -> dict[tuple[int, int], float]:
    return {(b, c): float(throughput(1.0, table.step_ms(0, b, c), b)) for b in batches for c in contexts}


def _step_times(config: PredictConfig, profile: Profile | None, scorecard: Scorecard | None) -> tuple[StepTable, StepTable]:
    """The baseline, and the steps with a draft."""
    numbers = config.numbers
    if profile is not None:
        given = [name for name in ("plain_ms", "verify_ms", "overhead_ms") if getattr(numbers, name) is not None]
        if given or (numbers.draft_ms is not None and profile.draft is not None):
            raise ConfigError(
                f"{(given or ['draft_ms'])[0]} was typed in beside a profile that has measured it",
                "leave it out, or leave the profile out",
            )
        if not profile.plain:
            raise PredictionError(
                "the profile has no plain baseline, and without one nobody can say what speculation gains",
                "profile the target with `draftsmith profile`, which measures it",
            )
        table = StepTable.from_cells(profile.cells)
        if profile.draft is None:
            if numbers.draft_ms is None:
                raise PredictionError(
                    "the profile was made without a draft: it knows verification only",
                    "profile with --draft (a config.json without weights will do), or say --draft-ms per token",
                )
            table = table.with_draft_ms(numbers.draft_ms)
        return StepTable.from_cells(profile.plain), table
    if numbers.plain_ms is None:
        raise PredictionError(
            "there is no plain baseline, and without one nobody can say what speculation gains",
            "give --profile, or measure a plain step and say --plain-ms",
        )
    if numbers.draft_ms is None:
        raise PredictionError("nothing says how long the draft takes", "give --profile, or --draft-ms per token")
    known = [point.lookahead for point in scorecard.overall.points] if scorecard else None
    most = max(config.lookaheads or config.tokens_per_step or known or (8,))
    verify = numbers.verify_ms or numbers.plain_ms
    table = StepTable.from_numbers(numbers.plain_ms, verify, numbers.draft_ms, numbers.overhead_ms or 0.0, most)
    return table, table


def _acceptance(
    config: PredictConfig, scorecard: Scorecard | None, table: StepTable
) -> tuple[dict[int, float], dict[int, float]]:
    """Tokens per step by lookahead, as far as steps were timed, and relative errors."""
    given = [config.scorecard is not None, config.tokens_per_step is not None, config.acceptance is not None]
    if sum(given) != 1:
        raise ConfigError(
            "acceptance must come from one place: a scorecard, tokens per step, or one acceptance for every token",
            "give exactly one of --scorecard, --tokens-per-step and --acceptance",
        )
    errors: dict[int, float] = {}
    if scorecard is not None:
        found = {point.lookahead: point.tokens_per_step for point in scorecard.overall.points}
        if scorecard.overall.num_prompts < 2:
            log.warning("one prompt says nothing of the spread over prompts: the verdict is surer than it should be")
        errors = {p.lookahead: (p.tokens_per_step_error or 0.0) / p.tokens_per_step for p in scorecard.overall.points}
    elif config.tokens_per_step is not None:
        found = dict(config.tokens_per_step)
        if wrong := [k for k, value in found.items() if not 1 <= value <= k + 1]:
            raise ConfigError(
                f"{found[wrong[0]]} tokens per step at lookahead {wrong[0]} cannot be",
                f"a step emits between 1 and lookahead + 1 = {wrong[0] + 1} tokens",
            )
    else:
        asked = config.lookaheads or range(1, table.lookaheads[-1] + 1)
        found = {k: float(leviathan_tokens_per_step(config.acceptance, k)) for k in asked}
    known = [k for k in sorted(found) if k <= table.lookaheads[-1]]
    missing = [k for k in config.lookaheads or () if k not in known]
    if missing or not known:
        raise PredictionError(
            (f"nothing is known of lookahead {missing[0]}: " if missing else "")
            + f"acceptance is known at lookahead {', '.join(map(str, found))}, step times up to {table.lookaheads[-1]}",
            "profile and evaluate the lookaheads you ask about",
        )
    chosen = {k: found[k] for k in known if not config.lookaheads or k in config.lookaheads}
    return chosen, {k: errors.get(k, 0.0) for k in chosen}


def _doubts(profile: Profile, scorecard: Scorecard | None) -> list[str]:
    """What speaks against these records, alone or together."""
    doubts = ["something else was running while the profile was made"] if profile.busy else []
    if scorecard is None:
        return doubts
    if profile.target != scorecard.target:
        doubts.append(f"the profile is of {profile.target}, the scorecard of {scorecard.target}")
    if profile.draft is not None and profile.draft_fingerprint != scorecard.draft_fingerprint:
        doubts.append(f"the profile timed another draft ({profile.draft}) than the scorecard's: only their shape should agree")
    if profile.first_drafted != scorecard.first_drafted:
        raise PredictionError(
            f"the scorecard is for {scorecard.served_by}, the profile for {profile.engine.kind}, and they begin differently",
            f"evaluate with `--serve {profile.engine.kind}`",
        )
    return doubts


def _replay(
    config: PredictConfig,
    profile: Profile | None,
    scorecard: Scorecard | None,
    plain: StepTable,
    table: StepTable,
    lookaheads: list[int],
    batches: tuple[int, ...],
) -> RealBatches | None:
    if config.trace is None:
        return None
    if config.contexts is not None:
        raise ConfigError("a trace brings its own contexts", "leave --context or --trace out")
    if scorecard is None or profile is None or config.scorecard is None:
        raise ConfigError("real batches are replayed from records", "give --profile and --scorecard beside --trace")
    trace, first = TraceReader(Path(config.trace)), scorecard.first_drafted
    if trace.record.fingerprint != scorecard.trace:
        raise PredictionError(f"{config.trace} is not the trace of this scorecard", "give the trace it was evaluated on")
    rows = (
        RowChances(len(row.prompt_ids) + first, row.num_output - first, chances[first:])
        for row, chances in _chances(trace, scorecard, Path(config.scorecard), max(lookaheads))
    )
    draws = 1 if scorecard.sampling.is_greedy else _DRAWS
    return real_batches(rows, lookaheads, batches, plain, table, profile.batching, trace.record.max_new_tokens, draws)


def _chances(trace: TraceReader, scorecard: Scorecard, folder: Path, widest: int) -> Iterator[tuple[TraceRow, Array]]:
    """Every row of the trace with its acceptance chances, from the scores kept beside the scorecard."""
    from draftsmith.core.scores import read_scores, scores_path

    draft = scorecard.draft
    folder = folder.parent if folder.is_file() else folder
    for index in range(len(trace.record.shards)):
        rows = trace.shard(index)
        if draft.kind == "ngram":
            for row in rows:
                yield (
                    row,
                    ngram_chances(row.prompt_ids, row.output_ids, row.num_output, widest, draft.max_ngram, draft.min_ngram),
                )
            continue
        method = "greedy" if scorecard.sampling.is_greedy else draft.method
        for row, score in zip(rows, read_scores(scores_path(folder, index), rows), strict=True):
            yield row, row_chances(row, score, method)


def _points(
    places: Sequence[tuple[int, int, int]],
    tokens_per_step: Mapping[int, float],
    errors: Mapping[int, float],
    baseline: Mapping[tuple[int, int], float],
    plain: StepTable,
    table: StepTable,
    replayed: RealBatches | None,
) -> list[ThroughputPoint]:
    """At every (lookahead, batch, context). The tables are read once for all of them."""
    axes = np.array(places).T
    step_ms, phases = table.step_ms(*axes), {f"{name}_ms": table.phase_ms(name, *axes) for name in PHASES}
    step_errors, plain_errors = table.relative_error(*axes), plain.relative_error(0, *axes[1:])
    points = []
    for at, (lookahead, batch, context) in enumerate(places):
        speed = float(throughput(tokens_per_step[lookahead], step_ms[at], batch))
        if replayed is not None:
            speed = replayed.drafted[lookahead, batch]
        point = ThroughputPoint(
            lookahead=lookahead,
            batch=batch,
            context=context,
            tokens_per_step=tokens_per_step[lookahead],
            tokens_per_second=speed,
            speedup=speed / baseline[batch, context],
            error=math.hypot(errors[lookahead], step_errors[at], plain_errors[at]),
            **{name: float(one[at]) for name, one in phases.items()},
        )
        points.append(point)
    return points


def _memory(config: PredictConfig, profile: Profile | None, contexts: tuple[int, ...]) -> MemoryCost | None:
    if config.memory_gb is None:
        return None
    if profile is None or profile.draft_shape is None:
        raise ConfigError("memory needs the shapes of both models", "give --profile, made with a draft")
    engine = profile.engine
    return memory_cost(
        profile.target_shape,
        profile.draft_shape,
        profile.dtype,
        config.memory_gb,
        max(contexts),
        engine.tensor_parallel,
        target_weights="int8" if engine.quantization == "int8" else None,
    )
