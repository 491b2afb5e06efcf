"""HumanEval: the code as it is."""

import gzip
import json
from pathlib import Path

import pytest

from draftsmith.core.errors import DataError
from draftsmith.datasets.humaneval import PLUGIN
from tests.unit.datasets.conftest import SetHub, WriteRows

CODE = 'def f(x):\n    """Twice x."""\n'


def test_the_code_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(gzip.compress(json.dumps({"prompt": CODE}).encode()))
    (prompt,) = PLUGIN.prompts(tmp_path)
    assert prompt.key == prompt.text == CODE


def test_from_the_hub(set_hub: SetHub) -> None:
    set_hub({("openai/openai_humaneval", None, "test", None): [{"prompt": CODE}]})
    assert [prompt.text for prompt in PLUGIN.prompts(None)] == [CODE]


def test_a_missing_field(tmp_path: Path, write_rows: WriteRows) -> None:
    write_rows("HumanEval.jsonl", [{"task_id": "HumanEval/0"}])
    with pytest.raises(DataError, match=r"HumanEval\.jsonl, line 1: there is no field 'prompt'"):
        list(PLUGIN.prompts(tmp_path))
