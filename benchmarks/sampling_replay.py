"""Sampled output: replay predicts the tokens per step of a live run within its statistical error, on both engines.

What is tested is statistics, so tokens count more than the size of the model: stories15M gives ten times the tokens of
SmolLM2 in the same time."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks._drafts import noisy_copy
from benchmarks._evidence import Lab, Result, run
from draftsmith import api
from draftsmith.core import registry
from draftsmith.core.protocols import EngineConfig
from draftsmith.core.sampling import DraftMethod, Sampling
from draftsmith.core.trace import TraceReader, TraceRow
from draftsmith.theory.acceptance import acceptance_chances, replay

LOOKAHEADS = (1, 3, 5, 8)
METHODS: tuple[DraftMethod, ...] = ("greedy", "probabilistic")
ENGINES: dict[str, dict[str, Any]] = {
    "transformers": {"kind": "transformers", "dtype": "float32", "threads": 2, "batch_size": 64},
    "vllm": {"kind": "vllm", "dtype": "float32", "threads": 2, "batch_size": 64, "max_model_len": 256},
}
TEMPERATURES = {"transformers": (0.7, 1.0), "vllm": (1.0,)}
LARGEST_ERROR = 0.015
BIAS = 1.05


def measure(lab: Lab) -> Result:
    """Predicted against live tokens per step; and the live run's own tokens replayed, with their exact variance."""
    cells = []
    for engine, temperatures in TEMPERATURES.items():
        for temperature in temperatures:
            trace = _record(lab, engine, temperature)
            rows = list(TraceReader(trace).rows())
            for method in METHODS:
                cells += _cells(lab, engine, temperature, method, trace, rows)
    errors = [abs(cell["predicted"] - cell["live"]) / cell["error"] for cell in cells]
    precise = [cell["error"] / cell["live"] <= LARGEST_ERROR for cell in cells]
    zs = [abs(cell["z"]) for cell in cells]
    biased = [max(abs(z) for z in cell["z_biased"]) for cell in cells]
    agrees = max(errors) < 3 and max(zs) < 3
    sharp = all(precise) and min(biased) > 3  # a matter of sample size, which a slice does not have
    return Result(
        claim="With sampling, replay predicts tokens per step within the statistical error of a live run",
        value=f"worst {max(errors):.2f} standard errors; worst |z| {max(zs):.2f}; biased by 5%: |z| at least {min(biased):.1f}",
        unit="",
        goal="below 3 standard errors with a combined error of at most 1.5%; |z| < 3 in every cell; a biased by 5% fails",
        holds=agrees and (sharp or lab.quick),
        spread=f"combined standard error {100 * min(c['error'] / c['live'] for c in cells):.2f} to "
        f"{100 * max(c['error'] / c['live'] for c in cells):.2f}% of the value",
        workload=f"stories15M fp32, a noisy copy as draft, {len(rows)} HellaSwag prompts of the test split, "
        f"{_new_tokens(lab)} new tokens, {len(cells)} cells",
        details={"cells": cells},
    )


def _new_tokens(lab: Lab) -> int:
    return 16 if lab.quick else 96


def _record(lab: Lab, engine: str, temperature: float) -> Path:
    return api.record(
        target=lab.stories,
        datasets=("hellaswag",),
        data=lab.data,
        num_prompts=24 if lab.quick else 512,
        max_prompt_tokens=128,
        max_new_tokens=_new_tokens(lab),
        sampling={"temperature": temperature, "seed": 1},
        engine=ENGINES[engine],
        store=lab.store,
    ).folder


def _cells(
    lab: Lab, engine: str, temperature: float, method: DraftMethod, trace: Path, rows: list[TraceRow]
) -> list[dict[str, Any]]:
    draft = {"kind": "model", "path": str(noisy_copy(lab, 0.7, of="stories")), "method": method}
    lookaheads = (3,) if lab.quick else LOOKAHEADS
    card = api.evaluate(trace=trace, draft=draft, lookaheads=lookaheads, engine=ENGINES[engine], store=lab.store).record
    live = api.evaluate_live(
        trace=trace, target=lab.stories, draft=draft, lookaheads=lookaheads, engine=ENGINES[engine], store=lab.store
    )
    found = []
    for k in lookaheads:
        table = pq.read_table(live.folder / f"lookahead-{k:02d}.parquet").to_pylist()
        outputs = [np.array(row["output_ids"], dtype=np.int32) for row in table]
        steps = np.array([len(row["step_tokens"]) for row in table], dtype=float)
        first = registry.load("engines", engine).first_drafted
        tokens = np.array([len(ids) - first for ids in outputs], dtype=float)
        point = card.overall.at(k)
        assert point.tokens_per_step_error is not None
        value, error = _ratio(tokens, steps)
        chances = _own_chances(lab, engine, temperature, method, rows, outputs)
        exact = replay(chances, [len(a) for a in chances], [k])
        shifted = [replay([np.clip(a * b, 0, 1) for a in chances], [len(a) for a in chances], [k]) for b in (BIAS, 1 / BIAS)]
        found.append(
            {
                "engine": engine,
                "temperature": temperature,
                "draft": method,
                "lookahead": k,
                "predicted": point.tokens_per_step,
                "live": value,
                "error": float(np.hypot(error, point.tokens_per_step_error)),
                "z": _z(steps, exact),
                "z_biased": [_z(steps, one) for one in shifted],
            }
        )
        print(found[-1], flush=True)
    return found


def _ratio(tokens: np.ndarray, steps: np.ndarray) -> tuple[float, float]:
    value = tokens.sum() / steps.sum()
    residual = tokens - value * steps
    return float(value), float(np.sqrt((residual**2).sum() * len(steps) / (len(steps) - 1)) / steps.sum())


def _z(steps: np.ndarray, exact: Any) -> float:
    """How far the steps lie from their mean given the tokens, in exact standard deviations. A greedy draft leaves nothing to
    chance once the tokens are given: then it is the difference itself, in steps of the whole run."""
    variance = float(exact.variance.sum())
    gap = float(steps.sum() - exact.steps.sum())
    return gap / np.sqrt(variance) if variance > 1e-9 else gap


def _own_chances(
    lab: Lab, engine: str, temperature: float, method: DraftMethod, rows: list[TraceRow], outputs: list[np.ndarray]
) -> list[np.ndarray]:
    """a for the live run's own tokens: both models score what it wrote."""
    own = [
        TraceRow(
            row.prompt_id, row.dataset, row.split, row.prompt_ids, ids, len(ids), np.zeros(len(ids), np.float32), "length", 0
        )
        for row, ids in zip(rows, outputs, strict=True)
    ]
    plugin = registry.load("engines", engine)
    sampling, config = Sampling(temperature=temperature), EngineConfig(**ENGINES[engine])
    with plugin.scorer(lab.stories, sampling, config) as scorer:
        target_scores = scorer.score(own)
    with plugin.scorer(noisy_copy(lab, 0.7, of="stories"), sampling, config) as scorer:
        draft_scores = scorer.score(own)
    return [
        acceptance_chances(row.output_ids, q.argmax_ids, p.logprobs, q.logprobs, method)[plugin.first_drafted :]
        for row, p, q in zip(own, target_scores, draft_scores, strict=True)
    ]


if __name__ == "__main__":
    run("sampling_replay", measure)
