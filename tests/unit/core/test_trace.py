"""The trace: the same rows are the same bytes, what is read is what was written, and damage is noticed."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from draftsmith.core.errors import ConfigError, RecordError
from draftsmith.core.store import file_digest, write_json
from draftsmith.core.trace import TraceReader, TraceRow, describe_shard, read_shard, schema, write_shard
from tests.unit.builders import VOCABULARY, assert_explains, floats, ints, trace_row, write_trace

PLAIN = trace_row("plain", [5, 6, 7], logprobs=floats(-0.5, -1.25, 0.0))
TAILED = trace_row("tailed", [5, 1, 7], num_output=2, finish_reason="eos", split="train", seed=2**40, dataset="other")
WITH_TOP = trace_row("top", [5, 6], top_ids=ints(5, 9, 6, 8), top_logprobs=floats(-0.1, -3, -0.2, -4))
EMPTY = trace_row("empty", [], prompt_ids=ints())
ROWS = [PLAIN, TAILED, WITH_TOP, EMPTY]


def assert_same(rows: Sequence[TraceRow], others: Sequence[TraceRow]) -> None:
    assert len(rows) == len(others)
    for row, other in zip(rows, others, strict=True):
        for one in fields(TraceRow):
            a, b = getattr(row, one.name), getattr(other, one.name)
            if isinstance(a, np.ndarray):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)
            else:
                assert a == b


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace", [[PLAIN, TAILED], [WITH_TOP]])


class TestShards:
    def test_every_field_comes_back(self, tmp_path: Path) -> None:
        write_shard(tmp_path / "shard", ROWS)
        assert_same(list(read_shard(tmp_path / "shard")), ROWS)

    def test_the_columns_are_those_of_the_schema(self, tmp_path: Path) -> None:
        write_shard(tmp_path / "shard", ROWS)
        assert pq.read_schema(tmp_path / "shard").equals(schema())

    def test_the_same_rows_are_the_same_bytes(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            write_shard(tmp_path / name, iter(ROWS))
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()

    @pytest.mark.parametrize("rows", [ROWS[::-1], ROWS[:-1], [trace_row("plain", [5, 6, 8]), *ROWS[1:]]])
    def test_other_rows_are_other_bytes(self, tmp_path: Path, rows: list[TraceRow]) -> None:
        write_shard(tmp_path / "one", ROWS)
        write_shard(tmp_path / "two", rows)
        assert file_digest(tmp_path / "one") != file_digest(tmp_path / "two")

    def test_many_rows_keep_their_order(self, tmp_path: Path) -> None:
        rows = [trace_row(f"{i}", range(i % 5)) for i in range(700)]
        write_shard(tmp_path / "shard", rows)
        assert_same(list(read_shard(tmp_path / "shard")), rows)

    def test_a_description_counts_logical_tokens_only(self, tmp_path: Path) -> None:
        write_shard(tmp_path / "shard", ROWS)
        found = describe_shard(tmp_path / "shard")
        assert (found.file, found.num_prompts, found.num_tokens) == ("shard", 4, 3 + 2 + 2 + 0)
        assert found.sha256 == file_digest(tmp_path / "shard")

    def test_a_failed_write_leaves_the_old_shard(self, tmp_path: Path) -> None:
        write_shard(tmp_path / "shard", ROWS)
        with pytest.raises(pa.ArrowInvalid):
            write_shard(tmp_path / "shard", [trace_row("bad", [1], seed="seven")])
        assert_same(list(read_shard(tmp_path / "shard")), ROWS)

    @pytest.mark.parametrize("damage", ["cut", "text", "zeros", "columns", "gone"])
    def test_damage_is_refused(self, tmp_path: Path, damage: str) -> None:
        path = tmp_path / "shard"
        write_shard(path, ROWS)
        content = path.read_bytes()
        match damage:
            case "cut":
                path.write_bytes(content[: len(content) // 2])
            case "text":
                path.write_text("no shard")
            case "zeros":  # the footer is whole, the pages are not
                path.write_bytes(content[:4] + bytes(200) + content[204:])
            case "columns":
                pq.write_table(pa.table({"prompt_id": ["a"]}), path)
            case "gone":
                path.unlink()
        with pytest.raises(RecordError) as caught:
            list(read_shard(path))
        assert_explains(caught.value, path, "is not a readable trace shard", way_out="record the trace again")


class TestReader:
    def test_rows_come_in_order_over_all_shards(self, trace: Path) -> None:
        reader = TraceReader(trace)
        assert_same(list(reader.rows()), [PLAIN, TAILED, WITH_TOP])
        assert_same(reader.shard(1), [WITH_TOP])
        assert (reader.record.num_prompts, reader.record.num_tokens) == (3, 7)
        assert reader.prompts() == {row.prompt_id for row in (PLAIN, TAILED, WITH_TOP)}

    def test_the_file_of_the_record_will_do(self, trace: Path) -> None:
        assert TraceReader(trace / "record.json").record == TraceReader(trace).record

    def test_a_shard_is_read_when_its_turn_comes(self, trace: Path) -> None:
        rows = TraceReader(trace).rows()
        (trace / "shard-00001.parquet").unlink()
        assert [next(rows).prompt_id, next(rows).prompt_id] == ["plain", "tailed"]
        with pytest.raises(RecordError) as caught:
            next(rows)
        assert_explains(caught.value, f"{trace} lacks its file shard-00001.parquet", way_out="record the trace again")

    def test_the_vocabulary_comes_with_it(self, trace: Path) -> None:
        assert TraceReader(trace).vocabulary() == VOCABULARY

    def test_a_damaged_vocabulary(self, trace: Path) -> None:
        write_json(trace / "vocabulary.json", {"model": "target"})
        with pytest.raises(ConfigError) as caught:
            TraceReader(trace).vocabulary()
        assert_explains(caught.value, f"{trace}/vocabulary.json cannot be used", "tokens", way_out="correct it")

    def test_a_folder_without_a_trace(self, tmp_path: Path) -> None:
        with pytest.raises(RecordError) as caught:
            TraceReader(tmp_path)
        assert_explains(caught.value, f"{tmp_path} holds no finished record", way_out="check the path")

    def test_a_wrong_path_is_the_one_that_is_named(self, trace: Path) -> None:
        with pytest.raises(RecordError) as caught:
            TraceReader(trace / "typo")
        assert_explains(caught.value, trace / "typo", way_out="check the path")

    def test_a_changed_shard_is_not_read(self, trace: Path) -> None:
        """A whole Parquet file, but not the one that was recorded."""
        write_shard(trace / "shard-00001.parquet", [trace_row("top", [5, 7])])
        reader = TraceReader(trace)
        assert_same(reader.shard(0), [PLAIN, TAILED])
        with pytest.raises(RecordError) as caught:
            reader.shard(1)
        named = f"{trace / 'shard-00001.parquet'} was changed since it was recorded"
        assert_explains(caught.value, named, way_out="record the trace again")

    def test_a_cut_shard_is_not_read(self, trace: Path) -> None:
        path = trace / "shard-00000.parquet"
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(RecordError, match="was changed since it was recorded"):
            next(TraceReader(trace).rows())


class TestFingerprint:
    def of(self, folder: Path, rows: list[TraceRow], **changes: Any) -> str:
        return TraceReader(write_trace(folder, [rows], **changes)).record.fingerprint

    def test_it_does_not_hang_on_the_place(self, tmp_path: Path) -> None:
        assert self.of(tmp_path / "here", ROWS) == self.of(tmp_path / "there", ROWS)

    @pytest.mark.parametrize("changes", [{"model_fingerprint": "e" * 32}, {"max_new_tokens": 17}, {"versions": {"fake": "2"}}])
    def test_it_hangs_on_the_record(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        assert self.of(tmp_path / "here", ROWS) != self.of(tmp_path / "there", ROWS, **changes)

    def test_it_hangs_on_every_token(self, tmp_path: Path) -> None:
        other = [trace_row("plain", [5, 6, 8], logprobs=PLAIN.logprobs), *ROWS[1:]]
        assert self.of(tmp_path / "here", ROWS) != self.of(tmp_path / "there", other)

    def test_it_does_not_hang_on_the_name_of_the_models_folder(self, tmp_path: Path) -> None:
        assert self.of(tmp_path / "here", ROWS) == self.of(tmp_path / "there", ROWS, model="renamed")
