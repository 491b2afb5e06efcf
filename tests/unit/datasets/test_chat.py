"""Chat: first turns of MT-Bench, then Arena-Hard."""

from pathlib import Path

import pytest

from draftsmith.core.errors import DataError
from draftsmith.core.prompts import Message
from draftsmith.datasets.chat import PLUGIN
from tests.unit.datasets.conftest import SetHub, WriteRows


def test_first_turns_of_both(tmp_path: Path, write_rows: WriteRows) -> None:
    write_rows("mt_bench/question.jsonl", [{"turns": ["m1", "then m2"]}])
    write_rows("arena_hard/question_v0.1.jsonl", [{"prompt": "a1"}, {"prompt": "m1"}])
    prompts = list(PLUGIN.prompts(tmp_path))
    assert [prompt.key for prompt in prompts] == ["m1", "a1"]
    assert [prompt.messages for prompt in prompts] == [(Message(role="user", content=key),) for key in ("m1", "a1")]


def test_one_of_them_is_enough(tmp_path: Path, write_rows: WriteRows) -> None:
    write_rows("a/mt_bench/question.jsonl", [{"turns": ["m1"]}])
    write_rows("b/arena_hard/question_v0.1.jsonl", [{"prompt": "a1"}])
    assert [prompt.key for prompt in PLUGIN.prompts(tmp_path / "a")] == ["m1"]
    assert [prompt.key for prompt in PLUGIN.prompts(tmp_path / "b")] == ["a1"]


def test_from_the_hub_where_turns_have_another_name(set_hub: SetHub) -> None:
    set_hub(
        {
            ("HuggingFaceH4/mt_bench_prompts", None, "train", None): [{"prompt": ["m1", "m2"]}],
            ("lmarena-ai/arena-hard-auto", None, "train", "data/arena-hard-v0.1/question.jsonl"): [{"prompt": "a1"}],
        }
    )
    assert [prompt.key for prompt in PLUGIN.prompts(None)] == ["m1", "a1"]
    assert PLUGIN.hub_name == "HuggingFaceH4/mt_bench_prompts + lmarena-ai/arena-hard-auto"


def test_neither_is_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no folder .*/mt_bench or .*/arena_hard") as caught:
        list(PLUGIN.prompts(tmp_path))
    assert caught.value.way_out.endswith("where DIR holds mt_bench/question.jsonl; one of them is enough")


@pytest.mark.parametrize(
    ("name", "row", "problem"),
    [
        ("mt_bench/question.jsonl", {"prompt": "x"}, r"question\.jsonl, line 1: there is no field 'turns'"),
        (
            "arena_hard/question_v0.1.jsonl",
            {"turns": ["x"]},
            r"question_v0\.1\.jsonl, line 1: there is no field 'prompt'",
        ),
        ("mt_bench/other.jsonl", {}, r"holds no question\.jsonl, nor does its folder mt_bench"),
    ],
)
def test_bad_files(tmp_path: Path, write_rows: WriteRows, name: str, row: dict[str, object], problem: str) -> None:
    write_rows(name, [row])
    with pytest.raises(DataError, match=problem):
        list(PLUGIN.prompts(tmp_path))
