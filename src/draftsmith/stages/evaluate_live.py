"""Stage `evaluate` live: run target and draft together in a real engine over the prompts of a trace.
Reads a Trace, the target and a draft; writes a LiveCard, and per lookahead the outputs and the tokens of every step."""

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from draftsmith.core import registry
from draftsmith.core.checkpoints import find_model, model_fingerprint
from draftsmith.core.config import StrictConfig, parse_config
from draftsmith.core.errors import ModelError
from draftsmith.core.log import log
from draftsmith.core.progress import progress
from draftsmith.core.protocols import Draft, Engine, EngineConfig, Limits, LiveRow, LiveRun, ModelDraft, NgramDraft, Request
from draftsmith.core.records import Difference, LiveCard, LiveCell
from draftsmith.core.store import Run, Store, read_json, write_atomic, write_json
from draftsmith.core.trace import TraceReader, TraceRow


class EvaluateLiveConfig(StrictConfig):
    """What to run. Lookahead 0 is plain decoding, the baseline. `seed_shift` is added to every prompt's recorded seed:
    with 0 a sampled run may repeat draws of the recording, which makes the two look more alike than they are."""

    trace: str
    target: str
    draft: Draft
    lookaheads: tuple[Annotated[int, Field(ge=0)], ...] = Field((0, 3), min_length=1)
    seed_shift: int = Field(1, ge=0)
    engine: EngineConfig = EngineConfig()


def evaluate_live(config: EvaluateLiveConfig, store: Store) -> Path:
    """The folder of the finished live card. Each lookahead is a cell; an interrupted call runs only the missing ones."""
    trace = TraceReader(Path(config.trace))
    target = find_model(config.target)
    if model_fingerprint(target) != trace.record.model_fingerprint:
        raise ModelError(
            f"{config.target} is not the model that wrote the trace ({trace.record.model})",
            "give the recorded target, or record a trace of this one",
        )
    draft = None if isinstance(config.draft, NgramDraft) else find_model(config.draft.path)
    fingerprint = model_fingerprint(draft) if draft else None
    inputs = {
        "trace": trace.record.fingerprint,
        "draft": fingerprint,
        "settings": config.model_dump(mode="json", exclude={"trace": True, "target": True, "draft": {"path"}}),
    }
    run = store.run("live", inputs)
    if run.is_current:
        log.info("already run: %s", run.path)
        return run.path
    began = time.monotonic()
    engine: Engine = registry.load("engines", config.engine.kind)
    run.begin(engine.versions())
    rows = list(trace.rows())
    missing = [k for k in config.lookaheads if not _cell_path(run, k).exists()]
    with progress("live runs", len(config.lookaheads), already=len(config.lookaheads) - len(missing)) as bar:
        for lookahead in missing:
            _run_cell(config, engine, run, trace, target, draft, rows, lookahead)
            bar.advance()
    card = LiveCard(
        trace=trace.record.fingerprint,
        target=trace.record.model,
        draft=config.draft,
        draft_fingerprint=fingerprint,
        sampling=trace.record.sampling,
        engine=config.engine,
        split=trace.record.split,
        versions=engine.versions(),
        cells=tuple(parse_config(LiveCell, read_json(_cell_path(run, k)), str(_cell_path(run, k))) for k in config.lookaheads),
    )
    run.finish(card, time.monotonic() - began)
    return run.path


def _cell_path(run: Run, lookahead: int) -> Path:
    return run.path / f"lookahead-{lookahead:02d}.json"


def _run_cell(
    config: EvaluateLiveConfig,
    engine: Engine,
    run: Run,
    trace: TraceReader,
    target: Path,
    draft: Path | None,
    rows: list[TraceRow],
    lookahead: int,
) -> None:
    record = trace.record
    requests = [Request(row.prompt_ids, row.seed + config.seed_shift) for row in rows]
    limits = Limits(record.max_new_tokens, record.eos_ids)
    proposer = None if lookahead == 0 else config.draft
    if isinstance(proposer, ModelDraft):
        proposer = proposer.model_copy(update={"path": str(draft)})
    with engine.live(target, proposer, lookahead, record.sampling, config.engine) as live:
        result = live.run(requests, limits)
    _write_rows(run.path / f"lookahead-{lookahead:02d}.parquet", rows, result)
    write_json(_cell_path(run, lookahead), _cell(engine, rows, result, lookahead).model_dump(mode="json"))


def _cell(engine: Engine, rows: list[TraceRow], result: LiveRun, lookahead: int) -> LiveCell:
    tokens = sum(len(row.output_ids) for row in result.rows)
    steps = sum(len(row.step_tokens) for row in result.rows)
    drafted_tokens = tokens - engine.first_drafted * len(rows)
    return LiveCell(
        lookahead=lookahead,
        num_prompts=len(rows),
        tokens=tokens,
        steps=steps,
        tokens_per_step=drafted_tokens / steps if steps else None,
        seconds=result.seconds,
        tokens_per_second=tokens / result.seconds,
        counters=result.counters,
        accepted_per_position=tuple(result.accepted_per_position),
        phase_seconds=result.phase_seconds,
        decode_tokens_per_second=result.decode_tokens / result.decode_seconds if result.decode_seconds else None,
        differences=tuple(
            difference
            for row, live in zip(rows, result.rows, strict=True)
            if (difference := first_difference(row, live)) is not None
        ),
    )


def first_difference(row: TraceRow, live: LiveRow) -> Difference | None:
    """Where a live output leaves the recorded one, if it does."""
    recorded, written = row.output_ids[: row.num_output], live.output_ids
    shared = min(len(recorded), len(written))
    apart = np.flatnonzero(recorded[:shared] != written[:shared])
    if len(apart) == 0 and len(recorded) == len(written):
        return None
    at = int(apart[0]) if len(apart) else shared
    return Difference(
        prompt_id=row.prompt_id,
        position=at,
        live_token=int(written[at]) if at < len(written) else None,
        recorded_token=int(recorded[at]) if at < len(recorded) else None,
    )


def _write_rows(path: Path, rows: list[TraceRow], result: LiveRun) -> None:
    table = pa.table(
        {
            "prompt_id": pa.array([row.prompt_id for row in rows], pa.string()),
            "output_ids": pa.array([row.output_ids for row in result.rows], pa.list_(pa.int32())),
            "step_tokens": pa.array([row.step_tokens for row in result.rows], pa.list_(pa.int32())),
            "finish_reason": pa.array([row.finish_reason for row in result.rows], pa.string()),
        }
    )
    write_atomic(path, lambda partial: pq.write_table(table, partial, compression="zstd"))
