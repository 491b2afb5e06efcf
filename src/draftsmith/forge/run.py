"""`forge`: from a target to the fastest draft that can be had in the time given.

Records and times (`ground`), trains more and more on fewer and fewer shapes (`rounds`), and runs what is left live beside its
baselines (`contest`). Every step is a stage's own record, so that a run which was killed goes on where it was; every decision,
which may hang on the clock, is written down before it is carried out (`decisions`), so that it goes on the same way."""

import shutil
import time
from pathlib import Path

from draftsmith.core import registry
from draftsmith.core.checkpoints import find_model, model_fingerprint, model_name
from draftsmith.core.log import log
from draftsmith.core.protocols import Engine
from draftsmith.core.records import Forged
from draftsmith.core.shapes import model_shape
from draftsmith.core.store import Store
from draftsmith.core.trace import TraceReader
from draftsmith.forge.contest import OURS, check_names, contenders, run_live
from draftsmith.forge.ground import ForgeConfig, check_order, fitted_to, prepare, recordings
from draftsmith.forge.rounds import Rounds, replayed
from draftsmith.stages.record import prompts_digest


def forge(config: ForgeConfig, store: Store) -> Path:
    """The folder of the finished record; the draft lies in `model` beside it."""
    target, source = find_model(config.target), find_model(config.source or config.target)
    engine: Engine = registry.load("engines", config.engine.kind)
    config = fitted_to(source, config)
    check_names(config)
    check_order(source, config)
    inputs = {
        "prompts": [prompts_digest(asked) for asked in recordings(config)],
        "target": model_fingerprint(target),
        "source": model_fingerprint(source),
        "drafts": [model_fingerprint(find_model(one)) for one in config.drafts],
        "settings": config.model_dump(mode="json", exclude={"target", "source", "data", "drafts"}),
    }
    run = store.run("forged", inputs)
    if run.is_current:
        log.info("already forged: %s", run.path)
        return run.path
    began = time.monotonic()
    run.begin(engine.versions())
    run.finish(_forge(config, store, run.path), time.monotonic() - began)
    return run.path


def _forge(config: ForgeConfig, store: Store, folder: Path) -> Forged:
    ground = prepare(config, store, folder)
    for draft in config.drafts:
        replayed(ground, find_model(draft))  # one that does not fit is refused now, not in the end
    rounds = Rounds(ground)
    last = rounds.go()
    drafts = contenders(rounds, last)
    ours = {name: draft for name, draft in drafts.items() if name in OURS}
    tried = run_live(ground, rounds.design(), ours, ground.live_probe)
    kept = ground.decisions.decide("kept", lambda: max(ours, key=lambda name: tried[name].speedup))
    live = run_live(ground, rounds.design(), drafts, ground.live_test)
    best, chosen, model = live[kept], drafts[kept], folder / "model"
    assert chosen is not None, "what was forged is a model"
    shutil.rmtree(model, ignore_errors=True)
    shutil.copytree(chosen, model)
    return Forged(
        target=TraceReader(ground.live_test).record.model,
        source=model_name(ground.source),
        engine=config.engine.kind,
        batch=config.batch,
        best=best.name,
        speedup=best.speedup,
        lookahead=best.lookahead,
        shape=model_shape(model),
        tokens=last.record.tokens,
        contenders=tuple(sorted(live.values(), key=lambda one: -one.speedup)),
        shapes_trained=len(rounds.trained),
        seconds=ground.decisions.seconds(),
        fingerprint=model_fingerprint(model),
    )
