"""A model's shape: what its speed and its memory depend on, read from its config without loading anything."""

from pathlib import Path
from typing import Any, Self

from pydantic import Field

from draftsmith.core.config import StrictConfig, parse_config
from draftsmith.core.errors import ModelError
from draftsmith.core.store import read_json

TRIMMED = "trimmed_"  # before the `model_type` of a model that keeps fewer output rows than it has tokens
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}

# What families call the same thing.
_NAMES = {
    "layers": ("num_hidden_layers", "n_layer"),
    "heads": ("num_attention_heads", "n_head"),
    "hidden": ("hidden_size", "n_embd"),
    "intermediate": ("intermediate_size", "ffn_dim", "n_inner"),
    "vocabulary": ("vocab_size",),
}
# What transformers ties unless a config says otherwise; every other decoder has a head of its own.
_TIED = (
    "bloom", "cohere", "cohere2", "ernie4_5", "falcon", "gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "gpt_bigcode",
    "gpt_neo", "lfm2", "mpt", "opt", "smollm3", "starcoder2",
)  # fmt: skip
# Two matrices in the feed-forward part; others have three.
_UNGATED = (
    "bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt", "opt", "phi", "starcoder2",
)  # fmt: skip


class Shape(StrictConfig):
    """`vocabulary` counts the rows of the output head, `embedded` those of the input embeddings where they are others. Sizes
    count weight matrices; norms and biases are left out."""

    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    head_size: int = Field(ge=1)
    hidden: int = Field(ge=1)
    intermediate: int = Field(ge=1)
    vocabulary: int = Field(ge=1)
    tied: bool = False
    gated: bool = True
    embedded: int | None = Field(None, ge=1)

    @property
    def attention_weights(self) -> int:
        """Of one layer."""
        return 2 * self.hidden * self.head_size * (self.heads + self.kv_heads)

    @property
    def mlp_weights(self) -> int:
        """Of one layer."""
        return (3 if self.gated else 2) * self.hidden * self.intermediate

    @property
    def head_weights(self) -> int:
        return self.hidden * self.vocabulary

    @property
    def decoder_weights(self) -> int:
        """All layers, without embedding and head."""
        return self.layers * (self.attention_weights + self.mlp_weights)

    @property
    def parameters(self) -> int:
        embeddings = 0 if self.tied else self.hidden * (self.embedded or self.vocabulary)
        return self.decoder_weights + self.head_weights + embeddings

    @property
    def depth(self) -> str:
        return counted_layers(self.layers)

    @property
    def sizes(self) -> str:
        """In words, without the vocabulary."""
        return f"{self.depth}, {self.heads} heads ({self.kv_heads} kv), {self.hidden} hidden, {self.intermediate} neurons"

    def with_rows(self, rows: int) -> Self:
        """With fewer rows in its output head, which then is one of its own."""
        if rows == self.vocabulary:
            return self
        return self.model_copy(update={"vocabulary": rows, "tied": False, "embedded": self.embedded or self.vocabulary})

    def kv_bytes_per_token(self, dtype: str) -> int:
        """What one token of context keeps in the cache."""
        return 2 * self.layers * self.kv_heads * self.head_size * _bytes(dtype)

    def weight_bytes(self, dtype: str) -> int:
        return self.parameters * _bytes(dtype)


def counted_layers(number: int) -> str:
    return "1 layer" if number == 1 else f"{number} layers"


def _bytes(dtype: str) -> int:
    if dtype not in DTYPE_BYTES:
        raise ModelError(f"nobody said how many bytes a {dtype} has", f"use one of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]


def shape_of(config: dict[str, Any], where: str) -> Shape:
    """The shape that a `config.json` describes."""
    inner = config.get("text_config") or config
    found: dict[str, int] = {}
    for ours, theirs in _NAMES.items():
        value = next((inner[name] for name in theirs if inner.get(name) is not None), None)
        if value is None and ours == "intermediate" and inner.get("model_type") == "gpt2":
            value = 4 * found["hidden"]  # what its null means
        if value is None:
            raise ModelError(f"{where} does not say its {theirs[0]}", "add it, or use a decoder of the Llama or OPT kind")
        if not isinstance(value, int) or value < 1:
            raise ModelError(f"{where} says {value!r} for its {theirs[0]}", "give a whole number above 0")
        found[ours] = value
    heads, kind = found["heads"], str(inner.get("model_type")).removeprefix(TRIMMED)
    rest = {
        "kv_heads": inner.get("num_key_value_heads") or heads,
        "head_size": inner.get("head_dim") or found["hidden"] // heads,
        "tied": bool(config.get("tie_word_embeddings", kind in _TIED)),
        "gated": kind not in _UNGATED,
    }
    shape = parse_config(Shape, {**found, **rest}, where)
    return shape.with_rows(inner["kept_rows"]) if inner.get("kept_rows") else shape


def model_shape(folder: Path) -> Shape:
    """The shape of a saved model."""
    return shape_of(read_json(folder / "config.json"), f"{folder}/config.json")


def model_dtype(folder: Path, asked: str) -> str:
    """The numbers a saved model is loaded in: those asked for, or with `auto` those its config names."""
    if asked != "auto":
        return asked
    config = read_json(folder / "config.json")
    both = (config, config.get("text_config") or {})
    return next((str(one[name]) for one in both for name in ("dtype", "torch_dtype") if one.get(name)), "float32")
