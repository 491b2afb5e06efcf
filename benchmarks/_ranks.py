"""One rank of a training run under torchrun, and how to start such a run.

python -m torch.distributed.run --standalone --nproc-per-node=2 -m benchmarks._ranks JOB.json"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks._evidence import ROOT
from benchmarks._memory import peak_bytes, resident_bytes


def start(
    job: dict[str, Any], ranks: int, may_die: bool = False, environment: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any] | None:
    """Run a job on so many ranks, one thread each, and return what the first rank says of it; None if it was killed."""
    folder = Path(job["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "said.json").unlink(missing_ok=True)
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m", "benchmarks._ranks"]
    done = subprocess.run(
        [sys.executable, *launch, str(folder / "job.json")],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
    )
    if done.returncode and not may_die:
        raise RuntimeError(done.stderr[-4000:])
    said = folder / "said.json"
    return json.loads(said.read_text()) if said.exists() else None


def main(path: str) -> None:
    """Train as the job says. `kill`: rank and step after which a rank kills itself. `wanted`: with masks, on the way to it."""
    import torch

    from draftsmith.core.shapes import model_shape
    from draftsmith.engines._checkpoint import Checkpoint
    from draftsmith.pruners.l0 import L0Settings, L0Task
    from draftsmith.training.data import TextSource, open_samples
    from draftsmith.training.hard_concrete import Gates
    from draftsmith.training.lessons import Lesson
    from draftsmith.training.loop import TrainSettings, shares, train
    from draftsmith.training.masks import MaskHooks
    from draftsmith.training.mesh import load_sharded, world

    job = json.loads(Path(path).read_text())
    torch.set_num_threads(1)
    settings, source, folder = TrainSettings(**job["train"]), Path(job["source"]), Path(job["folder"])
    text = {name: TextSource(**one) for name, one in job["text"].items()}
    with world() as ranks:
        samples = open_samples(text, Checkpoint(source, False), folder / "tokens", settings.length, settings.seed, ranks)
        before = resident_bytes()
        loaded = load_sharded(source, ranks, settings.precision, settings.save_activations)
        task = None
        if job.get("wanted"):
            gates = Gates(loaded.shape, model_shape(source).model_copy(update=job["wanted"]), 0)
            hooks = MaskHooks(loaded.model, loaded.layout, loaded.shape, gates.masks(gates.noise(0, 0)).to(ranks.device))
            share, size = shares(settings, ranks.size)
            task = L0Task(loaded, gates, hooks, L0Settings(text=text, train=settings, settle=0), share // size, ranks)
        losses: dict[int, float] = {}
        seconds: list[float] = []
        last, peak = [time.perf_counter()], [before]

        def note(step: int, values: dict[str, float]) -> None:
            losses[step], peak[0] = values["loss"], peak_bytes()  # of steps: a checkpoint's copy comes after the last of them
            seconds.append(time.perf_counter() - last[0])
            if job.get("kill") == [ranks.rank, step]:
                os.kill(os.getpid(), signal.SIGKILL)
            last[0] = time.perf_counter()

        train(loaded, Lesson(samples, ranks.device), settings, ranks, folder / "checkpoints", task, note)
        total = hashlib.sha256()
        for name, weight in sorted(loaded.model.named_parameters()):
            total.update(name.encode() + weight.full_tensor().detach().numpy().tobytes())
        if ranks.rank == 0:
            said = {"losses": losses, "weights": total.hexdigest(), "seconds": seconds, "peak_bytes": peak[0] - before}
            (folder / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1])
