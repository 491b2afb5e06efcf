"""Prompt lookup against its definition, read literally."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftsmith.theory.acceptance import replay
from draftsmith.theory.ngram import NgramIndex, ngram_chances
from tests.unit.builders import ints

TOKENS = st.lists(st.integers(0, 3), max_size=30)  # few different tokens, so that much repeats


def propose(tokens: list[int], max_ngram: int, min_ngram: int, lookahead: int) -> list[int]:
    """The longest n-gram that ends the sequence and stands in it earlier; what follows its earliest occurrence."""
    for size in range(max_ngram, min_ngram - 1, -1):
        for start in range(len(tokens) - size):  # the last start is that of the suffix itself
            if tokens[start : start + size] == tokens[-size:]:
                return tokens[start + size : start + size + lookahead]
    return []


@given(TOKENS, st.integers(1, 4), st.integers(0, 3), st.integers(0, 6))
@settings(max_examples=400, deadline=None)
def test_equals_the_definition(tokens: list[int], min_ngram: int, wider: int, lookahead: int) -> None:
    index = NgramIndex(ints(*tokens), min_ngram + wider, min_ngram)
    assert index.propose(lookahead) == propose(tokens, min_ngram + wider, min_ngram, lookahead)


@given(TOKENS, TOKENS)
@settings(max_examples=100, deadline=None)
def test_growing_is_the_same_as_starting_with_everything(tokens: list[int], more: list[int]) -> None:
    grown = NgramIndex(ints(*tokens), 3, 1)
    for token in more:
        grown.extend(ints(token))
    assert grown.propose(5) == NgramIndex(ints(*tokens, *more), 3, 1).propose(5)


@given(TOKENS, st.lists(st.integers(0, 3), min_size=1, max_size=30), st.data())
@settings(max_examples=100, deadline=None)
def test_chances_are_the_proposals_that_the_target_wrote(prompt: list[int], output: list[int], data: st.DataObject) -> None:
    num_output = data.draw(st.integers(1, len(output)))  # the rest is the tail
    found = ngram_chances(ints(*prompt), ints(*output), num_output, 4, 3, 1)
    assert found.shape == (num_output, 4)
    for j in range(num_output):
        proposal = propose(prompt + output[:j], 3, 1, 4)
        for m in range(4):
            right = m < len(proposal) and j + m < len(output) and proposal[m] == output[j + m]
            assert found[j, m] == float(right)


@pytest.mark.parametrize(
    ("tokens", "proposal"),
    [
        ([], []),
        ([1], []),
        ([1, 2, 3], []),
        ([1, 1], [1]),  # what is left of it is one token
        ([1, 2, 9, 1, 2], [9, 1, 2]),
        ([2, 8, 1, 2, 9, 1, 2], [9, 1, 2]),  # the longer match wins over the earlier one
        ([1, 2, 8, 1, 2, 9, 1, 2], [8, 1, 2]),  # the earliest of equal length
    ],
)
def test_known_proposals(tokens: list[int], proposal: list[int]) -> None:
    assert NgramIndex(ints(*tokens), 3, 1).propose(3) == proposal


def test_a_repeating_output_takes_few_steps() -> None:
    chances = ngram_chances(ints(1, 2, 3, 4, 1), ints(2, 3, 4, 1, 2, 3), 6, 3, 3, 1)
    assert replay([chances], [6], [3]).steps[0, 0] == 2
    assert np.all(chances[:3] == 1.0)
