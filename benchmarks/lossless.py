"""Speculative output is the target's: token-identical when greedy, distribution-identical when sampled, on both engines."""

import itertools
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from scipy import stats
from transformers import AutoModelForCausalLM

from benchmarks._drafts import noisy_copy
from benchmarks._evidence import Lab, Result, run
from benchmarks._walk import GAP
from draftsmith import api
from draftsmith.core import registry
from draftsmith.core.protocols import EngineConfig, Limits, ModelDraft, Request
from draftsmith.core.sampling import Sampling
from draftsmith.core.trace import TraceReader
from draftsmith.engines import _speculative
from draftsmith.engines._choose import draw, process
from tests.tiny import near_copy, tiny_llama

_VLLM: dict[str, Any] = {"kind": "vllm", "dtype": "float32", "threads": 2, "max_model_len": 1024}
SETTINGS: dict[str, dict[str, Any]] = {
    "transformers, batch 1": {"kind": "transformers", "dtype": "float32", "threads": 2, "batch_size": 1},
    "transformers, batch 8": {"kind": "transformers", "dtype": "float32", "threads": 2, "batch_size": 8},
    "vllm, batch 1": {**_VLLM, "batch_size": 1},
    "vllm, batch 8": {**_VLLM, "batch_size": 8},
}
# SmolLM2 has nine heads, which two ranks cannot share.
TENSOR_PARALLEL: dict[str, Any] = {**_VLLM, "batch_size": 8, "tensor_parallel": 2, "max_model_len": 256}
PROMPT = np.array([5, 9, 14, 7], dtype=np.int32)
WORDS, LENGTH, LOOKAHEAD = 64, 3, 2
# A right sampler's lowest p-value, times the number of tests (Bonferroni), stays above the first; a wrong one's falls below
# the second.
PASSES, FAILS = 1e-3, 1e-6


def measure(lab: Lab) -> Result:
    """Greedy identity with real models, and a chi-square test of sampling with a small one."""
    greedy = {
        name: _greedy(lab, lab.smollm2, noisy_copy(lab, 0.7), engine)
        for name, engine in SETTINGS.items()
        if not (lab.quick and "batch 1" in name)
    }
    samples = 50_000 if lab.quick else 200_000
    with tempfile.TemporaryDirectory() as folder:
        split = lab.stories if lab.quick else lab.tinyllama
        other = near_copy(lab.stories, Path(folder) / "stories", noise=0.1) if lab.quick else lab.stories
        greedy[f"vllm, batch 8, tensor parallel 2, {split.name}"] = _greedy(lab, split, other, TENSOR_PARALLEL)
        target = tiny_llama(Path(folder) / "target")
        draft = near_copy(target, Path(folder) / "draft", noise=0.5)
        exact = _exact(target)
        sampled = {name: _chi_square(_draws(name, target, draft, samples), exact) for name in ("transformers", "vllm")}
        with mock.patch.object(_speculative, "_accept", _wrong_accept):
            wrong = _chi_square(_draws("transformers", target, draft, samples), exact)
    unexcused = [one for cell in greedy.values() for one in cell["differences"] if one["gap"] >= GAP]
    identical = sum(cell["identical"] for cell in greedy.values()) / sum(cell["prompts"] for cell in greedy.values())
    p_values = [test["p_value"] for tests in sampled.values() for test in tests.values()]
    lowest = min(1.0, min(p_values) * len(p_values))
    caught = min(test["p_value"] for test in wrong.values())
    return Result(
        claim="Speculative decoding leaves the target's output as it is",
        value=f"{100 * identical:.2f}% identical outputs; p {lowest:.3f} of {len(p_values)} tests; wrong sampler {caught:.0e}",
        unit="",
        goal="all greedy outputs identical (or a top-2 gap below 1e-4 at the first difference); "
        "chi-square over 50,000 samples passes on both engines; a wrong sampler fails it",
        holds=not unexcused and lowest > PASSES and caught < FAILS,
        spread="none: counts",
        workload=f"greedy: SmolLM2-135M-Instruct fp32 with a noisy copy as draft, and {split.name} over two ranks, "
        f"lookahead 4, {len(greedy)} settings; "
        f"sampling: a random Llama of {WORDS} words, temperature 1, probabilistic draft, lookahead {LOOKAHEAD}, "
        f"{samples} samples of {LENGTH} tokens",
        details={"greedy": greedy, "sampled": sampled, "wrong_sampler": wrong},
    )


