"""What the training figures train on: what a model writes itself, recorded on the train split."""

from pathlib import Path
from typing import Any

from benchmarks._evidence import Lab
from draftsmith import api


def own_text(lab: Lab, model: Path, num_prompts: int, max_new_tokens: int) -> Path:
    """A trace of the train split: HellaSwag prompts, and what the model makes of them."""
    return api.record(
        target=model,
        datasets=("hellaswag",),
        data=lab.data,
        split="train",
        num_prompts=num_prompts,
        max_prompt_tokens=96,
        max_new_tokens=max_new_tokens,
        engine={"dtype": "bfloat16", "threads": 2, "batch_size": 64},
        store=lab.store,
    ).folder


def text_of(trace: Path) -> dict[str, Any]:
    """As pruners that train take it."""
    return {"own": {"path": str(trace)}}
