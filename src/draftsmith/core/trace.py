"""The Trace: recorded target output. A small record, and Parquet shards of prompts in fixed order, read as a stream.

Schema version 1. All later work stands on these columns; a change needs a new version and an ADR.

    prompt_id       string         sha256 of dataset and key, 16 digits
    dataset         string
    split           string         train | probe | test
    prompt_ids      list<int32>
    output_ids      list<int32>    n logical tokens, then the marked tail
    num_output      int32          n: tokens past it are the tail (recorded past the end, never part of the output)
    logprobs        list<float32>  log p(x) of each output token, after temperature, top-k and top-p
    top_ids         list<int32>    optional: the record's `top_logprobs` most likely ids per token, flattened
    top_logprobs    list<float32>  optional: theirs
    finish_reason   string         eos | length
    seed            int64          this prompt's own seed
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from draftsmith.core.config import StrictConfig, parse_config
from draftsmith.core.errors import DataError, RecordError
from draftsmith.core.prompts import Split
from draftsmith.core.sampling import Sampling
from draftsmith.core.store import digest, file_digest, read_json, read_record, write_atomic
from draftsmith.core.vocabulary import Vocabulary

if TYPE_CHECKING:
    import pyarrow as pa

FinishReason = Literal["eos", "length"]
Ints = np.ndarray[tuple[int], np.dtype[np.int32]]
Floats = np.ndarray[tuple[int], np.dtype[np.float32]]


@cache
def schema() -> "pa.Schema":
    """The columns. Parquet is imported by those who read or write shards: an answer from records does without."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("prompt_id", pa.string(), nullable=False),
            pa.field("dataset", pa.string(), nullable=False),
            pa.field("split", pa.string(), nullable=False),
            pa.field("prompt_ids", pa.list_(pa.int32()), nullable=False),
            pa.field("output_ids", pa.list_(pa.int32()), nullable=False),
            pa.field("num_output", pa.int32(), nullable=False),
            pa.field("logprobs", pa.list_(pa.float32()), nullable=False),
            pa.field("top_ids", pa.list_(pa.int32())),
            pa.field("top_logprobs", pa.list_(pa.float32())),
            pa.field("finish_reason", pa.string(), nullable=False),
            pa.field("seed", pa.int64(), nullable=False),
        ]
    )


@dataclass(frozen=True)
class TraceRow:
    """One prompt and what the target wrote."""

    prompt_id: str
    dataset: str
    split: Split
    prompt_ids: Ints
    output_ids: Ints
    num_output: int
    logprobs: Floats
    finish_reason: FinishReason
    seed: int
    top_ids: Ints | None = None
    top_logprobs: Floats | None = None


class Shard(StrictConfig):
    """One Parquet file of the trace."""

    file: str
    sha256: str
    num_prompts: int
    num_tokens: int


class Trace(StrictConfig):
    """The record of a recorded run. `shards` are in prompt order."""

    kind: Literal["trace"] = "trace"
    schema_version: Literal[1] = 1
    model_fingerprint: str
    vocabulary_fingerprint: str
    model: str
    engine: str
    versions: dict[str, str]
    dtype: str
    first_drafted: Literal[0, 1]
    sampling: Sampling
    max_new_tokens: int
    tail: int
    top_logprobs: int
    eos_ids: tuple[int, ...]
    split: Split
    datasets: tuple[str, ...]
    shards: tuple[Shard, ...]

    @property
    def num_prompts(self) -> int:
        return sum(shard.num_prompts for shard in self.shards)

    @property
    def num_tokens(self) -> int:
        return sum(shard.num_tokens for shard in self.shards)

    @property
    def fingerprint(self) -> str:
        """What a later record names this trace by: its content, wherever it lies."""
        return digest(self.model_dump(mode="json", exclude={"model"}))[:32]


def write_shard(path: Path, rows: Iterable[TraceRow]) -> None:
    """Write one shard atomically. The same rows give the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = [{name: getattr(row, name) for name in schema().names} for row in rows]
    table = pa.Table.from_pylist(records, schema=schema())
    write_atomic(path, lambda partial: pq.write_table(table, partial, compression="zstd"))


def describe_shard(path: Path) -> Shard:
    """Count and digest a written shard."""
    lengths = _column(path, "num_output").to_numpy()
    return Shard(file=path.name, sha256=file_digest(path), num_prompts=len(lengths), num_tokens=int(lengths.sum()))


def read_shard(path: Path) -> Iterator[TraceRow]:
    """The rows of one shard, in order."""
    import pyarrow.parquet as pq

    with _readable(path):
        for batch in pq.ParquetFile(path).iter_batches(batch_size=256):
            columns = {name: batch.column(name) for name in schema().names}
            for i in range(batch.num_rows):
                yield _row(columns, i)


def _column(path: Path, name: str) -> "pa.ChunkedArray":
    import pyarrow.parquet as pq

    with _readable(path):
        return pq.read_table(path, columns=[name])[name]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowInvalid, OSError, KeyError) as error:
        raise RecordError(f"{path} is not a readable trace shard: {error}", "record the trace again") from None


def _row(columns: dict[str, Any], i: int) -> TraceRow:
    def array(name: str) -> Any:
        value = columns[name][i]
        return value.values.to_numpy() if value.is_valid else None

    def scalar(name: str) -> Any:
        return columns[name][i].as_py()

    return TraceRow(
        prompt_id=scalar("prompt_id"),
        dataset=scalar("dataset"),
        split=scalar("split"),
        prompt_ids=array("prompt_ids"),
        output_ids=array("output_ids"),
        num_output=scalar("num_output"),
        logprobs=array("logprobs"),
        finish_reason=cast("FinishReason", scalar("finish_reason")),
        seed=scalar("seed"),
        top_ids=array("top_ids"),
        top_logprobs=array("top_logprobs"),
    )


class TraceReader:
    """A finished trace on disk: its record, and its rows shard by shard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.parent if folder.is_file() else folder
        self.record = read_record(Trace, self.folder)

    def shard(self, index: int) -> list[TraceRow]:
        """One shard's rows; refused if the file is not the one that was recorded."""
        entry = self.record.shards[index]
        path = self._file(entry)
        if file_digest(path) != entry.sha256:
            raise RecordError(f"{path} was changed since it was recorded", "record the trace again")
        return list(read_shard(path))

    def _file(self, shard: Shard) -> Path:
        path = self.folder / shard.file
        if not path.exists():
            raise RecordError(f"the trace {self.folder} lacks its file {shard.file}", "record the trace again")
        return path

    def rows(self) -> Iterator[TraceRow]:
        """Every row in prompt order, one shard in memory at a time."""
        for index in range(len(self.record.shards)):
            yield from self.shard(index)

    def prompts(self) -> set[str]:
        """Which prompts it has, by their ids."""
        return {str(one) for shard in self.record.shards for one in _column(self._file(shard), "prompt_id").to_pylist()}

    def refuse_test(self) -> None:
        """Drafts are judged in the end by test prompts: nothing that makes a draft may look at them."""
        if self.record.split == "test":
            raise DataError(
                f"{self.folder} holds prompts of the test split, by which drafts are judged in the end",
                "record the train or the probe split: `draftsmith record --split train`",
            )

    def vocabulary(self) -> Vocabulary:
        """The target's tokens, kept with the trace so that a draft can be checked where the target is not."""
        return parse_config(Vocabulary, read_json(self.folder / "vocabulary.json"), f"{self.folder}/vocabulary.json")
