"""Tiny real checkpoints with a tokenizer, made on the spot: a few hundred thousand random weights that both engines load."""

from pathlib import Path
from typing import Any

_WORDS = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(60))]


def tiny_llama(folder: Path, seed: int = 0, layers: int = 2, sharpness: float = 4.0, rows: int = len(_WORDS)) -> Path:
    """A random Llama of 64 words. Larger `sharpness` makes its next-token distributions less flat."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=rows, hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, tie_word_embeddings=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(0.0, 0.08)
        model.lm_head.weight.normal_(0.0, 0.08 * sharpness)
    model.save_pretrained(folder)
    _save_tokenizer(folder)
    return folder


def tiny_of(folder: Path, model_type: str, tied: bool, layers: int = 3, **own: Any) -> Path:
    """A random model of any family, grouped-query where the family can. No weight is 0 or 1: norms and biases count too."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**_sizes(model_type, layers), **own}, tie_word_embeddings=tied)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.0, 0.2) if weight.ndim == 2 else weight.add_(torch.randn_like(weight), alpha=0.2)
    model.save_pretrained(folder)
    _save_tokenizer(folder)
    return folder


def _sizes(model_type: str, layers: int) -> dict[str, Any]:
    shared = {
        "vocab_size": len(_WORDS), "hidden_size": 64, "num_hidden_layers": layers, "num_attention_heads": 4,
        "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    if model_type == "opt":
        return {**shared, "ffn_dim": 96, "word_embed_proj_dim": 64}
    return {**shared, "intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 16}


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(_WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    fast.chat_template = "{% for m in messages %}w1 {{ m['content'] }} w2 {% endfor %}"
    fast.save_pretrained(folder)


def near_copy(source: Path, folder: Path, noise: float, seed: int = 7) -> Path:
    """A draft that often agrees with its source."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(source)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight += noise * weight.std() * torch.randn(weight.shape, generator=generator)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder
