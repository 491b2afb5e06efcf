"""One suite for every family there is, with tiny random models: masked is cut, and kept is untouched."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks._plans import random_plan
from draftsmith.core import registry
from draftsmith.core.errors import ModelError, PlanError
from draftsmith.core.families import family_of
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.shapes import model_shape
from draftsmith.core.store import read_json

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

FAMILIES = [(name, kind) for name in registry.names("families") for kind in registry.load("families", name).model_types]


@pytest.fixture(scope="module", params=[(*one, tied) for one in FAMILIES for tied in (True, False)], ids=str)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny import tiny_of

    _, model_type, tied = request.param
    return tiny_of(tmp_path_factory.mktemp(model_type), model_type, tied)


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("seed", range(5))
def test_the_masked_source_and_the_cut_checkpoint_agree(source: Path, tmp_path: Path, seed: int) -> None:
    from draftsmith.training.masks import MaskHooks, Masks
    from draftsmith.training.surgery import cut

    config, shape = read_json(source / "config.json"), model_shape(source)
    family = family_of(config, str(source))
    plan = random_plan(shape, family.hidden_rule, seed)
    smaller = load(cut(source, plan, tmp_path / "cut"))
    masked = load(source)
    MaskHooks(masked, family.layout(config), shape, Masks.of(plan, shape))
    tokens = torch.randint(4, 60, (2, 12), generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        ours, theirs = (model(input_ids=tokens, use_cache=False).logits for model in (smaller, masked))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert ours.abs().max() > 0.1, "logits near 0 would agree whatever was cut"
    assert model_shape(tmp_path / "cut") == plan.shape(shape)
    assert sum(one.numel() for one in smaller.parameters()) < sum(one.numel() for one in masked.parameters())


def test_kept_output_rows_say_what_they_said_and_the_others_nothing(source: Path, tmp_path: Path) -> None:
    import draftsmith.architectures.trimmed  # noqa: F401
    from draftsmith.training.surgery import cut

    shape, ids = model_shape(source), (2, 5, 7, 30, 59)
    plan = KeepPlan.everything(shape).model_copy(update={"rows": ids})
    trimmed, whole = load(cut(source, plan, tmp_path / "cut")), load(source)
    tokens = torch.randint(4, 60, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        ours, theirs = (model(input_ids=tokens, use_cache=False).logits for model in (trimmed, whole))
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours[..., list(ids)], theirs[..., list(ids)])
    others = [token for token in range(shape.vocabulary) if token not in ids]
    assert torch.isneginf(ours[..., others]).all()
    found = model_shape(tmp_path / "cut")
    assert (found.vocabulary, found.embedded, found.tied) == (len(ids), shape.vocabulary, False)
    assert found == plan.shape(shape)
    with pytest.raises(ModelError, match="no family here knows"):
        family_of(read_json(tmp_path / "cut" / "config.json"), "it")


def test_keeping_everything_changes_no_bit(source: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from draftsmith.training.surgery import cut

    kept = cut(source, KeepPlan.everything(model_shape(source)), tmp_path / "kept", shard_bytes=20_000)
    before = load_file(source / "model.safetensors")
    files = sorted(kept.glob("*.safetensors"))
    after = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert len(files) > 1
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    one, other = (load(folder).state_dict() for folder in (source, kept))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert (kept / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


def test_a_masked_model_is_itself_again_without_its_hooks(source: Path) -> None:
    from draftsmith.training.masks import MaskHooks, Masks

    config, shape = read_json(source / "config.json"), model_shape(source)
    family, model = family_of(config, str(source)), load(source)
    tokens = torch.arange(4, 16)[None]
    with torch.inference_mode():
        before = model(input_ids=tokens).logits
        hooks = MaskHooks(model, family.layout(config), shape, Masks.of(random_plan(shape, family.hidden_rule, 1), shape))
        assert not torch.equal(model(input_ids=tokens).logits, before)
        hooks.remove()
        assert torch.equal(model(input_ids=tokens).logits, before)


def test_a_weight_that_the_family_does_not_know_is_refused(source: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from draftsmith.training.surgery import cut

    other = tmp_path / "other"
    shutil.copytree(source, other)
    save_file({**load_file(other / "model.safetensors"), "adapter.weight": torch.ones(2)}, other / "model.safetensors")
    with pytest.raises(ModelError, match=r"adapter\.weight is none that its family knows"):
        cut(other, KeepPlan.everything(model_shape(source)), tmp_path / "cut")
    assert not (tmp_path / "cut").exists()


def test_a_hidden_size_that_engines_would_not_take_is_refused(source: Path, tmp_path: Path) -> None:
    from draftsmith.training.surgery import cut

    shape = model_shape(source)
    plan = KeepPlan.everything(shape).model_copy(update={"hidden": tuple(range(shape.hidden - 1))})
    if family_of(read_json(source / "config.json"), "").hidden_rule == "any":
        assert model_shape(cut(source, plan, tmp_path / "cut")).head_size == shape.head_size
    else:
        with pytest.raises(PlanError, match=f"cannot have {shape.hidden - 1} hidden dimensions with {shape.heads} heads"):
            cut(source, plan, tmp_path / "cut")
