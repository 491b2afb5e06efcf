"""MMLU: five examples of the subject, then the question."""

from pathlib import Path
from typing import Any

import pytest

from draftsmith.core.errors import DataError
from draftsmith.datasets.mmlu import PLUGIN
from tests.unit.datasets.conftest import SetHub, WriteRows


def row(question: str, subject: str = "high_school_art", answer: Any = 1, choices: Any = None) -> dict[str, Any]:
    return {"question": question, "subject": subject, "choices": choices or ["w", "x", "y", "z"], "answer": answer}


DEV = [row(f"{subject} example {number}", subject) for number in range(6) for subject in ("high_school_art", "law")]


def test_the_standard_format(tmp_path: Path, write_rows: WriteRows) -> None:
    write_rows("dev.jsonl", DEV)
    write_rows("test.jsonl", [row(" Who painted it? \n")])
    (prompt,) = PLUGIN.prompts(tmp_path)
    assert prompt.key == "Who painted it?\nA. w\nB. x\nC. y\nD. z"
    assert prompt.text is not None
    assert prompt.text.startswith(
        "The following are multiple choice questions (with answers) about high school art.\n\n"
        "high_school_art example 0\nA. w\nB. x\nC. y\nD. z\nAnswer: B\n\nhigh_school_art example 1\n"
    )
    assert prompt.text.endswith("Answer: B\n\nWho painted it?\nA. w\nB. x\nC. y\nD. z\nAnswer:")
    assert prompt.text.count("Answer: B\n\n") == 5
    assert "law" not in prompt.text


def test_the_examples_do_not_move_a_question_to_another_split(tmp_path: Path, write_rows: WriteRows) -> None:
    questions = [row(f"question {number}") for number in range(30)]
    write_rows("a/test.jsonl", questions)
    write_rows("a/dev.jsonl", DEV)
    write_rows("b/test.jsonl", questions)
    write_rows("b/dev.jsonl", DEV[::-1])
    first, second = (list(PLUGIN.prompts(tmp_path / name)) for name in "ab")
    assert [prompt.split for prompt in first] == [prompt.split for prompt in second]
    assert all(one.text != other.text for one, other in zip(first, second, strict=True))


def test_from_the_hub(set_hub: SetHub) -> None:
    set_hub({("cais/mmlu", "all", "dev", None): DEV, ("cais/mmlu", "all", "test", None): [row("q", "law")]})
    (prompt,) = PLUGIN.prompts(None)
    assert prompt.key.startswith("q\nA. w")
    assert PLUGIN.hub_name == "cais/mmlu"


@pytest.mark.parametrize(
    ("dev", "test", "problem"),
    [
        (DEV[:8], row("q"), r"test\.jsonl, line 1: the subject 'high_school_art' has 4 dev examples, 5-shot needs 5"),
        (
            DEV,
            row("q", choices=["a", "b"]),
            r"test\.jsonl, line 1: the field 'choices' is not a list of 4: \['a', 'b'\]",
        ),
        (DEV, {"question": "q", "subject": "law"}, "there is no field 'choices'"),
        (
            [row("q", answer="B")],
            row("q"),
            r"dev\.jsonl, line 1: the field 'answer' is not a whole number from 0 to 3: 'B'",
        ),
    ],
)
def test_bad_rows(tmp_path: Path, write_rows: WriteRows, dev: list[dict[str, Any]], test: dict[str, Any], problem: str) -> None:
    write_rows("dev.jsonl", dev)
    write_rows("test.jsonl", [test])
    with pytest.raises(DataError, match=problem):
        list(PLUGIN.prompts(tmp_path))


def test_no_dev_file(tmp_path: Path, write_rows: WriteRows) -> None:
    write_rows("test.jsonl", [row("q")])
    with pytest.raises(DataError, match=r"holds no dev\.jsonl"):
        list(PLUGIN.prompts(tmp_path))
