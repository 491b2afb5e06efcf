"""Stage `prune --plan`: what training would take on so many devices, before anything is loaded.
Reads the config of a source, writes a TrainingPlan."""

from pathlib import Path

from pydantic import Field

from draftsmith.core import registry
from draftsmith.core.checkpoints import find_model
from draftsmith.core.config import StrictConfig
from draftsmith.core.devices import device_named
from draftsmith.core.errors import ConfigError
from draftsmith.core.log import log
from draftsmith.core.pruning import Pruner, PrunerChoice, TrainingCost, WantedShape
from draftsmith.core.records import TrainingPlan
from draftsmith.core.shapes import Shape
from draftsmith.core.store import Store, digest, read_json


class PlanTrainingConfig(StrictConfig):
    """Which run, on how many of which devices. `efficiency` is the share of a device's flops that training reaches; with FSDP
    and fast links between the devices, 0.3 to 0.5 is usual."""

    source: str
    shape: WantedShape
    pruners: tuple[PrunerChoice, ...] = Field(min_length=1)
    ranks: int = Field(1, ge=1)
    device: str = "h100"
    efficiency: float = Field(0.4, gt=0, le=1)


def plan_training(config: PlanTrainingConfig, store: Store) -> Path:
    """The folder of the plan."""
    source, device = find_model(config.source), device_named(config.device)
    _, wanted = config.shape.of(source)
    settings = config.model_dump(mode="json", exclude={"source"})
    run = store.run("plans", {"config": digest(read_json(source / "config.json")), "settings": settings})
    if run.is_current:
        log.info("already planned: %s", run.path)
        return run.path
    kind, versions, cost = _cost(config, source, wanted)
    run.begin(versions)
    peak = sum(cost.memory_bytes.values())
    per_second = config.ranks * device.tflops * 1e12 * config.efficiency / cost.flops_per_token
    run.finish(
        TrainingPlan(
            source=source.name,
            pruner=kind,
            ranks=config.ranks,
            device=config.device,
            efficiency=config.efficiency,
            memory_bytes=cost.memory_bytes,
            peak_bytes=peak,
            fits=peak <= device.memory_gb * 1e9,
            checkpoint_bytes=cost.checkpoint_bytes,
            tokens=cost.tokens,
            tokens_per_second=per_second,
            hours=cost.tokens / per_second / 3600,
        )
    )
    return run.path


def _cost(config: PlanTrainingConfig, source: Path, wanted: Shape) -> tuple[str, dict[str, str], TrainingCost]:
    """Of the pruner that trains; a chain has one."""
    for choice in config.pruners:
        pruner: Pruner = registry.load("pruners", choice.kind)
        cost = pruner.expect(source, wanted, choice.settings, config.ranks)
        if cost is not None:
            return choice.kind, pruner.versions(), cost
    raise ConfigError(
        f"{' and '.join(choice.kind for choice in config.pruners)} trains nothing, so there is nothing to plan",
        "plan a run of l0 or of distill",
    )
