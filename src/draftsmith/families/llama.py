"""Llama 1 to 3, TinyLlama, SmolLM2, and Mistral: grouped-query or not, tied or not."""

from draftsmith.families._gated import GatedFamily

PLUGIN = GatedFamily(model_types=("llama", "mistral"), hidden_rule="multiple of heads")
