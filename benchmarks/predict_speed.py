"""`predict` on a laptop: the answer from records, without torch, and a million points of shape, lookahead and batch size."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks._evidence import ROOT, Lab, Result, refuse_busy, run
from draftsmith.core.protocols import Batching, EngineConfig
from draftsmith.core.records import LatencyModel, Profile, ProfileCell
from draftsmith.core.shapes import Shape
from draftsmith.core.store import write_json
from draftsmith.core.timing import lent
from draftsmith.theory.latency import TERMS, ShapeArrays, predict_ms
from draftsmith.theory.throughput import StepTable, throughput

POINTS = 1_000_000
_CHECK = """
import sys
from draftsmith.cli import main
try:
    main()
except SystemExit:
    pass
heavy = [name for name in ("torch", "transformers", "vllm") if name in sys.modules]
assert not heavy, heavy
"""


def measure(lab: Lab) -> Result:
    """Seconds of a whole `draftsmith predict`, and of the million points."""
    folder = lab.store / "predict_speed"
    write_json(folder / "record.json", _profile().model_dump(mode="json"))
    with lent() as others:
        answers = [_answer(folder, lab.store) for _ in range(11)]
        seconds = [_million() for _ in range(3)]
    refuse_busy(lab, others.busy)
    answer, points = float(np.median(answers)), float(np.median(seconds))
    return Result(
        claim="`draftsmith predict` answers from records in under a second, without torch, and ranks a million points in two",
        value=f"{answer:.2f} s, {points:.2f} s",
        unit="an answer from records; 10^6 (shape, lookahead, batch) points",
        goal="under 1 s; under 2 s",
        holds=answer < 1.0 and points < 2.0,
        spread=f"{min(answers):.2f} to {max(answers):.2f} s; {min(seconds):.2f} to {max(seconds):.2f} s",
        workload="a profile of 6 lookaheads x 4 batch sizes x 3 contexts, a new process each time, verdict, schedule, "
        "inverses; pictures are drawn after the answer and not timed",
        details={"answers": answers, "points": seconds, "busy": others.busy},
    )


def _answer(folder: Path, store: Path) -> float:
    command = [sys.executable, "-c", _CHECK, "predict", "--profile", str(folder), "--acceptance", "0.6", "--no-pictures"]
    began = time.perf_counter()
    subprocess.run([*command, "--store", str(store)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def _million() -> float:
    """100,000 shapes x 5 lookaheads x 2 batch sizes: step time by the latency model, verification from a table."""
    rng, shapes = np.random.default_rng(0), POINTS // 10
    hidden = 64 * rng.integers(4, 64, shapes)
    arrays = ShapeArrays(
        layers=rng.integers(1, 31, shapes),
        heads=hidden // 64,
        kv_heads=np.maximum(1, hidden // 256),
        head_size=np.full(shapes, 64),
        hidden=hidden,
        intermediate=hidden * 3,
        vocabulary=rng.integers(1000, 128_000, shapes),
        gated=np.ones(shapes, dtype=bool),
    )
    model = LatencyModel(
        dtype="bfloat16",
        coefficients=dict.fromkeys(TERMS, 1.0),
        num_shapes=12,
        most_tokens=8,
        unseen_error_median=0.05,
        unseen_error_worst=0.1,
        unseen_error_rms=0.05,
    )
    table = StepTable.from_cells(_profile().cells)
    lookahead = np.array([1, 2, 3, 5, 8])[:, None, None]
    batch = np.array([1, 8])[:, None]
    tokens_per_step = 1.0 + 0.3 * np.log1p(lookahead) * rng.random(shapes)
    began = time.perf_counter()
    draft_ms = np.stack([predict_ms(model, arrays, np.full(shapes, b), np.full(shapes, b * 512)) for b in (1, 8)])
    rest_ms = table.phase_ms("verify", lookahead, batch, 512) + table.phase_ms("overhead", lookahead, batch, 512)
    speed = throughput(tokens_per_step, rest_ms + lookahead * draft_ms, batch)
    speed.argmax(axis=0)
    assert speed.size == POINTS
    return time.perf_counter() - began


def _profile() -> Profile:
    target = Shape(layers=30, heads=9, kv_heads=3, head_size=64, hidden=576, intermediate=1536, vocabulary=49152, tied=True)

    def cell(lookahead: int, batch: int, context: int) -> ProfileCell:
        draft, verify = 5.0 * lookahead * (1 + 0.05 * batch), 30.0 * (1 + 0.02 * batch * (lookahead + 1)) + context / 500
        whole = draft + verify + 1.0
        return ProfileCell(
            lookahead=lookahead, batch=batch, context=context, draft_ms=draft, verify_ms=verify, overhead_ms=1.0,
            median_ms=whole, low_ms=whole, high_ms=whole, error=0.01, rounds=3,
        )  # fmt: skip

    batches, contexts = (1, 4, 8, 16), (128, 1024, 4096)
    return Profile(
        target="target",
        target_fingerprint="0",
        target_shape=target,
        draft="draft",
        draft_fingerprint="1",
        draft_shape=target.model_copy(update={"layers": 3}),
        engine=EngineConfig(kind="vllm", dtype="bfloat16"),
        dtype="bfloat16",
        batching=Batching(admission="continuous", context="mean", clips_lookahead=False),
        first_drafted=1,
        versions={},
        machine={},
        busy=False,
        plain=tuple(cell(0, b, c) for b in batches for c in contexts),
        cells=tuple(cell(k, b, c) for k in (0, 1, 2, 3, 5, 8) for b in batches for c in contexts),
    )


if __name__ == "__main__":
    run("predict_speed", measure)
