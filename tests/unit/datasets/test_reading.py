"""What is common to all data sets: where files are looked for, what is said when they are wrong, and the hub."""

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftsmith.core.errors import DataError, MissingDependencyError
from draftsmith.core.prompts import Prompt, split_of
from draftsmith.datasets._reading import FileDataset, Hub, Row, Source, file_lines, file_rows, list_files, read_rows
from tests.unit.datasets.conftest import SetHub, WriteRows

SOURCE = Source("quiz", "test.jsonl", "https://example.org/quiz", Hub("someone/quiz", "test", config="all"))
HUB_KEY = ("someone/quiz", "all", "test", None)
WAY_OUT = "get it from https://example.org/quiz and give --data DIR, where DIR holds quiz/test.jsonl"
PINNED = ["train", "train", "train", "train", "train", "train", "train", "train"]


def values(source: Source, folder: Path | None) -> list[dict[str, Any]]:
    return [row.values for row in read_rows(source, folder)]


class TestFindingFiles:
    def test_the_data_sets_own_folder_and_its_parent_both_do(self, tmp_path: Path, write_rows: WriteRows) -> None:
        write_rows("quiz/test.jsonl", [{"a": 1}])
        assert values(SOURCE, tmp_path) == values(SOURCE, tmp_path / "quiz") == [{"a": 1}]

    def test_a_gzipped_file_does_as_well(self, tmp_path: Path) -> None:
        (tmp_path / "test.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n{"a": 2}\n'))
        assert values(SOURCE, tmp_path) == [{"a": 1}, {"a": 2}]

    def test_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"there is no folder .*nowhere") as caught:
            read_rows(SOURCE, tmp_path / "nowhere")
        assert caught.value.way_out == WAY_OUT

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"holds no test\.jsonl, nor does its folder quiz") as caught:
            read_rows(SOURCE, tmp_path)
        assert caught.value.way_out == WAY_OUT


class TestListingFiles:
    def test_a_file_a_folder_by_name_and_the_usual_folder(self, tmp_path: Path) -> None:
        for name in ("usual/b.txt", "usual/a.txt", "usual/c.md"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        in_order = [tmp_path / "usual/a.txt", tmp_path / "usual/b.txt"]
        assert list_files("text", tmp_path / "usual", (".txt",), "usual") == in_order
        assert list_files("text", tmp_path, (".txt",), "usual") == in_order
        assert list_files("text", in_order[1], (".txt",), "usual") == in_order[1:]

    @pytest.mark.parametrize(
        ("name", "problem"),
        [
            (None, "the data set 'text' is your own files and has no name on the hub"),
            ("nowhere", "there is no file or folder .*nowhere"),
            ("notes.md", r"notes\.md is not a \.txt or \.text file"),
            ("empty", r"empty holds no \.txt or \.text file"),
        ],
    )
    def test_nothing_to_read(self, tmp_path: Path, name: str | None, problem: str) -> None:
        (tmp_path / "notes.md").touch()
        (tmp_path / "empty").mkdir()
        with pytest.raises(DataError, match=problem) as caught:
            list_files("text", tmp_path / name if name else None, (".txt", ".text"), "usual")
        assert caught.value.way_out == "give --data PATH, a .txt or .text file or a folder of them"


class TestLines:
    def test_blank_lines_and_a_byte_order_mark_are_no_rows(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.jsonl"
        path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n  \n{"a": 2}')
        rows = list(file_rows(path))
        assert [row.values for row in rows] == [{"a": 1}, {"a": 2}]
        assert rows[1].where == f"{path}, line 4"

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            (b'{"a": 1', r"rows\.jsonl, line 2 is not JSON: Expecting ',' delimiter"),
            (b"[" * 100_000, r"rows\.jsonl, line 2 is not JSON: "),
            (b"[1, 2]", r"rows\.jsonl, line 2 is a JSON list, not an object"),
            (b'{"a": "\xff"}', r"rows\.jsonl, line 2 is not UTF-8: invalid start byte"),
        ],
    )
    def test_a_bad_line_is_named(self, tmp_path: Path, line: bytes, problem: str) -> None:
        path = tmp_path / "rows.jsonl"
        path.write_bytes(b'{"a": 1}\n' + line + b"\n")
        with pytest.raises(DataError, match=problem) as caught:
            list(file_rows(path))
        assert caught.value.way_out == "correct it, or download the file again"

    @pytest.mark.parametrize("content", [b"plainly no gzip", gzip.compress(b'{"a": 1}\n' * 100)[:-12]])
    def test_a_damaged_archive(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "rows.jsonl.gz"
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"rows\.jsonl\.gz cannot be read: ") as caught:
            list(file_lines(path))
        assert caught.value.way_out == "check its permissions, or download it again"


