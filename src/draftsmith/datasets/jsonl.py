"""Your own JSONL: reads a .jsonl or .jsonl.gz file, or a folder of them by name; yields one prompt a row, from the
first of its fields `messages`, `prompt`, `text` that is not null. An assistant turn at the end of `messages` is an
answer, so it is left out. The key is the text, or the turns without the system prompt: the same question under another
system prompt is the same question."""

from collections.abc import Iterator
from pathlib import Path

from draftsmith.core.errors import DataError
from draftsmith.core.prompts import Message, Prompt
from draftsmith.core.protocols import Dataset
from draftsmith.datasets._reading import FileDataset, Row, file_rows, list_files

SUFFIXES = (".jsonl", ".jsonl.gz")
_ROLES = ("system", "user", "assistant")


def read(place: Path | None) -> Iterator[Prompt]:
    for path in list_files("jsonl", place, SUFFIXES, usual="redpajama_sample"):
        for row in file_rows(path):
            yield _prompt(row)


def _prompt(row: Row) -> Prompt:
    if row.values.get("messages") is not None:
        messages = _messages(row)
        key = "\n\n".join(message.content for message in messages if message.role != "system")
        return Prompt(dataset="jsonl", key=key, messages=messages)
    for field in ("prompt", "text"):
        if row.values.get(field) is not None:
            return Prompt(dataset="jsonl", key=row.text(field), text=row.text(field))
    found = ", ".join(row.values) or "none"
    raise DataError(
        f"{row.where}: there is no field 'messages', 'prompt' or 'text'; the fields are {found}",
        "rename the field that holds the prompt",
    )


def _messages(row: Row) -> tuple[Message, ...]:
    turns = row.values["messages"]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) and turn.get("role") in _ROLES for turn in turns):
        raise row.wrong("messages", f"a list of turns with a role of {', '.join(_ROLES)}")
    messages = [Message(role=turn["role"], content=Row(row.where, turn).text("content")) for turn in turns]
    while messages and messages[-1].role == "assistant":
        messages.pop()
    if not messages or messages[-1].role != "user":
        raise row.wrong("messages", "a chat with a user turn to answer")
    return tuple(messages)


PLUGIN: Dataset = FileDataset(None, read)
