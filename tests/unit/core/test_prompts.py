"""A prompt's split is fixed for good by its key."""

from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError

from draftsmith.core.prompts import Message, Prompt, split_of


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("What is the capital of France?", "train"),
        ("Count to 0.", "probe"),
        ("Once upon a time", "test"),
    ],
)
def test_a_split_never_changes(text: str, split: str) -> None:
    assert split_of(text) == split


def test_seven_one_two() -> None:
    rng = np.random.default_rng(0)
    counts = Counter(split_of(f"{value:x} and {i}") for i, value in enumerate(rng.integers(2**62, size=20_000)))
    for split, share in (("train", 0.7), ("probe", 0.1), ("test", 0.2)):
        assert counts[split] / 20_000 == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / 20_000))


@pytest.mark.parametrize("dressed", ["  a b c", "a  b\tc\n", "\na\nb\r\nc", "a\u00a0b c"])
def test_white_space_does_not_count(dressed: str) -> None:
    texts = [(f"{dressed} {i}", f"a b c {i}") for i in range(30)]
    assert [split_of(one) for one, _ in texts] == [split_of(other) for _, other in texts]


def test_the_key_decides_and_not_how_it_is_dressed() -> None:
    for i in range(30):
        plain = Prompt(dataset="mmlu", key=f"key {i}", text="five examples, then the question")
        chat = Prompt(dataset="chat", key=f"key {i}", messages=(Message(role="user", content="the question"),))
        assert plain.split == chat.split == split_of(f"key {i}")


def test_a_role_that_no_template_knows() -> None:
    with pytest.raises(ValidationError, match="role"):
        Message(role="human", content="hello")
