"""The headline: a forged draft against the deep, thin draft of equal parameters and equal training, live, on both engines."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks._evidence import Lab, Result, run
from benchmarks._forged import TENSOR_PARALLEL, forged
from benchmarks._taught import JUDGED, recorded
from draftsmith import api
from draftsmith.core.shapes import model_shape
from draftsmith.core.trace import TraceReader

LOOKAHEADS = (1, 2, 3, 4, 5, 6, 8)
BATCHES = (1, 4, 8)
NEW_TOKENS = 200
GOAL, FASTER = 2.11, 1.5
ENGINES: dict[str, dict[str, Any]] = {
    "transformers": {"kind": "transformers", "dtype": "bfloat16", "threads": 2},
    "vllm": {"kind": "vllm", "dtype": "bfloat16", "threads": 2, "max_model_len": 1280},
}


def measure(lab: Lab) -> Result:
    """Tokens per second of every draft on every data set, each at its own best lookahead, and plain decoding."""
    names = ("smollm2",) if lab.quick else ("tinyllama", "smollm2")
    details = {name: _target(lab, name) for name in names}
    cells = [cell for cell in details[names[0]]["cells"] if cell["batch"] == 1]
    against = {engine: _mean([_ratio(cells, engine, dataset, "forged", "deep") for dataset in JUDGED]) for engine in ENGINES}
    plain = {(engine, dataset): _of(cells, engine, dataset, "forged")["speedup"] for engine in ENGINES for dataset in JUDGED}
    return Result(
        claim="A forged draft against the deep, thin draft of equal parameters, trained alike: live throughput",
        value="; ".join(f"{engine}: {ratio:.2f} x" for engine, ratio in against.items())
        + f"; {min(plain.values()):.2f} to {max(plain.values()):.2f} x plain decoding",
        unit="throughput of the forged draft, TinyLlama-1.1B, batch 1, mean over data sets",
        goal="2.11 x the deep, thin draft (+111%), and at least 1.5 x plain decoding on each data set",
        holds=min(against.values()) >= GOAL and min(plain.values()) >= FASTER,
        spread="per prompt, in the details",
        workload=f"{', '.join(names)}, bf16, {', '.join(JUDGED)} of the test split, {NEW_TOKENS} new tokens, each draft at its "
        "own best lookahead by a profile of the pair and replay on the probe split; vLLM with tensor parallel 2 for TinyLlama",
        details=details,
    )


def _target(lab: Lab, name: str) -> dict[str, Any]:
    target: Path = getattr(lab, name)
    made = forged(lab, name)
    drafts: dict[str, Path | str] = {"forged": made.draft, "deep": made.deep, "ngram": "ngram"}
    if made.trimmed is not None:
        drafts["forged, fewer output rows"] = made.trimmed
    if name == "tinyllama":
        drafts["stories15M"] = lab.stories
    shapes = {one: model_shape(path) for one, path in drafts.items() if isinstance(path, Path)}
    assert shapes["deep"].layers >= 4 * shapes["forged"].layers
    assert abs(shapes["deep"].parameters / shapes["forged"].parameters - 1) <= 0.03
    prompts = {1: 8, 4: 8, 8: 8}
    cells = []
    for engine, settings in ENGINES.items():
        served = {**settings, **({"tensor_parallel": TENSOR_PARALLEL[name]} if engine == "vllm" else {})}
        for batch in BATCHES[:1] if lab.quick else BATCHES:
            best = {one: _best_lookahead(lab, target, path, served, batch) for one, path in drafts.items()}
            for dataset in JUDGED:
                trace = recorded(
                    lab, target, "test", (dataset,), prompts[batch], max_new_tokens=16 if lab.quick else NEW_TOKENS
                )
                for one, path in drafts.items():
                    cell = _live(lab, target, path, trace, {**served, "batch_size": batch}, best[one])
                    cells.append({"engine": engine, "batch": batch, "dataset": dataset, "draft": one, **cell})
                    print(name, cells[-1], flush=True)
    return {
        "cells": cells,
        "shapes": {one: shape.model_dump() for one, shape in shapes.items()},
        "forge": made.record,
    }


def _best_lookahead(lab: Lab, target: Path, draft: Path | str, engine: dict[str, Any], batch: int) -> int:
    probe = recorded(lab, target, "probe", JUDGED, 16)
    card = api.evaluate(
        trace=probe, draft=draft, lookaheads=LOOKAHEADS, serve=engine["kind"], store=lab.store,
        engine={"kind": "transformers", "dtype": "bfloat16", "threads": 2},
    )  # fmt: skip
    profile = api.profile(
        target=target, draft=draft, lookaheads=LOOKAHEADS, batches=(batch,), contexts=(256,), store=lab.store, engine=engine,
        timing={"steps": 4, "min_rounds": 2, "max_rounds": 2} if lab.quick else {"steps": 10, "min_rounds": 3, "max_rounds": 6},
    )  # fmt: skip
    points = api.predict(profile=profile.folder, scorecard=card.folder, store=lab.store).record.points
    return max(points, key=lambda point: point.tokens_per_second).lookahead


def _live(lab: Lab, target: Path, draft: Path | str, trace: Path, engine: dict[str, Any], lookahead: int) -> dict[str, Any]:
    kept = api.evaluate_live(trace=trace, target=target, draft=draft, lookaheads=(0, lookahead), engine=engine, store=lab.store)
    cells = {cell.lookahead: cell for cell in kept.record.cells}
    speeds = {k: cell.speed for k, cell in cells.items()}
    looping, straight = _without_loops(trace, kept.folder / f"lookahead-{lookahead:02d}.parquet")
    return {
        "lookahead": lookahead,
        "tokens_per_second": speeds[lookahead],
        "plain_tokens_per_second": speeds[0],
        "speedup": speeds[lookahead] / speeds[0],
        "tokens_per_step": cells[lookahead].tokens_per_step,
        "phase_seconds": cells[lookahead].phase_seconds,
        "looping_share": looping,
        "tokens_per_step_without_loops": straight,
        "differing": len(cells[lookahead].differences),
    }


def _without_loops(trace: Path, path: Path) -> tuple[float, float | None]:
    """The share of outputs that go round in circles (under half of their 4-grams differ), and tokens per step of the rest."""
    rows, live = list(TraceReader(trace).rows()), pq.read_table(path)
    loops = [_distinct(np.asarray(row.output_ids[: row.num_output])) < 0.5 for row in rows]
    kept = [steps for steps, loop in zip(live["step_tokens"].to_pylist(), loops, strict=True) if not loop]
    counted = sum(len(steps) for steps in kept)
    return float(np.mean(loops)), sum(map(sum, kept)) / counted if counted else None


def _distinct(tokens: np.ndarray) -> float:
    grams = [tuple(tokens[i : i + 4].tolist()) for i in range(len(tokens) - 3)]
    return len(set(grams)) / len(grams) if grams else 1.0


def _of(cells: list[dict[str, Any]], engine: str, dataset: str, draft: str) -> dict[str, Any]:
    (found,) = (one for one in cells if (one["engine"], one["dataset"], one["draft"]) == (engine, dataset, draft))
    return found


def _ratio(cells: list[dict[str, Any]], engine: str, dataset: str, one: str, other: str) -> float:
    """By the factors over plain decoding, each measured beside its own."""
    return float(_of(cells, engine, dataset, one)["speedup"] / _of(cells, engine, dataset, other)["speedup"])


def _mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


if __name__ == "__main__":
    run("headline", measure)
