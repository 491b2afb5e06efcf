"""A source in memory: the model, and where its parts are."""

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM

from draftsmith.core.errors import ModelError
from draftsmith.core.families import Layout, family_of
from draftsmith.core.pruning import PruneJob
from draftsmith.core.shapes import Shape, shape_of
from draftsmith.core.store import read_json
from draftsmith.core.vocabulary import check_same_tokens
from draftsmith.engines._checkpoint import Checkpoint
from draftsmith.engines._device import device_of


@dataclass
class Source:
    """A loaded source. Its layers can be taken out and put back."""

    model: Any
    layout: Layout
    shape: Shape

    def __post_init__(self) -> None:
        types = getattr(self._config, "layer_types", None)
        self._types = {id(layer): kind for layer, kind in zip(self.layers, types or (), strict=False)}

    @property
    def _config(self) -> Any:
        return self.model.config.get_text_config()

    @property
    def layers(self) -> nn.ModuleList:
        return self._parent.get_submodule(self._name)

    @layers.setter
    def layers(self, layers: nn.ModuleList) -> None:
        setattr(self._parent, self._name, layers)
        self._config.num_hidden_layers = len(layers)
        if self._types:  # models take a layer's mask by its place in this list
            known = next(iter(self._types.values()))
            self._config.layer_types = [self._types.get(id(layer), known) for layer in layers]

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


def checked(job: PruneJob, longest: int) -> Checkpoint:
    """The source, read but not loaded: does it mean the target's strings, and has it that many positions?"""
    found = Checkpoint(job.source, job.engine.trust_remote_code)
    check_same_tokens(job.vocabulary, found.vocabulary)
    if longest > found.max_positions:
        raise ModelError(
            f"{job.source.name} has {found.max_positions} positions, and {longest} are asked for",
            "train on shorter sequences, or record shorter prompts and outputs",
        )
    return found


def load_source(job: PruneJob) -> Source:
    """The whole source on one device, as transformers loads it."""
    path, engine = job.source, job.engine
    checked(job, max(len(row.prompt_ids) + len(row.output_ids) for row in job.rows))
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
    return Source(model.to(device_of(engine)).eval(), family.layout(config), shape)


def versions() -> dict[str, str]:
    """What the numbers hang on."""
    return {"torch": str(torch.__version__), "transformers": transformers.__version__}
