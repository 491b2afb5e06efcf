"""Profiling: every cell in every round, stopped in time, resumed where it was, with an engine whose clock we set."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftsmith.core import timing
from draftsmith.core.checkpoints import model_fingerprint
from draftsmith.core.config import parse_config
from draftsmith.core.errors import ConfigError, DraftsmithError, ModelError
from draftsmith.core.protocols import ModelDraft, StepSeconds
from draftsmith.core.provenance import machine
from draftsmith.core.records import Profile
from draftsmith.core.store import Store, read_record
from draftsmith.stages.profile import ProfileConfig, profile
from draftsmith.theory.throughput import StepTable
from tests.unit.builders import LLAMA, FakeEngine, Plugins, PowerCutError, even_step, shape, write_model

Settings = Callable[..., ProfileConfig]
pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_model(tmp_path / "target", 1.0, json.dumps(LLAMA))


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return write_model(tmp_path / "draft", config=json.dumps(LLAMA | {"num_hidden_layers": 1}))


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    """A draft of which only the shape exists."""
    folder = tmp_path / "drawn"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 1}))
    return folder


@pytest.fixture
def settings(target: Path, draft: Path, engine: FakeEngine) -> Settings:
    def build(**changes: Any) -> ProfileConfig:
        values: dict[str, Any] = {
            "target": str(target),
            "draft": {"kind": "model", "path": str(draft)},
            "lookaheads": (1, 3),
            "batches": (1, 4),
            "contexts": (16, 64),
            "timing": {"steps": 2, "min_rounds": 3},
            "engine": {"kind": "fake"},
        }
        return parse_config(ProfileConfig, values | changes, "the settings")

    return build


def run(config: ProfileConfig, folder: Path) -> Profile:
    return read_record(Profile, profile(config, Store(folder)))


def drifting(*factors: float, per_round: int = 1) -> Callable[[int, int, int], StepSeconds]:
    """A machine that gets slower and faster by these factors from round to round; the last one stays."""
    asked: list[int] = []

    def step(lookahead: int, batch: int, context: int) -> StepSeconds:
        factor = factors[min(len(asked) // per_round, len(factors) - 1)]
        asked.append(lookahead)
        one = even_step(lookahead, batch, context)
        return StepSeconds(one.draft * factor, one.verify * factor, one.overhead * factor, one.context)

    return step


class TestCells:
    def test_every_lookahead_batch_and_context_is_there(self, tmp_path: Path, settings: Settings) -> None:
        """Lookahead 0 too, though nobody asked for it; contexts are those that the steps really had."""
        cells = run(settings(), tmp_path).cells
        places = [(cell.lookahead, cell.batch, cell.context) for cell in cells]
        assert places == [(k, b, c) for k in (0, 1, 3) for b in (1, 4) for c in (19, 67)]

    def test_the_figures_are_the_engines(self, tmp_path: Path, settings: Settings) -> None:
        for cell in run(settings(), tmp_path).cells:
            phases = (cell.draft_ms, cell.verify_ms, cell.overhead_ms)
            assert phases == pytest.approx((cell.lookahead, 10 + cell.batch, 0.5))
            assert cell.step_ms == pytest.approx(sum(phases))
            assert cell.median_ms == cell.low_ms == pytest.approx(cell.step_ms)
            assert cell.error == pytest.approx(0, abs=1e-12)

    def test_a_table_can_be_made_of_them(self, tmp_path: Path, settings: Settings) -> None:
        table = StepTable.from_cells(run(settings(), tmp_path).cells)
        assert table.step_ms(2, 1, 40) == pytest.approx(2 + 11 + 0.5)

    def test_contexts_are_one_for_all_cells_that_asked_for_the_same(
        self, tmp_path: Path, settings: Settings, engine: FakeEngine
    ) -> None:
        """Speculating steps run ahead: 1 token, 2 and 4 more, on average 7/3."""
        engine.time_step = lambda k, b, c: StepSeconds(0.001, 0.01, 0.001, c + k + 1)
        assert {cell.context for cell in run(settings(contexts=(100,)), tmp_path).cells} == {102}

    def test_each_round_visits_each_cell_once(self, tmp_path: Path, settings: Settings, engine: FakeEngine) -> None:
        run(settings(timing={"steps": 5, "min_rounds": 2}), tmp_path)
        assert len(engine.timed) == 2 * 4
        for visits in (engine.timed[:4], engine.timed[4:]):
            assert {(one.batch, one.context) for one in visits} == {(b, c) for b in (1, 4) for c in (16, 64)}
        assert {tuple(sorted(one.lookaheads)) for one in engine.timed} == {(0, 1, 3)}
        assert {one.steps for one in engine.timed} == {5}

    def test_the_order_is_another_one_each_round(self, tmp_path: Path, settings: Settings, engine: FakeEngine) -> None:
        run(settings(batches=(1, 2, 3, 4), timing={"min_rounds": 4, "max_rounds": 4}), tmp_path)
        orders = [tuple((one.batch, one.context) for one in engine.timed[low : low + 8]) for low in range(0, 32, 8)]
        assert len(set(orders)) == 4
        assert len({one.lookaheads for one in engine.timed}) > 1

    @pytest.mark.parametrize("lookaheads", [(3, 1), (1, 3, 1, 3)])
    def test_lookaheads_in_any_order_and_more_than_once(
        self, tmp_path: Path, settings: Settings, engine: FakeEngine, lookaheads: tuple[int, ...]
    ) -> None:
        cells = run(settings(lookaheads=lookaheads, batches=(1,), contexts=(16,)), tmp_path).cells
        assert [cell.lookahead for cell in cells] == [0, 1, 3]

    def test_what_the_record_says_of_itself(self, tmp_path: Path, settings: Settings, target: Path, draft: Path) -> None:
        record = run(settings(), tmp_path)
        assert (record.target, record.draft, record.engine.kind, record.versions) == ("target", "draft", "fake", {"fake": "1"})
        assert (record.target_fingerprint, record.draft_fingerprint) == (model_fingerprint(target), model_fingerprint(draft))
        assert (record.target_shape, record.draft_shape) == (shape(), shape(layers=1))
        assert record.machine["cores"] >= 1
        assert "load" not in record.machine  # or no two records of the same would be the same
        assert not record.busy

    def test_how_the_engine_works_is_kept(self, tmp_path: Path, settings: Settings, engine: FakeEngine) -> None:
        engine.first_drafted = 1
        record = run(settings(), tmp_path)
        assert (record.first_drafted, record.batching) == (1, engine.batching)


class TestBaseline:
    def test_an_idle_draft_that_costs_nothing_is_the_baseline(
        self, tmp_path: Path, settings: Settings, engine: FakeEngine
    ) -> None:
        record = run(settings(), tmp_path)
        assert record.plain == tuple(cell for cell in record.cells if cell.lookahead == 0)
        assert {draft for _, draft, _ in engine.opened} == {settings().draft}

    def test_otherwise_plain_decoding_has_an_engine_of_its_own(
        self, tmp_path: Path, settings: Settings, engine: FakeEngine
    ) -> None:
        """The idle draft takes 2 ms a step here, which is no part of the baseline."""
        engine.idle_draft_is_free = False
        engine.time_step = lambda k, b, c: StepSeconds(0.002, 0.01, 0.001, c)
        loaded = engine._time_steps

        def plain_is_faster(asked: Any) -> Any:
            if asked.draft is None:
                engine._count(asked.lookaheads)
                engine.timed.append(asked)
                return {0: [StepSeconds(0.0, 0.01, 0.001, asked.context)] * asked.steps}
            return loaded(asked)

        engine._time_steps = plain_is_faster  # type: ignore[method-assign]
        record = run(settings(), tmp_path)
        assert [(cell.lookahead, cell.batch, cell.context, cell.step_ms) for cell in record.plain] == [
            (0, b, c, pytest.approx(11.0)) for b in (1, 4) for c in (16, 64)
        ]
        idle = [cell for cell in record.cells if cell.lookahead == 0]
        assert [cell.step_ms for cell in idle] == [pytest.approx(13.0)] * 4
        assert ("live", None, 0) in engine.opened

    def test_both_engines_are_visited_in_every_round_in_either_order(
        self, tmp_path: Path, settings: Settings, engine: FakeEngine
    ) -> None:
        engine.idle_draft_is_free = False
        run(settings(timing={"min_rounds": 8, "max_rounds": 8}), tmp_path)
        drafts = [draft is None for _, draft, _ in engine.opened]
        rounds = list(zip(drafts[::2], drafts[1::2], strict=True))
        assert set(rounds) == {(True, False), (False, True)}
        assert len(rounds) == 8


class TestDrafts:
    def test_the_draft_is_loaded_for_the_longest_lookahead(
        self, tmp_path: Path, settings: Settings, draft: Path, engine: FakeEngine
    ) -> None:
        run(settings(), tmp_path)
        assert set(engine.opened) == {("live", ModelDraft(path=str(draft)), 3)}

    def test_without_a_draft_proposals_are_free(self, tmp_path: Path, settings: Settings, engine: FakeEngine) -> None:
        record = run(settings(draft=None), tmp_path)
        assert set(engine.opened) == {("live", None, 3)}
        assert (record.draft, record.draft_fingerprint, record.draft_shape) == (None, None, None)
        assert {cell.lookahead for cell in record.cells} == {0, 1, 3}

    def test_prompt_lookup(self, tmp_path: Path, settings: Settings, engine: FakeEngine) -> None:
        """It takes microseconds: what counts is verification."""
        record = run(settings(draft={"kind": "ngram", "max_ngram": 2}), tmp_path)
        assert set(engine.opened) == {("live", None, 3)}
        assert (record.draft, record.draft_fingerprint, record.draft_shape) == ("ngram", None, None)

    def test_a_shape_gets_random_weights_and_the_targets_tokenizer(
        self, tmp_path: Path, settings: Settings, target: Path, drawn: Path, engine: FakeEngine
    ) -> None:
        record = run(settings(draft={"kind": "model", "path": str(drawn)}), tmp_path)
        ((config, folder, tokenizer),) = engine.made
        assert (config, tokenizer) == (LLAMA | {"num_hidden_layers": 1, "dtype": "float32"}, target)
        assert {one.draft for one in engine.timed} == {ModelDraft(path=str(folder))}
        assert (record.draft, record.draft_shape) == ("drawn", shape(layers=1))

    @pytest.mark.parametrize(
        ("named", "asked", "dtype"),
        [("float16", "auto", "float16"), ("bfloat16", "float32", "float32"), (None, "auto", "float32")],
    )
    def test_random_weights_are_of_the_targets_type_unless_told_otherwise(
        self, tmp_path: Path, settings: Settings, drawn: Path, engine: FakeEngine, named: str | None, asked: str, dtype: str
    ) -> None:
        target = write_model(tmp_path / "typed", 3.0, json.dumps(LLAMA | {"dtype": named}))
        changes = {"target": str(target), "draft": {"kind": "model", "path": str(drawn)}}
        record = run(settings(**changes, engine={"kind": "fake", "dtype": asked}), tmp_path)
        assert (engine.made[0][0]["dtype"], record.dtype) == (dtype, dtype)

    def test_the_random_weights_are_gone_at_the_end_and_the_shape_is_as_it_was(
        self, tmp_path: Path, settings: Settings, drawn: Path, engine: FakeEngine
    ) -> None:
        folder = profile(settings(draft={"kind": "model", "path": str(drawn)}), Store(tmp_path))
        assert not engine.made[0][1].exists()
        assert list(folder.rglob("*.safetensors")) == []
        assert [path.name for path in drawn.iterdir()] == ["config.json"]

    def test_random_weights_are_made_once_for_an_interrupted_call_too(
        self, tmp_path: Path, settings: Settings, drawn: Path, engine: FakeEngine
    ) -> None:
        config = settings(draft={"kind": "model", "path": str(drawn)})
        engine.breaks_after = 5
        with pytest.raises(PowerCutError):
            run(config, tmp_path)
        engine.breaks_after = None
        run(config, tmp_path)
        assert len(engine.made) == 1

    def test_the_way_a_draft_is_named_does_not_matter(
        self, tmp_path: Path, settings: Settings, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = profile(settings(), Store(tmp_path / "runs"))
        monkeypatch.setenv("HOME", str(tmp_path))
        again = settings(draft={"kind": "model", "path": "~/draft"}, target="~/target")
        assert profile(again, Store(tmp_path / "runs")) == first

    def test_the_draft_has_a_name_wherever_we_stand(
        self, tmp_path: Path, settings: Settings, draft: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(draft)
        assert run(settings(draft={"kind": "model", "path": "."}), tmp_path).draft == "draft"


class TestRounds:
    def test_a_calm_machine_is_measured_no_longer_than_needed(
        self, tmp_path: Path, settings: Settings, engine: FakeEngine
    ) -> None:
        record = run(settings(timing={"min_rounds": 2, "max_rounds": 9}), tmp_path)
        assert {cell.rounds for cell in record.cells} == {2}

    def test_a_noisy_one_until_patience_ends_and_it_says_so(
        self, tmp_path: Path, settings: Settings, engine: FakeEngine, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine.time_step = drifting(*[1.0, 2.0] * 50, per_round=2 * 12)
        with caplog.at_level(logging.WARNING):
            record = run(settings(timing={"steps": 2, "min_rounds": 2, "max_rounds": 4}), tmp_path)
        assert {cell.rounds for cell in record.cells} == {4}
        error = np.std([1, 2, 1, 2], ddof=1) / 2 / 1.5
        assert [cell.error for cell in record.cells] == pytest.approx([error] * 12)
        assert f"after 4 rounds a cell is still uncertain by {100 * error:.1f}%" in caplog.text

    def test_one_that_calms_down_until_the_error_is_small_enough(
        self, tmp_path: Path, settings: Settings, engine: FakeEngine, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine.time_step = drifting(1.1, 1.0, per_round=2 * 12)
        record = run(settings(timing={"steps": 2, "min_rounds": 2, "max_rounds": 30, "tolerance": 0.02}), tmp_path)
        (rounds,) = {cell.rounds for cell in record.cells}
        factors = [1.1] + [1.0] * (rounds - 1)
        assert timing.relative_error(factors) <= 0.02 < timing.relative_error(factors[:-1])
        assert caplog.text == ""

    def test_more_rounds_than_there_may_be_are_not_run(self, tmp_path: Path, settings: Settings) -> None:
        record = run(settings(timing={"max_rounds": 2}), tmp_path)
        assert {cell.rounds for cell in record.cells} == {2}


class TestBusy:
    def others(self, monkeypatch: pytest.MonkeyPatch, *shares: float) -> None:
        left = list(shares)
        monkeypatch.setattr(timing, "others_share", lambda: left.pop(0) if left else 0.0)

    def test_others_on_the_machine_are_noted(self, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.others(monkeypatch, 0.0, 0.9, 0.0)
        assert run(settings(), tmp_path).busy

    def test_also_if_the_call_was_interrupted_after_they_had_gone(
        self, tmp_path: Path, settings: Settings, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.others(monkeypatch, 0.9)
        engine.breaks_after = 5  # in the second round
        with pytest.raises(PowerCutError):
            run(settings(), tmp_path)
        engine.breaks_after = None
        assert run(settings(), tmp_path).busy


class TestOnce:
    def test_the_second_call_does_nothing(self, tmp_path: Path, settings: Settings, plugins: Plugins) -> None:
        first = profile(settings(), Store(tmp_path))
        plugins.loaded.clear()
        assert profile(settings(), Store(tmp_path)) == first
        assert plugins.loaded == []

    @pytest.mark.parametrize("changes", [{"lookaheads": (1, 2)}, {"batches": (1,)}, {"draft": None}, {"timing": {"steps": 3}}])
    def test_another_question_is_another_profile(
        self, tmp_path: Path, settings: Settings, engine: FakeEngine, changes: dict[str, Any]
    ) -> None:
        assert profile(settings(**changes), Store(tmp_path)) != profile(settings(), Store(tmp_path))

    @pytest.mark.parametrize("different", [{"cpu": "another"}, {"bf16_units": None}, {"cores": 96}, {"gpus": ["one"]}])
    def test_so_is_another_machine(
        self,
        tmp_path: Path,
        settings: Settings,
        engine: FakeEngine,
        monkeypatch: pytest.MonkeyPatch,
        different: dict[str, Any],
    ) -> None:
        first = profile(settings(), Store(tmp_path))
        other = {**machine(), **different}
        monkeypatch.setattr("draftsmith.stages.profile.machine", lambda: other)
        assert profile(settings(), Store(tmp_path)) != first

    def test_an_interrupted_call_goes_on_with_the_round_it_was_in(
        self, tmp_path: Path, settings: Settings, plugins: Plugins
    ) -> None:
        whole = run(settings(), tmp_path / "whole")
        plugins.engines["fake"] = FakeEngine(breaks_after=6)
        with pytest.raises(PowerCutError):
            run(settings(), tmp_path / "broken")
        assert not list((tmp_path / "broken").rglob("record.json"))
        plugins.engines["fake"] = rest = FakeEngine()
        assert run(settings(), tmp_path / "broken") == whole
        assert len(rest.timed) == 2 * 4  # the first round was done, and the second begins anew

    def test_what_another_version_measured_is_not_mixed_in(self, tmp_path: Path, settings: Settings, plugins: Plugins) -> None:
        plugins.engines["fake"] = FakeEngine(breaks_after=6)
        with pytest.raises(PowerCutError):
            run(settings(), tmp_path)
        plugins.engines["fake"] = rest = FakeEngine(version="2")
        assert run(settings(), tmp_path).versions == {"fake": "2"}
        assert len(rest.timed) == 3 * 4

    @pytest.mark.parametrize("text", ['{"busy": false, "cells": [[true, 1, 1, 16, {"draft_ms": "fast"}]]}', '{"a": 1}', "[["])
    def test_a_damaged_round_is_refused(self, tmp_path: Path, settings: Settings, plugins: Plugins, text: str) -> None:
        plugins.engines["fake"] = FakeEngine(breaks_after=6)
        with pytest.raises(PowerCutError):
            run(settings(), tmp_path)
        (round_0,) = tmp_path.rglob("round-00.json")
        round_0.write_text(text)
        plugins.engines["fake"] = FakeEngine()
        with pytest.raises(DraftsmithError) as caught:
            run(settings(), tmp_path)
        assert str(round_0) in caught.value.problem


class TestRefused:
    @pytest.mark.parametrize("which", ["target", "draft"])
    def test_a_model_whose_shape_nobody_knows_before_anything_is_measured(
        self, tmp_path: Path, settings: Settings, engine: FakeEngine, which: str
    ) -> None:
        """Not after an hour of rounds."""
        folder = write_model(tmp_path / "strange", 2.0, '{"model_type": "strange"}')
        named: Any = str(folder) if which == "target" else {"kind": "model", "path": str(folder)}
        with pytest.raises(ModelError, match="does not say its num_hidden_layers"):
            run(settings(**{which: named}), tmp_path)
        assert engine.timed == []

    def test_a_target_without_weights(self, tmp_path: Path, settings: Settings, drawn: Path, engine: FakeEngine) -> None:
        with pytest.raises(ModelError, match="holds no safetensors weights"):
            run(settings(target=str(drawn)), tmp_path)
        assert engine.opened == []

    @pytest.mark.parametrize("name", ["target", "draft"])
    def test_a_model_that_is_not_there(self, tmp_path: Path, settings: Settings, name: str) -> None:
        missing = str(tmp_path / "nowhere")
        named: Any = missing if name == "target" else {"kind": "model", "path": missing}
        with pytest.raises(ModelError, match="is no model folder"):
            run(settings(**{name: named}), tmp_path)

    @pytest.mark.parametrize(
        "changes",
        [{"lookaheads": (0,)}, {"lookaheads": ()}, {"batches": (0,)}, {"batches": ()}, {"contexts": (0, 16)}, {"contexts": ()}],
    )
    def test_settings_that_cannot_be(self, settings: Settings, changes: dict[str, Any]) -> None:
        (name,) = changes
        with pytest.raises(ConfigError, match=name):
            settings(**changes)
