"""Qwen3: Llama with a norm over each query and key head. It lies inside of a head, where nothing is cut."""

from draftsmith.families._gated import GatedFamily

PLUGIN = GatedFamily(
    model_types=("qwen3",),
    more_weights={"self_attn.q_norm.weight": ("fixed",), "self_attn.k_norm.weight": ("fixed",)},
)
