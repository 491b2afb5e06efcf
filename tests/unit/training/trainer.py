"""One rank of a small run, for the tests to start under torchrun: what it has seen of every step goes into a file."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from draftsmith.training.data import Samples
from draftsmith.training.lessons import Lesson
from draftsmith.training.loop import TrainSettings, train
from draftsmith.training.mesh import load_sharded, world
from draftsmith.training.samples import TextDomain


def samples() -> Samples:
    rng = np.random.default_rng(0)
    domains = {name: TextDomain(rng.integers(4, 60, size=4000).astype(np.uint32), length=16) for name in ("a", "b")}
    return Samples(domains, {"a": 2, "b": 1}, seed=3)


def main(source: str, folder: str, steps: str, kill: str) -> None:
    """`kill`: rank and step after which it dies, or ends when told to: `1@7`, `0@7:TERM`, or `never`."""
    torch.set_num_threads(1)
    rank, _, rest = kill.partition("@")
    at, _, how = rest.partition(":")
    settings = TrainSettings(
        steps=int(steps),
        batch=8,
        micro_batch=2,
        length=16,
        learning_rate=1e-2,
        warmup_steps=2,
        precision="float32",
        save_every=3,
    )
    with world() as ranks:
        loaded = load_sharded(Path(source), ranks, "float32", save_activations=False)

        def note(step: int, values: dict[str, Any]) -> None:
            if ranks.rank == 0:
                with (Path(folder) / "losses.jsonl").open("a") as file:
                    file.write(json.dumps({"step": step, "loss": values["loss"]}) + "\n")
            if kill != "never" and ranks.rank == int(rank) and step == int(at):
                os.kill(os.getpid(), signal.SIGTERM if how else signal.SIGKILL)

        finished = train(loaded, Lesson(samples(), ranks.device), settings, ranks, Path(folder) / "checkpoints", note=note)
        whole = {name: weight.full_tensor() for name, weight in loaded.model.named_parameters()}
        if finished and ranks.rank == 0:
            save_file(whole, Path(folder) / "weights.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
