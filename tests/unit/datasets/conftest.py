"""Small files in the true layouts, and a stand-in for Hugging Face's `datasets`."""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

WriteRows = Callable[[str, list[dict[str, Any]]], Path]
SetHub = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def write_rows(tmp_path: Path) -> WriteRows:
    """Writes rows to a JSONL file below tmp_path."""

    def write(name: str, rows: list[dict[str, Any]]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture
def set_hub(monkeypatch: pytest.MonkeyPatch) -> SetHub:
    """Puts a hub in place that answers `(name, config, split, data_files)` from a table; returns the list of calls."""

    def put(table: dict[tuple[Any, ...], Iterable[dict[str, Any]]]) -> list[tuple[Any, ...]]:
        calls: list[tuple[Any, ...]] = []

        def load_dataset(
            name: str, config: str | None, *, split: str, data_files: str | None, streaming: bool
        ) -> Iterable[dict[str, Any]]:
            assert streaming
            calls.append((name, config, split, data_files))
            return table[calls[-1]]

        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
        return calls

    return put
