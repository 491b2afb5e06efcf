"""Kept rows: ranks by what was written, and a proposal at every size as if the head had been trimmed to it."""

import numpy as np

from draftsmith.theory.kept_rows import kept_chances, token_ranks
from tests.unit.builders import ints, trace_row


def test_the_most_written_comes_first_and_the_unseen_by_their_ids() -> None:
    rows = [trace_row("a", [5, 5, 3]), trace_row("b", [5, 3, 2, 9], num_output=3)]  # 9 is past the end
    assert np.argsort(token_ranks(rows, 10)).tolist() == [5, 3, 2, 0, 1, 4, 6, 7, 8, 9]


def test_every_size_as_if_it_were_the_head() -> None:
    rng = np.random.default_rng(0)
    width, places = 12, 40
    logits, ranks = rng.normal(size=(places, width)), rng.permutation(width).astype(np.int32)
    emitted = rng.integers(0, width, size=places).astype(np.int32)
    above = np.array([min((ranks[t] for t in range(width) if row[t] > row[x]), default=width) for row, x in zip(logits, emitted, strict=True)])  # fmt: skip  # noqa: E501
    for rows in range(1, width + 1):
        masked = np.where(ranks < rows, logits, -np.inf)
        expected = (masked.argmax(axis=1) == emitted).astype(float)
        assert kept_chances(emitted, above.astype(np.int32), ranks, rows).tolist() == expected.tolist()


def test_fewer_rows_may_help() -> None:
    """The draft prefers token 1, the target wrote 0, and a head of one row has only 0 to propose."""
    assert kept_chances(ints(0), ints(1), ints(0, 1), 1).tolist() == [1.0]
    assert kept_chances(ints(0), ints(1), ints(0, 1), 2).tolist() == [0.0]
