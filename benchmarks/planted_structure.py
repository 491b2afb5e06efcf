"""Layers, heads and neurons that do nothing, planted in a trained model, are exactly what l0 and depth remove."""

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from benchmarks._evidence import Lab, Result, run
from benchmarks._text import own_text, text_of
from draftsmith import api
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.store import read_json

# stories15M has 6 layers of 6 heads and 768 neurons; so many more of each, which do nothing.
LAYERS, HEADS, NEURONS = 2, 2, 128


def measure(lab: Lab) -> Result:
    """Cut back to the size of the model before anything was planted: what stays must be the model itself."""
    trace = own_text(lab, lab.stories, 256, 128)
    train = {"steps": 400, "batch": 16, "micro_batch": 8, "length": 128, "learning_rate": 1e-5, "precision": "float32"}
    l0 = {"kind": "l0", "settings": {"text": text_of(trace), "train": train, "mask_rate": 0.1, "price_rate": 0.1}}
    rows = []
    for seed in (0,) if lab.quick else (0, 1, 2):
        rows += lab.kept(f"seed-{seed}", partial(_runs, lab, seed, trace, l0))
    wrong = sum(row["wrong"] for row in rows)
    return Result(
        claim="l0 and depth remove exactly the layers, heads and neurons that do nothing",
        value=wrong,
        unit="of the planted layers, heads and neurons kept",
        goal="0",
        holds=wrong == 0,
        spread=f"{len(rows) // 2} plantings",
        workload=f"stories15M with {LAYERS} identity layers among its 6, {HEADS} dead heads and {NEURONS} dead neurons in "
        "every layer, at random places; l0 with 400 steps of 16 x 128 tokens of its own text; depth on 32 rows",
        details={"runs": rows},
    )


def _runs(lab: Lab, seed: int, trace: Path, l0: dict[str, Any]) -> list[dict[str, Any]]:
    """What both pruners make of one planting."""
    source, planted = _plant(lab, seed)
    wanted = {"layers": 6, "heads": 6, "kv_heads": 6, "intermediate": 768}
    found = [
        _compare("l0", seed, planted, _plan(lab, source, trace, wanted, [l0])),
        _compare("depth", seed, planted, _plan(lab, source, trace, {"layers": 6}, [{"kind": "depth"}])),
    ]
    print(found, flush=True)
    return found


def _plant(lab: Lab, seed: int) -> tuple[Path, dict[str, Any]]:
    """A larger model that computes what stories15M does."""
    rng = np.random.default_rng(seed)
    old = AutoModelForCausalLM.from_pretrained(lab.stories, dtype=torch.float32)
    config = AutoConfig.from_pretrained(lab.stories)
    size = config.hidden_size // config.num_attention_heads
    config.num_hidden_layers += LAYERS
    config.num_attention_heads += HEADS
    config.num_key_value_heads, config.head_dim = config.num_attention_heads, size
    config.intermediate_size += NEURONS
    torch.manual_seed(seed)
    new = AutoModelForCausalLM.from_config(config)
    idle = sorted(rng.choice(config.num_hidden_layers, LAYERS, replace=False).tolist())
    living = iter(old.model.layers)
    dead_heads, dead_neurons = {}, {}
    with torch.no_grad():
        new.model.embed_tokens.weight.copy_(old.model.embed_tokens.weight)
        new.model.norm.weight.copy_(old.model.norm.weight)
        new.lm_head.weight.copy_(old.lm_head.weight)
        for index, layer in enumerate(new.model.layers):
            if index in idle:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()
                continue
            dead_heads[index] = sorted(rng.choice(config.num_attention_heads, HEADS, replace=False).tolist())
            dead_neurons[index] = sorted(rng.choice(config.intermediate_size, NEURONS, replace=False).tolist())
            _copy_layer(next(living), layer, _rest(config.num_attention_heads, dead_heads[index], size), dead_neurons[index])
    folder = lab.store / "planted" / str(seed)
    shutil.rmtree(folder, ignore_errors=True)
    new.save_pretrained(folder)
    AutoTokenizer.from_pretrained(lab.stories).save_pretrained(folder)
    return folder, {"layers": idle, "heads": dead_heads, "neurons": dead_neurons}


def _rest(count: int, dead: Sequence[int], size: int) -> list[int]:
    return [head * size + i for head in range(count) if head not in dead for i in range(size)]


def _copy_layer(old: Any, new: Any, places: list[int], dead_neurons: list[int]) -> None:
    """The old weights at the living places; what reads the dead ones is zero."""
    new.input_layernorm.weight.copy_(old.input_layernorm.weight)
    new.post_attention_layernorm.weight.copy_(old.post_attention_layernorm.weight)
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(new.self_attn, name).weight[places] = getattr(old.self_attn, name).weight
    new.self_attn.o_proj.weight.zero_()
    new.self_attn.o_proj.weight[:, places] = old.self_attn.o_proj.weight
    alive = [i for i in range(new.mlp.gate_proj.weight.shape[0]) if i not in set(dead_neurons)]
    for name in ("gate_proj", "up_proj"):
        getattr(new.mlp, name).weight[alive] = getattr(old.mlp, name).weight
    new.mlp.down_proj.weight.zero_()
    new.mlp.down_proj.weight[:, alive] = old.mlp.down_proj.weight


def _plan(lab: Lab, source: Path, trace: Path, wanted: dict[str, int], pruners: list[dict[str, Any]]) -> KeepPlan:
    engine = {"dtype": "float32", "threads": 2}
    kept = api.prune(source=source, trace=trace, shape=wanted, pruners=pruners, engine=engine, store=lab.store)
    return KeepPlan.model_validate(read_json(kept.folder / f"0-{pruners[0]['kind']}" / "plan.json"))


def _compare(pruner: str, seed: int, planted: dict[str, Any], plan: KeepPlan) -> dict[str, Any]:
    layers = [layer for layer in plan.layers if layer.index in planted["layers"]]
    found = {
        "pruner": pruner,
        "seed": seed,
        "planted_layers": planted["layers"],
        "layers": len(layers),
        "heads": 0,
        "neurons": 0,
    }
    if pruner == "l0":
        for layer in plan.layers:
            if layer.index not in planted["layers"]:
                found["heads"] += len(set(layer.heads) & set(planted["heads"][layer.index]))
                found["neurons"] += len(set(layer.neurons) & set(planted["neurons"][layer.index]))
    return {**found, "wrong": found["layers"] + found["heads"] + found["neurons"]}


if __name__ == "__main__":
    run("planted_structure", measure, carried=True)
