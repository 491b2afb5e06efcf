"""A draft's scores of a trace, kept beside its scorecard: a Parquet file a shard, a row a prompt, in the trace's order."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from draftsmith.core.errors import RecordError
from draftsmith.core.protocols import DraftScore
from draftsmith.core.store import write_atomic
from draftsmith.core.trace import TraceRow

_SCHEMA = pa.schema(
    [
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("argmax_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("top_gaps", pa.list_(pa.float32()), nullable=False),
    ]
)


def scores_path(folder: Path, shard: int) -> Path:
    """Where a shard's scores lie in the scorecard's folder."""
    return folder / f"scores-{shard:05d}.parquet"


def write_scores(path: Path, rows: Sequence[TraceRow], scores: Sequence[DraftScore]) -> None:
    """Keep the scores of one shard."""
    columns = {
        "prompt_id": [row.prompt_id for row in rows],
        "argmax_ids": [score.argmax_ids for score in scores],
        "logprobs": [score.logprobs for score in scores],
        "top_gaps": [score.top_gaps for score in scores],
    }
    table = pa.table(columns, schema=_SCHEMA)
    write_atomic(path, lambda partial: pq.write_table(table, partial, compression="zstd"))


def read_scores(path: Path, rows: Sequence[TraceRow]) -> list[DraftScore]:
    """The scores of one shard, refused if they are of other prompts."""
    if not path.exists():
        raise RecordError(f"there are no scores at {path}", "run `draftsmith evaluate` again")
    try:
        table = pq.read_table(path, schema=_SCHEMA)
    except (pa.ArrowInvalid, OSError) as error:
        raise RecordError(f"{path} is not a readable file of scores: {error}", "delete it and evaluate again") from None
    if table["prompt_id"].to_pylist() != [row.prompt_id for row in rows]:
        raise RecordError(f"{path} does not belong to this trace", "delete its folder and evaluate again")
    columns = (table["argmax_ids"], table["logprobs"], table["top_gaps"])
    return [DraftScore(*(np.asarray(column[i].values) for column in columns)) for i in range(len(rows))]
