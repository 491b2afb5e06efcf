"""What forging stands on: recorded output of the target, its step times, and those of shapes around what may be cut."""

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from draftsmith.core.checkpoints import find_model
from draftsmith.core.config import StrictConfig
from draftsmith.core.errors import ConfigError, PlanError
from draftsmith.core.families import check_shape, cut_config, family_of
from draftsmith.core.prompts import Split
from draftsmith.core.protocols import EngineConfig
from draftsmith.core.shapes import Shape, model_dtype, model_shape
from draftsmith.core.store import Store, read_json
from draftsmith.core.timing import Timing
from draftsmith.forge.decisions import Decisions
from draftsmith.stages.profile import ProfileConfig, profile
from draftsmith.stages.profile_shapes import ProfileShapesConfig, profile_shapes
from draftsmith.stages.record import RecordConfig, record

LOOKAHEADS = (1, 2, 3, 4, 5, 6, 7, 8)
_LENGTH = 512
_KEPT = 16  # of the target's most likely tokens, at every place of what is learnt from


class ForgeConfig(StrictConfig):
    """What to forge a draft for, from which prompts, and in how much time. `shapes_tried`: how many shapes each of the first
    two rounds trains; `learning` are settings of training, but for its length and its rate, which is one of `rates`. Of every
    data set `held_prompts` are replayed and `live_prompts` run live. What is cut is chosen by `search_rows` of what was
    recorded, but layers may go in `layer_order`, from an earlier search, and at most `most_layers` stay. `drafts` are others to
    run beside it. `tensor_parallel` is what the draft must be divisible by, if not the engine's."""

    target: str
    source: str | None = None
    datasets: tuple[str, ...] = Field(min_length=1)
    data: str | None = None
    hours: float = Field(2.0, gt=0)
    batches: dict[Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0)]] = Field({1: 1.0}, min_length=1)
    context: int = Field(128, ge=1)
    train_prompts: int = Field(2000, ge=1)
    held_prompts: int = Field(48, ge=1)
    live_prompts: int = Field(8, ge=1)
    max_prompt_tokens: int | None = Field(1024, ge=1)
    max_new_tokens: int = Field(128, ge=2)
    loss: str = "forward_kl"
    learning: dict[str, Any] = Field(default_factory=dict)
    rates: tuple[Annotated[float, Field(gt=0)], ...] = Field((3e-4, 1e-3, 3e-3), min_length=1)
    first_steps: int = Field(20, ge=1)
    search_rows: int = Field(12, ge=1)
    layer_order: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    shapes_tried: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0)]] = (4, 2)
    most_layers: int | None = Field(None, ge=1)
    tensor_parallel: int | None = Field(None, ge=1)
    deep_thin: bool = True
    drafts: tuple[str, ...] = ()
    timing: Timing = Timing()
    engine: EngineConfig = EngineConfig()

    @property
    def batch(self) -> int:
        """The batch size that serves the most tokens."""
        return max(self.batches, key=lambda one: self.batches[one])

    @property
    def scoring(self) -> EngineConfig:
        """transformers says what every token was worth; in the numbers of the model as deployed."""
        return self.engine.model_copy(update={"kind": "transformers", "tensor_parallel": 1, "quantization": None})

    @property
    def ranks(self) -> int:
        """That share the draft where it is served."""
        return self.tensor_parallel or self.engine.tensor_parallel

    @property
    def length(self) -> int:
        """Of a sequence that is learnt from."""
        return int(self.learning.get("length", _LENGTH))

    @property
    def step_tokens(self) -> int:
        """Of one step of training."""
        return int(self.learning.get("batch", 16)) * self.length


def fitted_to(source: Path, config: ForgeConfig) -> ForgeConfig:
    """Refused where the source is too short for what is asked; it learns from sequences that it has positions for."""
    own = read_json(source / "config.json")
    positions = {**own, **(own.get("text_config") or {})}.get("max_position_embeddings")
    if positions is None:
        return config
    if config.context > positions:
        raise ConfigError(
            f"{source.name} has {positions} positions, and is to be timed at context {config.context}", "ask for less --context"
        )
    length = min(config.length, positions)
    return config if length == config.length else config.model_copy(update={"learning": {**config.learning, "length": length}})


def check_order(source: Path, config: ForgeConfig) -> None:
    """An order of layers leads from all of the source's to any number of them."""
    layers, order = model_shape(source).layers, config.layer_order
    if order is not None and (len({*order}) < layers - 1 or max(order) >= layers):
        raise ConfigError(
            f"`layer_order` has {len({*order})} layers, and {source.name} has {layers} of which any may have to go",
            f"name {layers - 1} different ones of 0 to {layers - 1}, or leave it out",
        )


