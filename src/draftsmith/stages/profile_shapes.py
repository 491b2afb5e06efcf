"""Stage `profile --shapes`: step times of models that need not exist. Reads a file of shapes, writes a ShapeProfile.

What is compared is measured side by side: as many shapes as memory allows are loaded at once, with random weights, and take
turns of a few steps. A machine that is slow for a second is slow for all of them."""

import shutil
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from draftsmith.core import registry
from draftsmith.core.config import StrictConfig, parse_config, read_yaml
from draftsmith.core.log import log
from draftsmith.core.progress import progress
from draftsmith.core.protocols import Engine, EngineConfig, LiveEngine
from draftsmith.core.provenance import machine, timed_on
from draftsmith.core.records import ShapeCell, ShapeProfile
from draftsmith.core.sampling import Sampling
from draftsmith.core.shapes import shape_of
from draftsmith.core.store import Run, Store, digest, read_json, write_json
from draftsmith.core.timing import Rounds, Timing, Visit, warn_if_uncertain, watched

Cell = tuple[int, int, int]  # which shape, batch, context


class ShapesFile(StrictConfig):
    """Shapes to measure: what all of them share, as in a config.json, and per group what each of them has of its own."""

    architecture: dict[str, Any]
    groups: dict[str, Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]] = Field(min_length=1)

    def configs(self) -> list[tuple[str, dict[str, Any]]]:
        """Every shape's whole config, with its group; one that stands in two groups is in the list twice."""
        return [(group, {**self.architecture, **own}) for group, shapes in self.groups.items() for own in shapes]


class ProfileShapesConfig(StrictConfig):
    """Which shapes, where in plain decoding to time them, and how much memory they may take while they are loaded at once."""

    shapes: str
    batches: tuple[Annotated[int, Field(ge=1)], ...] = Field((1,), min_length=1)
    contexts: tuple[Annotated[int, Field(ge=1)], ...] = Field((128,), min_length=1)
    at_once_gb: float = Field(8.0, gt=0)
    timing: Timing = Timing()
    engine: EngineConfig = EngineConfig()


class _Turn(StrictConfig):
    """What is kept of one turn: which shape, batch and context, and what was seen."""

    busy: bool
    visits: tuple[tuple[Cell, Visit], ...]


def profile_shapes(config: ProfileShapesConfig, store: Store) -> Path:
    """The folder of the finished shape profile."""
    file = parse_config(ShapesFile, read_yaml(Path(config.shapes)), config.shapes)
    configs = file.configs()
    shapes = [shape_of(one, f"a shape of {group!r} in {config.shapes}") for group, one in configs]
    inputs = {
        "shapes": digest(file.model_dump(mode="json")),
        "machine": timed_on(machine()),
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
    loads = _loads(config, engine, configs)
    already = len(list(run.path.glob("round-*.json")))
    with progress("profiling shapes", config.timing.max_rounds * len(loads), already) as bar, ExitStack() as stack:
        memory = _Memory(config, engine, run, configs, stack)
        while not rounds.are_enough(config.timing):
            rng = np.random.default_rng(index)
            for which in map(int, rng.permutation(len(loads))):
                path = run.path / f"round-{index:03d}-{which:03d}.json"
                if not path.exists():
                    lives = memory.hold(loads[which])
                    order = map(int, rng.permutation(loads[which]))
                    with watched() as others:
                        visits = [visit for shape in order for visit in _visits(config, lives[shape], shape)]
                    write_json(path, {"busy": others.busy, "visits": visits})
                    bar.advance()
                kept = parse_config(_Turn, read_json(path), str(path))
                busy |= kept.busy
                for cell, visit in kept.visits:
                    rounds.add(cell, visit)
            index += 1
    warn_if_uncertain(rounds, config.timing, "shape")
    return rounds, busy


def _visits(config: ProfileShapesConfig, live: LiveEngine, shape: int) -> list[tuple[Cell, dict[str, Any]]]:
    return [
        (
            (shape, batch, context),
            Visit.of(live.time_steps(batch, context, (0,), config.timing.steps)[0]).model_dump(mode="json"),
        )
        for batch in config.batches
        for context in config.contexts
    ]


class _Memory:
    """The shapes that are loaded now. Asking for others lets go of them."""

    def __init__(
        self, config: ProfileShapesConfig, engine: Engine, run: Run, configs: list[dict[str, Any]], stack: ExitStack
    ) -> None:
        self._config, self._engine, self._folder, self._configs = config, engine, run.path / "weights", configs
        self._stack, self._lives = stack, dict[int, LiveEngine]()

    def hold(self, shapes: list[int]) -> dict[int, LiveEngine]:
        if list(self._lives) != shapes:
            self._lives.clear()
            self._stack.close()
            self._lives = {shape: self._stack.enter_context(self._load(shape)) for shape in shapes}
        return self._lives

    def _load(self, shape: int) -> AbstractContextManager[LiveEngine]:
        folder, own = self._folder / f"{shape:03d}", self._configs[shape]
        if not (folder / "config.json").exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._engine.write_random_model(own, folder)
        return self._engine.live(folder, None, 0, Sampling(), _room(self._config, own))


def _loads(config: ProfileShapesConfig, engine: Engine, configs: list[dict[str, Any]]) -> list[list[int]]:
    """Which shapes are loaded together: in order, as many as memory allows."""
    loads: list[list[int]] = []
    left, alone = 0.0, not engine.several_at_once or config.engine.tensor_parallel > 1  # ranks hold on to their cores
    for shape, own in enumerate(configs):
        needed = _gigabytes(config, own)
        if needed > left or alone:
            loads.append([])
            left = config.at_once_gb
        loads[-1].append(shape)
        left -= needed
    return loads


def _gigabytes(config: ProfileShapesConfig, own: dict[str, Any]) -> float:
    """Of a loaded shape: its weights as they were loaded, its weights as the engine lays them out, and its cache."""
    return 2 * shape_of(own, "a shape").weight_bytes(_dtype(config)) / 2**30 + _room(config, own).kv_cache_gb


def _room(config: ProfileShapesConfig, own: dict[str, Any]) -> EngineConfig:
    """The engine's settings, with as much cache as the timed rows could fill, twice, and no more."""
    rows, engine = max(config.batches), config.engine
    length = engine.max_model_len or own.get("max_position_embeddings")
    cache = engine.kv_cache_gb
    if length is not None:
        cache = min(cache, 2 * rows * length * shape_of(own, "a shape").kv_bytes_per_token(_dtype(config)) / 2**30)
    return engine.model_copy(update={"batch_size": rows, "kv_cache_gb": cache})


def _dtype(config: ProfileShapesConfig) -> str:
    """The largest it may be."""
    return "float32" if config.engine.dtype == "auto" else config.engine.dtype
