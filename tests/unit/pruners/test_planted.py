"""Planted structure: layers that do nothing, dead heads, dead neurons and empty dimensions are what goes, in every family."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftsmith.core import registry
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.protocols import EngineConfig
from draftsmith.core.pruning import PruneJob
from draftsmith.core.sampling import Sampling
from draftsmith.core.shapes import model_shape
from draftsmith.core.trace import TraceRow

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

ENGINE = EngineConfig(dtype="float32", threads=1)


def planted(folder: Path, model_type: str, plant: Any, layers: int = 5) -> Path:
    from transformers import AutoModelForCausalLM

    from tests.tiny import tiny_of

    source = tiny_of(folder, model_type, tied=False, layers=layers)
    model = AutoModelForCausalLM.from_pretrained(source)
    with torch.no_grad():
        plant(dict(model.named_parameters()))
    model.save_pretrained(source)
    return source


def job(source: Path, scratch: Path, **wanted: int) -> PruneJob:
    """Rows as the source itself would write them, prompts of different lengths."""
    from draftsmith.core.protocols import Limits, Request

    rng = np.random.default_rng(0)
    requests = [Request(rng.integers(4, 60, size=n).astype(np.int32), 0) for n in (3, 47, 95)]
    with registry.load("engines", "transformers").recorder(source, ENGINE) as recorder:
        written = recorder.record(requests, Sampling(), Limits(16, ()))
        vocabulary = recorder.vocabulary
    rows = [
        TraceRow("p", "d", "train", one.prompt_ids, w.output_ids, w.num_output, w.logprobs, w.finish_reason, 0)
        for one, w in zip(requests, written, strict=True)
    ]
    shape = model_shape(source)
    kept = wanted.pop("vocabulary", shape.vocabulary)
    smaller = shape.model_copy(update=wanted).with_rows(kept)
    return PruneJob(source, smaller, rows, Sampling(), vocabulary, ENGINE, scratch, scratch / "searches")


def names(model_type: str) -> tuple[str, str, str]:
    """The layer, what attention puts out, and what the feed-forward part puts out."""
    layout = registry.load("families", "opt" if model_type == "opt" else "llama").layout(
        {"hidden_size": 64, "word_embed_proj_dim": 64}
    )
    return layout.layer, layout.attention_out, layout.mlp_out


@pytest.mark.parametrize("model_type", ["llama", "opt"])
@pytest.mark.parametrize("settings", [{}, {"beam": 3}, {"by": "cosine"}], ids=str)
def test_depth_removes_the_layers_that_do_nothing(tmp_path: Path, model_type: str, settings: dict[str, Any]) -> None:
    _, attention_out, mlp_out = names(model_type)

    def plant(weights: dict[str, Any]) -> None:
        for layer in (1, 3):
            for name, weight in weights.items():
                if name.startswith((attention_out.format(layer=layer), mlp_out.format(layer=layer))):
                    weight.zero_()

    source = planted(tmp_path / "source", model_type, plant)
    whole = KeepPlan.everything(model_shape(source))
    plan = registry.load("pruners", "depth").plan(job(source, tmp_path / "notes", layers=3), whole, settings)
    assert [layer.index for layer in plan.layers] == [0, 2, 4]


@pytest.mark.parametrize("model_type", ["llama", "opt"])
def test_width_removes_what_is_dead(tmp_path: Path, model_type: str) -> None:
    _, attention_out, mlp_out = names(model_type)
    dead_heads, dead_neurons = {0: (0, 1), 1: (2, 3)}, {0: range(0, 30), 1: range(50, 80)}

    def plant(weights: dict[str, Any]) -> None:
        for layer in (0, 1):
            for head in dead_heads[layer]:
                weights[f"{attention_out.format(layer=layer)}.weight"][:, 16 * head : 16 * head + 16] = 0
            weights[f"{mlp_out.format(layer=layer)}.weight"][:, list(dead_neurons[layer])] = 0

    source = planted(tmp_path / "source", model_type, plant, layers=2)
    shape = model_shape(source)
    kv_heads = shape.kv_heads // 2
    asked = job(source, tmp_path / "notes", heads=2, kv_heads=kv_heads, intermediate=60)  # a relu may have dead ones of its own
    plan = registry.load("pruners", "width").plan(asked, KeepPlan.everything(shape), {})
    for layer in plan.layers:
        assert set(layer.heads) == {0, 1, 2, 3} - set(dead_heads[layer.index])
        assert not set(layer.neurons) & set(dead_neurons[layer.index])
    assert len(plan.hidden) == shape.hidden


def test_width_keeps_the_dimensions_that_carry_most(tmp_path: Path) -> None:
    def plant(weights: dict[str, Any]) -> None:
        for name, weight in weights.items():
            if "norm" in name:
                weight[::2] = 0.01

    source = planted(tmp_path / "source", "qwen3", plant, layers=2)
    asked = job(source, tmp_path / "notes", hidden=32)
    plan = registry.load("pruners", "width").plan(asked, KeepPlan.everything(model_shape(source)), {})
    assert plan.hidden == tuple(range(1, 64, 2))