@dataclass(frozen=True)
class Ground:
    """The records that everything else is made from."""

    config: ForgeConfig
    store: Store
    decisions: Decisions
    source: Path
    train: Path
    probe: Path
    live_probe: Path
    live_test: Path
    profile: Path
    times: Path


def recordings(config: ForgeConfig) -> list[RecordConfig]:
    """Of the train split with what is learnt from; of the probe split to be replayed, and of both others to be run live, which
    takes longer and so has fewer prompts."""
    wanted: list[tuple[Split, int, int]] = [
        ("train", config.train_prompts, 0 if config.loss == "cross_entropy" else _KEPT),  # which learns from the text alone
        ("probe", config.held_prompts, 0),
        ("probe", config.live_prompts, 0),
        ("test", config.live_prompts, 0),
    ]
    return [
        RecordConfig(
            target=config.target,
            datasets=config.datasets,
            data=config.data,
            split=split,
            num_prompts=prompts,
            max_prompt_tokens=config.max_prompt_tokens,
            max_new_tokens=config.max_new_tokens,
            top_logprobs=kept,
            engine=config.engine,
        )
        for split, prompts, kept in wanted
    ]


def prepare(config: ForgeConfig, store: Store, folder: Path) -> Ground:
    """Record the target's output, and time it and shapes."""
    decisions, source = Decisions(folder), find_model(config.source or config.target)

    train, probe, live_probe, live_test = (
        decisions.timed(f"record {asked.num_prompts} prompts of the {asked.split} split", partial(record, asked, store))
        for asked in recordings(config)
    )
    common: dict[str, Any] = {
        "batches": tuple(sorted(config.batches)),
        "contexts": (config.context,),
        "timing": config.timing,
        "engine": config.engine,
    }
    steps = ProfileConfig(target=config.target, lookaheads=LOOKAHEADS, **common)
    timed = decisions.timed("time the target", lambda: profile(steps, store))
    file = folder / "shapes.yaml"
    own = {**read_json(source / "config.json"), "dtype": model_dtype(source, config.engine.dtype)}
    file.write_text(yaml.safe_dump(shapes_to_time(own, model_shape(source), config.ranks)))
    shapes = ProfileShapesConfig(shapes=str(file), **common)
    times = decisions.timed("time shapes", lambda: profile_shapes(shapes, store))
    return Ground(config, store, decisions, source, train, probe, live_probe, live_test, timed, times)


def shapes_to_time(config: dict[str, Any], shape: Shape, ranks: int = 1) -> dict[str, Any]:
    """A dozen shapes around what may be cut: depths, and at a small depth one size after another made smaller. What the family
    or tensor parallel ranks cannot have is left out."""
    family, few = family_of(config, "the source"), max(1, shape.layers // 8)
    group = shape.heads // shape.kv_heads
    sizes: list[dict[str, int]] = [{"layers": depth} for depth in sorted({1, 2, few, 2 * few, max(1, shape.layers // 2)})]
    sizes += [{"layers": few, "intermediate": max(16, shape.intermediate // part)} for part in (2, 4)]
    sizes += [{"layers": few, "vocabulary": max(16, shape.vocabulary // part)} for part in (2, 8)]
    sizes += [{"layers": few, "heads": group * kv, "kv_heads": kv} for kv in sorted({1, (shape.kv_heads + 1) // 2})]
    for part in (2, 4):
        heads = max(1, shape.heads // part)
        hidden = heads * shape.head_size if family.hidden_rule == "heads x head size" else shape.hidden // part
        sizes += [
            {"layers": few, "hidden": hidden, "heads": heads, "kv_heads": kv} for kv in (1, max(1, shape.kv_heads // part))
        ]
    configs: list[dict[str, Any]] = []
    for own in sizes:
        smaller = shape.model_copy(update={**own, "layers": min(own["layers"], shape.layers)})
        shared = smaller.heads % ranks == 0 and (smaller.kv_heads % ranks == 0 or ranks % smaller.kv_heads == 0)
        with suppress(PlanError):
            check_shape(family, shape, smaller)
            made = cut_config(config, smaller, range(smaller.layers), family)
            made |= {"vocab_size": smaller.vocabulary, "pad_token_id": None}
            if shared and made not in configs:
                configs.append(made)
    return {"architecture": {"model_type": config["model_type"]}, "groups": {"around": configs}}
