"""OPT: LayerNorm, biases everywhere, learned positions. OPT-350M also projects smaller embeddings and normalises afterwards."""

from collections.abc import Mapping
from typing import Any

from draftsmith.core.families import Axis, HiddenRule, Layout

_LAYER = "model.decoder.layers.{layer}"
_NORMS = (f"{_LAYER}.self_attn_layer_norm", f"{_LAYER}.final_layer_norm")
_LINEAR: dict[str, tuple[Axis, Axis]] = {
    f"{_LAYER}.self_attn.q_proj": ("heads", "hidden"),
    f"{_LAYER}.self_attn.k_proj": ("kv_heads", "hidden"),
    f"{_LAYER}.self_attn.v_proj": ("kv_heads", "hidden"),
    f"{_LAYER}.self_attn.out_proj": ("hidden", "heads"),
    f"{_LAYER}.fc1": ("neurons", "hidden"),
    f"{_LAYER}.fc2": ("hidden", "neurons"),
}


class _Opt:
    model_types = ("opt",)
    hidden_rule: HiddenRule = "heads x head size"

    def layout(self, config: Mapping[str, Any]) -> Layout:
        projected = (config.get("word_embed_proj_dim") or config["hidden_size"]) != config["hidden_size"]
        normed = config.get("do_layer_norm_before", True) and not config.get("_remove_final_layer_norm", False)
        norms = (*_NORMS, *(["model.decoder.final_layer_norm"] if normed else []))
        embedding: Axis = "fixed" if projected else "hidden"
        sizes = {
            "num_hidden_layers": "layers",
            "num_attention_heads": "heads",
            "hidden_size": "hidden",
            "ffn_dim": "intermediate",
        }
        return Layout(
            weights={
                "model.decoder.embed_tokens.weight": ("fixed", embedding),
                "model.decoder.embed_positions.weight": ("fixed", "hidden"),
                "model.decoder.project_in.weight": ("hidden", "fixed"),
                "model.decoder.project_out.weight": ("fixed", "hidden"),
                "lm_head.weight": ("fixed", embedding),
                **{f"{name}.weight": axes for name, axes in _LINEAR.items()},
                **{f"{name}.bias": axes[:1] for name, axes in _LINEAR.items()},
                **{f"{name}.{part}": ("hidden",) for name in norms for part in ("weight", "bias")},
            },
            layer=_LAYER,
            attention_out=f"{_LAYER}.self_attn.out_proj",
            mlp_out=f"{_LAYER}.fc2",
            embeddings=(
                "model.decoder.project_in" if projected else "model.decoder.embed_tokens",
                "model.decoder.embed_positions",
            ),
            norms=norms,
            config_sizes=sizes if projected else {**sizes, "word_embed_proj_dim": "hidden"},
        )


PLUGIN = _Opt()
