"""What replay costs: eight lookaheads by one pass and arithmetic against eight live runs; the arithmetic at 10^7 tokens."""

import time
import tracemalloc
from pathlib import Path

import numpy as np

from benchmarks._drafts import noisy_copy
from benchmarks._evidence import Lab, Result, run, short_prompts
from draftsmith.core import registry
from draftsmith.core.protocols import EngineConfig, Limits, ModelDraft, Request
from draftsmith.core.sampling import Sampling
from draftsmith.core.trace import TraceRow
from draftsmith.theory.acceptance import replay, row_chances

LOOKAHEADS = tuple(range(1, 9))
ENGINE = EngineConfig(dtype="bfloat16", threads=2, batch_size=16)


def measure(lab: Lab) -> Result:
    """Wall time of replay over wall time of the live runs it replaces. Engine start and model loading count on neither side."""
    rows = short_prompts(lab, 4 if lab.quick else 32, 16 if lab.quick else 64, ENGINE.model_dump())
    draft = noisy_copy(lab, 0.7)
    recording = _time_recording(lab, rows)
    live = {k: _time_live(lab, draft, rows, k) for k in LOOKAHEADS}
    replayed = [_time_replay(draft, rows) for _ in range(3)]
    ratio = sum(live.values()) / float(np.median(replayed))
    with_recording = sum(live.values()) / (float(np.median(replayed)) + recording)
    seconds, megabytes = _time_maths()
    return Result(
        claim="Replay answers for eight lookaheads at a fraction of the cost of eight live runs",
        value=f"1/{ratio:.0f} of the wall time; 10^7 tokens x 16 lookaheads in {seconds:.1f} s and {megabytes:.0f} MB",
        unit="",
        goal="at most 1/30; below 10 s and 1 GB",
        holds=ratio >= 30 and seconds < 10 and megabytes < 1000,
        spread=f"replay took {min(replayed):.2f} to {max(replayed):.2f} s over three repeats",
        workload=f"SmolLM2-135M-Instruct bf16 on transformers, a noisy copy as draft, {len(rows)} prompts of HellaSwag "
        f"and chat, {16 if lab.quick else 64} new tokens, batch 16, lookahead 1 to 8",
        details={
            "live_seconds": live,
            "replay_seconds": replayed,
            "recording_seconds": recording,
            "ratio_with_recording": with_recording,
            "maths_seconds": seconds,
            "maths_megabytes": megabytes,
        },
    )


def _limits(rows: list[TraceRow]) -> Limits:
    return Limits(max(row.num_output for row in rows), (2,))


def _requests(rows: list[TraceRow]) -> list[Request]:
    return [Request(row.prompt_ids, row.seed) for row in rows]


def _time_recording(lab: Lab, rows: list[TraceRow]) -> float:
    with registry.load("engines", "transformers").recorder(lab.smollm2, ENGINE) as recorder:
        began = time.perf_counter()
        recorder.record(_requests(rows), Sampling(), _limits(rows))
        return time.perf_counter() - began


def _time_live(lab: Lab, draft: Path, rows: list[TraceRow], lookahead: int) -> float:
    engine = registry.load("engines", "transformers")
    with engine.live(lab.smollm2, ModelDraft(path=str(draft)), lookahead, Sampling(), ENGINE) as live:
        began = time.perf_counter()
        live.run(_requests(rows), _limits(rows))
        return time.perf_counter() - began


def _time_replay(draft: Path, rows: list[TraceRow]) -> float:
    with registry.load("engines", "transformers").scorer(draft, Sampling(), ENGINE) as scorer:
        began = time.perf_counter()
        scores = scorer.score(rows)
        chances = [row_chances(row, score, "greedy") for row, score in zip(rows, scores, strict=True)]
        replay(chances, [row.num_output for row in rows], LOOKAHEADS)
        return time.perf_counter() - began


def _time_maths() -> tuple[float, float]:
    """10^7 tokens of unequal prompts; time without, memory with the allocator watched."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 381, size=50_000)
    lengths[-1] += 10**7 - lengths.sum()
    chances = [rng.random(int(n), dtype=np.float32) for n in lengths]
    began = time.perf_counter()
    replay(chances, lengths.tolist(), range(1, 17))
    seconds = time.perf_counter() - began
    tracemalloc.start()
    replay(chances[:5000], lengths[:5000].tolist(), range(1, 17))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    inputs = sum(a.nbytes for a in chances)
    return seconds, (peak + inputs) / 1e6


if __name__ == "__main__":
    run("replay_cost", measure)
