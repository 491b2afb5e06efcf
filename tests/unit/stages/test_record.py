"""Recording: shard by shard, to the same bytes however often it was interrupted and whoever shared the work."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftsmith.core import provenance
from draftsmith.core.config import parse_config
from draftsmith.core.errors import ConfigError, DataError
from draftsmith.core.prompts import Prompt
from draftsmith.core.sampling import Sampling
from draftsmith.core.store import Store, read_json
from draftsmith.core.trace import TraceReader
from draftsmith.stages.record import RecordConfig, prompt_id, record
from tests.unit.builders import (
    VOCABULARY,
    FakeDataset,
    FakeEngine,
    Plugins,
    PowerCutError,
    assert_explains,
    question,
    write_model,
)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_model(tmp_path / "target")


def config(target: Path, **changes: Any) -> RecordConfig:
    """Seven prompts in shards of three, five tokens each."""
    values = {
        "target": str(target),
        "datasets": ("fake",),
        "num_prompts": 7,
        "max_new_tokens": 5,
        "shard_size": 3,
        "engine": {"kind": "fake"},
    }
    return parse_config(RecordConfig, values | changes, "the settings")


def payload(folder: Path) -> dict[str, bytes]:
    """Everything that counts as content."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "provenance.json"}


@pytest.mark.usefixtures("engine")
class TestWhatIsKept:
    def test_the_record_describes_the_run(self, tmp_path: Path, target: Path) -> None:
        settings = config(target, tail=2, top_logprobs=3, sampling={"temperature": 0.5})
        found = TraceReader(record(settings, Store(tmp_path))).record
        assert (found.model, found.engine, found.versions, found.dtype) == ("target", "fake", {"fake": "1"}, "float32")
        assert (found.max_new_tokens, found.tail, found.top_logprobs, found.eos_ids) == (5, 2, 3, (1,))
        assert (found.split, found.datasets, found.sampling) == ("test", ("fake",), Sampling(temperature=0.5))
        assert [shard.num_prompts for shard in found.shards] == [3, 3, 1]
        assert (found.num_prompts, found.num_tokens) == (7, 35)
        assert found.vocabulary_fingerprint == VOCABULARY.fingerprint

    def test_every_row_is_what_the_target_wrote(self, tmp_path: Path, target: Path) -> None:
        reader = TraceReader(record(config(target, tail=2, top_logprobs=3), Store(tmp_path)))
        rows = list(reader.rows())
        assert {row.prompt_id for row in rows} == {prompt_id(question(i)) for i in range(7)}
        texts = {prompt_id(question(i)): question(i).key for i in range(7)}
        for row in rows:
            assert "".join(map(chr, row.prompt_ids)) == texts[row.prompt_id]
            start = int(row.prompt_ids.sum()) + row.seed
            np.testing.assert_array_equal(row.output_ids, [(start + 7 * i) % 90 + 32 for i in range(7)])
            np.testing.assert_allclose(row.logprobs, -row.output_ids / 100, rtol=1e-6)
            assert (row.num_output, row.split, row.dataset) == (5, "test", "fake")
            assert len(row.top_ids) == len(row.top_logprobs) == 7 * 3
        assert reader.vocabulary() == VOCABULARY

    def test_each_prompt_has_its_own_seed(self, tmp_path: Path, target: Path) -> None:
        def seeds(seed: int) -> list[int]:
            settings = config(target, sampling={"temperature": 1.0, "seed": seed})
            return [row.seed for row in TraceReader(record(settings, Store(tmp_path))).rows()]

        assert len(set(seeds(0)) | set(seeds(1))) == 14

    def test_a_larger_recording_contains_the_smaller_one(self, tmp_path: Path, target: Path) -> None:
        small, large = (
            [row.prompt_id for row in TraceReader(record(config(target, num_prompts=n), Store(tmp_path))).rows()]
            for n in (3, 7)
        )
        assert large[:3] == small
        assert large == sorted(large)


class TestOnce:
    def test_the_second_call_does_nothing(self, tmp_path: Path, target: Path, plugins: Plugins) -> None:
        first = record(config(target), Store(tmp_path))
        before = payload(first)
        plugins.loaded.clear()
        assert record(config(target), Store(tmp_path)) == first
        assert "fake" in plugins.loaded  # the data set
        assert plugins.loaded.count("fake") == 1  # but not the engine
        assert payload(first) == before

    def test_the_place_of_model_and_data_does_not_count(self, tmp_path: Path, target: Path, engine: FakeEngine) -> None:
        first = record(config(target), Store(tmp_path))
        copy = write_model(tmp_path / "elsewhere" / "target")
        assert record(config(copy, data=str(tmp_path)), Store(tmp_path)) == first
        assert len(engine.opened) == 1

    @pytest.mark.parametrize("changes", [{"max_new_tokens": 6}, {"sampling": {"seed": 1}}, {"num_prompts": 6}])
    def test_other_settings_are_another_trace(
        self, tmp_path: Path, target: Path, engine: FakeEngine, changes: dict[str, Any]
    ) -> None:
        first, second = (record(config(target, **one), Store(tmp_path)) for one in ({}, changes))
        assert first != second
        assert len(engine.opened) == 2

    def test_another_model_or_other_prompts_are_another_trace(self, tmp_path: Path, target: Path, plugins: Plugins) -> None:
        first = record(config(target), Store(tmp_path))
        assert record(config(write_model(tmp_path / "b" / "target", 1.0)), Store(tmp_path)) != first
        plugins.datasets["fake"] = FakeDataset(8)
        assert record(config(target), Store(tmp_path)) != first


