"""Stage `evaluate` by replay: one teacher-forced pass of a draft over a trace, and from it every lookahead at once.
Reads a Trace and a draft, writes a Scorecard. Scores are kept by shard, so an interrupted call goes on where it stopped."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from draftsmith.core import registry
from draftsmith.core.checkpoints import find_model, model_fingerprint
from draftsmith.core.config import StrictConfig
from draftsmith.core.errors import DataError
from draftsmith.core.log import log
from draftsmith.core.progress import progress
from draftsmith.core.protocols import Draft, Engine, EngineConfig, NgramDraft, Scorer
from draftsmith.core.records import Scorecard
from draftsmith.core.sampling import DraftMethod, Sampling
from draftsmith.core.scores import read_scores, scores_path, write_scores
from draftsmith.core.store import Store
from draftsmith.core.trace import TraceReader, TraceRow
from draftsmith.core.vocabulary import check_same_tokens
from draftsmith.theory.acceptance import AcceptanceSums, Array, curve, replay, row_chances
from draftsmith.theory.ngram import ngram_chances


class EvaluateConfig(StrictConfig):
    """Which draft to replay against which trace. `engine` scores; `serve` is the engine whose steps are predicted, by
    default the one that recorded the trace: engines differ in whether the first token is drafted."""

    trace: str
    draft: Draft
    lookaheads: tuple[Annotated[int, Field(ge=1)], ...] = Field((1, 2, 3, 4, 5, 6, 7, 8), min_length=1)
    engine: EngineConfig = EngineConfig()
    serve: str | None = None


def evaluate(config: EvaluateConfig, store: Store) -> Path:
    """The folder of the finished scorecard."""
    trace = TraceReader(Path(config.trace))
    draft = None if isinstance(config.draft, NgramDraft) else find_model(config.draft.path)
    fingerprint = model_fingerprint(draft) if draft else None
    inputs = {
        "trace": trace.record.fingerprint,
        "draft": fingerprint,
        "settings": config.model_dump(mode="json", exclude={"trace": True, "draft": {"path"}}),
    }
    run = store.run("scorecards", inputs)
    if run.is_current:
        log.info("already evaluated: %s", run.path)
        return run.path
    began = time.monotonic()
    scorer = None if draft is None else registry.load("engines", config.engine.kind)
    versions = scorer.versions() if scorer else {}
    run.begin(versions)
    sums: dict[str, AcceptanceSums] = {}
    first = _first_drafted(config, trace)
    with _shards(config, trace, draft, run.path, first) as shards:
        for rows, chances in shards:
            _add_up(sums, rows, chances, config.lookaheads, first, trace.record.tail)
    if not sums:
        raise DataError(f"{config.trace} has no token that a draft could propose", "record more than one new token")
    total = sum(list(sums.values())[1:], start=next(iter(sums.values())))
    scorecard = Scorecard(
        trace=trace.record.fingerprint,
        target=trace.record.model,
        draft=config.draft,
        draft_fingerprint=fingerprint,
        sampling=trace.record.sampling,
        scored_by=config.engine.kind if scorer else None,
        served_by=config.serve or trace.record.engine,
        first_drafted=first,
        split=trace.record.split,
        versions=versions,
        overall=curve(total),
        by_dataset={name: curve(part) for name, part in sums.items()},
    )
    run.finish(scorecard, time.monotonic() - began)
    return run.path


def _first_drafted(config: EvaluateConfig, trace: TraceReader) -> Literal[0, 1]:
    """Of the engine that will serve; that of the recording engine stands in the trace, and no engine need be loaded for it."""
    if config.serve is None or config.serve == trace.record.engine:
        return trace.record.first_drafted
    serving: Engine = registry.load("engines", config.serve)
    return serving.first_drafted


def _add_up(
    sums: dict[str, AcceptanceSums],
    rows: list[TraceRow],
    chances: list[Array],
    lookaheads: tuple[int, ...],
    first: int,
    tail: int,
) -> None:
    for name in dict.fromkeys(row.dataset for row in rows):
        chosen = [i for i, row in enumerate(rows) if row.dataset == name and row.num_output > first]
        if not chosen:
            continue
        lengths = [rows[i].num_output - first for i in chosen]
        part = replay([chances[i] for i in chosen], lengths, lookaheads, has_tail=tail >= max(lookaheads) - 1).sums
        sums[name] = sums[name] + part if name in sums else part


@contextmanager
def _shards(
    config: EvaluateConfig, trace: TraceReader, draft: Path | None, folder: Path, first: int
) -> Iterator[Iterator[tuple[list[TraceRow], list[Array]]]]:
    """Shard by shard: the rows, and each row's acceptance chances from its first drafted token on."""
    if draft is None:
        assert isinstance(config.draft, NgramDraft)
        yield _ngram_shards(config.draft, trace, max(config.lookaheads), first)
        return
    engine: Engine = registry.load("engines", config.engine.kind)
    assert config.draft.kind == "model"
    sampling, method = Sampling(), config.draft.method
    if trace.record.sampling.is_greedy:
        method = "greedy"
    elif method == "probabilistic":  # only then do q's values matter; an argmax is the same at any temperature
        serving: Engine = registry.load("engines", config.serve or trace.record.engine)
        sampling = serving.draft_sampling(trace.record.sampling)
    with engine.scorer(draft, sampling, config.engine) as scorer:
        check_same_tokens(trace.vocabulary(), scorer.vocabulary)
        yield _model_shards(trace, scorer, folder, method, first)


def _ngram_shards(
    draft: NgramDraft, trace: TraceReader, widest: int, first: int
) -> Iterator[tuple[list[TraceRow], list[Array]]]:
    for index in range(len(trace.record.shards)):
        rows = trace.shard(index)
        chances: list[Array] = [
            ngram_chances(row.prompt_ids, row.output_ids, row.num_output, widest, draft.max_ngram, draft.min_ngram)[first:]
            for row in rows
        ]
        yield rows, chances


def _model_shards(
    trace: TraceReader, scorer: Scorer, folder: Path, method: DraftMethod, first: int
) -> Iterator[tuple[list[TraceRow], list[Array]]]:
    paths = [scores_path(folder, index) for index in range(len(trace.record.shards))]
    with progress("scoring, shards", len(paths), already=sum(path.exists() for path in paths)) as bar:
        for index, path in enumerate(paths):
            rows = trace.shard(index)
            if not path.exists():
                write_scores(path, rows, scorer.score(rows))
                bar.advance()
            yield (
                rows,
                [row_chances(row, score, method)[first:] for row, score in zip(rows, read_scores(path, rows), strict=True)],
            )
