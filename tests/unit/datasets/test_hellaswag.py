"""HellaSwag: the activity and its context, without WikiHow's marks."""

from pathlib import Path

import pytest

from draftsmith.core.errors import DataError
from draftsmith.datasets.hellaswag import PLUGIN, clean
from tests.unit.datasets.conftest import SetHub, WriteRows

ROW = {
    "activity_label": "Roof work",
    "ctx_a": "A man sits on a roof.",
    "ctx_b": "he",
    "ctx": "A man sits on a roof. he",
}


def test_activity_and_context(tmp_path: Path, write_rows: WriteRows) -> None:
    write_rows("hellaswag_val.jsonl", [ROW, ROW | {"activity_label": "Again"}])
    (prompt,) = PLUGIN.prompts(tmp_path)
    assert prompt.key == "A man sits on a roof. he"
    assert prompt.text == "Roof work: A man sits on a roof. He"


def test_marks_go() -> None:
    dirty = "Garden: [header] How to plant a tree [title] Choose a place. [step] Look for open ground. "
    assert clean(dirty) == "Garden: How to plant a tree. Choose a place. Look for open ground."


def test_from_the_hub(set_hub: SetHub) -> None:
    set_hub({("Rowan/hellaswag", None, "validation", None): [ROW]})
    assert [prompt.key for prompt in PLUGIN.prompts(None)] == [ROW["ctx"]]


def test_a_missing_field(tmp_path: Path, write_rows: WriteRows) -> None:
    write_rows("hellaswag_val.jsonl", [ROW, {"ctx": "c", "ctx_a": "c", "ctx_b": ""}])
    with pytest.raises(DataError, match=r"hellaswag_val\.jsonl, line 2: there is no field 'activity_label'"):
        list(PLUGIN.prompts(tmp_path))
