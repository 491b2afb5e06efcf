"""Throughput against the output rows that a forged draft keeps, on both engines, in turn with the whole head."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._evidence import Lab, Result, run
from benchmarks._forged import forged
from benchmarks._taught import recorded
from draftsmith import api
from draftsmith.core import registry
from draftsmith.core.protocols import EngineConfig, Limits, ModelDraft, Request
from draftsmith.core.sampling import Sampling
from draftsmith.core.trace import TraceReader

ROWS = (1024, 2048, 4096, 8192, 16384)
LOOKAHEAD = 4
ENGINES: dict[str, dict[str, Any]] = {
    "transformers": {"kind": "transformers", "dtype": "bfloat16", "threads": 2, "batch_size": 1},
    "vllm": {"kind": "vllm", "dtype": "bfloat16", "threads": 2, "tensor_parallel": 2, "batch_size": 1, "max_model_len": 1024},
}


def measure(lab: Lab) -> Result:
    """Tokens per second of every size against the whole head, by prompt; tokens per step beside it; and the output itself."""
    target, draft = lab.tinyllama, forged(lab, "tinyllama").draft
    counted = recorded(lab, target, "train", ("hellaswag", "mmlu", "chat"), 500, max_new_tokens=200, top_logprobs=16)
    test = recorded(lab, target, "test", ("hellaswag", "chat"), 6, max_prompt_tokens=400, max_new_tokens=128)
    sizes = ROWS[1:3] if lab.quick else ROWS
    drafts = {rows: _trimmed(lab, draft, counted, rows) for rows in sizes} | {0: draft}
    details: dict[str, Any] = {}
    for engine, settings in ENGINES.items():
        details[engine] = _engine(target, drafts, test, EngineConfig(**settings), lab.quick)
        print(engine, {rows: one["speed_ratio"] for rows, one in details[engine].items()}, flush=True)
    best = {engine: max(sizes, key=lambda rows: cells[rows]["speed_ratio"]) for engine, cells in details.items()}
    gains = {engine: details[engine][best[engine]]["speed_ratio"] for engine in ENGINES}
    identical = _identical(lab, target, drafts[best["transformers"]])
    return Result(
        claim="A shallow draft is faster with the output rows of the tokens that its target writes",
        value="; ".join(f"{engine}: {gains[engine]:.3f} x with {best[engine]} rows" for engine in ENGINES),
        unit="throughput against the same draft with its whole head",
        goal="the gain at the best number of rows on both engines; greedy output identical",
        holds=min(gains.values()) > 1 and identical,
        spread="10th to 90th percentile over prompts in the details",
        workload=f"TinyLlama-1.1B and its forged draft, bf16, batch 1, lookahead {LOOKAHEAD}, HellaSwag and chat, test split",
        details={"engines": details, "greedy output identical (fp32)": identical},
    )


def _trimmed(lab: Lab, draft: Path, counted: Path, rows: int) -> Path:
    kept = api.prune(source=draft, trace=counted, shape={"rows": rows}, engine={"dtype": "bfloat16"}, store=lab.store)
    return kept.folder / "model"


def _engine(target: Path, drafts: dict[int, Path], trace: Path, config: EngineConfig, quick: bool) -> dict[int, Any]:
    """Every draft over every prompt, one draft after the other, there and back."""
    rows = list(TraceReader(trace).rows())[: 2 if quick else None]
    plugin = registry.load("engines", config.kind)
    seconds: dict[int, list[float]] = {size: [] for size in drafts}
    tokens: dict[int, list[int]] = {size: [] for size in drafts}
    steps: dict[int, int] = dict.fromkeys(drafts, 0)
    for order in (list(drafts), list(drafts)[::-1]):
        for size in order:
            with plugin.live(target, ModelDraft(path=str(drafts[size])), LOOKAHEAD, Sampling(), config) as live:
                live.run([Request(rows[0].prompt_ids, 0)], Limits(8, ()))  # warm
                for row in rows:
                    outcome = live.run([Request(row.prompt_ids, 0)], Limits(row.num_output, ()))
                    seconds[size].append(outcome.decode_seconds or outcome.seconds)
                    tokens[size].append(len(outcome.rows[0].output_ids))
                    steps[size] += len(outcome.rows[0].step_tokens)
    speeds = {size: np.array(tokens[size]) / np.array(seconds[size]) for size in drafts}
    return {
        size: {
            "tokens_per_second": float(np.sum(tokens[size]) / np.sum(seconds[size])),
            "tokens_per_step": float(np.sum(tokens[size]) / steps[size]),
            "speed_ratio": float(np.median(speeds[size] / speeds[0])),
            "spread": np.percentile(speeds[size] / speeds[0], [10, 90]).tolist(),
        }
        for size in drafts
    }


def _identical(lab: Lab, target: Path, draft: Path) -> bool:
    """Greedy, fp32: what the target writes with the trimmed draft is what it writes alone."""
    engine = {"kind": "transformers", "dtype": "float32", "threads": 2, "batch_size": 4}
    trace = recorded(lab, target, "test", ("hellaswag",), 4, max_prompt_tokens=200, max_new_tokens=32, engine=engine)
    live = api.evaluate_live(trace=trace, target=target, draft=draft, lookaheads=(LOOKAHEAD,), engine=engine, store=lab.store)
    return not live.record.cells[0].differences


if __name__ == "__main__":
    run("vocabulary_kept", measure)
