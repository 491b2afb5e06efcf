"""kill -9 in the middle of `record`, again and again, and the trace comes out byte for byte as if nothing had happened."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._evidence import Lab, Result, run
from draftsmith.core.store import file_digest

ENGINES = {
    "transformers": ["--engine", "transformers", "--batch-size", "4"],
    "vllm": ["--engine", "vllm", "--batch-size", "4", "--max-model-len", "512"],
}
SIDECARS = {"provenance.json"}


def measure(lab: Lab) -> Result:
    """Digests of every payload file, after kills at random moments and after none."""
    kills = 2 if lab.quick else 10
    outcomes: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for engine in ENGINES:
            whole = _record(lab, engine, Path(folder) / engine / "whole")
            broken, log = _record_with_kills(lab, engine, Path(folder) / engine / "broken", kills)
            outcomes[engine] = {"equal": whole == broken, "files": len(whole), "kills": log}
            print(engine, outcomes[engine], flush=True)
    landed = {engine: sum(one["unfinished"] for one in outcome["kills"]) for engine, outcome in outcomes.items()}
    return Result(
        claim="An interrupted recording goes on to the same bytes",
        value=f"{sum(outcome['equal'] for outcome in outcomes.values())} of {len(ENGINES)} engines byte-identical "
        f"after {sum(landed.values())} kills in the middle",
        unit="",
        goal="both engines, ten kills each at random points",
        holds=all(outcome["equal"] for outcome in outcomes.values()) and all(count >= kills for count in landed.values()),
        spread="none: bytes",
        workload=f"SmolLM2-135M-Instruct fp32, temperature 1, {_prompts(lab)} HellaSwag prompts, 32 new tokens, "
        "shards of 2, kill -9",
        details=outcomes,
    )


def _prompts(lab: Lab) -> int:
    return 12 if lab.quick else 48


def _command(lab: Lab, engine: str, store: Path) -> list[str]:
    return [
        sys.executable, "-m", "draftsmith", "record", "--target", str(lab.smollm2),
        "--dataset", "hellaswag", "--data", str(lab.data), "--num-prompts", str(_prompts(lab)), "--max-new-tokens", "32",
        "--temperature", "1", "--dtype", "float32", "--threads", "2", "--shard-size", "2",
        "--store", str(store), *ENGINES[engine],
    ]  # fmt: skip


def _record(lab: Lab, engine: str, store: Path) -> dict[str, str]:
    subprocess.run(_command(lab, engine, store), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (folder,) = (store / "traces").iterdir()
    return {
        path.name: file_digest(path)
        for path in sorted(folder.iterdir())
        if path.name not in SIDECARS and path.suffix != ".partial"
    }


def _shards(store: Path) -> int:
    return len(list(store.glob("traces/*/shard-*.parquet")))


def _record_with_kills(lab: Lab, engine: str, store: Path, kills: int) -> tuple[dict[str, str], list[dict[str, float]]]:
    """Kill at a random moment: sometimes while the engine starts, mostly while a shard is being recorded or written."""
    rng = np.random.default_rng(2026)
    log: list[dict[str, float]] = []
    while len(log) < kills:
        before = _shards(store)
        process = subprocess.Popen(
            _command(lab, engine, store), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        # The first kill may come at any time; later ones wait until recording goes on, then a random while.
        while log and process.poll() is None and _shards(store) == before:
            time.sleep(0.02)
        wait = float(rng.uniform(0.0, 8.0 if not log else 3.0))
        time.sleep(wait)
        unfinished = process.poll() is None and not list(store.glob("traces/*/record.json"))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.append({"waited": wait, "shards": _shards(store), "unfinished": unfinished})
    return _record(lab, engine, store), log


if __name__ == "__main__":
    run("record_resume", measure)
