"""Two vocabularies are compared by their strings."""

import pytest

from draftsmith.core.errors import VocabularyError
from draftsmith.core.vocabulary import Vocabulary, check_same_tokens
from tests.unit.builders import assert_explains

TOKENS = {i: f"token{i}" for i in range(10)}
TARGET = Vocabulary(model="target", tokens=TOKENS, rows=10)


def draft(tokens: dict[int, str], rows: int = 10) -> Vocabulary:
    return Vocabulary(model="draft", tokens=tokens, rows=rows)


@pytest.mark.parametrize("rows", [10, 16, 128])
def test_padding_does_not_matter(rows: int) -> None:
    check_same_tokens(TARGET, draft(TOKENS, rows))
    check_same_tokens(draft(TOKENS, rows), TARGET)


def test_the_same_size_is_not_enough() -> None:
    with pytest.raises(VocabularyError) as caught:
        check_same_tokens(TARGET, draft(TOKENS | {3: "x", 7: "y"}))
    assert_explains(
        caught.value,
        "target and draft disagree on 2 of 10 tokens",
        "3: 'token3' against 'x', 7: 'token7' against 'y'",
        way_out="use a draft with the target's tokenizer",
    )


def test_a_few_examples_are_enough() -> None:
    with pytest.raises(VocabularyError) as caught:
        check_same_tokens(TARGET, draft(dict.fromkeys(range(10), "x")))
    assert "disagree on 10 of 10" in caught.value.problem
    assert caught.value.problem.count(" against ") == 5


@pytest.mark.parametrize(
    ("tokens", "count", "shown"),
    [
        ({i: TOKENS[i] for i in range(9)}, 10, "9: 'token9' against None"),
        (TOKENS | {10: "more"}, 11, "10: None against 'more'"),
    ],
)
def test_a_token_that_one_lacks(tokens: dict[int, str], count: int, shown: str) -> None:
    with pytest.raises(VocabularyError) as caught:
        check_same_tokens(TARGET, draft(tokens, rows=16))
    assert_explains(caught.value, f"disagree on 1 of {count} tokens", shown, way_out="tokenizer")


def test_a_token_without_a_row() -> None:
    for pair in ((TARGET, draft(TOKENS, rows=9)), (draft(TOKENS, rows=9), TARGET)):
        with pytest.raises(VocabularyError) as caught:
            check_same_tokens(*pair)
        assert_explains(caught.value, "draft has tokens up to id 9 but only 9 output rows", way_out="save them again")


def test_the_fingerprint_is_that_of_the_tokens() -> None:
    assert draft(dict(reversed(TOKENS.items())), rows=16).fingerprint == TARGET.fingerprint
    assert draft(TOKENS | {3: "x"}).fingerprint != TARGET.fingerprint
    assert draft({i: TOKENS[i] for i in range(9)}).fingerprint != TARGET.fingerprint