class TestFields:
    ROW = Row("f.jsonl, line 3", {"word": "a", "half": "\ud800", "words": ["a", "b"], "none": [], "number": 2, "yes": True})

    def test_good_fields(self) -> None:
        assert self.ROW.text("word") == "a"
        assert self.ROW.texts("words") == ["a", "b"]
        assert self.ROW.index("number", 3) == 2

    def test_a_missing_field_is_named_with_those_there_are(self) -> None:
        problem = "f.jsonl, line 3: there is no field 'question'; the fields are word, half, words, none, number, yes"
        with pytest.raises(DataError, match=problem):
            self.ROW.text("question")
        with pytest.raises(DataError, match="there is no field 'question'; the fields are none"):
            Row("f.jsonl, line 3", {}).text("question")

    @pytest.mark.parametrize("field", ["number", "half"])
    def test_not_text(self, field: str) -> None:
        with pytest.raises(DataError, match=f"f.jsonl, line 3: the field '{field}' is not valid text: "):
            self.ROW.text(field)

    @pytest.mark.parametrize("field", ["word", "none"])
    def test_not_a_list_of_texts(self, field: str) -> None:
        with pytest.raises(DataError, match=f"the field '{field}' is not a list of texts: "):
            self.ROW.texts(field)

    @pytest.mark.parametrize(("field", "size"), [("number", 2), ("word", 2), ("yes", 2)])
    def test_not_an_index(self, field: str, size: int) -> None:
        with pytest.raises(DataError, match=f"the field '{field}' is not a whole number from 0 to 1: "):
            self.ROW.index(field, size)


class TestFileDataset:
    @staticmethod
    def dataset(*keys: str) -> FileDataset:
        return FileDataset(None, lambda folder: (Prompt(dataset="d", key=key, text=key) for key in keys))

    def test_each_key_once_in_order_and_blank_ones_never(self) -> None:
        keys = [prompt.key for prompt in self.dataset("b", " ", "a", "b", "", "c", "a").prompts(None)]
        assert keys == ["b", "a", "c"]

    def test_prompts_are_streamed(self) -> None:
        def endless(folder: Path | None) -> Iterator[Prompt]:
            number = 0
            while True:
                yield Prompt(dataset="d", key=str(number), text="t")
                number += 1

        prompts = FileDataset(None, endless).prompts(None)
        assert [next(prompts).key for _ in range(3)] == ["0", "1", "2"]

    def test_no_prompts_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="has no prompts in it") as caught:
            list(self.dataset("", " ").prompts(tmp_path))
        assert str(tmp_path) in caught.value.problem

    def test_splits_are_pinned(self) -> None:
        # Were one of these to move, published test figures would be on questions that a draft has trained on.
        assert [split_of(f"question {number}") for number in range(8)] == PINNED
        assert split_of("question 0") == split_of("  question\n0 ")


class TestHub:
    def test_rows_come_from_the_split_that_the_source_names(self, set_hub: SetHub) -> None:
        calls = set_hub({HUB_KEY: [{"a": 1}, {"a": 2}]})
        rows = list(read_rows(SOURCE, None))
        assert calls == [HUB_KEY]
        assert [row.values for row in rows] == [{"a": 1}, {"a": 2}]
        assert rows[1].where == "someone/quiz, split test, row 2"

    def test_not_on_the_hub(self) -> None:
        source = Source("quiz", "test.jsonl", "https://example.org/quiz", hub=None)
        with pytest.raises(DataError, match=r"quiz/test\.jsonl is not on the Hugging Face hub") as caught:
            read_rows(source, None)
        assert caught.value.way_out == WAY_OUT

    def test_the_package_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(MissingDependencyError, match=r"reading someone/quiz from .* needs the package") as caught:
            list(read_rows(SOURCE, None))
        assert caught.value.way_out == f"pip install 'draftsmith[datasets]'; or {WAY_OUT}"

    def test_the_hub_does_not_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def load_dataset(*args: object, **options: object) -> None:
            raise ConnectionError("no route to host\nand a long story")

        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
        with pytest.raises(DataError) as caught:
            list(read_rows(SOURCE, None))
        assert caught.value.problem == (
            "someone/quiz could not be read from the Hugging Face hub: ConnectionError: no route to host"
        )
        assert caught.value.way_out == f"check the network; or {WAY_OUT}"

    def test_the_hub_breaks_off(self, set_hub: SetHub) -> None:
        def broken() -> Iterator[dict[str, Any]]:
            yield {"a": 1}
            raise TimeoutError("gone")

        set_hub({HUB_KEY: broken()})
        rows = read_rows(SOURCE, None)
        assert next(rows).values == {"a": 1}
        with pytest.raises(DataError, match="could not be read from the Hugging Face hub: TimeoutError: gone"):
            next(rows)


def test_the_plugins_load_neither_torch_nor_hugging_face() -> None:
    script = """
import json, sys
from draftsmith.core import registry
for name in registry.names("datasets"):
    registry.load("datasets", name)
print(json.dumps([name for name in ("torch", "transformers", "datasets") if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
