"""HumanEval: reads the problems (prompt); yields the code to complete as it is, which is also the key."""

from collections.abc import Iterator
from pathlib import Path

from draftsmith.core.prompts import Prompt
from draftsmith.core.protocols import Dataset
from draftsmith.datasets._reading import FileDataset, Hub, Source, read_rows

_HUB = "openai/openai_humaneval"
PROBLEMS = Source("humaneval", "HumanEval.jsonl", "https://github.com/openai/human-eval", Hub(_HUB, "test"))


def read(folder: Path | None) -> Iterator[Prompt]:
    for row in read_rows(PROBLEMS, folder):
        code = row.text("prompt")
        yield Prompt(dataset="humaneval", key=code, text=code)


PLUGIN: Dataset = FileDataset(_HUB, read)
