"""Tiny real checkpoints with a tokenizer, made on the spot: a few hundred thousand random weights that both engines load."""

from pathlib import Path

_WORDS = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(60))]


def tiny_llama(folder: Path, seed: int = 0, layers: int = 2, sharpness: float = 4.0, rows: int = len(_WORDS)) -> Path:
    """A random Llama of 64 words. Larger `sharpness` makes its next-token distributions less flat."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(_WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    fast.chat_template = "{% for m in messages %}w1 {{ m['content'] }} w2 {% endfor %}"
    fast.save_pretrained(folder)
    return folder


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
