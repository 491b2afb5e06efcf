"""1, 2 and 4 ranks train alike; a killed run ends in the same bits; a checkpoint goes on with another number of ranks."""

import shutil
from typing import Any

import numpy as np

from benchmarks._evidence import Lab, Result, run
from benchmarks._ranks import start
from benchmarks._text import own_text, text_of

STEPS, KILLS = 50, 10


def measure(lab: Lab) -> Result:
    """Losses of 50 steps, and the weights after ten kills."""
    trace, steps = own_text(lab, lab.stories, 64, 96), 8 if lab.quick else STEPS
    train = {"steps": steps, "batch": 8, "micro_batch": 2, "length": 128, "learning_rate": 1e-4, "precision": "float32"}
    job = {"source": str(lab.stories), "text": text_of(trace), "train": {**train, "save_every": 5}}
    root = lab.store / "distributed_training"
    shutil.rmtree(root, ignore_errors=True)

    def go(name: str, ranks: int, **more: Any) -> dict[str, Any]:
        return start({**job, **more, "folder": str(root / name)}, ranks, may_die="kill" in more) or {}

    whole = {ranks: go(f"ranks-{ranks}", ranks) for ranks in ((1, 2) if lab.quick else (1, 2, 4))}
    apart = max(_apart(whole[2], other) for other in whole.values())
    rng, killed = np.random.default_rng(0), []
    for number in range(1 if lab.quick else KILLS):
        where = [int(rng.integers(2)), int(rng.integers(1, steps - 1))]
        died = not go(f"kill-{number}", 2, kill=where)
        same = go(f"kill-{number}", 2)["weights"] == whole[2]["weights"]
        killed.append({"rank and step": where, "died": died, "same": same})
        print(killed[-1], flush=True)
    others = []
    for ranks in (1,) if lab.quick else (1, 4):
        go(f"onto-{ranks}", 2, kill=[1, steps // 2])
        others.append({"ranks": ranks, "apart": _apart(whole[2], go(f"onto-{ranks}", ranks))})
    same_bits, resharded = sum(one["same"] and one["died"] for one in killed), max(one["apart"] for one in others)
    return Result(
        claim="Any number of ranks trains alike, a kill changes nothing, and checkpoints are resharded",
        value=f"losses within {apart:.1e}, resharded {resharded:.1e}; {same_bits} of {len(killed)} killed runs the same bits",
        unit="relative difference of a loss",
        goal="1e-4, and all",
        holds=apart <= 1e-4 and same_bits == len(killed) and resharded <= 1e-4,
        spread="none: arithmetic, not timings",
        workload=f"stories15M, FSDP2 over gloo, {steps} steps of 8 x 128 tokens, float32, a checkpoint every 5 steps",
        details={"killed": killed, "resharded": others, "losses": {str(n): one["losses"] for n, one in whole.items()}},
    )


def _apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest relative difference of a loss, over the steps that both have seen."""
    shared = one["losses"].keys() & other["losses"].keys()
    return max(abs(other["losses"][step] / one["losses"][step] - 1) for step in shared)


if __name__ == "__main__":
    run("distributed_training", measure)
