"""What our vLLM engine costs over a bare vLLM script: the same prompts, the same speculation.

Two processes are up all the time and take turns, some seconds each, so that both see the same machine."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._drafts import noisy_copy
from benchmarks._evidence import ROOT, Lab, Result, run, short_prompts
from draftsmith.core import registry
from draftsmith.core.protocols import EngineConfig, Limits, ModelDraft, Request
from draftsmith.core.sampling import Sampling

ENGINE = EngineConfig(kind="vllm", dtype="bfloat16", threads=2, batch_size=16, max_model_len=1024)
LOOKAHEAD = 4


def measure(lab: Lab) -> Result:
    """Tokens per second through our engine over those of the bare script."""
    rows = short_prompts(lab, 4 if lab.quick else 16, 32 if lab.quick else 96, {"dtype": "bfloat16", "threads": 2})
    job: dict[str, Any] = {
        "target": str(lab.smollm2),
        "draft": str(noisy_copy(lab, 0.7)),
        "dtype": ENGINE.dtype,
        "max_model_len": ENGINE.max_model_len,
        "batch_size": ENGINE.batch_size,
        "lookahead": LOOKAHEAD,
        "max_new_tokens": 32 if lab.quick else 96,
        "prompts": [row.prompt_ids.tolist() for row in rows],
    }
    speeds: dict[str, list[float]] = {"ours": [], "bare": []}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(job))
        runners = {
            name: stack.enter_context(_runner(module, path))
            for name, module in (("ours", "benchmarks.vllm_overhead"), ("bare", "benchmarks._bare_vllm"))
        }
        for turn in range(2 if lab.quick else 21):
            for name in ("ours", "bare") if turn % 2 else ("bare", "ours"):
                outcome = _turn(runners[name])
                speeds[name].append(outcome["tokens"] / outcome["seconds"])
            print({name: round(values[-1], 1) for name, values in speeds.items()}, flush=True)
    ratios = np.array(speeds["ours"]) / np.array(speeds["bare"])
    middle = float(np.median(ratios))
    low, high = np.percentile(ratios, (10, 90))
    return Result(
        claim="`evaluate --live --engine vllm` runs as fast as a bare vLLM script",
        value=round(middle, 3),
        unit="x the bare script's tokens per second (median of pairs)",
        goal="at least 0.98 x",
        holds=middle >= 0.98,
        spread=f"10th to 90th percentile {low:.3f} to {high:.3f} over {len(ratios)} pairs",
        workload=f"SmolLM2-135M-Instruct bf16, a noisy copy as draft, lookahead {LOOKAHEAD}, batch {ENGINE.batch_size}, "
        f"{len(job['prompts'])} prompts of HellaSwag and chat, {job['max_new_tokens']} new tokens, prefix caching off",
        details={"tokens_per_second": speeds, "ratios": ratios.tolist()},
    )


@contextmanager
def _runner(module: str, job: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that has its engine up and waits to be asked."""
    environment = {
        **os.environ,
        "VLLM_CPU_OMP_THREADS_BIND": "0,1",
        "VLLM_CPU_KVCACHE_SPACE": str(ENGINE.kv_cache_gb),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    command = [sys.executable, "-m", module, str(job)]
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "ready":
                break
        yield process
        assert process.stdin is not None
        process.stdin.close()


def _turn(process: "subprocess.Popen[str]") -> dict[str, float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    for line in process.stdout:
        if line.startswith("{"):
            outcome: dict[str, float] = json.loads(line)
            return outcome
    raise RuntimeError("the process ended before its turn did")


def _ours(path: Path) -> None:
    """The part of `evaluate --live` that is timed, for the same job as the bare script's."""
    job = json.loads(path.read_text())
    requests = [Request(np.array(ids, dtype=np.int32), 0) for ids in job["prompts"]]
    draft = ModelDraft(path=job["draft"])
    with registry.load("engines", "vllm").live(Path(job["target"]), draft, job["lookahead"], Sampling(), ENGINE) as live:
        live.run(requests[:2], Limits(job["max_new_tokens"], ()))
        print("\nready", flush=True)
        for _ in sys.stdin:
            began = time.perf_counter()
            outcome = live.run(requests, Limits(job["max_new_tokens"], ()))
            seconds = time.perf_counter() - began
            tokens = sum(len(row.output_ids) for row in outcome.rows)
            print("\n" + json.dumps({"tokens": tokens, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        _ours(Path(sys.argv[1]))
    else:
        run("vllm_overhead", measure)
