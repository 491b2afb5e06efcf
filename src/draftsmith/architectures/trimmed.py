"""A draft that keeps its input embeddings whole and, of its output rows, only those of tokens that the target really writes.

For a shallow draft the output head is most of the bytes. Logits keep the full width, with minus infinity where no row was kept,
so engines need no change and output stays the target's. One class for each kind of model, which differs in its head alone.
Importing this module registers them with transformers' Auto classes."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)


class TrimmedHead(nn.Module):  # type: ignore[misc]
    """Some rows of an output head. `kept_ids` are the tokens that they belong to."""

    def __init__(self, hidden: int, rows: int, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.rows = nn.Linear(hidden, rows, bias=False)
        self.register_buffer("kept_ids", torch.zeros(rows, dtype=torch.long))

    def forward(self, hidden: Tensor) -> Tensor:
        return spread_out(self.rows(hidden), self.kept_ids, self.vocabulary)


def spread_out(logits: Tensor, kept_ids: Tensor, vocabulary: int) -> Tensor:
    """Logits of the rows kept, in the places of their tokens; minus infinity elsewhere."""
    whole = logits.new_full((*logits.shape[:-1], vocabulary), float("-inf"))
    return whole.index_copy_(-1, kept_ids, logits)


class _Trimmed:
    """What differs from the model that it is mixed into: its head."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {}

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        size = getattr(config, "word_embed_proj_dim", config.hidden_size)
        self.lm_head = TrimmedHead(size, config.kept_rows, config.vocab_size)
        self.post_init()  # type: ignore[attr-defined]


class TrimmedLlamaConfig(LlamaConfig):  # type: ignore[misc]
    """With `kept_rows`, the number of output rows."""

    model_type = "trimmed_llama"


class TrimmedLlamaForCausalLM(_Trimmed, LlamaForCausalLM):  # type: ignore[misc]
    """Llama with fewer output rows."""

    config_class = TrimmedLlamaConfig


class TrimmedMistralConfig(MistralConfig):  # type: ignore[misc]
    """With `kept_rows`, the number of output rows."""

    model_type = "trimmed_mistral"


class TrimmedMistralForCausalLM(_Trimmed, MistralForCausalLM):  # type: ignore[misc]
    """Mistral with fewer output rows."""

    config_class = TrimmedMistralConfig


class TrimmedOPTConfig(OPTConfig):  # type: ignore[misc]
    """With `kept_rows`, the number of output rows."""

    model_type = "trimmed_opt"


class TrimmedOPTForCausalLM(_Trimmed, OPTForCausalLM):  # type: ignore[misc]
    """OPT with fewer output rows."""

    config_class = TrimmedOPTConfig


class TrimmedQwen2Config(Qwen2Config):  # type: ignore[misc]
    """With `kept_rows`, the number of output rows."""

    model_type = "trimmed_qwen2"


class TrimmedQwen2ForCausalLM(_Trimmed, Qwen2ForCausalLM):  # type: ignore[misc]
    """Qwen2 with fewer output rows."""

    config_class = TrimmedQwen2Config


class TrimmedQwen3Config(Qwen3Config):  # type: ignore[misc]
    """With `kept_rows`, the number of output rows."""

    model_type = "trimmed_qwen3"


class TrimmedQwen3ForCausalLM(_Trimmed, Qwen3ForCausalLM):  # type: ignore[misc]
    """Qwen3 with fewer output rows."""

    config_class = TrimmedQwen3Config


MODELS = (
    TrimmedLlamaForCausalLM,
    TrimmedMistralForCausalLM,
    TrimmedOPTForCausalLM,
    TrimmedQwen2ForCausalLM,
    TrimmedQwen3ForCausalLM,
)

for _model in MODELS:
    AutoConfig.register(_model.config_class.model_type, _model.config_class)
    AutoModelForCausalLM.register(_model.config_class, _model)
