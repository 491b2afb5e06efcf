"""Planning: what a run would take, from a config alone and for ranks that do not exist."""

import json
from pathlib import Path
from typing import Any

import pytest

from draftsmith import api
from draftsmith.core.errors import ConfigError, PlanError
from draftsmith.core.shapes import model_shape

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config without weights: a small Llama."""
    folder = tmp_path_factory.mktemp("source")
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 128,
        "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "max_position_embeddings": 512, "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def choice(kind: str, **more: Any) -> dict[str, Any]:
    train = {"steps": 10, "batch": 16, "micro_batch": 2, "length": 32}
    return {"kind": kind, "settings": {"text": {"a": {"path": "nowhere"}}, "train": {**train, **more}}}


def plan(source: Path, store: Path, kind: str = "l0", ranks: int = 2, **more: Any) -> Any:
    chosen = choice(kind, **more)
    return api.plan_training(source=source, shape={"layers": 2}, pruners=[chosen], ranks=ranks, store=store).record.stages[0]


def test_what_is_spread_becomes_smaller_with_ranks(source: Path, tmp_path: Path) -> None:
    parameters = model_shape(source).parameters
    one, four = plan(source, tmp_path, ranks=1), plan(source, tmp_path, ranks=4)
    assert one.memory_bytes["weights"] == pytest.approx(4 * parameters, rel=0.02)
    assert 8 * parameters <= one.memory_bytes["optimiser"] < 10 * parameters  # two moments, and what a step of it needs
    assert one.memory_bytes["weights"] == pytest.approx(4 * four.memory_bytes["weights"], rel=0.02)
    assert one.memory_bytes["optimiser"] > 3.5 * four.memory_bytes["optimiser"]
    assert one.peak_bytes == sum(one.memory_bytes.values())
    assert one.tokens == 10 * 16 * 32
    assert four.tokens_per_second == pytest.approx(4 * one.tokens_per_second)
    assert one.checkpoint_bytes == pytest.approx(12 * parameters, rel=0.02)
    assert one.fits


def test_activations_grow_with_the_pass_and_shrink_when_computed_again(source: Path, tmp_path: Path) -> None:
    small, large, again = (
        plan(source, tmp_path, **more) for more in ({}, {"micro_batch": 4}, {"save_activations": False, "micro_batch": 4})
    )
    assert large.memory_bytes["activations"] > 1.8 * small.memory_bytes["activations"]
    assert again.memory_bytes["activations"] < 0.7 * large.memory_bytes["activations"]
    assert again.hours == pytest.approx(4 / 3 * large.hours)


def test_distillation_is_of_the_small_model_only(source: Path, tmp_path: Path) -> None:
    whole, small = plan(source, tmp_path), plan(source, tmp_path, kind="distill")
    parameters = model_shape(source).model_copy(update={"layers": 2}).parameters
    assert small.checkpoint_bytes == pytest.approx(12 * parameters, rel=0.02)
    assert small.peak_bytes < whole.peak_bytes


def test_every_stage_of_a_chain_is_planned(source: Path, tmp_path: Path) -> None:
    chain = [choice("l0"), {"kind": "width"}, choice("distill")]
    made = api.plan_training(source=source, shape={"layers": 2}, pruners=chain, ranks=2, store=tmp_path).record
    assert made.stages == (plan(source, tmp_path), plan(source, tmp_path, kind="distill"))


def test_what_cannot_be_planned_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="depth trains nothing, so there is nothing to plan"):
        api.plan_training(source=source, shape={"layers": 2}, pruners=[{"kind": "depth"}], store=tmp_path)
    with pytest.raises(PlanError, match="5 layers cannot be cut from 4"):
        api.plan_training(source=source, shape={"layers": 5}, pruners=[{"kind": "l0"}], store=tmp_path)
    with pytest.raises(ConfigError, match="nobody said how fast a 'abacus' is"):
        api.plan_training(source=source, shape={}, pruners=[{"kind": "l0"}], device="abacus", store=tmp_path)
