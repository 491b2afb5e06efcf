"""Stage `evaluate --rows`: what a draft would accept if its output head kept fewer rows, all sizes from one pass.
Reads a Trace, a draft, and a Trace to count tokens in; writes a RowsCard."""

import time
from pathlib import Path
from typing import Annotated

from pydantic import Field

from draftsmith.core import registry
from draftsmith.core.checkpoints import find_model, model_fingerprint, model_name
from draftsmith.core.config import StrictConfig
from draftsmith.core.errors import ConfigError, DataError
from draftsmith.core.log import log
from draftsmith.core.progress import progress
from draftsmith.core.protocols import Draft, Engine, EngineConfig, NgramDraft
from draftsmith.core.records import RowsCard, RowsPoint
from draftsmith.core.sampling import Sampling
from draftsmith.core.store import Store
from draftsmith.core.trace import Ints, TraceReader
from draftsmith.core.vocabulary import check_same_tokens
from draftsmith.theory.acceptance import AcceptanceSums, curve, replay
from draftsmith.theory.kept_rows import kept_chances, token_ranks


class EvaluateRowsConfig(StrictConfig):
    """`counted` is the trace by which tokens are ranked: not of the test split, and best not the one that is replayed. The
    whole head is always among the sizes."""

    trace: str
    draft: Draft
    counted: str
    rows: tuple[Annotated[int, Field(ge=1)], ...] = Field((1024, 2048, 4096, 8192, 16384, 32768, 65536), min_length=1)
    lookaheads: tuple[Annotated[int, Field(ge=1)], ...] = Field((1, 2, 3, 4, 5, 6, 7, 8), min_length=1)
    engine: EngineConfig = EngineConfig()


def evaluate_rows(config: EvaluateRowsConfig, store: Store) -> Path:
    """The folder of the finished card."""
    trace, counted = TraceReader(Path(config.trace)), TraceReader(Path(config.counted))
    counted.refuse_test()
    if isinstance(config.draft, NgramDraft) or config.draft.method != "greedy":
        raise ConfigError("output rows are those of a draft model that proposes its most likely token", "name such a draft")
    draft = find_model(config.draft.path)
    fingerprint = model_fingerprint(draft)
    inputs = {
        "trace": trace.record.fingerprint,
        "counted": counted.record.fingerprint,
        "draft": fingerprint,
        "settings": config.model_dump(mode="json", exclude={"trace": True, "counted": True, "draft": True}),
    }
    run = store.run("rows", inputs)
    if run.is_current:
        log.info("already evaluated: %s", run.path)
        return run.path
    began = time.monotonic()
    engine: Engine = registry.load("engines", config.engine.kind)
    run.begin(engine.versions())
    with engine.scorer(draft, Sampling(), config.engine) as scorer:
        for one in (trace, counted):
            check_same_tokens(one.vocabulary(), scorer.vocabulary)
        width = scorer.vocabulary.rows
        ranks = token_ranks(counted.rows(), width)
        sizes = sorted({*(size for size in config.rows if size < width), width})
        sums: dict[int, AcceptanceSums] = {}
        seen, covered = 0, dict.fromkeys(sizes, 0)
        with progress("scoring, shards", len(trace.record.shards)) as bar:
            for index in range(len(trace.record.shards)):
                rows = [row for row in trace.shard(index) if row.num_output > trace.record.first_drafted]
                first = trace.record.first_drafted
                scores = scorer.score(rows, ranks) if rows else []
                lengths = [row.num_output - first for row in rows]
                for size in sizes if rows else ():
                    chances = [
                        kept_chances(row.output_ids, _above(score.first_rank_above), ranks, size)[first:]
                        for row, score in zip(rows, scores, strict=True)
                    ]
                    part = replay(chances, lengths, config.lookaheads).sums
                    sums[size] = sums[size] + part if size in sums else part
                    covered[size] += sum(int((ranks[row.output_ids[: row.num_output]] < size).sum()) for row in rows)
                seen += sum(row.num_output for row in rows)
                bar.advance()
    if not sums:
        raise DataError(f"{config.trace} has no token that a draft could propose", "record more than one new token")
    record = RowsCard(
        trace=trace.record.fingerprint,
        counted=counted.record.fingerprint,
        target=trace.record.model,
        draft=model_name(draft),
        draft_fingerprint=fingerprint,
        split=trace.record.split,
        points=tuple(RowsPoint(rows=size, ceiling=covered[size] / seen, curve=curve(sums[size])) for size in sizes),
    )
    run.finish(record, time.monotonic() - began)
    return run.path


def _above(found: Ints | None) -> Ints:
    assert found is not None, "the scorer was given ranks"
    return found
