"""What a family of models must say: where its layers, heads, kv groups, neurons and hidden dimensions are, and nothing else.

Masks and surgery go by it, so that neither knows a model by name. Names hold `{layer}` where the number of a layer stands."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from draftsmith.core import registry
from draftsmith.core.errors import ModelError, PlanError
from draftsmith.core.shapes import TRIMMED, Shape

# What the positions of one dimension of a weight belong to. Heads stand for head_size positions each; of a fixed dimension
# (vocabulary, positions, inside of a head) nothing is ever cut.
Axis = Literal["hidden", "heads", "kv_heads", "neurons", "fixed"]

# Which hidden sizes transformers and vLLM take: any, a multiple of the heads, or no other than heads x head size.
HiddenRule = Literal["any", "multiple of heads", "heads x head size"]
_SIZES = {
    "layers": "layers",
    "heads": "heads",
    "kv_heads": "kv heads",
    "hidden": "hidden dimensions",
    "intermediate": "neurons",
    "vocabulary": "output rows",
}


@dataclass(frozen=True)
class Layout:
    """Where everything is in a model of one config. Weights that not every checkpoint has (biases, a head) may be named."""

    weights: Mapping[str, tuple[Axis, ...]]  # the axis of each dimension
    layer: str  # the module of one layer
    attention_out: str  # the linear module that heads go into and hidden dimensions come out of
    mlp_out: str  # the same for neurons
    embeddings: tuple[str, ...]  # the modules whose sum enters the first layer
    norms: tuple[str, ...]  # the modules that normalise over the hidden dimensions
    config_sizes: Mapping[str, str]  # the sizes in config.json, and what `Shape` calls each


class Family(Protocol):
    """The face of one family plugin."""

    model_types: tuple[str, ...]  # as config.json says them
    hidden_rule: HiddenRule

    def layout(self, config: Mapping[str, Any]) -> Layout:
        """Of the model that a `config.json` describes."""
        ...


def family_of(config: Mapping[str, Any], where: str) -> Family:
    """The family that knows a model of this config."""
    for name in registry.names("families"):
        family: Family = registry.load("families", name)
        if config.get("model_type") in family.model_types:
            return family
    raise ModelError(
        f"{where} is a {config.get('model_type')!r}, which no family here knows how to cut",
        f"use a model of one of {', '.join(registry.names('families'))}, or add a family: it is one file",
    )


def check_shape(family: Family, source: Shape, wanted: Shape) -> None:
    """Refuse a shape that cannot be cut from this source, or that no engine would load."""
    for name, what in _SIZES.items():
        if getattr(wanted, name) > getattr(source, name):
            raise PlanError(
                f"{getattr(wanted, name)} {what} cannot be cut from {getattr(source, name)}",
                f"ask for {getattr(source, name)} at most",
            )
    if wanted.heads % wanted.kv_heads or wanted.heads // wanted.kv_heads > source.heads // source.kv_heads:
        raise PlanError(
            f"{wanted.heads} heads cannot share {wanted.kv_heads} kv heads: in the source each serves "
            f"{source.heads // source.kv_heads}",
            "ask for as many heads for every kv head, and for no more than the source has",
        )
    by_heads, by_size = wanted.hidden % wanted.heads == 0, wanted.hidden == wanted.heads * source.head_size
    if not {"any": True, "multiple of heads": by_heads, "heads x head size": by_size}[family.hidden_rule]:
        raise PlanError(
            f"a {'/'.join(family.model_types)} cannot have {wanted.hidden} hidden dimensions with {wanted.heads} heads",
            f"they want {family.hidden_rule}, with heads of {source.head_size}: change the one or the other",
        )


def trim_config(config: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """A `config.json` of the same model with fewer output rows: another architecture (`draftsmith.architectures`)."""
    return {
        **config,
        "model_type": f"{TRIMMED}{config['model_type']}",
        "architectures": [f"Trimmed{name}" for name in config.get("architectures") or ()],
        "tie_word_embeddings": False,
        "kept_rows": rows,
    }


def is_computed(name: str) -> bool:
    """Some checkpoints hold what engines compute themselves: the frequencies of rotary positions."""
    return name.endswith("rotary_emb.inv_freq")


def split_name(name: str, layout: Layout) -> tuple[str, int | None]:
    """A weight's name as the layout has it, and the number of its layer if it is in one."""
    found = re.match(re.escape(layout.layer).replace(r"\{layer\}", r"(\d+)") + r"\.", name)
    pattern = name if found is None else f"{layout.layer}.{name[found.end() :]}"
    if pattern not in layout.weights:
        raise ModelError(
            f"the weight {name} is none that its family knows", "it may be an adapter or another kind of model: merge it first"
        )
    return pattern, None if found is None else int(found[1])


def cut_config(config: Mapping[str, Any], smaller: Shape, kept: Iterable[int], family: Family) -> dict[str, Any]:
    """A `config.json` with the numbers of a smaller shape, and lists of layers cut like the layers."""
    layout = family.layout(config)
    found = {**config, **{key: getattr(smaller, name) for key, name in layout.config_sizes.items()}}
    if isinstance(found.get("layer_types"), list):
        found["layer_types"] = [config["layer_types"][index] for index in kept]
    elif config.get("use_sliding_window"):
        raise ModelError(
            "some layers of this model have a sliding window, and its config does not say which",
            "add `layer_types` to its config.json, one for each layer",
        )
    if family.layout(found).embeddings != layout.embeddings:
        raise PlanError(
            f"with {smaller.hidden} hidden dimensions its config would describe a model that is built otherwise",
            "ask for another number of hidden dimensions",
        )
    return found
