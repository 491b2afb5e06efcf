"""What both in-process engines need of a saved model before they load its weights: tokenizer, vocabulary, end tokens."""

import os
from functools import cached_property
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from transformers import AutoConfig, AutoTokenizer, GenerationConfig

import draftsmith.architectures.trimmed  # noqa: F401 (registers our models with the Auto classes)
from draftsmith.core.errors import ModelError
from draftsmith.core.prompts import Prompt
from draftsmith.core.vocabulary import Vocabulary


class Checkpoint:
    """A saved model's folder, read but not loaded."""

    def __init__(self, path: Path, trust_remote_code: bool) -> None:
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} is no model folder: it has no config.json", "give the path of a saved checkpoint")
        self.path = path
        self._options = {"trust_remote_code": trust_remote_code, "local_files_only": True}
        try:
            self.config: Any = AutoConfig.from_pretrained(path, **self._options)
        except (ValueError, OSError) as error:
            raise ModelError(
                f"transformers cannot read {path}: {error}",
                "check the checkpoint; if it brings its own code and you trust it, pass --trust-remote-code",
            ) from None

    @cached_property
    def tokenizer(self) -> Any:
        try:
            return AutoTokenizer.from_pretrained(self.path, **self._options)
        except (ValueError, OSError) as error:
            raise ModelError(f"{self.path} has no usable tokenizer: {error}", "save the tokenizer beside the weights") from None

    @cached_property
    def vocabulary(self) -> Vocabulary:
        tokens = {i: token for token, i in self.tokenizer.get_vocab().items()}
        return Vocabulary(model=self.path.name, tokens=tokens, rows=self.rows)

    @property
    def rows(self) -> int:
        """Of the output head."""
        return int(self.config.get_text_config().vocab_size)

    @property
    def has_tokenizer(self) -> bool:
        """A shape with random weights has none."""
        return any((self.path / name).exists() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json"))

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end an output, as the checkpoint's generation settings say, else its config."""
        found: Any = self.config.get_text_config().eos_token_id
        if (self.path / "generation_config.json").is_file():
            found = GenerationConfig.from_pretrained(self.path, local_files_only=True).eos_token_id or found
        if found is None:
            return ()
        return tuple(sorted(found)) if isinstance(found, list | tuple) else (found,)

    @property
    def max_positions(self) -> int:
        return int(self.config.get_text_config().max_position_embeddings)

    def encode(self, prompt: Prompt) -> list[int]:
        """A prompt's ids: a chat through the model's own template, text as it is."""
        if prompt.messages is None:
            return list(self.tokenizer(prompt.text)["input_ids"])
        if self.tokenizer.chat_template is None:
            raise ModelError(
                f"{self.path} has no chat template, and the data set {prompt.dataset!r} holds chats",
                "use the chat version of the model, or a data set of plain text (hellaswag, mmlu, text, jsonl)",
            )
        turns = [message.model_dump() for message in prompt.messages]
        encoded = self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=True)
        return list(encoded["input_ids"])
