"""Checkpoints of any shape with random weights: how long a model takes does not depend on what it has learned."""

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from draftsmith.core.errors import ModelError

_SPREAD = 0.02  # as models are usually initialised: no overflow, no denormal numbers
_BLOCK = 1 << 20


def write_random_model(config: dict[str, Any], folder: Path, tokenizer: Path | None = None) -> None:
    """Save a checkpoint, bfloat16 unless the config says otherwise; a folder appears whole or not at all."""
    apart = ("model_type", "architectures", "dtype", "torch_dtype")
    settings = {name: value for name, value in config.items() if name not in apart}
    named = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    dtype = getattr(torch, str(named), None)
    if not isinstance(dtype, torch.dtype):
        raise ModelError(f"the shape names the dtype {named!r}", "use float32, bfloat16 or float16")
    if "model_type" not in config:
        raise ModelError("the shape names no model_type", "say which architecture it is, for example `model_type: llama`")
    try:
        described = AutoConfig.for_model(config["model_type"], **settings)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(described, dtype=dtype)
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(f"transformers cannot build the shape {config}: {error}", "correct it") from None
    model.to_empty(device="cpu")
    block = torch.randn(_BLOCK, generator=torch.Generator().manual_seed(0)).mul_(_SPREAD).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            flat = parameter.view(-1)
            for low in range(0, len(flat), _BLOCK):
                flat[low : low + _BLOCK] = block[: len(flat) - low]
    model.tie_weights()
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    if tokenizer is not None:
        AutoTokenizer.from_pretrained(tokenizer, local_files_only=True).save_pretrained(partial)
    partial.rename(folder)
