"""The same drafts inside vLLM: its own classes, with the head of a trimmed checkpoint.

Registered by name in `draftsmith.vllm_plugin`; imported by vLLM when it loads one."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.mistral import MistralForCausalLM
from vllm.model_executor.models.opt import OPTForCausalLM
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM

from draftsmith.architectures.trimmed import spread_out


class _Trimmed:
    """What differs from the model that it is mixed into. `draft_id_to_target_id` holds, as vLLM has it, how far a token's id
    lies above its row."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        config = vllm_config.model_config.hf_config
        size = getattr(config, "word_embed_proj_dim", config.hidden_size)
        self.vocabulary = config.vocab_size
        self.lm_head = ParallelLMHead(config.kept_rows, size, prefix=f"{prefix}.lm_head" if prefix else "lm_head")
        self.logits_processor = LogitsProcessor(config.kept_rows)
        offsets = torch.zeros(config.kept_rows, dtype=torch.long, device=self.lm_head.weight.device)
        self.draft_id_to_target_id = nn.Parameter(offsets, requires_grad=False)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        logits = self.logits_processor(self.lm_head, hidden_states)
        if logits is None:
            return None
        rows = torch.arange(len(self.draft_id_to_target_id), device=logits.device)
        return spread_out(logits, rows + self.draft_id_to_target_id, self.vocabulary)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        def renamed() -> Iterable[tuple[str, Tensor]]:
            for name, tensor in weights:
                if name == "lm_head.kept_ids":
                    rows = torch.arange(len(tensor), device=tensor.device)
                    self.draft_id_to_target_id.data.copy_(tensor - rows)
                else:
                    yield name.replace("lm_head.rows.weight", "lm_head.weight"), tensor

        loaded: set[str] = super().load_weights(renamed())  # type: ignore[misc]
        return loaded | {"draft_id_to_target_id"}


class TrimmedLlamaForCausalLM(_Trimmed, LlamaForCausalLM):  # type: ignore[misc]
    """Llama."""


class TrimmedMistralForCausalLM(_Trimmed, MistralForCausalLM):  # type: ignore[misc]
    """Mistral."""


class TrimmedOPTForCausalLM(_Trimmed, OPTForCausalLM):  # type: ignore[misc]
    """OPT."""


class TrimmedQwen2ForCausalLM(_Trimmed, Qwen2ForCausalLM):  # type: ignore[misc]
    """Qwen2."""


class TrimmedQwen3ForCausalLM(_Trimmed, Qwen3ForCausalLM):  # type: ignore[misc]
    """Qwen3."""
