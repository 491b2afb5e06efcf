"""MMLU, 5-shot: reads `dev` and `test` rows (question, subject, choices, answer); yields each test question after the
five dev examples of its subject, in the standard format. The key is the question with its choices, no examples."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from draftsmith.core.errors import DataError
from draftsmith.core.prompts import Prompt
from draftsmith.core.protocols import Dataset
from draftsmith.datasets._reading import FileDataset, Hub, Row, Source, read_rows

_HUB, _HOME = "cais/mmlu", "https://huggingface.co/datasets/cais/mmlu"
DEV = Source("mmlu", "dev.jsonl", _HOME, Hub(_HUB, "dev", config="all"))
TEST = Source("mmlu", "test.jsonl", _HOME, Hub(_HUB, "test", config="all"))
NUM_SHOTS = 5
LETTERS = "ABCD"


def read(folder: Path | None) -> Iterator[Prompt]:
    examples: defaultdict[str, list[str]] = defaultdict(list)
    for row in read_rows(DEV, folder):
        answer = LETTERS[row.index("answer", len(LETTERS))]
        examples[row.text("subject")].append(f"{_question(row)}\nAnswer: {answer}\n\n")
    for row in read_rows(TEST, folder):
        subject, question = row.text("subject"), _question(row)
        shots = examples[subject][:NUM_SHOTS]
        if len(shots) < NUM_SHOTS:
            raise DataError(
                f"{row.where}: the subject {subject!r} has {len(shots)} dev examples, 5-shot needs {NUM_SHOTS}",
                f"complete {DEV.file}; or {DEV.way_out}",
            )
        header = f"The following are multiple choice questions (with answers) about {subject.replace('_', ' ')}.\n\n"
        yield Prompt(dataset="mmlu", key=question, text=header + "".join(shots) + question + "\nAnswer:")


def _question(row: Row) -> str:
    choices = row.texts("choices")
    if len(choices) != len(LETTERS):
        raise row.wrong("choices", f"a list of {len(LETTERS)}")
    lettered = (f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=True))
    return "\n".join([row.text("question").strip(), *lettered])


PLUGIN: Dataset = FileDataset(_HUB, read)
