"""Stage `prune --plan`: what training would take on so many devices, before anything is loaded.
Reads the config of a source, writes a TrainingPlan."""

from pathlib import Path

from pydantic import Field

from draftsmith.core import registry
from draftsmith.core.checkpoints import find_model, model_name
from draftsmith.core.config import StrictConfig
from draftsmith.core.devices import Device, device_named
from draftsmith.core.errors import ConfigError
from draftsmith.core.log import log
from draftsmith.core.pruning import Pruner, PrunerChoice, TrainingCost, WantedShape
from draftsmith.core.records import TrainingPlan, TrainingStage
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
    pruners: dict[str, Pruner] = {choice.kind: registry.load("pruners", choice.kind) for choice in config.pruners}
    costs = [(one.kind, pruners[one.kind].expect(source, wanted, one.settings, config.ranks)) for one in config.pruners]
    stages = tuple(_stage(config, device, kind, cost) for kind, cost in costs if cost is not None)
    if not stages:
        raise ConfigError(
            f"{' and '.join(pruners)} trains nothing, so there is nothing to plan", "plan a run of l0 or of distill"
        )
    run.begin({name: version for one in stages for name, version in pruners[one.pruner].versions().items()})
    run.finish(
        TrainingPlan(
            source=model_name(source), ranks=config.ranks, device=config.device, efficiency=config.efficiency, stages=stages
        )
    )
    return run.path


def _stage(config: PlanTrainingConfig, device: Device, kind: str, cost: TrainingCost) -> TrainingStage:
    peak = sum(cost.memory_bytes.values())
    per_second = config.ranks * device.tflops * 1e12 * config.efficiency / cost.flops_per_token
    return TrainingStage(
        pruner=kind,
        memory_bytes=cost.memory_bytes,
        peak_bytes=peak,
        fits=peak <= device.memory_gb * 1e9,
        checkpoint_bytes=cost.checkpoint_bytes,
        tokens=cost.tokens,
        tokens_per_second=per_second,
        hours=cost.tokens / per_second / 3600,
    )
