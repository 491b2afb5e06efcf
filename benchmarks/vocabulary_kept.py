"""Throughput against the output rows that a forged draft keeps, on both engines, in turn with the whole head."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._evidence import Lab, Result, run
from benchmarks._forged import draft_of, learnt_from, recipe_of
from benchmarks._live import passed, ratios, speed, spread, there_and_back
from benchmarks._taught import recorded
from draftsmith import api
from draftsmith.core.protocols import EngineConfig
from draftsmith.core.trace import TraceReader

ROWS = (1024, 2048, 4096, 8192, 16384, 32768)
LOOKAHEAD = 4
_ALL = 0  # stands for the whole head
ENGINES: dict[str, dict[str, Any]] = {
    "transformers": {"kind": "transformers", "dtype": "bfloat16", "threads": 2, "batch_size": 1},
    "vllm": {"kind": "vllm", "dtype": "bfloat16", "threads": 2, "batch_size": 1, "max_model_len": 1024},
}


def measure(lab: Lab) -> Result:
    """Tokens per second of every size against the whole head, by prompt; tokens per step beside it; and the output itself."""
    target, draft = lab.smollm2, draft_of(lab, "smollm2", recipe_of(lab, "smollm2"), "forged")
    counted = learnt_from(lab, "smollm2")
    test = recorded(lab, target, "test", ("hellaswag", "chat"), 6, max_prompt_tokens=400, max_new_tokens=128)
    sizes = ROWS[1:3] if lab.quick else ROWS
    drafts = {rows: _trimmed(lab, draft, counted, rows) for rows in sizes} | {_ALL: draft}
    details: dict[str, Any] = {}
    for engine, settings in ENGINES.items():
        details[engine] = _engine(lab, target, drafts, test, EngineConfig(**settings))
        print(engine, {rows: one["speed_ratio"] for rows, one in details[engine].items()}, flush=True)
    best = {engine: max(sizes, key=lambda rows: cells[rows]["chosen_by"]) for engine, cells in details.items()}
    gains = {engine: details[engine][best[engine]]["judged_by"] for engine in ENGINES}
    identical = {engine: _identical(lab, target, drafts[best[engine]], engine) for engine in ENGINES}
    return Result(
        claim="A shallow draft is faster with the output rows of the tokens that its target writes",
        value="; ".join(f"{engine}: {gains[engine]:.3f} x with {best[engine]} rows" for engine in ENGINES),
        unit="throughput against the same draft with its whole head",
        goal="the gain at the best number of rows on both engines; greedy output identical",
        holds=min(gains.values()) > 1 and all(identical.values()),
        spread="10th to 90th percentile over prompts: "
        + "; ".join("{}: {:.3f} to {:.3f}".format(engine, *details[engine][best[engine]]["spread"]) for engine in ENGINES),
        workload=f"SmolLM2-135M-Instruct and its forged draft, bf16, batch 1, lookahead {LOOKAHEAD}, HellaSwag and chat, "
        "test split; every other prompt chooses the number of rows, the rest judge it",
        details={"engines": details, "greedy output identical (fp32)": identical},
    )


def _trimmed(lab: Lab, draft: Path, counted: Path, rows: int) -> Path:
    kept = api.prune(source=draft, trace=counted, shape={"rows": rows}, engine={"dtype": "bfloat16"}, store=lab.store)
    return kept.folder / "model"


def _engine(lab: Lab, target: Path, drafts: dict[int, Path], folder: Path, config: EngineConfig) -> dict[int, Any]:
    """Every draft over every prompt, one draft after the other, there and back."""
    trace = TraceReader(folder)
    rows = list(trace.rows())[: 2 if lab.quick else None]

    def run(size: str, way: str) -> list[dict[str, Any]]:
        measure = partial(passed, lab, target, drafts[int(size)], LOOKAHEAD, trace, rows, config)
        name = f"{drafts[_ALL].name}-{folder.name}-{config.kind}-{size}-{way}"
        kept: list[dict[str, Any]] = lab.kept(name, measure)
        return kept

    passes = there_and_back([str(size) for size in drafts], run)
    found = {}
    for size in drafts:
        ways, whole = passes[str(size)], passes[str(_ALL)]
        # The largest of several medians is large by chance too: one half of the prompts chooses, the other judges.
        halves = [ratios([way[half::2] for way in ways], [way[half::2] for way in whole]) for half in (0, 1)]
        found[size] = {
            "tokens_per_second": speed(ways),
            "tokens_per_step": sum(sum(one.written) for way in ways for one in way)
            / sum(sum(one.steps) for way in ways for one in way),
            "speed_ratio": float(np.median([*halves[0], *halves[1]])),
            "chosen_by": float(np.median(halves[0])),
            "judged_by": float(np.median(halves[1])),
            "spread": spread(halves[1]),
            "busy_groups": sum(one.busy for way in ways for one in way),
        }
    return found


def _identical(lab: Lab, target: Path, draft: Path, kind: str) -> bool:
    """Greedy, fp32: what the target writes with the trimmed draft is what it writes alone."""
    engine = {**ENGINES[kind], "dtype": "float32", "batch_size": 4}
    trace = recorded(lab, target, "test", ("hellaswag",), 4, max_prompt_tokens=200, max_new_tokens=32, engine=engine)
    live = api.evaluate_live(trace=trace, target=target, draft=draft, lookaheads=(LOOKAHEAD,), engine=engine, store=lab.store)
    return not live.record.cells[0].differences


if __name__ == "__main__":
    run("vocabulary_kept", measure)
