"""1, 2 and 4 ranks train alike; a killed run ends in the same bits; a checkpoint goes on with another number of ranks."""

import shutil
from functools import partial
from typing import Any

import numpy as np

from benchmarks._evidence import Lab, Result, run
from benchmarks._ranks import start
from benchmarks._text import own_text, text_of

STEPS, KILLS = 50, 10
_LIMITS = "we take it for rounding: ranks sum in another order, differences begin at 1e-7 and grow over the steps"


def measure(lab: Lab) -> Result:
    """Losses of 50 steps, and the weights after ten kills."""
    steps, counts = (8, (1, 2)) if lab.quick else (STEPS, (1, 2, 4))
    own = text_of(own_text(lab, lab.stories, 64, 96))
    web = {"web": {"path": str(lab.data / "redpajama_sample" / "sample_c4-rp1.jsonl")}}
    train = {"steps": steps, "batch": 8, "micro_batch": 2, "length": 128, "learning_rate": 1e-4, "precision": "float32"}
    job = {"source": str(lab.stories), "text": own, "train": {**train, "save_every": 5}}

    def go(ranks: int, then: int | None = None, kill: list[int] | None = None, **other: Any) -> dict[str, Any]:
        """One run, from nothing. `kill`: it dies at a rank and step, and goes on with `then` ranks."""
        folder = lab.store / "distributed_training"
        shutil.rmtree(folder, ignore_errors=True)
        asked = {**job, **other, "folder": str(folder)}
        died = kill is not None and start({**asked, "kill": kill}, ranks, may_die=True) is None
        return {**(start(asked, then or ranks) or {}), "died": died}

    whole = {ranks: lab.kept(f"ranks-{ranks}", partial(go, ranks)) for ranks in counts}
    once = {ranks: lab.kept(f"once-ranks-{ranks}", partial(go, ranks, text=web)) for ranks in counts}
    apart, apart_once = (max(_apart(runs[2], other) for other in runs.values()) for runs in (whole, once))
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
    alike = max(apart, apart_once, resharded) <= 1e-4
    return Result(
        claim="Any number of ranks trains alike, a kill changes nothing, and checkpoints are resharded",
        value=f"losses within {apart:.1e} ({apart_once:.1e} on text read once), resharded {resharded:.1e}; "
        f"{same_bits} of {len(killed)} killed runs the same bits",
        unit="relative difference of a loss",
        goal="1e-4, and all",
        holds=alike and same_bits == len(killed) and all(one["died"] for one in others),
        spread="none: arithmetic, not timings",
        workload=f"stories15M, FSDP2 over gloo, {steps} steps of 8 x 128 tokens, float32, a checkpoint every 5 steps; "
        "64 sequences of its own text again and again, and for the losses also web text read once",
        details={
            "killed": killed,
            "resharded": others,
            "losses": {str(n): one["losses"] for n, one in whole.items()},
            "losses on text read once": {str(n): one["losses"] for n, one in once.items()},
            **({"what_limits_it": _LIMITS} if not alike else {}),
        },
    )


def _apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest relative difference of a loss, over the steps that both have seen."""
    shared = one["losses"].keys() & other["losses"].keys()
    return max(abs(other["losses"][step] / one["losses"][step] - 1) for step in shared)


if __name__ == "__main__":
    run("distributed_training", measure)
