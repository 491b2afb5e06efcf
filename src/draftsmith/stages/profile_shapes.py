"""Stage `profile --shapes`: step times of models that need not exist. Reads a file of shapes, writes a ShapeProfile.

Every shape is made with random weights, in turn, round after round: what is compared is measured side by side."""

import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from draftsmith.core import registry
from draftsmith.core.config import StrictConfig, parse_config, read_yaml
from draftsmith.core.log import log
from draftsmith.core.progress import progress
from draftsmith.core.protocols import Engine, EngineConfig
from draftsmith.core.provenance import machine
from draftsmith.core.records import ShapeCell, ShapeProfile
from draftsmith.core.sampling import Sampling
from draftsmith.core.shapes import shape_of
from draftsmith.core.store import Run, Store, digest, read_json, write_json
from draftsmith.core.timing import Rounds, Timing, Visit, warn_if_busy, warn_if_uncertain

Cell = tuple[int, int, int]  # which shape, batch, context


class ShapesFile(StrictConfig):
    """Shapes to measure: what all of them share, as in a config.json, and per group what each of them has of its own."""

    architecture: dict[str, Any]
    groups: dict[str, Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]] = Field(min_length=1)

    def configs(self) -> list[tuple[str, dict[str, Any]]]:
        """Every shape's whole config, with its group; one that stands in two groups is in the list twice."""
        return [(group, {**self.architecture, **own}) for group, shapes in self.groups.items() for own in shapes]


class ProfileShapesConfig(StrictConfig):
    """Which shapes, and where in plain decoding to time them."""

    shapes: str
    batches: tuple[Annotated[int, Field(ge=1)], ...] = Field((1,), min_length=1)
    contexts: tuple[Annotated[int, Field(ge=1)], ...] = Field((128,), min_length=1)
    timing: Timing = Timing()
    engine: EngineConfig = EngineConfig()


class _Visited(StrictConfig):
    """What is kept of one visit of one shape."""

    busy: bool
    cells: tuple[tuple[int, int, Visit], ...]


def profile_shapes(config: ProfileShapesConfig, store: Store) -> Path:
    """The folder of the finished shape profile."""
    file = parse_config(ShapesFile, read_yaml(Path(config.shapes)), config.shapes)
    configs = file.configs()
    shapes = [shape_of(one, f"a shape of {group!r} in {config.shapes}") for group, one in configs]
    inputs = {
        "shapes": digest(file.model_dump(mode="json")),
        "machine": {name: machine()[name] for name in ("cpu", "cores", "gpus")},
        "settings": config.model_dump(mode="json", exclude={"shapes"}),
    }
    run = store.run("shapes", inputs)
    if run.is_current:
        log.info("already profiled: %s", run.path)
        return run.path
    began = time.monotonic()
    engine: Engine = registry.load("engines", config.engine.kind)
    run.begin(engine.versions())
    distinct = list({digest(one): one for _, one in configs}.values())
    rounds, busy = _measure(config, engine, run, distinct)
    summaries = rounds.summaries()
    cells = [
        ShapeCell(
            group=group,
            shape=shape,
            batch=batch,
            context=round(one.context),
            forward_ms=one.verify_ms,
            step_ms=one.draft_ms + one.verify_ms + one.overhead_ms,
            median_ms=one.median_ms,
            error=one.error,
            rounds=one.rounds,
        )
        for (group, whole), shape in zip(configs, shapes, strict=True)
        for (index, batch, _), one in sorted(summaries.items())
        if index == distinct.index(whole)
    ]
    record = ShapeProfile(
        architecture=str(file.architecture.get("model_type")),
        engine=config.engine,
        versions=engine.versions(),
        machine={name: value for name, value in machine().items() if name != "load"},
        busy=busy,
        cells=tuple(cells),
    )
    run.finish(record, time.monotonic() - began)
    shutil.rmtree(run.path / "weights", ignore_errors=True)
    return run.path


def _measure(config: ProfileShapesConfig, engine: Engine, run: Run, configs: list[dict[str, Any]]) -> tuple[Rounds[Cell], bool]:
    rounds: Rounds[Cell] = Rounds()
    busy, index = False, 0
    already = len(list(run.path.glob("round-*.json")))
    with progress("profiling shapes", config.timing.max_rounds * len(configs), already) as bar:
        while not rounds.are_enough(config.timing):
            for which in np.random.default_rng(index).permutation(len(configs)):
                path = run.path / f"round-{index:02d}-{which:03d}.json"
                if not path.exists():
                    was_busy = warn_if_busy()
                    cells = _visit(config, engine, run, int(which), configs[which])
                    write_json(path, {"busy": was_busy, "cells": cells})
                    bar.advance()
                kept = parse_config(_Visited, read_json(path), str(path))
                busy |= kept.busy
                for batch, context, visit in kept.cells:
                    rounds.add((int(which), batch, context), visit)
            index += 1
    warn_if_uncertain(rounds, config.timing, "shape")
    return rounds, busy


def _visit(
    config: ProfileShapesConfig, engine: Engine, run: Run, which: int, shape: dict[str, Any]
) -> list[tuple[int, int, dict[str, Any]]]:
    folder = run.path / "weights" / f"{which:03d}"
    if not (folder / "config.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        engine.write_random_model(shape, folder)
    room = config.engine.model_copy(update={"batch_size": max(config.batches)})
    with engine.live(folder, None, 0, Sampling(), room) as live:
        return [
            (batch, context, Visit.of(live.time_steps(batch, context, (0,), config.timing.steps)[0]).model_dump(mode="json"))
            for batch in config.batches
            for context in config.contexts
        ]
