"""Who runs live in the end: the forged draft, with all and with fewer output rows, and what it must beat."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from draftsmith.core.checkpoints import find_model
from draftsmith.core.errors import ConfigError
from draftsmith.core.families import family_of
from draftsmith.core.log import log
from draftsmith.core.protocols import ModelDraft, NgramDraft
from draftsmith.core.pruning import WantedShape
from draftsmith.core.records import AcceptanceCurve, Contender, Design, LiveCard, Profile, RowsCard, Scorecard
from draftsmith.core.shapes import Shape, model_shape
from draftsmith.core.store import read_json, read_record
from draftsmith.forge.ground import LOOKAHEADS, ForgeConfig, Ground
from draftsmith.forge.rounds import Rounds, Trained, replayed, sizes_of
from draftsmith.stages.evaluate import EvaluateConfig, evaluate
from draftsmith.stages.evaluate_live import EvaluateLiveConfig, evaluate_live
from draftsmith.stages.evaluate_rows import EvaluateRowsConfig, evaluate_rows
from draftsmith.stages.prune import PruneConfig, prune
from draftsmith.theory.latency import predict_ms, shape_arrays
from draftsmith.theory.search import deep_equal
from draftsmith.theory.throughput import StepTable, throughput

OURS = ("forged", "forged, fewer output rows")
DEEP = "deep and thin, equal parameters"
_UNTRAINED, _LOOKUP = "untrained cut", "prompt lookup"
_HALVINGS = range(1, 6)  # of the output head


def contenders(rounds: Rounds, last: Trained) -> dict[str, Path | None]:
    """Drafts by name. None is prompt lookup."""
    ground = rounds.ground
    found: dict[str, Path | None] = {OURS[0]: last.model}
    if trimmed := _trimmed(ground, rounds.design(), last):
        found[OURS[1]] = trimmed
    found[_UNTRAINED] = last.cut / "model"
    if ground.config.deep_thin and (deep := _deep_thin(rounds, last)):
        found[DEEP] = deep
    found |= {one: find_model(one) for one in ground.config.drafts}
    return {**found, _LOOKUP: None}


def check_names(config: ForgeConfig) -> None:
    """Drafts that the user names go by the paths that they were given as."""
    for one in config.drafts:
        if one in (*OURS, _UNTRAINED, DEEP, _LOOKUP) or config.drafts.count(one) > 1:
            raise ConfigError(f"the draft {one!r} has the name of another contender", "give its whole path, and give it once")


def run_live(ground: Ground, made: Design, drafts: Mapping[str, Path | None], trace: Path) -> dict[str, Contender]:
    """Each at the two lookaheads that replay expects most of, with plain decoding beside it. Which form of the draft is kept is
    decided by the probe split; the test split only reports."""
    return {name: _run(ground, made, name, draft, trace) for name, draft in drafts.items()}


def _run(ground: Ground, made: Design, name: str, draft: Path | None, trace: Path) -> Contender:
    config, split = ground.config, "probe" if trace == ground.live_probe else "test"
    lookaheads = ground.decisions.decide(f"lookaheads of {name}", lambda: _lookaheads(ground, made, draft))
    asked = EvaluateLiveConfig(
        trace=str(trace),
        target=config.target,
        draft=NgramDraft() if draft is None else ModelDraft(path=str(draft)),
        lookaheads=(0, *lookaheads),
        engine=config.engine.model_copy(update={"batch_size": config.batch}),
    )
    card = read_record(
        LiveCard, ground.decisions.timed(f"run {name} on the {split} split", lambda: evaluate_live(asked, ground.store))
    )
    best = max((cell for cell in card.cells if cell.lookahead > 0), key=lambda cell: cell.speed)
    plain = next(cell for cell in card.cells if cell.lookahead == 0)
    shape = None if draft is None else model_shape(draft)
    return Contender(
        name=name,
        fingerprint=card.draft_fingerprint,
        parameters=shape.parameters if shape else None,
        layers=shape.layers if shape else None,
        lookahead=best.lookahead,
        tokens_per_step=best.tokens_per_step,
        tokens_per_second=best.speed,
        plain_tokens_per_second=plain.speed,
        speedup=best.speed / plain.speed,
        differing_outputs=len(best.differences),
    )


def _trimmed(ground: Ground, made: Design, last: Trained) -> Path | None:
    """With as many output rows as it is expected to be fastest with; None if that is all."""
    width = last.shape.vocabulary
    asked = EvaluateRowsConfig(
        trace=str(ground.probe),
        draft=ModelDraft(path=str(last.model)),
        counted=str(ground.train),
        rows=tuple(max(1, width >> halving) for halving in _HALVINGS),
        lookaheads=LOOKAHEADS,
        engine=ground.config.scoring,
    )
    card = ground.decisions.timed("score with fewer output rows", lambda: evaluate_rows(asked, ground.store))
    rows = ground.decisions.decide("output rows", lambda: _best_rows(ground, made, last, read_record(RowsCard, card)))
    if rows == width:
        return None
    cut = PruneConfig(
        source=str(last.model),
        trace=str(ground.train),
        shape=WantedShape(rows=rows),
        engine=ground.config.scoring,
    )
    return ground.decisions.timed("trim", lambda: prune(cut, ground.store)) / "model"


def _best_rows(ground: Ground, made: Design, last: Trained, card: RowsCard) -> int:
    speeds = {one.rows: max(_speeds(ground, made, last.shape.with_rows(one.rows), one.curve).values()) for one in card.points}
    return max(speeds, key=lambda rows: speeds[rows])


def _deep_thin(rounds: Rounds, last: Trained) -> Path | None:
    """At least four times as deep, as many parameters, as many tokens, and a learning rate searched for in the same way."""
    source, ranks = rounds.ground.source, rounds.ground.config.ranks
    rule = family_of(read_json(source / "config.json"), str(source)).hidden_rule
    shape = deep_equal(model_shape(source), rule, last.shape, ranks)
    if shape is None:
        log.warning("no cut of %s is four times as deep as the draft and has as many parameters", source.name)
        return None
    steps = round(last.record.tokens / rounds.ground.config.step_tokens)
    return rounds.teach(sizes_of(shape), "deep and thin", steps).model


def _lookaheads(ground: Ground, made: Design, draft: Path | None) -> list[int]:
    if draft is None:
        asked = EvaluateConfig(
            trace=str(ground.probe), draft=NgramDraft(), lookaheads=LOOKAHEADS, serve=ground.config.engine.kind
        )
        card = evaluate(asked, ground.store)
    else:
        card = replayed(ground, draft)
    speeds = _speeds(ground, made, None if draft is None else model_shape(draft), read_record(Scorecard, card).overall)
    return sorted(sorted(speeds, key=lambda k: -speeds[k])[:2])


def _speeds(ground: Ground, made: Design, shape: Shape | None, curve: AcceptanceCurve) -> dict[int, float]:
    """Expected tokens per second at every lookahead; without a shape, proposals cost nothing."""
    batch, context = ground.config.batch, ground.config.context
    table, draft_ms = StepTable.from_cells(read_record(Profile, ground.profile).cells), 0.0
    if shape is not None:
        new, read = np.array([float(batch)]), np.array([float(batch * context)])
        draft_ms = float(predict_ms(made.latency, shape_arrays([shape]), new, read)[0])
    found = {}
    for point in curve.points:
        if point.lookahead <= table.lookaheads[-1]:
            rest = sum(float(table.phase_ms(phase, point.lookahead, batch, context)) for phase in ("verify", "overhead"))
            found[point.lookahead] = float(throughput(point.tokens_per_step, point.lookahead * draft_ms + rest, batch))
    return found