def _greedy(lab: Lab, target: Path, draft: Path, engine: dict[str, Any]) -> dict[str, Any]:
    """Plain output of a setting against its speculative output."""
    trace = api.record(
        target=target,
        datasets=("hellaswag", "gsm8k"),
        data=lab.data,
        num_prompts=4 if lab.quick else 16,
        max_prompt_tokens=160,
        max_new_tokens=24 if lab.quick else 64,
        top_logprobs=2,
        engine=engine,
        store=lab.store,
    )
    live = api.evaluate_live(
        trace=trace.folder,
        target=target,
        draft=draft,
        lookaheads=(4,),
        engine=engine,
        store=lab.store,
    )
    gaps = {}
    for row in TraceReader(trace.folder).rows():
        assert row.top_logprobs is not None
        gaps[row.prompt_id] = -np.diff(row.top_logprobs.reshape(-1, 2), axis=1)[:, 0]
    (cell,) = live.record.cells
    differences = [
        {"prompt_id": one.prompt_id, "position": one.position, "gap": float(gaps[one.prompt_id][one.position])}
        for one in cell.differences
    ]
    outcome = {"prompts": cell.num_prompts, "identical": cell.num_prompts - len(differences), "differences": differences}
    print(target.name, engine, outcome, flush=True)
    return {**outcome, "tokens_per_step": cell.tokens_per_step}


def _draws(engine: str, target: Path, draft: Path, count: int) -> np.ndarray:
    """`count` continuations of one prompt, each with its own seed; [count, LENGTH]."""
    config = EngineConfig(
        kind=engine, dtype="float32", threads=2, batch_size=1000 if engine == "transformers" else 256, max_model_len=64
    )
    plugin = registry.load("engines", engine)
    requests = [Request(PROMPT, seed) for seed in range(count)]
    with plugin.live(
        target, ModelDraft(path=str(draft), method="probabilistic"), LOOKAHEAD, Sampling(temperature=1.0), config
    ) as live:
        outcome = live.run(requests, Limits(LENGTH, ()))
    print(engine, "drew", len(outcome.rows), "with", outcome.counters, flush=True)
    return np.stack([row.output_ids for row in outcome.rows])


@torch.inference_mode()
def _exact(target: Path) -> np.ndarray:
    """The chance of every continuation; [WORDS] * LENGTH."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    joint = np.ones(1)
    for length in range(LENGTH):
        texts = [[*PROMPT.tolist(), *words] for words in itertools.product(range(WORDS), repeat=length)]
        logits = torch.cat([model(torch.tensor(texts[i : i + 512])).logits[:, -1] for i in range(0, len(texts), 512)])
        joint = (joint.reshape(-1, 1) * logits.double().softmax(dim=-1).numpy()).reshape(-1)
    return joint.reshape((WORDS,) * LENGTH)


def _chi_square(draws: np.ndarray, exact: np.ndarray) -> dict[str, dict[str, float]]:
    """Each position by itself, and the first two together (rare outcomes are pooled until five are expected)."""
    found = {}
    for name, axes in (("1", (0,)), ("2", (1,)), ("3", (2,)), ("1 and 2", (0, 1)), ("2 and 3", (1, 2))):
        others = tuple(axis for axis in range(LENGTH) if axis not in axes)
        expected = exact.sum(axis=others).reshape(-1) * len(draws)
        cells = np.ravel_multi_index([draws[:, axis] for axis in axes], (WORDS,) * len(axes))
        observed = np.bincount(cells, minlength=len(expected)).astype(float)
        rare = expected < 5
        seen = np.append(observed[~rare], observed[rare].sum())
        wanted = np.append(expected[~rare], expected[rare].sum())
        keep = wanted > 0
        statistic = float(((seen - wanted)[keep] ** 2 / wanted[keep]).sum())
        degrees = int(keep.sum()) - 1
        found[name] = {"chi_square": statistic, "degrees": degrees, "p_value": float(stats.chi2.sf(statistic, degrees))}
    return found


def _wrong_accept(logits: Any, proposal: Any, sampling: Sampling, uniform: Any) -> tuple[Any, Any]:
    """A plausible mistake: a rejected token is replaced by a draw from p, not from what p has more of than q."""
    p = process(logits, sampling).softmax(dim=-1)
    batch, k = proposal.tokens_BK.shape
    p_own = p[:, :k].gather(2, proposal.tokens_BK[:, :, None])[:, :, 0]
    q_own = proposal.probs_BKV.gather(2, proposal.tokens_BK[:, :, None])[:, :, 0] if k else p_own
    stands = (uniform[:, :k] * q_own < p_own) & (torch.arange(k) < proposal.counts_B[:, None])
    accepted = stands.long().cumprod(dim=1).sum(dim=1)
    return accepted, draw(p[torch.arange(batch), accepted], uniform[:, -1])


if __name__ == "__main__":
    run("lossless", measure)
