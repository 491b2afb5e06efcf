"""1, 2 and 4 ranks train alike; a killed run ends in the same bits; a checkpoint goes on with another number of ranks."""

import shutil
from functools import partial
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

    def go(ranks: int, then: int | None = None, kill: list[int] | None = None) -> dict[str, Any]:
        """One run, from nothing. `kill`: it dies at a rank and step, and goes on with `then` ranks."""
        folder = lab.store / "distributed_training"
        shutil.rmtree(folder, ignore_errors=True)
        died = kill is not None and start({**job, "folder": str(folder), "kill": kill}, ranks, may_die=True) is None
        return {**(start({**job, "folder": str(folder)}, then or ranks) or {}), "died": died}

    whole = {ranks: lab.kept(f"ranks-{ranks}", partial(go, ranks)) for ranks in ((1, 2) if lab.quick else (1, 2, 4))}
    apart = max(_apart(whole[2], other) for other in whole.values())
    rng, killed = np.random.default_rng(0), []
    for number in range(1 if lab.quick else KILLS):
        where = [int(rng.integers(2)), int(rng.integers(1, steps - 1))]
        found = lab.kept(f"kill-{number}", partial(go, 2, kill=where))
        killed.append({"rank and step": where, "died": found["died"], "same": found["weights"] == whole[2]["weights"]})
        print(killed[-1], flush=True)
    others = []
    for ranks in (1,) if lab.quick else (1, 4):
        found = lab.kept(f"onto-{ranks}", partial(go, 2, then=ranks, kill=[1, steps // 2]))
        others.append({"ranks": ranks, "died": found["died"], "apart": _apart(whole[2], found)})
    same_bits, resharded = sum(one["same"] and one["died"] for one in killed), max(one["apart"] for one in others)
    return Result(
        claim="Any number of ranks trains alike, a kill changes nothing, and checkpoints are resharded",
        value=f"losses within {apart:.1e}, resharded {resharded:.1e}; {same_bits} of {len(killed)} killed runs the same bits",
        unit="relative difference of a loss",
        goal="1e-4, and all",
        holds=apart <= 1e-4 and same_bits == len(killed) and resharded <= 1e-4 and all(one["died"] for one in others),
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
