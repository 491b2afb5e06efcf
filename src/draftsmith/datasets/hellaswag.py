"""HellaSwag, zero-shot: reads the validation rows (activity_label, ctx_a, ctx_b, ctx); yields `activity: context`,
cleaned of WikiHow's marks as lm-evaluation-harness cleans it. The key is ctx as it stands in the file."""

import re
from collections.abc import Iterator
from pathlib import Path

from draftsmith.core.prompts import Prompt
from draftsmith.core.protocols import Dataset
from draftsmith.datasets._reading import FileDataset, Hub, Source, read_rows

_HUB = "Rowan/hellaswag"
VALIDATION = Source("hellaswag", "hellaswag_val.jsonl", "https://github.com/rowanz/hellaswag", Hub(_HUB, "validation"))


def read(folder: Path | None) -> Iterator[Prompt]:
    for row in read_rows(VALIDATION, folder):
        context = f"{row.text('activity_label')}: {row.text('ctx_a')} {row.text('ctx_b').capitalize()}"
        yield Prompt(dataset="hellaswag", key=row.text("ctx"), text=clean(context))


def clean(text: str) -> str:
    """`[title]` ends a sentence, other marks such as `[header]` and `[step]` go."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


PLUGIN: Dataset = FileDataset(_HUB, read)
