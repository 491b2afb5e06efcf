"""The layout that Llama began and most decoders share: RMS norms before attention and before a gated feed-forward part."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftsmith.core.families import Axis, HiddenRule, Layout

_LAYER = "model.layers.{layer}"
_WEIGHTS: dict[str, tuple[Axis, ...]] = {
    "model.embed_tokens.weight": ("fixed", "hidden"),
    f"{_LAYER}.input_layernorm.weight": ("hidden",),
    f"{_LAYER}.self_attn.q_proj.weight": ("heads", "hidden"),
    f"{_LAYER}.self_attn.q_proj.bias": ("heads",),
    f"{_LAYER}.self_attn.k_proj.weight": ("kv_heads", "hidden"),
    f"{_LAYER}.self_attn.k_proj.bias": ("kv_heads",),
    f"{_LAYER}.self_attn.v_proj.weight": ("kv_heads", "hidden"),
    f"{_LAYER}.self_attn.v_proj.bias": ("kv_heads",),
    f"{_LAYER}.self_attn.o_proj.weight": ("hidden", "heads"),
    f"{_LAYER}.self_attn.o_proj.bias": ("hidden",),
    f"{_LAYER}.post_attention_layernorm.weight": ("hidden",),
    f"{_LAYER}.mlp.gate_proj.weight": ("neurons", "hidden"),
    f"{_LAYER}.mlp.gate_proj.bias": ("neurons",),
    f"{_LAYER}.mlp.up_proj.weight": ("neurons", "hidden"),
    f"{_LAYER}.mlp.up_proj.bias": ("neurons",),
    f"{_LAYER}.mlp.down_proj.weight": ("hidden", "neurons"),
    f"{_LAYER}.mlp.down_proj.bias": ("hidden",),
    "model.norm.weight": ("hidden",),
    "lm_head.weight": ("fixed", "hidden"),
}
_CONFIG_SIZES = {
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "hidden_size": "hidden",
    "intermediate_size": "intermediate",
    "head_dim": "head_size",
}


@dataclass(frozen=True)
class GatedFamily:
    """Llama and its kin. `more_weights` are those of a layer that Llama does not have."""

    model_types: tuple[str, ...]
    hidden_rule: HiddenRule = "any"
    more_weights: Mapping[str, tuple[Axis, ...]] | None = None

    def layout(self, config: Mapping[str, Any]) -> Layout:
        more = {f"{_LAYER}.{name}": axes for name, axes in (self.more_weights or {}).items()}
        return Layout(
            weights={**_WEIGHTS, **more},
            layer=_LAYER,
            attention_out=f"{_LAYER}.self_attn.o_proj",
            mlp_out=f"{_LAYER}.mlp.down_proj",
            embeddings=("model.embed_tokens",),
            norms=(f"{_LAYER}.input_layernorm", f"{_LAYER}.post_attention_layernorm", "model.norm"),
            config_sizes=_CONFIG_SIZES,
        )
