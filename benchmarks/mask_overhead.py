"""What masks cost: a step of l0 against a plain step of the same source on the same ranks, in turns."""

import shutil
from functools import partial
from typing import Any

import numpy as np

from benchmarks._evidence import Lab, Result, run
from benchmarks._ranks import start
from benchmarks._text import own_text, text_of

RANKS, PAIRS, STEPS = 2, 12, 6


def measure(lab: Lab) -> Result:
    """The ratio of the time of a step, run by run."""
    trace = own_text(lab, lab.smollm2, 64, 96)
    train = {"steps": STEPS, "batch": 4, "micro_batch": 2, "length": 256, "precision": "float32", "save_every": 1000}
    job = {"source": str(lab.smollm2), "text": text_of(trace), "train": train, "folder": str(lab.store / "mask_overhead")}
    wanted = {"layers": 5, "heads": 6, "kv_heads": 2, "hidden": 384, "intermediate": 1024}
    kinds: dict[str, dict[str, Any]] = {"plain": {}, "masked": {"wanted": wanted}}
    pairs = []
    for turn in range(2 if lab.quick else PAIRS):
        order = list(kinds) if turn % 2 else list(kinds)[::-1]
        pairs.append(lab.kept(f"pair-{turn}", partial(_pair, {name: {**job, **kinds[name]} for name in order})))
        print(pairs[-1], flush=True)
    ratios = [pair["masked"] / pair["plain"] for pair in pairs]
    low, middle, high = (float(np.percentile(ratios, q)) for q in (10, 50, 90))
    return Result(
        claim="A step with masks costs little more than a plain one",
        value=round(middle, 3),
        unit="x the time of a plain FSDP2 step",
        goal="at most 1.10",
        holds=middle <= 1.10,
        spread=f"{low:.3f} to {high:.3f} (10th to 90th percentile of {len(ratios)} interleaved pairs)",
        workload=f"SmolLM2-135M-Instruct, {RANKS} ranks over gloo, 4 x 256 tokens a step, fp32, masks on all axes",
        details={"seconds": pairs},
    )


def _pair(jobs: dict[str, dict[str, Any]]) -> dict[str, float]:
    return {name: _step_seconds(job) for name, job in jobs.items()}


def _step_seconds(job: dict[str, Any]) -> float:
    """The median step of a run; its first is warm-up."""
    shutil.rmtree(job["folder"], ignore_errors=True)
    said = start(job, RANKS)
    assert said is not None
    return float(np.median(said["seconds"][1:]))


if __name__ == "__main__":
    run("mask_overhead", measure)
