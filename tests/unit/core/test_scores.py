"""A draft's scores come back as they were kept, and only with the trace they belong to."""

from pathlib import Path

import numpy as np
import pytest

from draftsmith.core.errors import RecordError
from draftsmith.core.protocols import DraftScore
from draftsmith.core.scores import read_scores, scores_path, write_scores
from tests.unit.builders import assert_explains, floats, ints, trace_row

ROWS = [trace_row("a", [11, 12, 13]), trace_row("b", [21])]
SCORES = [
    DraftScore(ints(11, 99, 13), floats(-0.1, -2.0, -0.3), floats(1.0, 0.5, 0.25)),
    DraftScore(ints(21), floats(-1e-7), floats(3.0)),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = scores_path(tmp_path / "card", 0)
    write_scores(path, ROWS, SCORES)
    return path


def test_they_come_back_bit_for_bit(path: Path) -> None:
    for found, kept in zip(read_scores(path, ROWS), SCORES, strict=True):
        for name in ("argmax_ids", "logprobs", "top_gaps"):
            np.testing.assert_array_equal(getattr(found, name), getattr(kept, name), strict=True)


def test_shards_have_files_of_their_own(tmp_path: Path) -> None:
    assert [scores_path(tmp_path, index).name for index in (0, 12)] == ["scores-00000.parquet", "scores-00012.parquet"]


def test_a_row_that_wrote_nothing(tmp_path: Path) -> None:
    rows = [trace_row("empty", []), *ROWS]
    nothing = DraftScore(ints(), floats(), floats())
    write_scores(tmp_path / "scores", rows, [nothing, *SCORES])
    first, second, _ = read_scores(tmp_path / "scores", rows)
    assert (len(first.argmax_ids), len(first.logprobs), len(first.top_gaps)) == (0, 0, 0)
    np.testing.assert_array_equal(second.argmax_ids, SCORES[0].argmax_ids)


def test_the_same_scores_give_the_same_bytes(path: Path, tmp_path: Path) -> None:
    write_scores(tmp_path / "again", ROWS, SCORES)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_they_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecordError) as caught:
        read_scores(tmp_path / "scores-00003.parquet", ROWS)
    assert_explains(caught.value, tmp_path / "scores-00003.parquet", way_out="run `draftsmith evaluate` again")


@pytest.mark.parametrize("rows", [ROWS[::-1], ROWS[:1], [*ROWS, ROWS[0]], []])
def test_those_of_other_prompts_are_refused(path: Path, rows: list) -> None:
    with pytest.raises(RecordError) as caught:
        read_scores(path, rows)
    assert_explains(caught.value, path, "does not belong to this trace", way_out="evaluate again")


@pytest.mark.parametrize("keep", [0, 10, 200])
def test_a_damaged_file_is_refused(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(RecordError) as caught:
        read_scores(path, ROWS)
    assert_explains(caught.value, path, way_out="evaluate")
