"""Our transformers loop against `generate(assistant_model=)`: the same pair, lookahead and prompts, interleaved."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from benchmarks._drafts import layer_cut
from benchmarks._evidence import Lab, Result, run, short_prompts
from draftsmith.core import registry
from draftsmith.core.protocols import EngineConfig, Limits, ModelDraft, Request
from draftsmith.core.sampling import Sampling
from draftsmith.core.trace import TraceRow

LOOKAHEAD = 4
ENGINE = EngineConfig(dtype="bfloat16", threads=2, batch_size=1)


def measure(lab: Lab) -> Result:
    """Tokens per second of both, prompt by prompt in turn."""
    rows = short_prompts(lab, 2 if lab.quick else 10, 32 if lab.quick else 96, ENGINE.model_dump())
    new_tokens = max(row.num_output for row in rows)
    draft = layer_cut(lab)
    target, assistant = _load(lab.smollm2), _load(draft)
    assistant.generation_config.num_assistant_tokens = LOOKAHEAD
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0.0
    ratios, ours_total, theirs_total = [], [0.0, 0], [0.0, 0]
    engine = registry.load("engines", "transformers")
    with engine.live(lab.smollm2, ModelDraft(path=str(draft)), LOOKAHEAD, Sampling(), ENGINE) as live:
        _ours(live, rows[0], new_tokens), _theirs(target, assistant, rows[0], new_tokens)  # warm both up
        for row in rows:
            ours, theirs = _ours(live, row, new_tokens), _theirs(target, assistant, row, new_tokens)
            ratios.append((ours[1] / ours[0]) / (theirs[1] / theirs[0]))
            print(f"{ours[1] / ours[0]:.1f} against {theirs[1] / theirs[0]:.1f} tokens/s", flush=True)
            for total, one in ((ours_total, ours), (theirs_total, theirs)):
                total[0], total[1] = total[0] + one[0], total[1] + one[1]
    middle = float(np.median(ratios))
    low, high = np.percentile(ratios, [10, 90])
    return Result(
        claim="Our speculative loop on transformers is faster than generate(assistant_model=) with the same pair and lookahead",
        value=round(middle, 3),
        unit="x the tokens per second (median over prompts)",
        goal="at least 1.2 x",
        holds=middle >= 1.2,
        spread=f"10th to 90th percentile {low:.2f} to {high:.2f}",
        workload=f"SmolLM2-135M-Instruct bf16 with its layer cut, lookahead {LOOKAHEAD}, batch 1, {len(rows)} prompts of "
        f"HellaSwag and chat, {new_tokens} new tokens, {len(ratios)} interleaved pairs",
        details={
            "ours_tokens_per_second": ours_total[1] / ours_total[0],
            "generate_tokens_per_second": theirs_total[1] / theirs_total[0],
            "ratios": ratios,
        },
    )


def _load(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()


def _ours(live: Any, row: TraceRow, new_tokens: int) -> tuple[float, int]:
    began = time.perf_counter()
    outcome = live.run([Request(row.prompt_ids, 0)], Limits(new_tokens, ()))
    return time.perf_counter() - began, len(outcome.rows[0].output_ids)


def _theirs(target: Any, assistant: Any, row: TraceRow, new_tokens: int) -> tuple[float, int]:
    ids = torch.tensor(row.prompt_ids[None].astype(np.int64))
    began = time.perf_counter()
    with torch.inference_mode():
        output = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            assistant_model=assistant,
            do_sample=False,
            max_new_tokens=new_tokens,
            eos_token_id=None,
        )
    return time.perf_counter() - began, output.shape[1] - ids.shape[1]


if __name__ == "__main__":
    run("loop_speed", measure)
