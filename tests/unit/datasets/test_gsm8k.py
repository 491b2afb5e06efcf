"""GSM8K: the question, up to where the answer begins."""

from pathlib import Path

import pytest

from draftsmith.core.errors import DataError
from draftsmith.datasets.gsm8k import PLUGIN
from tests.unit.datasets.conftest import SetHub, WriteRows


def test_question_and_answer_mark(tmp_path: Path, write_rows: WriteRows) -> None:
    write_rows("test.jsonl", [{"question": "What is 2+2?", "answer": "#### 4"}])
    (prompt,) = PLUGIN.prompts(tmp_path)
    assert (prompt.key, prompt.text) == ("What is 2+2?", "Question: What is 2+2?\nAnswer:")


def test_from_the_hub(set_hub: SetHub) -> None:
    set_hub({("openai/gsm8k", "main", "test", None): [{"question": "q"}]})
    assert [prompt.key for prompt in PLUGIN.prompts(None)] == ["q"]


def test_a_missing_field(tmp_path: Path, write_rows: WriteRows) -> None:
    write_rows("test.jsonl", [{"answer": "4"}])
    with pytest.raises(DataError, match=r"test\.jsonl, line 1: there is no field 'question'; the fields are answer"):
        list(PLUGIN.prompts(tmp_path))
