"""A masked source computes what the cut checkpoint does, in every family; vLLM loads the cut and writes the same tokens."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from benchmarks._evidence import Lab, Result, run
from benchmarks._plans import random_plan, random_source
from draftsmith.core import registry
from draftsmith.core.families import family_of
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.protocols import EngineConfig, Limits, Request
from draftsmith.core.sampling import Sampling
from draftsmith.core.shapes import model_shape
from draftsmith.core.store import read_json
from draftsmith.training.masks import MaskHooks, Masks
from draftsmith.training.surgery import cut

PLANS = 20
SERVED = 2  # of them, by vLLM, in each kind: starting it takes seconds
NEW_TOKENS = 24
_LIMITS = (
    "rounding: the cut sums fewer terms than the masked model and in another order, and the logits of these sources are about "
    "8, where float32 has steps of 5e-7 to 1e-6; a test holds both to 1e-5 relative and absolute"
)


def measure(lab: Lab) -> Result:
    """Random sources of every family, tied and untied, cut by random plans on all axes."""
    kinds = [
        (model_type, tied)
        for name in registry.names("families")
        for model_type in registry.load("families", name).model_types
        for tied in (True, False)
    ]
    rows = [_kind(lab, model_type, tied) for model_type, tied in (kinds[:2] if lab.quick else kinds)]
    worst, absolute = (max(row[name] for row in rows) for name in ("worst", "worst_absolute"))
    same = all(row["everything_identical"] for row in rows)
    served, equal = (sum(row[name] for row in rows) for name in ("served", "served_equal"))
    return Result(
        claim="What is masked computes what is cut, in every family; vLLM loads the cut and writes the same tokens",
        value=f"{absolute:.1e} at worst; keep-everything {'' if same else 'not '}identical; {equal} of {served} as in vLLM",
        unit="largest difference of a logit",
        goal="within 1e-5 (fp32), keep-everything bit-identical, the same tokens in vLLM",
        holds=absolute <= 1e-5 and same and equal == served,
        spread=f"none: arithmetic, not timings; relative to the largest logit it is {worst:.1e} at worst",
        workload=f"{len(rows)} kinds of sources (family, tied or not; 4 layers, 8 heads, 256 hidden, grouped-query where the "
        f"family has it), {rows[0]['plans']} random plans each on all axes, 2 x 48 tokens; {NEW_TOKENS} greedy tokens in vLLM",
        details={"kinds": rows, **({"what_limits_it": _LIMITS} if absolute > 1e-5 else {})},
    )


def _kind(lab: Lab, model_type: str, tied: bool) -> dict[str, Any]:
    folder = lab.store / "masked_equals_pruned" / f"{model_type}-{'tied' if tied else 'untied'}"
    shutil.rmtree(folder, ignore_errors=True)
    source = random_source(folder / "source", model_type, tied, lab.stories)
    config, shape = read_json(source / "config.json"), model_shape(source)
    family, masked = family_of(config, str(source)), _load(source)
    tokens = torch.randint(4, shape.vocabulary, (2, 48), generator=torch.Generator().manual_seed(0))
    differences, served, equal, plans = [], 0, 0, 3 if lab.quick else PLANS
    for seed in range(plans):
        plan = random_plan(shape, family.hidden_rule, seed)
        made = cut(source, plan, folder / f"cut-{seed}")
        hooks = MaskHooks(masked, family.layout(config), shape, Masks.of(plan, shape))
        with torch.inference_mode():
            ours, theirs = (model(input_ids=tokens, use_cache=False).logits for model in (_load(made), masked))
        hooks.remove()
        differences.append((float((ours - theirs).abs().max()), float(ours.abs().max())))
        if seed < (1 if lab.quick else SERVED):
            served, equal = served + 1, equal + _same_in_vllm(made)
        shutil.rmtree(made)
    everything = _load(cut(source, KeepPlan.everything(shape), folder / "everything")).state_dict()
    same = all(torch.equal(weight, everything[name]) for name, weight in _load(source).state_dict().items())
    worst, absolute = max(off / size for off, size in differences), max(off for off, _ in differences)
    row = {"family": model_type, "tied": tied, "plans": plans, "worst": worst, "worst_absolute": absolute}
    row |= {"everything_identical": same, "served": served, "served_equal": equal}
    print(row, flush=True)
    shutil.rmtree(folder)
    return row


def _load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def _same_in_vllm(checkpoint: Path) -> bool:
    rng = np.random.default_rng(1)
    requests = [Request(rng.integers(4, 1000, size=n).astype(np.int32), 0) for n in (5, 17)]
    written = []
    for kind in ("transformers", "vllm"):
        config = EngineConfig(kind=kind, dtype="float32", threads=2, batch_size=2, max_model_len=128, kv_cache_gb=1)
        with registry.load("engines", kind).recorder(checkpoint, config) as recorder:
            found = recorder.record(requests, Sampling(), Limits(NEW_TOKENS, ()))
        written.append([one.output_ids.tolist() for one in found])
    return written[0] == written[1]


if __name__ == "__main__":
    run("masked_equals_pruned", measure)
