"""Learned masks: the shape is exact, the cut computes what the masked model did, and dead weight goes first."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftsmith.core import registry
from draftsmith.core.errors import ModelError, RecordError
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.shapes import model_shape
from draftsmith.core.store import read_json
from tests.unit.pruners.test_planted import job, names, planted

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

TRAIN = {"batch": 4, "micro_batch": 2, "length": 16, "learning_rate": 1e-4, "warmup_steps": 2, "precision": "float32"}


def write_text(folder: Path) -> Path:
    """Words that follow each other by a rule, so that there is something to lose."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(80):
        word = int(rng.integers(0, 60))
        words = [word := (3 * word + 7) % 60 for _ in range(24)]
        lines.append(json.dumps({"text": " ".join(f"w{word}" for word in words)}))
    (folder / "text.jsonl").write_text("\n".join(lines))
    return folder / "text.jsonl"


def settings(tmp_path: Path, steps: int, **more: Any) -> dict[str, Any]:
    return {"text": {"words": {"path": str(write_text(tmp_path))}}, "train": {**TRAIN, "steps": steps, "save_every": 5}, **more}


def nothing(_: Any) -> None:
    """No structure is planted."""


def test_the_cut_model_is_the_masked_one_as_it_was_trained(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from draftsmith.training.masks import MaskHooks, Masks
    from draftsmith.training.surgery import cut

    source = planted(tmp_path / "source", "llama", nothing, layers=3)
    shape = model_shape(source)
    asked = job(source, tmp_path / "notes", layers=2, heads=2, kv_heads=1, hidden=32, intermediate=40)
    pruner = registry.load("pruners", "l0")
    plan = pruner.plan(asked, KeepPlan.everything(shape), settings(tmp_path, 12))
    assert plan.shape(shape) == asked.wanted
    pruner.cut(asked, plan, tmp_path / "cut")
    pruner.cut(asked, KeepPlan.everything(shape), tmp_path / "whole")
    smaller, whole = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32).eval() for name in ("cut", "whole")
    )
    layout = registry.load("families", "llama").layout(read_json(source / "config.json"))
    MaskHooks(whole, layout, shape, Masks.of(plan, shape))
    tokens = torch.arange(4, 20)[None]
    with torch.inference_mode():
        torch.testing.assert_close(smaller(input_ids=tokens).logits, whole(input_ids=tokens).logits, rtol=1e-5, atol=1e-5)
    untrained = AutoModelForCausalLM.from_pretrained(cut(source, plan, tmp_path / "untrained"), dtype=torch.float32)
    assert not torch.equal(untrained.lm_head.weight, smaller.lm_head.weight)
    steps = [json.loads(line) for line in (tmp_path / "notes" / "training.jsonl").read_text().splitlines()]
    assert [one["step"] for one in steps] == list(range(12))


@pytest.mark.parametrize("model_type", ["llama", "opt", "qwen3"])
def test_bfloat16_and_activations_computed_again(tmp_path: Path, model_type: str) -> None:
    """The same losses as with saved activations, up to rounding; and the masks have learned something."""
    source = planted(tmp_path / "source", model_type, nothing, layers=2)
    whole = KeepPlan.everything(model_shape(source))
    found = {}
    for name, more in (("plain", {}), ("again", {"save_activations": False}), ("half", {"precision": "bfloat16"})):
        asked = job(source, tmp_path / name, layers=1, intermediate=40)
        chosen = settings(tmp_path, 6)
        chosen["train"] |= more
        registry.load("pruners", "l0").plan(asked, whole, chosen)
        lines = (tmp_path / name / "training.jsonl").read_text().splitlines()
        found[name] = [json.loads(line) for line in lines]
    losses = {name: [step["loss"] for step in steps] for name, steps in found.items()}
    assert losses["again"] == pytest.approx(losses["plain"], rel=1e-4)
    assert losses["half"] == pytest.approx(losses["plain"], rel=0.05)
    assert found["half"][0]["off_shape"] > found["half"][3]["off_shape"]


def test_layers_that_do_nothing_go(tmp_path: Path) -> None:
    _, attention_out, mlp_out = names("llama")

    def plant(weights: dict[str, Any]) -> None:
        for name, weight in weights.items():
            if name.startswith((attention_out.format(layer=1), mlp_out.format(layer=1))):
                weight.zero_()

    source = planted(tmp_path / "source", "llama", plant, layers=3)
    asked = job(source, tmp_path / "notes", layers=2)
    whole = KeepPlan.everything(model_shape(source))
    plan = registry.load("pruners", "l0").plan(asked, whole, settings(tmp_path, 40, mask_rate=0.3, price_rate=0.3))
    assert [layer.index for layer in plan.layers] == [0, 2]


