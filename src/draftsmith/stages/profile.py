"""Stage `profile`: measure an engine's step times on this machine, with the models as deployed.
Reads a target and, if there is one, a draft (a checkpoint, or only a config: latency needs no training); writes a Profile.

Each round visits every batch size and context; a round is kept when it ends, so an interrupted call loses one at most."""

import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from draftsmith.core import registry
from draftsmith.core.checkpoints import find_model, has_weights, model_fingerprint, model_name
from draftsmith.core.config import StrictConfig, parse_config
from draftsmith.core.log import log
from draftsmith.core.progress import progress
from draftsmith.core.protocols import Draft, Engine, EngineConfig, ModelDraft, NgramDraft
from draftsmith.core.provenance import machine, packages, timed_on
from draftsmith.core.records import Profile
from draftsmith.core.sampling import Sampling
from draftsmith.core.shapes import model_dtype, model_shape
from draftsmith.core.store import Run, Store, file_digest, read_json, write_json
from draftsmith.core.timing import Rounds, Timing, Visit, profile_cells, warn_if_uncertain, watched

Cell = tuple[bool, int, int, int]  # with the draft loaded?, lookahead, batch, context asked for


class ProfileConfig(StrictConfig):
    """What to measure. Lookahead 0 is always among the lookaheads. Without a draft, proposals cost nothing: what is measured
    is verification; prompt lookup, which takes microseconds, is timed the same way. A draft folder that holds a config.json
    and no weights is a shape: it gets random ones."""

    target: str
    draft: Draft | None = None
    lookaheads: tuple[Annotated[int, Field(ge=1)], ...] = Field((1, 2, 3, 5, 8), min_length=1)
    batches: tuple[Annotated[int, Field(ge=1)], ...] = Field((1, 4, 8), min_length=1)
    contexts: tuple[Annotated[int, Field(ge=1)], ...] = Field((128, 1024), min_length=1)
    timing: Timing = Timing()
    engine: EngineConfig = EngineConfig()


class _Round(StrictConfig):
    """What is kept of a round."""

    busy: bool
    cells: tuple[tuple[bool, int, int, int, Visit], ...]


def profile(config: ProfileConfig, store: Store) -> Path:
    """The folder of the finished profile."""
    target = find_model(config.target)
    draft = find_model(config.draft.path) if isinstance(config.draft, ModelDraft) else None
    inputs = {
        "target": model_fingerprint(target),
        "draft": _draft_fingerprint(draft),
        "machine": timed_on(machine()),
        "settings": config.model_dump(mode="json", exclude={"target": True, "draft": {"path"}, "engine": {"batch_size"}}),
    }
    for model in (target, draft):
        if model is not None:
            model_shape(model)  # refused now rather than after the last round
    run = store.run("profiles", inputs)
    if run.is_current:
        log.info("already profiled: %s", run.path)
        return run.path
    began = time.monotonic()
    engine: Engine = registry.load("engines", config.engine.kind)
    run.begin(_versions(config, engine))
    if draft is not None and not has_weights(draft):
        dtype = model_dtype(target, config.engine.dtype)
        draft = _random_weights(engine, draft, target, dtype, run.path / "random-draft")
    rounds, busy = _measure(config, engine, run, target, draft)
    run.finish(_describe(config, engine, target, draft, rounds, busy), time.monotonic() - began)
    shutil.rmtree(run.path / "random-draft", ignore_errors=True)
    return run.path


def _versions(config: ProfileConfig, engine: Engine) -> dict[str, str]:
    """What quantises belongs to the engine's versions where it is used."""
    quantises = {name: version for name, version in packages().items() if name == "torchao" and config.engine.quantization}
    return {**engine.versions(), **quantises}


def _with_room(config: ProfileConfig) -> EngineConfig:
    """The engine has room for the largest batch asked for, and no more."""
    return config.engine.model_copy(update={"batch_size": max(config.batches)})


