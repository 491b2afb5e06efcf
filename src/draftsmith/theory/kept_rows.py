"""Fewer output rows: what a draft would propose if it kept only the rows of the tokens written most, for all sizes at once.

A head of R rows keeps the R tokens of lowest rank, rank 0 being the token that is written most. Its proposal is the most likely
of those. So it proposes the emitted token x exactly if x was kept and nothing kept is more likely:

    rank(x) < R <= the lowest rank among the tokens that the draft finds more likely than x

Two numbers a token, from one pass of the whole draft, answer for every R. Trimming may even help: a wrong proposal goes."""

from collections.abc import Iterable

import numpy as np

from draftsmith.core.trace import Ints, TraceRow
from draftsmith.theory.acceptance import Array


def token_ranks(rows: Iterable[TraceRow], vocabulary: int) -> Ints:
    """The rank of every token, by how often it was written; those never written by their ids, of which tokenizers give the low
    ones to what is frequent."""
    counts = np.zeros(vocabulary, dtype=np.int64)
    for row in rows:
        counts += np.bincount(row.output_ids[: row.num_output], minlength=vocabulary)
    ranks = np.empty(vocabulary, dtype=np.int32)
    ranks[np.argsort(-counts, kind="stable")] = np.arange(vocabulary, dtype=np.int32)
    return ranks


def kept_chances(emitted: Ints, first_rank_above: Ints, ranks: Ints, rows: int) -> Array:
    """a_i of a greedy draft whose head keeps so many rows: one where it proposes the emitted token."""
    return ((ranks[emitted] < rows) & (rows <= first_rank_above)).astype(np.float64)
