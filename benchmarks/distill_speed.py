"""Training on recorded output against asking the teacher at every step; and the memory of the loss, which stays flat."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._drafts import depth_cut
from benchmarks._evidence import ROOT, Lab, Result, run
from benchmarks._taught import lessons, training
from draftsmith import api
from draftsmith.core.scores import read_scores, scores_path
from draftsmith.core.trace import TraceReader

LAYERS = 5
ENGINE = {"kind": "transformers", "dtype": "bfloat16", "threads": 2}
SIZES = ((32_000, 1_024), (32_000, 8_192), (128_000, 1_024), (128_000, 8_192))

_LIMITS = (
    "after the same tokens the two accept alike but do not give the recorded text the same chance: the 16 most likely tokens "
    "and all others as one may say less than the whole distribution, or it is chance of training, which other seeds would "
    "tell and were not tried"
)


def measure(lab: Lab) -> Result:
    """Tokens per second of both, in turn; where both end; and the peak of the loss by vocabulary and tokens."""
    taught = lessons(lab, lab.smollm2, 400)
    cut = depth_cut(lab, LAYERS)
    kinds = {"recorded": None, "asked": lab.smollm2}
    rounds, steps, long = (1, 3, 4) if lab.quick else (5, 4, 50)

    def made(teacher: Path | None, steps: int, seed: int, check_every: int) -> Any:
        train = training(lab, steps, 3e-4, seed=seed)
        return api.distill(student=cut, teacher=teacher, **taught, check_every=check_every, train=train, store=lab.store)

    speeds = []
    for turn in range(rounds):
        speeds.append({name: _tokens_per_second(made(teacher, steps, turn, 10**6).folder) for name, teacher in kinds.items()})
        print(speeds[-1], flush=True)
    # Both by what they are for: the numbers of a loss over 16 tokens and over all are not the same numbers.
    ended = {name: made(teacher, long, 0, max(1, long // 10)) for name, teacher in kinds.items()}
    drafts = {name: one.folder / "model" for name, one in ended.items()}
    cards = {
        name: api.evaluate(trace=taught["held_out"], draft=draft, lookaheads=(5,), engine=ENGINE, store=lab.store)
        for name, draft in drafts.items()
    }
    reached = {name: card.record.overall.at(5) for name, card in cards.items()}
    memory = {f"{how}, {v} x {p}": _memory(v, p, how) for how in ("in chunks", "whole") for v, p in SIZES}
    chunked = [memory[f"in chunks, {v} x {p}"] for v, p in SIZES]
    flat = max(chunked) / min(chunked)
    ratios = [one["recorded"] / one["asked"] for one in speeds]
    ratio = float(np.median(ratios))
    apart = reached["recorded"].tokens_per_step - reached["asked"].tokens_per_step
    error = float(np.linalg.norm([point.tokens_per_step_error or 0.0 for point in reached.values()]))
    losses = {name: _loss_by_prompt(taught["held_out"], card.folder) for name, card in cards.items()}
    tokens = np.array([row.num_output for row in TraceReader(taught["held_out"]).rows()])
    entropies = {name: float(loss.sum() / tokens.sum()) for name, loss in losses.items()}
    loss_apart = entropies["recorded"] - entropies["asked"]
    loss_error = float(np.linalg.norm(losses["recorded"] - losses["asked"] - loss_apart * tokens) / tokens.sum())
    same = abs(apart) <= 2 * error and abs(loss_apart) <= 2 * loss_error
    return Result(
        claim="Training on recorded output, without a teacher in the loop, is faster and ends in the same place",
        value=f"{ratio:.2f} x the tokens per second; tokens per step differ by {apart:+.3f} ± {error:.3f}, cross-entropy by "
        f"{loss_apart:+.3f} ± {loss_error:.3f}; memory of 32 x the logits: {flat:.2f} x",
        unit="",
        goal="at least 2 x, for the same result within noise; memory flat in vocabulary x tokens",
        holds=ratio >= 2 and same and flat <= 2,
        spread=f"ratios {min(ratios):.2f} to {max(ratios):.2f}; errors are over prompts, that of cross-entropy paired",
        workload=f"SmolLM2-135M-Instruct cut to {LAYERS} layers, forward KL over its 16 most likely tokens or all, {rounds} "
        f"rounds of {steps} steps of 16 x 512 tokens, in turn, {lab.arithmetic()}; tokens per step and cross-entropy after "
        f"{long} steps, on held-out prompts",
        details={
            "tokens_per_second": speeds,
            "tokens_per_step": {name: point.model_dump() for name, point in reached.items()},
            "held-out cross-entropy": entropies,
            "loss_peak_bytes": memory,
            **({} if same else {"what_limits_it": _LIMITS}),
        },
    )


def _loss_by_prompt(held_out: Path, card: Path) -> np.ndarray:
    """The cross-entropy of what was recorded by a draft, summed over each prompt's output."""
    trace, found = TraceReader(held_out), []
    for shard in range(len(trace.record.shards)):
        rows = trace.shard(shard)
        for row, score in zip(rows, read_scores(scores_path(card, shard), rows), strict=True):
            found.append(-float(score.logprobs[: row.num_output].sum()))
    return np.array(found)


def _tokens_per_second(folder: Path) -> float:
    """The median of all steps but the first, which warms up."""
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in (folder / "training" / "training.jsonl").read_text().splitlines()
    ]
    return float(np.median([line["tokens_per_second"] for line in lines[1:]]))


def _memory(vocabulary: int, places: int, how: str) -> int:
    words = [sys.executable, "-m", "benchmarks._head_memory", str(vocabulary), str(places), how]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


if __name__ == "__main__":
    run("distill_speed", measure)