class TestInterrupted:
    def test_it_goes_on_to_the_same_bytes_and_does_only_the_rest(
        self, tmp_path: Path, target: Path, plugins: Plugins, engine: FakeEngine
    ) -> None:
        whole = record(config(target), Store(tmp_path / "whole"))
        assert engine.calls == [3, 3, 1]

        store = Store(tmp_path / "broken")
        plugins.engines["fake"] = broken = FakeEngine(breaks_after=1)
        with pytest.raises(PowerCutError):
            record(config(target), store)
        assert broken.calls == [3]
        plugins.engines["fake"] = rest = FakeEngine()
        resumed = record(config(target), store)
        assert rest.calls == [3, 1]
        assert payload(resumed) == payload(whole)

    def test_an_unfinished_trace_cannot_be_read(self, tmp_path: Path, target: Path, plugins: Plugins) -> None:
        plugins.engines["fake"] = FakeEngine(breaks_after=1)
        with pytest.raises(PowerCutError):
            record(config(target), Store(tmp_path))
        (folder,) = (tmp_path / "traces").iterdir()
        assert not (folder / "record.json").exists()
        assert [path.name for path in sorted(folder.glob("shard*"))] == ["shard-00000.parquet"]

    def test_another_version_starts_again(
        self, tmp_path: Path, target: Path, plugins: Plugins, caplog: pytest.LogCaptureFixture
    ) -> None:
        plugins.engines["fake"] = FakeEngine(breaks_after=2)
        with pytest.raises(PowerCutError):
            record(config(target), Store(tmp_path))
        plugins.engines["fake"] = newer = FakeEngine(version="2")
        folder = record(config(target), Store(tmp_path))
        assert newer.calls == [3, 3, 1]
        assert TraceReader(folder).record.versions == {"fake": "2"}
        (aside,) = tmp_path.glob(f"traces/{folder.name}.*")
        assert [path.name for path in sorted(aside.glob("shard*"))] == ["shard-00000.parquet", "shard-00001.parquet"]
        assert f"it is now {aside.name}" in caplog.text

    def test_a_finished_trace_of_another_version_is_recorded_again(
        self, tmp_path: Path, target: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = record(config(target), Store(tmp_path))
        monkeypatch.setattr(provenance, "packages", lambda: {"fake": "2"})
        plugins.engines["fake"] = newer = FakeEngine(version="2")
        for _ in range(2):
            assert record(config(target), Store(tmp_path)) == first
        assert newer.calls == [3, 3, 1]
        assert TraceReader(first).record.versions == {"fake": "2"}
        (aside,) = tmp_path.glob(f"traces/{first.name}.*")  # nothing is lost: the old trace can still be read
        assert TraceReader(aside).record.versions == {"fake": "1"}
        assert len(list(TraceReader(aside).rows())) == 7

    @pytest.mark.usefixtures("engine")
    def test_a_new_version_of_an_engine_that_had_no_part_in_it_does_not_matter(
        self, tmp_path: Path, target: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = record(config(target), Store(tmp_path))
        monkeypatch.setattr(provenance, "packages", lambda: {"torch": "999"})
        plugins.engines["fake"] = idle = FakeEngine()
        assert record(config(target), Store(tmp_path)) == first
        assert idle.calls == []


class TestWorkers:
    def test_shared_work_is_the_same_record(self, tmp_path: Path, target: Path, plugins: Plugins) -> None:
        alone = record(config(target), Store(tmp_path / "alone"))
        folders, calls = [], []
        for index in (1, 0):
            plugins.engines["fake"] = engine = FakeEngine()
            folders.append(record(config(target), Store(tmp_path / "shared"), (index, 2)))
            calls.append(engine.calls)
        assert calls == [[3], [3, 1]]
        assert folders[0] == folders[1]
        assert payload(folders[0]) == payload(alone)

    def test_the_trace_is_finished_by_the_last_worker(
        self, tmp_path: Path, target: Path, engine: FakeEngine, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO):
            folder = record(config(target), Store(tmp_path), (0, 3))
        assert not (folder / "record.json").exists()
        assert "complete once the other workers are done" in caplog.text
        for index in (1, 2):
            record(config(target), Store(tmp_path), (index, 3))
        assert TraceReader(folder).record.num_prompts == 7

    def test_a_worker_without_a_shard_does_nothing(self, tmp_path: Path, target: Path, engine: FakeEngine) -> None:
        record(config(target), Store(tmp_path), (5, 6))
        assert engine.calls == []

    @pytest.mark.parametrize("worker", [(0, 0), (2, 2), (-1, 2)])
    def test_one_that_cannot_be(self, tmp_path: Path, target: Path, engine: FakeEngine, worker: tuple[int, int]) -> None:
        with pytest.raises(ConfigError) as caught:
            record(config(target), Store(tmp_path), worker)
        assert_explains(caught.value, f"no worker {worker[0]} of {worker[1]}", way_out="count workers from 0")
        assert engine.opened == []


class TestWhichPrompts:
    def test_the_folder_of_the_data_is_handed_on(self, tmp_path: Path, target: Path, plugins: Plugins) -> None:
        record(config(target, data=str(tmp_path)), Store(tmp_path))
        assert plugins.datasets["fake"].folders == [tmp_path]

    def test_all_of_them(self, tmp_path: Path, target: Path, plugins: Plugins) -> None:
        folder = record(config(target, num_prompts=None), Store(tmp_path))
        assert TraceReader(folder).record.num_prompts == 7

    def test_fewer_than_asked_for_is_said(
        self, tmp_path: Path, target: Path, engine: FakeEngine, caplog: pytest.LogCaptureFixture
    ) -> None:
        record(config(target, num_prompts=9), Store(tmp_path))
        assert "fake has only 7 of the 9 prompts asked for" in caplog.text

    def test_batches_cut_short_by_their_shards_are_said(
        self, tmp_path: Path, target: Path, engine: FakeEngine, caplog: pytest.LogCaptureFixture
    ) -> None:
        record(config(target, engine={"kind": "fake", "batch_size": 3}), Store(tmp_path))
        assert not caplog.text
        record(config(target, engine={"kind": "fake", "batch_size": 4}), Store(tmp_path))
        assert "--shard-size 3 leaves 3 rows of --batch-size 4" in caplog.text

    def test_long_prompts_are_left_out_and_that_is_said(
        self, tmp_path: Path, target: Path, engine: FakeEngine, caplog: pytest.LogCaptureFixture
    ) -> None:
        longest = max(len(question(i).key) for i in range(7))
        short = [i for i in range(7) if len(question(i).key) < longest]
        with caplog.at_level(logging.INFO):
            folder = record(config(target, max_prompt_tokens=longest - 1, num_prompts=None), Store(tmp_path))
        assert {row.prompt_id for row in TraceReader(folder).rows()} == {prompt_id(question(i)) for i in short}
        assert f"fake: {7 - len(short)} prompts are longer than {longest - 1} tokens" in caplog.text

    @pytest.mark.usefixtures("engine")
    def test_no_prompt_is_short_enough(self, tmp_path: Path, target: Path) -> None:
        with pytest.raises(ConfigError) as caught:
            record(config(target, max_prompt_tokens=2), Store(tmp_path))
        assert_explains(caught.value, "every prompt of 'fake' is longer than 2 tokens", way_out="raise --max-prompt-tokens")

    @pytest.mark.usefixtures("engine")
    def test_more_log_probabilities_than_tokens(self, tmp_path: Path, target: Path) -> None:
        with pytest.raises(ConfigError) as caught:
            record(config(target, top_logprobs=10**6), Store(tmp_path))
        assert_explains(caught.value, "1000000 log-probabilities cannot be kept", way_out="fewer --top-logprobs")

    @pytest.mark.usefixtures("engine")
    def test_no_prompt_in_the_split(self, tmp_path: Path, target: Path) -> None:
        with pytest.raises(DataError) as caught:
            record(config(target, split="probe"), Store(tmp_path))
        assert_explains(caught.value, "'fake' has no prompt in the probe split", way_out="choose another --split")

    def test_a_data_set_named_twice(self, tmp_path: Path, target: Path, plugins: Plugins) -> None:
        folder = record(config(target, datasets=("fake", "fake"), num_prompts=None), Store(tmp_path))
        assert TraceReader(folder).record.num_prompts == 7


def test_a_prompts_name_is_that_of_its_data_set_and_key() -> None:
    one, dressed, other = (
        Prompt(dataset=dataset, key="k", text=text) for dataset, text in (("a", "k"), ("a", "dressed"), ("b", "k"))
    )
    assert prompt_id(one) == prompt_id(dressed) == "a319f4b905e19269"
    assert prompt_id(one) != prompt_id(other)


def test_the_sidecar_names_model_and_prompts(tmp_path: Path, target: Path, engine: FakeEngine) -> None:
    folder = record(config(target), Store(tmp_path))
    inputs = read_json(folder / "provenance.json")["inputs"]
    assert set(inputs) == {"settings", "model", "prompts"}
    assert inputs["model"] == TraceReader(folder).record.model_fingerprint
