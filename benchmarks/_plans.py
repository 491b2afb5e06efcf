"""Random sources and random cuts of them, for what must hold whatever is cut."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from draftsmith.core.keep_plans import KeepPlan, KeptLayer
from draftsmith.core.shapes import Shape

_SIZES: dict[str, Any] = {"num_hidden_layers": 4, "num_attention_heads": 8, "max_position_embeddings": 256}


def random_source(folder: Path, model_type: str, tied: bool, tokenizer: Path) -> Path:
    """A small model of any family with the tokenizer of another; no weight is 0 or 1, so that norms and biases count too."""
    words = AutoTokenizer.from_pretrained(tokenizer)
    own = {"ffn_dim": 384} if model_type == "opt" else {"intermediate_size": 384, "num_key_value_heads": 4, "head_dim": 32}
    sizes = {**_SIZES, **own, "hidden_size": 256, "vocab_size": len(words), "tie_word_embeddings": tied}
    if model_type == "opt":
        sizes["word_embed_proj_dim"] = 256
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **sizes))
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.0, 0.1) if weight.ndim == 2 else weight.add_(torch.randn_like(weight), alpha=0.2)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def random_plan(shape: Shape, rule: str, seed: int) -> KeepPlan:
    """Any legal plan: other heads, neurons and layers each time, and other numbers of them."""
    rng = np.random.default_rng(seed)

    def some(count: int, of: int) -> tuple[int, ...]:
        return tuple(sorted(rng.choice(of, size=count, replace=False).tolist()))

    group = shape.heads // shape.kv_heads
    num_keys, per_key = int(rng.integers(1, shape.kv_heads + 1)), int(rng.integers(1, group + 1))
    heads = num_keys * per_key
    step = {"any": 1, "multiple of heads": heads, "heads x head size": heads * shape.head_size}[rule]
    hidden = step if rule == "heads x head size" else step * int(rng.integers(1, shape.hidden // step + 1))
    neurons = int(rng.integers(1, shape.intermediate + 1))
    layers = []
    for index in some(int(rng.integers(1, shape.layers + 1)), shape.layers):
        keys = some(num_keys, shape.kv_heads)
        queries = tuple(key * group + one for key in keys for one in some(per_key, group))
        layers.append(KeptLayer(index=index, heads=queries, kv_heads=keys, neurons=some(neurons, shape.intermediate)))
    return KeepPlan(hidden=some(hidden, shape.hidden), layers=tuple(layers))
