"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values. vLLM takes hidden / heads for their head size."""

from draftsmith.families._gated import GatedFamily

PLUGIN = GatedFamily(model_types=("qwen2",), hidden_rule="heads x head size")
