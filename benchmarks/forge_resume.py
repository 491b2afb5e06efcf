"""`forge` killed with -9 at random points ends where an uninterrupted run does, given its decisions; 2 ranks train as 1."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._evidence import ROOT, Lab, Result, run

KILLS = 5


def measure(lab: Lab) -> Result:
    """The draft and its tokens per step, with and without kills, and on two processes."""
    root = lab.store / "forge_resume"
    command = _command(lab, root)
    seconds = lab.kept("whole", lambda: _whole(command, root))["seconds"]
    folder, whole = _forged(root / "whole")
    rng, kills = np.random.default_rng(0), []
    for number in range(1 if lab.quick else KILLS):
        after = round(float(rng.uniform(0.05, 0.18)) * seconds, 1)
        kills.append(lab.kept(f"kill-{number}", partial(_kill_after, command, root / "killed", folder, after)))
        print(kills[-1], flush=True)
    _finish(command, root / "killed")
    _, killed = _forged(root / "killed")
    same = _drafts(whole) == _drafts(killed)
    apart = _two_ranks(root)
    return Result(
        claim="A forge that is killed again and again makes the same draft, and two processes train as one",
        value=f"{'the same' if same else 'another'} draft after {len(kills)} kills; losses of 2 processes: {apart:.1e} apart",
        unit="",
        goal="the same result after 5 kills with -9; 2 processes equal 1 within 1e-3",
        holds=same and apart <= 1e-3 and all(one["was_running"] for one in kills),
        spread="none: counts and arithmetic, not timings",
        workload="stories15M as target, forge of a few minutes, transformers, float32, decisions of the whole run given",
        details={"kills": kills, "drafts": {"whole": _drafts(whole), "killed": _drafts(killed)}},
    )


def _command(lab: Lab, root: Path) -> list[str]:
    root.mkdir(parents=True, exist_ok=True)
    settings = {
        "context": 64,
        "train_prompts": 40 if lab.quick else 200,
        "held_prompts": 8,
        "max_prompt_tokens": 128,
        "max_new_tokens": 48,
        "first_steps": 4,
        "shapes_tried": [2, 1],
        "rates": [0.001],
        "learning": {"batch": 8, "length": 128, "precision": "float32", "save_every": 5},
        "timing": {"steps": 4, "min_rounds": 2, "max_rounds": 2},
        "engine": {"dtype": "float32", "threads": 2},
    }
    (root / "settings.yaml").write_text(json.dumps(settings))  # JSON is YAML
    words = ["forge", "--target", str(lab.stories), "--dataset", "hellaswag", "--data", str(lab.data)]
    budget = ["--budget", "1m" if lab.quick else "4m", "--config", str(root / "settings.yaml")]
    return [sys.executable, "-m", "draftsmith", *words, *budget]


def _environment(store: Path) -> dict[str, str]:
    return {**os.environ, "DRAFTSMITH_STORE": str(store)}


def _finish(command: list[str], store: Path) -> None:
    done = subprocess.run(command, cwd=ROOT, env=_environment(store), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])


def _whole(command: list[str], root: Path) -> dict[str, float]:
    """An uninterrupted run, from nothing."""
    shutil.rmtree(root / "whole", ignore_errors=True)
    shutil.rmtree(root / "killed", ignore_errors=True)
    began = time.monotonic()
    _finish(command, root / "whole")
    return {"seconds": time.monotonic() - began}


def _kill_after(command: list[str], store: Path, whole: Path, seconds: float) -> dict[str, Any]:
    """Start or go on, with the decisions of the whole run, and kill all of its processes."""
    again = store / "forged" / whole.name
    if not again.exists():
        again.mkdir(parents=True)
        shutil.copy(whole / "decisions.json", again)
    running = subprocess.Popen(
        command, cwd=ROOT, env=_environment(store), start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(seconds)
    was_running = running.poll() is None
    if was_running:
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    return {"after_seconds": seconds, "was_running": was_running}


def _forged(store: Path) -> tuple[Path, dict[str, Any]]:
    (folder,) = (store / "forged").iterdir()
    return folder, json.loads((folder / "record.json").read_text())


def _drafts(record: dict[str, Any]) -> dict[str, str]:
    """Every contender by its weights: timings differ from run to run, these do not."""
    return {one["name"]: one["fingerprint"] for one in record["contenders"]}


def _two_ranks(root: Path) -> float:
    """The largest relative difference of a loss between a distillation on one process and on two."""
    (trace, *_) = sorted(path.parent for path in (root / "whole" / "traces").glob("*/record.json") if _is_train(path))
    (cut, *_) = sorted(
        path.parent / "model" for path in (root / "whole" / "checkpoints").glob("*/record.json") if _whole_head(path)
    )
    losses = []
    for ranks in (1, 2):
        store = root / f"ranks-{ranks}"
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        words = ["distill", "--student", str(cut), "--trace", str(trace), "--steps", "12", "--batch", "8", "--length", "128"]
        command = [sys.executable, *launch, "-m", "draftsmith", *words, "--config", str(root / "ranks.yaml"), "--no-pictures"]
        (root / "ranks.yaml").write_text(json.dumps({"train": {"precision": "float32"}, "loss": "acceptance_length"}))
        _finish(command, store)
        (notes,) = (store / "distilled").glob("*/training/training.jsonl")
        losses.append([json.loads(line)["loss"] for line in notes.read_text().splitlines()])
    return max(abs(two / one - 1) for one, two in zip(*losses, strict=True))


def _whole_head(path: Path) -> bool:
    """What has fewer output rows is not trained any more."""
    return "rows" not in json.loads(path.read_text())["pruners"]


def _is_train(path: Path) -> bool:
    return json.loads(path.read_text())["split"] == "train"


if __name__ == "__main__":
    run("forge_resume", measure)
