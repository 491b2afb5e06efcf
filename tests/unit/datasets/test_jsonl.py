"""Your own JSONL: text, prompt or messages."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from draftsmith.core.errors import DataError
from draftsmith.core.prompts import Message
from draftsmith.datasets.jsonl import PLUGIN
from tests.unit.datasets.conftest import WriteRows


def turn(role: str, content: object) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_the_three_kinds_of_rows(write_rows: WriteRows) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "t", "id": 1},
        {"prompt": "p", "text": "not this", "messages": None},
        {"messages": [turn("user", "m") | {"name": "Ada"}], "text": "nor this"},
    ]
    text, prompt, chat = PLUGIN.prompts(write_rows("own.jsonl", rows))
    assert (text.key, text.text, text.messages) == ("t", "t", None)
    assert (prompt.key, prompt.text, prompt.messages) == ("p", "p", None)
    assert (chat.key, chat.text, chat.messages) == ("m", None, (Message(role="user", content="m"),))


def test_a_chat_ends_where_the_answer_begins(write_rows: WriteRows) -> None:
    turns = [turn("system", "s"), turn("user", "u1"), turn("assistant", "a1"), turn("user", "u2")]
    (prompt,) = PLUGIN.prompts(write_rows("own.jsonl", [{"messages": [*turns, turn("assistant", "a2")]}]))
    assert prompt.messages == tuple(Message(**item) for item in turns)
    assert prompt.key == "u1\n\na1\n\nu2"


def test_a_system_prompt_does_not_make_another_question(write_rows: WriteRows) -> None:
    dressed = [{"messages": [turn("system", f"s{number}"), turn("user", "u")]} for number in range(3)]
    prompts = list(PLUGIN.prompts(write_rows("own.jsonl", [{"text": "u"}, *dressed])))
    assert [prompt.key for prompt in prompts] == ["u"]


def test_a_folder_is_read_by_name_and_blank_rows_are_skipped(tmp_path: Path, write_rows: WriteRows) -> None:
    write_rows("own/b.jsonl", [{"text": "3"}, {"text": " "}])
    (tmp_path / "own/a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "1"}\n{"text": "2"}\n'))
    write_rows("own/c.json", [{"text": "4"}])
    assert [prompt.key for prompt in PLUGIN.prompts(tmp_path / "own")] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"question": "q"}, "there is no field 'messages', 'prompt' or 'text'; the fields are question"),
        ({}, "there is no field 'messages', 'prompt' or 'text'; the fields are none"),
        ({"text": 3}, "the field 'text' is not valid text: 3"),
        ({"text": "\ud800"}, "the field 'text' is not valid text"),
        ({"messages": "m"}, "the field 'messages' is not a list of turns with a role of system, user, assistant"),
        ({"messages": ["m"]}, "the field 'messages' is not a list of turns"),
        ({"messages": [turn("human", "m")]}, "the field 'messages' is not a list of turns"),
        ({"messages": [{"role": "user"}]}, "there is no field 'content'; the fields are role"),
        ({"messages": [turn("user", 3)]}, "the field 'content' is not valid text: 3"),
        ({"messages": []}, "the field 'messages' is not a chat with a user turn to answer"),
        ({"messages": [turn("assistant", "m")]}, "the field 'messages' is not a chat with a user turn to answer"),
        ({"messages": [turn("system", "m")]}, "the field 'messages' is not a chat with a user turn to answer"),
    ],
)
def test_bad_rows(write_rows: WriteRows, row: dict[str, Any], problem: str) -> None:
    path = write_rows("own.jsonl", [{"text": "fine"}, row])
    with pytest.raises(DataError, match=rf"own\.jsonl, line 2: {problem}"):
        list(PLUGIN.prompts(path))


def test_it_needs_a_place() -> None:
    with pytest.raises(DataError, match="the data set 'jsonl' is your own files") as caught:
        list(PLUGIN.prompts(None))
    assert caught.value.way_out == "give --data PATH, a .jsonl or .jsonl.gz file or a folder of them"
    assert PLUGIN.hub_name is None
