"""Spec-Bench: first turns, in the same splits as in `chat`."""

from pathlib import Path

import pytest

from draftsmith.core.errors import DataError
from draftsmith.core.prompts import Message
from draftsmith.datasets import chat
from draftsmith.datasets.specbench import PLUGIN
from tests.unit.datasets.conftest import WriteRows


def test_the_first_turn_is_the_chat(tmp_path: Path, write_rows: WriteRows) -> None:
    write_rows("spec_bench/question.jsonl", [{"turns": ["one", "two"]}, {"turns": ["three"]}])
    prompts = list(PLUGIN.prompts(tmp_path))
    assert [prompt.key for prompt in prompts] == ["one", "three"]
    assert prompts[0].messages == (Message(role="user", content="one"),)


def test_a_question_that_chat_has_too_lies_in_the_same_split(tmp_path: Path, write_rows: WriteRows) -> None:
    questions = [{"turns": [f"question {number}"]} for number in range(30)]
    write_rows("spec_bench/question.jsonl", questions)
    write_rows("mt_bench/question.jsonl", questions)
    here, there = list(PLUGIN.prompts(tmp_path)), list(chat.PLUGIN.prompts(tmp_path))
    assert [(prompt.key, prompt.split) for prompt in here] == [(prompt.key, prompt.split) for prompt in there]


def test_it_is_not_on_the_hub() -> None:
    with pytest.raises(DataError, match=r"spec_bench/question\.jsonl is not on the Hugging Face hub") as caught:
        list(PLUGIN.prompts(None))
    assert "https://github.com/hemingkx/Spec-Bench" in caught.value.way_out
    assert PLUGIN.hub_name is None


@pytest.mark.parametrize("turns", [[], "one", [1]])
def test_bad_turns(tmp_path: Path, write_rows: WriteRows, turns: object) -> None:
    write_rows("question.jsonl", [{"turns": turns}])
    with pytest.raises(DataError, match=r"question\.jsonl, line 1: the field 'turns' is not a list of texts"):
        list(PLUGIN.prompts(tmp_path))
