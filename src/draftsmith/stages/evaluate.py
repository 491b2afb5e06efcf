"""Stage `evaluate` by replay: one teacher-forced pass of a draft over a trace, and from it every lookahead at once.
Reads a Trace and a draft, writes a Scorecard. Scores are kept by shard, so an interrupted call goes on where it stopped."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from draftsmith.core import registry
from draftsmith.core.checkpoints import find_model, model_fingerprint
from draftsmith.core.config import StrictConfig
from draftsmith.core.errors import EngineError
from draftsmith.core.log import log
from draftsmith.core.progress import progress
from draftsmith.core.protocols import Draft, Engine, EngineConfig, NgramDraft, Scorer
from draftsmith.core.records import Scorecard
from draftsmith.core.sampling import DraftMethod
from draftsmith.core.store import Store, write_atomic
from draftsmith.core.trace import TraceReader, TraceRow
from draftsmith.core.vocabulary import check_same_tokens
from draftsmith.theory.acceptance import AcceptanceSums, Array, acceptance_chances, curve, replay
from draftsmith.theory.ngram import ngram_chances

_SCORES = pa.schema(
    [
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("argmax_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("top_gaps", pa.list_(pa.float32()), nullable=False),
    ]
)


class EvaluateConfig(StrictConfig):
    """Which draft to replay against which trace. `engine` scores; `serve` is the engine whose steps are predicted, by
    default the one that recorded the trace: engines differ in whether the first token is drafted."""

    trace: str
    draft: Draft
    lookaheads: tuple[int, ...] = Field((1, 2, 3, 4, 5, 6, 7, 8), min_length=1)
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
    serve: Engine = registry.load("engines", config.serve or trace.record.engine)
    versions = _versions(config)
    run.begin(versions)
    sums: dict[str, AcceptanceSums] = {}
    with _scores(config, trace, draft, run.path, serve) as chances_by_shard:
        for rows, chances in chances_by_shard:
            _add_up(sums, rows, chances, config.lookaheads, serve.first_drafted)
    total = sum(list(sums.values())[1:], start=next(iter(sums.values())))
    scorecard = Scorecard(
        trace=trace.record.fingerprint,
        target=trace.record.model,
        draft=config.draft,
        draft_fingerprint=fingerprint,
        sampling=trace.record.sampling,
        first_drafted=serve.first_drafted,
        split=trace.record.split,
        versions=versions,
        overall=curve(total),
        by_dataset={name: curve(part) for name, part in sums.items()},
    )
    run.finish(scorecard, time.monotonic() - began)
    return run.path


def _versions(config: EvaluateConfig) -> dict[str, str]:
    if isinstance(config.draft, NgramDraft):
        return {}
    engine: Engine = registry.load("engines", config.engine.kind)
    return engine.versions()


def _add_up(
    sums: dict[str, AcceptanceSums], rows: list[TraceRow], chances: list[Array], lookaheads: tuple[int, ...], first: int
) -> None:
    for name in dict.fromkeys(row.dataset for row in rows):
        chosen = [i for i, row in enumerate(rows) if row.dataset == name and row.num_output > first]
        if not chosen:
            continue
        part = replay([chances[i] for i in chosen], [rows[i].num_output - first for i in chosen], lookaheads).sums
        sums[name] = sums[name] + part if name in sums else part


@contextmanager
def _scores(
    config: EvaluateConfig, trace: TraceReader, draft: Path | None, folder: Path, serve: Engine
) -> Iterator[Iterator[tuple[list[TraceRow], list[Array]]]]:
    """Shard by shard: the rows, and each row's acceptance chances from its first drafted token on."""
    first = serve.first_drafted
    if draft is None:
        assert isinstance(config.draft, NgramDraft)
        yield _ngram_shards(config.draft, trace, max(config.lookaheads), first)
        return
    engine: Engine = registry.load("engines", config.engine.kind)
    assert config.draft.kind == "model"
    method: DraftMethod = "greedy" if trace.record.sampling.is_greedy else config.draft.method
    with engine.scorer(draft, serve.draft_sampling(trace.record.sampling), config.engine) as scorer:
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
    paths = [folder / f"scores-{index:05d}.parquet" for index in range(len(trace.record.shards))]
    with progress("scoring, shards", len(paths), already=sum(path.exists() for path in paths)) as bar:
        for index, path in enumerate(paths):
            rows = trace.shard(index)
            if not path.exists():
                _write_scores(path, rows, scorer)
                bar.advance()
            yield rows, _read_chances(path, rows, method, first)


def _write_scores(path: Path, rows: list[TraceRow], scorer: Scorer) -> None:
    scores = scorer.score(rows)
    columns = {
        "prompt_id": [row.prompt_id for row in rows],
        "argmax_ids": [score.argmax_ids for score in scores],
        "logprobs": [score.logprobs for score in scores],
        "top_gaps": [score.top_gaps for score in scores],
    }
    table = pa.table(columns, schema=_SCORES)
    write_atomic(path, lambda partial: pq.write_table(table, partial, compression="zstd"))


def _read_chances(path: Path, rows: list[TraceRow], method: DraftMethod, first: int) -> list[Array]:
    table = pq.read_table(path, schema=_SCORES)
    chances = []
    for i, row in enumerate(rows):
        if table["prompt_id"][i].as_py() != row.prompt_id:
            raise EngineError(f"{path} does not belong to this trace", "delete its folder and evaluate again")
        argmax, logprobs = (np.asarray(table[name][i].values) for name in ("argmax_ids", "logprobs"))
        chances.append(acceptance_chances(row.output_ids, argmax, row.logprobs, logprobs, method)[first:])
    return chances
