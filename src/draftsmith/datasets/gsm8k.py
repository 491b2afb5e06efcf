"""GSM8K: reads the `test` rows (question); yields `Question: ...` up to `Answer:`. The key is the question."""

from collections.abc import Iterator
from pathlib import Path

from draftsmith.core.prompts import Prompt
from draftsmith.core.protocols import Dataset
from draftsmith.datasets._reading import FileDataset, Hub, Source, read_rows

_HUB = "openai/gsm8k"
TEST = Source("gsm8k", "test.jsonl", "https://github.com/openai/grade-school-math", Hub(_HUB, "test", config="main"))


def read(folder: Path | None) -> Iterator[Prompt]:
    for row in read_rows(TEST, folder):
        question = row.text("question")
        yield Prompt(dataset="gsm8k", key=question, text=f"Question: {question}\nAnswer:")


PLUGIN: Dataset = FileDataset(_HUB, read)
