"""Spec-Bench: reads the questions (turns); yields the first turn as a chat, which is also the key. Its MT-Bench part
has the same keys as in `chat`, and so the same splits."""

from collections.abc import Iterator
from pathlib import Path

from draftsmith.core.prompts import Prompt
from draftsmith.core.protocols import Dataset
from draftsmith.datasets._reading import FileDataset, Source, read_rows, user_prompt

QUESTIONS = Source("spec_bench", "question.jsonl", "https://github.com/hemingkx/Spec-Bench", hub=None)


def read(folder: Path | None) -> Iterator[Prompt]:
    for row in read_rows(QUESTIONS, folder):
        yield user_prompt("specbench", row.texts("turns")[0])


PLUGIN: Dataset = FileDataset(None, read)