def test_layers_that_go_are_computed_no_more_once_the_masks_stand(tmp_path: Path) -> None:
    """It makes no difference, and takes less time."""
    from draftsmith.pruners.l0 import L0Settings, L0Task
    from draftsmith.training.batch import text_batch
    from draftsmith.training.hard_concrete import Gates
    from draftsmith.training.lessons import summed_loss
    from draftsmith.training.masks import MaskHooks, Masks
    from draftsmith.training.mesh import load_sharded, world

    path = planted(tmp_path / "source", "llama", nothing, layers=4)
    asked, wanted = L0Settings(**settings(tmp_path, 10)), model_shape(path).model_copy(update={"layers": 2})
    batch = text_batch(torch.arange(4, 36).reshape(2, 16))
    with world() as ranks:
        source = load_sharded(path, ranks, "float32")
        gates = Gates(source.shape, wanted, 0)
        hooks = MaskHooks(source.model, source.layout, source.shape, Masks.of(gates.plan(), source.shape))
        named = dict(source.model.named_parameters())

        def learnt() -> tuple[float, dict[str, Any]]:
            loss = summed_loss(source.model, batch)
            loss.backward()
            slopes = {name: weight.grad.full_tensor() for name, weight in named.items() if weight.grad is not None}
            for weight in named.values():
                weight.grad = None
            return loss.item(), slopes

        all_loss, all_slopes = learnt()
        L0Task(source, gates, hooks, asked, 1, ranks).begin(9)
        assert len(source.layers) == 2
        loss, slopes = learnt()
    assert loss == all_loss
    assert len(slopes) < len(all_slopes)
    assert all(torch.equal(slope, all_slopes[name]) for name, slope in slopes.items())


def test_a_run_without_the_weights_that_it_trained(tmp_path: Path) -> None:
    source = planted(tmp_path / "source", "llama", nothing, layers=2)
    asked, pruner = job(source, tmp_path / "notes", layers=1), registry.load("pruners", "l0")
    plan = pruner.plan(asked, KeepPlan.everything(model_shape(source)), settings(tmp_path, 6))
    (newest,) = sorted((asked.unfinished / "checkpoints").glob("step-*/__0_0.distcp"))[-1:]
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.raises(RecordError, match=f"the checkpoint {newest.parent} cannot be read") as caught:
        pruner.cut(asked, plan, tmp_path / "cut")
    assert caught.value.way_out == f"remove {asked.scratch} and train again"
    shutil.rmtree(asked.unfinished)
    with pytest.raises(RecordError, match="holds none of the weights that were trained"):
        pruner.cut(asked, plan, tmp_path / "cut")


@pytest.mark.parametrize(("rate", "far"), [(0.01, True), (1.0, False)])
def test_masks_that_stay_behind_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture, rate: float, far: bool) -> None:
    source = planted(tmp_path / "source", "llama", nothing, layers=4)
    asked = job(source, tmp_path / "notes", layers=1)
    with caplog.at_level("WARNING"):
        registry.load("pruners", "l0").plan(
            asked, KeepPlan.everything(model_shape(source)), settings(tmp_path, 30, mask_rate=rate, price_rate=rate)
        )
    assert ("had not come to the shape" in caplog.text) == far


def test_sequences_longer_than_the_model_are_refused(tmp_path: Path) -> None:
    source = planted(tmp_path / "source", "llama", nothing, layers=2)
    asked = job(source, tmp_path / "notes", layers=1)
    wrong = settings(tmp_path, 4)
    wrong["train"]["length"] = 256
    with pytest.raises(ModelError, match="has 128 positions, and 256 are asked for"):
        registry.load("pruners", "l0").plan(asked, KeepPlan.everything(model_shape(source)), wrong)


def test_distillation_trains_what_the_others_left(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    source = planted(tmp_path / "source", "llama", nothing, layers=3)
    shape = model_shape(source)
    asked = job(source, tmp_path / "depth", layers=2)
    plan = registry.load("pruners", "depth").plan(asked, KeepPlan.everything(shape), {})
    asked = replace(asked, scratch=tmp_path / "distill")
    distill = registry.load("pruners", "distill")
    fast = settings(tmp_path, 20)
    fast["train"]["learning_rate"] = 1e-2
    assert distill.plan(asked, plan, fast) == plan
    distill.cut(asked, plan, tmp_path / "model")
    assert model_shape(tmp_path / "model") == asked.wanted
    steps = [json.loads(line) for line in (tmp_path / "distill" / "training.jsonl").read_text().splitlines()]
    assert steps[-1]["loss"] < steps[0]["loss"]
    before, after = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("distill/unfinished/cut", "model"))
    assert not torch.equal(before.lm_head.weight, after.lm_head.weight)
