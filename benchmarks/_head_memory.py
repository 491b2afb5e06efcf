"""One process of `distill_speed`: how much memory the loss of so many tokens over such a vocabulary takes, in bytes.

The model has one tiny layer: what is left is its head. `whole` is transformers' own loss, over all logits at once."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks._memory import peak_bytes, resident_bytes
from draftsmith.training.batch import text_batch
from draftsmith.training.lessons import summed_loss

_LENGTH = 128


def main(vocabulary: int, places: int, how: str) -> None:
    """Print the growth of the peak over forward and backward."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, tie_word_embeddings=True, **sizes))
    tokens = torch.randint(vocabulary, (places // _LENGTH, _LENGTH))
    before = resident_bytes()
    loss = model(input_ids=tokens, labels=tokens).loss if how == "whole" else summed_loss(model, text_batch(tokens))
    loss.backward()
    print(peak_bytes() - before)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
