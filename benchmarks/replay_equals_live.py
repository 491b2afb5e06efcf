"""Greedy, fp32: the steps that replay predicts from one recorded run are those of a live speculative run, prompt by prompt."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks._drafts import layer_cut, noisy_copy
from benchmarks._evidence import Lab, Result, run
from benchmarks._walk import GAP, Excuse, compare, walk
from draftsmith import api
from draftsmith.core import registry
from draftsmith.core.protocols import DraftScore, EngineConfig
from draftsmith.core.records import LiveCell
from draftsmith.core.sampling import Sampling
from draftsmith.core.trace import TraceReader, TraceRow

LOOKAHEADS = (1, 2, 3, 5, 8)
DATASETS = ("hellaswag", "mmlu", "chat")
# Sequences per batch differ on purpose: the claim must not hang on how work is batched.
ENGINES: dict[str, dict[str, Any]] = {
    "transformers": {"kind": "transformers", "dtype": "float32", "threads": 2, "batch_size": 32},
    "vllm": {"kind": "vllm", "dtype": "float32", "threads": 2, "batch_size": 64, "max_model_len": 1280, "kv_cache_gb": 6},
}


def measure(lab: Lab) -> Result:
    """Steps of replay against steps of a live run, per prompt, on both engines."""
    drafts = {
        "the target itself": lab.smollm2,
        "noisy copy, about 70%": noisy_copy(lab, 0.7),
        "noisy copy, about 30%": noisy_copy(lab, 0.3),
    }
    if not lab.quick:  # finding the cut takes minutes
        drafts["layer cut"] = layer_cut(lab)
    lookaheads = (1, 3) if lab.quick else LOOKAHEADS
    cells: list[dict[str, Any]] = []
    excuses: list[dict[str, Any]] = []
    compared, wrong_counters = 0, []
    for engine in ENGINES:
        trace = _record(lab, engine)
        rows = list(TraceReader(trace).rows())
        for name, draft in drafts.items():
            scores = _scores(engine, draft, rows)
            live = api.evaluate_live(
                trace=trace,
                target=str(lab.smollm2),
                draft=draft,
                lookaheads=lookaheads,
                engine=ENGINES[engine],
                store=lab.store,
            )
            for cell in live.record.cells:
                found = _compare_cell(engine, rows, scores, live.folder, cell.lookahead)
                again = _replay_own_output(engine, draft, rows, live.folder, cell.lookahead, found)
                compared += len(rows)
                excuses += [{"engine": engine, "draft": name, "lookahead": cell.lookahead, **asdict(one)} for one in found]
                counters = _check_counters(rows, scores, cell, found) if engine == "vllm" else None
                if counters and not counters["reproduced"]:
                    wrong_counters.append((name, cell.lookahead))
                cells.append(
                    {
                        "engine": engine,
                        "draft": name,
                        "lookahead": cell.lookahead,
                        "steps": cell.steps,
                        "tokens_per_step": cell.tokens_per_step,
                        "differing": len(found),
                        "own_output_differing": len(again),
                        "counters": counters,
                        "preemptions": cell.counters.get("preemptions", 0),
                    }
                )
                print(cells[-1], flush=True)
                excuses += [
                    {"engine": engine, "draft": name, "lookahead": cell.lookahead, "own_output": True, **asdict(one)}
                    for one in again
                ]
    unexcused = [one for one in excuses if one["gap"] >= GAP]
    share = len([one for one in excuses if "own_output" not in one]) / compared
    preempted = sum(cell["preemptions"] for cell in cells)
    return Result(
        claim="Replay of one recorded run gives, prompt by prompt, the steps of a live speculative run (greedy, fp32)",
        value=round(100 * (1 - share), 3),
        unit="% of prompts with equal steps in every step",
        goal="100%, but for at most 1% of prompts whose first difference has a top-2 logit gap below 1e-4",
        holds=not unexcused and share <= 0.01 and not wrong_counters and not preempted,
        spread="none: counts, not timings",
        workload=f"SmolLM2-135M-Instruct fp32, {len(drafts)} drafts, {len(rows)} prompts of the test split of "
        f"{', '.join(DATASETS)}, {16 if lab.quick else 64} new tokens, lookahead {', '.join(map(str, lookaheads))}",
        details={
            "prompt_runs_compared": compared,
            "excused": excuses,
            "unexcused": unexcused,
            "counters_not_reproduced": wrong_counters,
            "cells": cells,
        },
    )


def _record(lab: Lab, engine: str) -> Path:
    return api.record(
        target=str(lab.smollm2),
        datasets=DATASETS,
        data=str(lab.data),
        num_prompts=4 if lab.quick else 64,
        max_prompt_tokens=256 if lab.quick else 1024,
        max_new_tokens=16 if lab.quick else 64,
        tail=max(LOOKAHEADS),
        top_logprobs=2,
        engine=ENGINES[engine],
        store=lab.store,
    ).folder


def _scores(engine: str, draft: Path, rows: list[TraceRow]) -> list[DraftScore]:
    plugin = registry.load("engines", engine)
    with plugin.scorer(draft, Sampling(), EngineConfig(**ENGINES[engine])) as scorer:
        scores: list[DraftScore] = scorer.score(rows)
    return scores


def _target_gaps(row: TraceRow) -> np.ndarray:
    assert row.top_logprobs is not None
    best = row.top_logprobs.reshape(-1, 2)
    return best[:, 0] - best[:, 1]


def _live_rows(folder: Path, lookahead: int) -> list[tuple[np.ndarray, np.ndarray]]:
    table = pq.read_table(folder / f"lookahead-{lookahead:02d}.parquet")
    return [
        (np.array(ids, dtype=np.int32), np.array(steps, dtype=np.int32))
        for ids, steps in zip(table["output_ids"].to_pylist(), table["step_tokens"].to_pylist(), strict=True)
    ]


def _compare_cell(engine: str, rows: list[TraceRow], scores: list[DraftScore], folder: Path, lookahead: int) -> list[Excuse]:
    first = registry.load("engines", engine).first_drafted
    pairs = zip(rows, scores, _live_rows(folder, lookahead), strict=True)
    found = (compare(row, score, _target_gaps(row), *live, lookahead, first) for row, score, live in pairs)
    return [one for one in found if one is not None]


def _replay_own_output(
    engine: str, draft: Path, rows: list[TraceRow], folder: Path, lookahead: int, found: list[Excuse]
) -> list[Excuse]:
    """Score what the live run itself wrote. Where that is what was recorded, it has been done already."""
    changed = {one.prompt_id for one in found if one.where == "target"}
    again = [one for one in found if one.where == "draft"]
    if not changed:
        return again
    plugin = registry.load("engines", engine)
    live = [
        (row, *outcome) for row, outcome in zip(rows, _live_rows(folder, lookahead), strict=True) if row.prompt_id in changed
    ]
    own = [
        TraceRow(
            row.prompt_id, row.dataset, row.split, row.prompt_ids, ids, len(ids), np.zeros(len(ids), np.float32), "length", 0
        )
        for row, ids, _ in live
    ]
    with plugin.scorer(draft, Sampling(), EngineConfig(**ENGINES[engine])) as scorer:
        fresh = scorer.score(own)
    for row, score, (_, ids, steps) in zip(own, fresh, live, strict=True):
        one = compare(row, score, np.zeros(len(ids)), ids, steps, lookahead, plugin.first_drafted)
        if one is not None:
            again.append(one)
    return again


def _check_counters(rows: list[TraceRow], scores: list[DraftScore], cell: LiveCell, found: list[Excuse]) -> dict[str, Any]:
    """vLLM's own counters, which go on counting past the end of an output, from the trace and its tail."""
    k, first = cell.lookahead, 1
    drafts, per_position = 0, [0] * k
    for row, score in zip(rows, scores, strict=True):
        hits = score.argmax_ids == row.output_ids
        position = first
        for size in walk(hits, row.num_output, k, first):
            drafts += 1
            for m in range(k):
                if not hits[position + m]:
                    break
                per_position[m] += 1
            position += size
    predicted = {"drafts": drafts, "draft_tokens": drafts * k, "accepted_tokens": sum(per_position)}
    counted = {name: cell.counters[name] for name in predicted}
    equal = predicted == counted and per_position == list(cell.accepted_per_position)
    # A prompt that took another way by rounding moves the counters by what it did differently, and by no more than that.
    slack = sum(row.num_output for row in rows if row.prompt_id in {one.prompt_id for one in found})
    close = abs(predicted["drafts"] - counted["drafts"]) <= slack
    return {"predicted": predicted, "counted": counted, "equal": equal, "reproduced": equal or (bool(found) and close)}


if __name__ == "__main__":
    run("replay_equals_live", measure)