def _draft_fingerprint(draft: Path | None) -> str | None:
    if draft is None:
        return None
    return model_fingerprint(draft) if has_weights(draft) else file_digest(draft / "config.json")[:32]


def _random_weights(engine: Engine, shape: Path, target: Path, dtype: str, folder: Path) -> Path:
    if not (folder / "config.json").exists():
        engine.write_random_model({**read_json(shape / "config.json"), "dtype": dtype}, folder, tokenizer=target)
    return folder


def _measure(config: ProfileConfig, engine: Engine, run: Run, target: Path, draft: Path | None) -> tuple[Rounds[Cell], bool]:
    rounds: Rounds[Cell] = Rounds()
    busy, index = False, 0
    already = len(list(run.path.glob("round-*.json")))
    with progress("profiling, rounds", config.timing.max_rounds, already) as bar:
        while not rounds.are_enough(config.timing):
            path = run.path / f"round-{index:02d}.json"
            if not path.exists():
                with watched() as others:
                    visits = _round(config, engine, target, draft, np.random.default_rng(index))
                cells = [[*cell, visit.model_dump(mode="json")] for cell, visit in visits.items()]
                write_json(path, {"busy": others.busy, "cells": cells})
            kept = parse_config(_Round, read_json(path), str(path))
            busy |= kept.busy
            for drafted, lookahead, batch, context, visit in kept.cells:
                rounds.add((drafted, lookahead, batch, context), visit)
            index += 1
            if index > already:
                bar.advance()
    warn_if_uncertain(rounds, config.timing, "cell")
    return rounds, busy


def _round(
    config: ProfileConfig, engine: Engine, target: Path, draft: Path | None, rng: np.random.Generator
) -> dict[Cell, Visit]:
    """Every cell once, in an order of this round's own."""
    proposer = None
    if isinstance(config.draft, ModelDraft):
        proposer = config.draft.model_copy(update={"path": str(draft)})
    room = _with_room(config)
    arms: list[tuple[bool, Any, tuple[int, ...]]] = [(True, proposer, (0, *sorted(set(config.lookaheads))))]
    if not engine.idle_draft_is_free:
        arms.append((False, None, (0,)))
    visits: dict[Cell, Visit] = {}
    for arm in rng.permutation(len(arms)):
        drafted, one, lookaheads = arms[arm]
        with engine.live(target, one, max(lookaheads), Sampling(), room, adjustable=True) as live:
            cells = [(batch, context) for batch in config.batches for context in config.contexts]
            for batch, context in (cells[i] for i in rng.permutation(len(cells))):
                order = [int(k) for k in rng.permutation(lookaheads)]
                timed = live.time_steps(batch, context, order, config.timing.steps)
                visits |= {(drafted, k, batch, context): Visit.of(steps) for k, steps in timed.items()}
    return visits


def _describe(
    config: ProfileConfig, engine: Engine, target: Path, draft: Path | None, rounds: Rounds[Cell], busy: bool
) -> Profile:
    summaries = rounds.summaries()
    cells = {
        drafted: profile_cells({cell[1:]: one for cell, one in summaries.items() if cell[0] is drafted})
        for drafted in (True, False)
    }
    plain = cells[False] or tuple(cell for cell in cells[True] if cell.lookahead == 0)
    named = config.draft
    return Profile(
        target=model_name(target),
        target_fingerprint=model_fingerprint(target),
        target_shape=model_shape(target),
        draft=None if named is None else "ngram" if isinstance(named, NgramDraft) else model_name(find_model(named.path)),
        draft_fingerprint=_draft_fingerprint(draft),
        draft_shape=None if draft is None else model_shape(draft),
        engine=_with_room(config),
        dtype=model_dtype(target, config.engine.dtype),
        batching=engine.batching,
        first_drafted=engine.first_drafted,
        versions=_versions(config, engine),
        machine={name: value for name, value in machine().items() if name != "load"},
        busy=busy,
        plain=plain,
        cells=cells[True],
    )
