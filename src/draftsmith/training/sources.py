"""A source in memory: the model, and where its parts are."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM

from draftsmith.core.errors import ModelError
from draftsmith.core.families import Layout, family_of
from draftsmith.core.protocols import EngineConfig
from draftsmith.core.shapes import Shape, shape_of
from draftsmith.core.store import read_json
from draftsmith.core.vocabulary import Vocabulary, check_same_tokens
from draftsmith.engines._checkpoint import Checkpoint


@dataclass
class Source:
    """A loaded source. Its layers can be taken out and put back."""

    model: Any
    layout: Layout
    shape: Shape

    @property
    def layers(self) -> nn.ModuleList:
        return self._parent.get_submodule(self._name)

    @layers.setter
    def layers(self, layers: nn.ModuleList) -> None:
        setattr(self._parent, self._name, layers)
        self.model.config.get_text_config().num_hidden_layers = len(layers)

    @property
    def _parent(self) -> nn.Module:
        found: nn.Module = self.model.get_submodule(self.layout.layer.removesuffix(".{layer}").rpartition(".")[0])
        return found

    @property
    def _name(self) -> str:
        return self.layout.layer.removesuffix(".{layer}").rpartition(".")[2]

    def modules(self, name: str) -> list[nn.Module]:
        """The module of this name in each layer."""
        return [self.model.get_submodule(name.format(layer=index)) for index in range(self.shape.layers)]


def load_source(path: Path, engine: EngineConfig, vocabulary: Vocabulary) -> Source:
    """The whole source on one device, as transformers loads it, if it means the target's strings by its tokens."""
    check_same_tokens(vocabulary, Checkpoint(path, engine.trust_remote_code).vocabulary)
    config = read_json(path / "config.json")
    family, shape = family_of(config, str(path)), shape_of(config, f"{path}/config.json")
    if engine.threads:
        torch.set_num_threads(engine.threads)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=engine.dtype,
            trust_remote_code=engine.trust_remote_code,
            use_safetensors=True,
            local_files_only=True,
        )
    except (ValueError, OSError) as error:
        raise ModelError(f"transformers cannot load {path}: {error}", "check the checkpoint") from None
    device = "cpu" if engine.device == "auto" and not torch.accelerator.is_available() else engine.device
    if device == "auto":
        device = str(torch.accelerator.current_accelerator())
    return Source(model.to(device).eval(), family.layout(config), shape)


def versions() -> dict[str, str]:
    """What the numbers hang on."""
    return {"torch": str(torch.__version__), "transformers": transformers.__version__}
