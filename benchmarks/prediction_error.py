"""Predicted against live throughput: a bf16 trace and a profile predict, cell by cell, what a live run then does.

A machine's speed drifts by more than the error that is to be shown. So within a cell the profile and the live run take turns,
a few seconds each: both see the same minutes, and neither sees the other's steps."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._drafts import layer_cut, noisy_copy
from benchmarks._evidence import Lab, Result, run
from draftsmith import api
from draftsmith.core import registry
from draftsmith.core.protocols import Engine, EngineConfig, Limits, LiveEngine, ModelDraft, Request
from draftsmith.core.records import ProfileCell
from draftsmith.core.sampling import Sampling
from draftsmith.core.store import digest, read_json, write_json
from draftsmith.core.timing import Rounds, Visit, warn_if_busy
from draftsmith.core.trace import TraceReader, TraceRow
from draftsmith.theory.acceptance import acceptance_chances
from draftsmith.theory.batches import RowSteps, row_steps, run_batches
from draftsmith.theory.throughput import StepTable, leviathan_throughput, paper_throughput

LOOKAHEADS = (1, 3, 5, 8)
BATCHES = (1, 8)
CONTEXTS = (64, 448)
NEW_TOKENS = 160
STEPS = 10
GOAL_WORST, GOAL_MEDIAN = 0.035, 0.015
ENGINES = ("transformers", "vllm")
Cell = tuple[int, int, int]  # lookahead, batch, context


def measure(lab: Lab) -> Result:
    """The relative error of predicted tokens per second, over all cells."""
    cells: list[dict[str, Any]] = []
    for engine in ENGINES:
        for target, drafts, prompts in _pairs(lab):
            for draft in drafts:
                cells += _cells(lab, engine, target, draft, prompts)
    errors = np.array([abs(cell["error"]) for cell in cells])
    worst, median = float(errors.max()), float(np.median(errors))
    by_target = {
        name: {
            "combinations": len(chosen),
            "worst": max(abs(cell["error"]) for cell in chosen),
            "median": _median(chosen, "error"),
            "median of the i.i.d. formula": _median(chosen, "leviathan_error"),
            "median of the paper's formula": _median(chosen, "paper_error"),
            "median standard error of a live run": _median(chosen, "live_error"),
            "median error in steps": _median(chosen, "steps_error"),
        }
        for name in dict.fromkeys(cell["target"] for cell in cells)
        if (chosen := [cell for cell in cells if cell["target"] == name])
    }
    return Result(
        claim="Throughput predicted from a trace and a profile is the throughput of a live run",
        value=f"{100 * worst:.1f}% at worst, {100 * median:.1f}% in the median",
        unit="relative error of decoding tokens per second",
        goal="3.5% at worst, 1.5% in the median",
        holds=worst <= GOAL_WORST and median <= GOAL_MEDIAN,
        spread=f"median standard error of a live run {100 * _median(cells, 'live_error'):.1f}%, "
        f"of a profile {100 * _median(cells, 'profile_error'):.1f}%",
        workload=f"{len(cells)} combinations: SmolLM2-135M-Instruct and TinyLlama-1.1B bf16, lookahead "
        f"{', '.join(map(str, LOOKAHEADS))}, batch 1 and 8, both engines, HellaSwag and chat, {NEW_TOKENS} new tokens",
        details={"by_target": by_target, "cells": cells},
    )


def _median(cells: list[dict[str, Any]], name: str) -> float:
    return float(np.median([abs(cell[name]) for cell in cells]))


def _pairs(lab: Lab) -> Iterator[tuple[Path, Sequence[Path], int]]:
    """Targets with their drafts, and how many prompts of each data set."""
    if lab.quick:
        yield lab.smollm2, [noisy_copy(lab, 0.7)], 8
        return
    yield lab.smollm2, [layer_cut(lab), noisy_copy(lab, 0.7), noisy_copy(lab, 0.3)], 20
    yield lab.tinyllama, [lab.stories], 4


def _config(engine: str) -> EngineConfig:
    return EngineConfig(kind=engine, dtype="bfloat16", threads=2, batch_size=max(BATCHES), max_model_len=1024, kv_cache_gb=2)


def _cells(lab: Lab, engine: str, target: Path, draft: Path, prompts: int) -> list[dict[str, Any]]:
    plugin: Engine = registry.load("engines", engine)
    new_tokens = 24 if lab.quick else NEW_TOKENS
    trace = api.record(
        target=target,
        datasets=("hellaswag", "chat"),
        data=lab.data,
        num_prompts=prompts,
        max_prompt_tokens=256,
        max_new_tokens=new_tokens,
        engine=_config(engine).model_dump(),
        store=lab.store,
    )
    rows = list(TraceReader(trace.folder).rows())
    places = [(k, b) for k in ((3,) if lab.quick else LOOKAHEADS) for b in BATCHES]
    name = digest([trace.record.fingerprint, draft.name, engine])[:12]
    paths = {place: lab.store / "prediction_error" / f"{name}-{place[0]}-{place[1]}.json" for place in places}
    missing = [place for place in places if not paths[place].exists()]
    if missing:
        with plugin.scorer(draft, Sampling(), _config(engine)) as scorer:
            scores = scorer.score(rows)
        chances = [
            acceptance_chances(row.output_ids, score.argmax_ids, row.logprobs, score.logprobs, "greedy")
            for row, score in zip(rows, scores, strict=True)
        ]
        most = max(LOOKAHEADS)
        with plugin.live(target, ModelDraft(path=str(draft)), most, Sampling(), _config(engine), adjustable=True) as live:
            for lookahead, batch in missing:
                measured = _measure_cell(plugin, live, rows, chances, lookahead, batch, trace.record.eos_ids, new_tokens)
                where = {"engine": engine, "target": target.name, "draft": draft.name, "lookahead": lookahead, "batch": batch}
                write_json(paths[lookahead, batch], {**where, **measured})
                print(where, {name: round(value, 4) for name, value in measured.items()}, flush=True)
    return [read_json(path) for path in paths.values()]


def _measure_cell(
    plugin: Engine,
    live: LiveEngine,
    rows: list[TraceRow],
    chances: list[np.ndarray],
    lookahead: int,
    batch: int,
    eos_ids: tuple[int, ...],
    new_tokens: int,
) -> dict[str, float]:
    first, rng, busy = plugin.first_drafted, np.random.default_rng(0), warn_if_busy()
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].prompt_ids))
    chunks = [order[low : low + batch] for low in range(0, len(order), batch)]
    places = [(b, context) for b in ((1,) if batch == 1 else (1, batch // 2, batch)) for context in CONTEXTS]
    rounds: Rounds[Cell] = Rounds()
    tokens, seconds, steps, predicted = [], [], [], []
    _profile(rounds, live, lookahead, places)  # warms up, and counts like every other turn
    for turn, chunk in enumerate(chunks):
        outcome = live.run([Request(rows[i].prompt_ids, 0) for i in chunk], Limits(new_tokens, eos_ids), lookahead)
        tokens.append(outcome.decode_tokens)
        seconds.append(outcome.decode_seconds)
        steps.append(sum(len(row.step_tokens) for row in outcome.rows))
        predicted.append(
            [
                RowSteps(
                    len(rows[i].prompt_ids) + first, row_steps(chances[i][first:], rows[i].num_output - first, lookahead, rng)
                )
                for i in chunk
            ]
        )
        several = 1 if batch == 1 else 2
        _profile(rounds, live, lookahead, [places[(several * turn + i) % len(places)] for i in range(several)])
    table = _table(rounds, places, lookahead)
    runs = [run_batches(chunk, lookahead, batch, table, plugin.batching, new_tokens) for chunk in predicted]
    live_speed = sum(tokens) / sum(seconds)
    ours = sum(one.tokens for one in runs) / sum(one.seconds for one in runs)
    context = float(np.mean([len(row.prompt_ids) + row.num_output / 2 for row in rows]))
    draft_ms, verify_ms = (float(table.phase_ms(name, lookahead, batch, context)) for name in ("draft", "verify"))
    plain_ms = float(table.phase_ms("verify", 0, batch, context) + table.phase_ms("overhead", 0, batch, context))
    acceptance = float(np.concatenate([one[first : row.num_output] for one, row in zip(chances, rows, strict=True)]).mean())
    replayed_steps = sum(len(row.step_tokens) for chunk in predicted for row in chunk)
    replayed_tokens = sum(int(row.step_tokens.sum()) for chunk in predicted for row in chunk)
    iid = batch * float(leviathan_throughput(acceptance, lookahead, plain_ms, draft_ms / lookahead))
    paper = batch * float(paper_throughput(replayed_tokens / replayed_steps, verify_ms, draft_ms))
    per_chunk = np.array(seconds) / np.array([one.seconds for one in runs])
    return {
        "live_tokens_per_second": live_speed,
        "predicted_tokens_per_second": ours,
        "error": ours / live_speed - 1,
        "leviathan_error": iid / live_speed - 1,
        "paper_error": paper / live_speed - 1,
        "steps_error": (sum(tokens) / sum(steps)) / (replayed_tokens / replayed_steps) - 1,
        "live_error": float(per_chunk.std(ddof=1) / np.sqrt(len(per_chunk)) / per_chunk.mean()),
        "profile_error": float(table.relative_error(lookahead, batch, context)),
        "live_tokens": float(sum(tokens)),
        "tokens_per_step": sum(tokens) / sum(steps),
        "busy": float(busy),
    }


def _profile(rounds: "Rounds[Cell]", live: LiveEngine, lookahead: int, places: list[tuple[int, int]]) -> None:
    for batch, context in places:
        for k, steps in live.time_steps(batch, context, (lookahead, 0), STEPS).items():
            rounds.add((k, batch, context), Visit.of(steps))


def _table(rounds: "Rounds[Cell]", places: list[tuple[int, int]], lookahead: int) -> StepTable:
    summaries = rounds.summaries()
    contexts = {
        context: round(np.mean([one.context for cell, one in summaries.items() if cell[2] == context])) for context in CONTEXTS
    }
    cells = [
        ProfileCell(lookahead=k, batch=b, context=contexts[c], **summaries[k, b, c].model_dump(exclude={"context"}))
        for k in (0, lookahead)
        for b, c in places
    ]
    return StepTable.from_cells(cells)


if __name__ == "__main__":
    run("prediction_error", measure)
