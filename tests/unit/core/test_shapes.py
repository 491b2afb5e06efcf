"""A model's shape: read from what families call it, and counted as everybody knows it."""

from pathlib import Path
from typing import Any

import pytest

from draftsmith.core.errors import DraftsmithError, ModelError
from draftsmith.core.shapes import model_dtype, model_shape, shape_of
from tests.unit.builders import LLAMA, assert_explains, shape, write_model

LLAMA_2_7B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
SMOLLM2_135M = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
OPT_125M = {
    "model_type": "opt",
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_size": 768,
    "ffn_dim": 3072,
    "vocab_size": 50272,
}
GPT_2 = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50257}


class TestSizes:
    @pytest.mark.parametrize(
        ("config", "parameters"),
        [
            (LLAMA_2_7B, 6_738_415_616 - 65 * 4096),  # norms are not counted
            (SMOLLM2_135M, 134_515_008 - 61 * 576),
            # neither are OPT's positions, biases and norms
            (OPT_125M, 125_239_296 - 2050 * 768 - 12 * (4 * 768 + 3072 + 768 + 4 * 768) - 2 * 768),
        ],
    )
    def test_the_matrices_of_models_that_everybody_knows(self, config: dict[str, Any], parameters: int) -> None:
        assert shape_of(config, "here").parameters == parameters

    def test_by_hand(self) -> None:
        """Heads of 8: queries and output 32 x 32, keys and values 32 x 16."""
        small = shape_of(LLAMA, "here")
        assert small.head_size == 8
        assert small.attention_weights == 2 * 32 * 32 + 2 * 32 * 16
        assert small.mlp_weights == 3 * 32 * 64
        assert small.decoder_weights == 2 * (small.attention_weights + small.mlp_weights)
        assert small.head_weights == 32 * 128

    def test_a_tied_head_is_there_once(self) -> None:
        assert shape(tied=False).parameters - shape(tied=True).parameters == shape().head_weights

    @pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("float16", 2), ("int8", 1)])
    def test_bytes(self, dtype: str, size: int) -> None:
        seven = shape_of(LLAMA_2_7B, "here")
        assert seven.kv_bytes_per_token(dtype) == 2 * 32 * 4096 * size
        assert seven.weight_bytes(dtype) == seven.parameters * size

    def test_fewer_kv_heads_keep_less(self) -> None:
        assert shape(kv_heads=1).kv_bytes_per_token("float16") * 4 == shape(kv_heads=4).kv_bytes_per_token("float16")


class TestReading:
    def test_a_saved_model(self, tmp_path: Path) -> None:
        folder = write_model(
            tmp_path, config='{"num_hidden_layers": 3, "n_head": 2, "n_embd": 8, "ffn_dim": 9, "vocab_size": 7}'
        )
        found = model_shape(folder)
        assert (found.layers, found.heads, found.hidden, found.intermediate, found.vocabulary) == (3, 2, 8, 9, 7)

    def test_without_kv_heads_every_head_has_its_own(self) -> None:
        assert shape_of(LLAMA_2_7B, "here").kv_heads == 32
        assert shape_of(LLAMA | {"num_key_value_heads": None}, "here").kv_heads == 4

    def test_a_head_size_of_its_own(self) -> None:
        assert shape_of(LLAMA | {"head_dim": 16}, "here").head_size == 16

    def test_the_language_part_of_a_model_that_sees(self) -> None:
        config = {"model_type": "llava", "text_config": LLAMA | {"num_hidden_layers": 5}, "num_hidden_layers": 99}
        assert shape_of(config, "here").layers == 5

    @pytest.mark.parametrize(("config", "gated"), [(LLAMA, True), (OPT_125M, False)])
    def test_which_feed_forward_parts_have_a_gate(self, config: dict[str, Any], gated: bool) -> None:
        assert shape_of(config, "here").gated is gated

    @pytest.mark.parametrize(
        ("family", "tied"),
        [("llama", False), ("mistral", False), ("qwen3", False), ("gpt_neox", False), ("mixtral", False), ("phi3", False),
         ("opt", True), ("gpt2", True), ("gemma3_text", True)],
    )  # fmt: skip
    def test_whether_the_head_is_tied_if_nothing_is_said(self, family: str, tied: bool) -> None:
        """The defaults of transformers."""
        assert shape_of(LLAMA | {"model_type": family}, "here").tied is tied

    @pytest.mark.parametrize("family", ["llama", "opt"])
    @pytest.mark.parametrize("tied", [True, False])
    def test_what_is_said_of_the_head_counts(self, family: str, tied: bool) -> None:
        assert shape_of(LLAMA | {"model_type": family, "tie_word_embeddings": tied}, "here").tied is tied

    @pytest.mark.parametrize("inner", [{}, {"n_inner": None}])
    def test_gpt2s_feed_forward_part_is_four_times_as_wide(self, inner: dict[str, Any]) -> None:
        """Its configs do not say so: `n_inner` is null, or not there."""
        assert shape_of(GPT_2 | inner, "here").intermediate == 4 * 768


class TestDtype:
    @pytest.mark.parametrize(
        ("config", "asked", "dtype"),
        [
            ('{"dtype": "float16"}', "auto", "float16"),
            ('{"torch_dtype": "bfloat16"}', "auto", "bfloat16"),
            ("{}", "auto", "float32"),
            ('{"dtype": "float16"}', "bfloat16", "bfloat16"),
            ('{"text_config": {"dtype": "bfloat16"}}', "auto", "bfloat16"),
        ],
    )
    def test_that_asked_for_or_the_models_own(self, tmp_path: Path, config: str, asked: str, dtype: str) -> None:
        assert model_dtype(write_model(tmp_path, config=config), asked) == dtype


class TestRefused:
    @pytest.mark.parametrize("name", ["num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size"])
    def test_what_a_config_does_not_say(self, name: str) -> None:
        config = {key: value for key, value in LLAMA.items() if key != name}
        with pytest.raises(ModelError) as caught:
            shape_of(config, "my/config.json")
        assert_explains(caught.value, "my/config.json", name, way_out="add it")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("num_hidden_layers", 0),
            ("vocab_size", -1),
            ("num_attention_heads", 0),
            ("hidden_size", "wide"),
            ("vocab_size", [3]),
        ],
    )
    def test_what_cannot_be(self, name: str, value: object) -> None:
        with pytest.raises(DraftsmithError) as caught:
            shape_of(LLAMA | {name: value}, "my/config.json")
        assert "my/config.json" in caught.value.problem
        assert caught.value.way_out

    def test_a_folder_without_a_config(self, tmp_path: Path) -> None:
        with pytest.raises(DraftsmithError, match=r"config\.json"):
            model_shape(tmp_path)
