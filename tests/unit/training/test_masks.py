"""Masks where a family has more than one layout: OPT-350M projects its embeddings and normalises behind the residual."""

from pathlib import Path

import pytest

from draftsmith.core import registry
from draftsmith.core.keep_plans import KeepPlan, KeptLayer
from draftsmith.core.shapes import model_shape
from draftsmith.core.store import read_json

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


def test_post_norm_and_projected_embeddings(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from draftsmith.training.masks import MaskHooks, Masks
    from draftsmith.training.surgery import cut
    from tests.tiny import tiny_of

    source = tiny_of(tmp_path / "opt", "opt", tied=True, do_layer_norm_before=False, word_embed_proj_dim=24)
    shape = model_shape(source)
    kept = {"heads": (1, 2), "kv_heads": (1, 2), "neurons": tuple(range(0, 96, 2))}
    plan = KeepPlan(hidden=tuple(range(0, 64, 2)), layers=(KeptLayer(index=0, **kept), KeptLayer(index=2, **kept)))
    smaller, masked = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for folder in (cut(source, plan, tmp_path / "cut"), source)
    )
    layout = registry.load("families", "opt").layout(read_json(source / "config.json"))
    MaskHooks(masked, layout, shape, Masks.of(plan, shape))
    tokens = torch.arange(4, 16)[None]
    with torch.inference_mode():
        ours, theirs = (model(input_ids=tokens, use_cache=False).logits for model in (smaller, masked))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert smaller.config.word_embed_proj_dim == 24
    assert smaller.config.hidden_size == 32
