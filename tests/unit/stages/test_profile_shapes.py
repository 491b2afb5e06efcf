"""Profiling shapes: each made with random weights, measured side by side, and once only."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftsmith.core import timing
from draftsmith.core.config import parse_config
from draftsmith.core.errors import ConfigError, DraftsmithError, ModelError
from draftsmith.core.protocols import StepSeconds
from draftsmith.core.records import ShapeProfile
from draftsmith.core.store import Store, read_record
from draftsmith.stages.profile_shapes import ProfileShapesConfig, profile_shapes
from tests.unit.builders import LLAMA, FakeEngine, Plugins, PowerCutError, assert_explains, shape

Settings = Callable[..., ProfileShapesConfig]
pytestmark = pytest.mark.usefixtures("quiet")

DEPTH = [{"num_hidden_layers": layers} for layers in (1, 2, 4)]
WIDTH = [{"hidden_size": 64, "intermediate_size": 128}, {"num_hidden_layers": 2}]  # the second one is the usual Llama


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shapes.yaml"
    path.write_text(yaml.safe_dump({"architecture": LLAMA, "groups": {"depth": DEPTH, "width": WIDTH}}))
    return path


@pytest.fixture
def settings(file: Path, engine: FakeEngine) -> Settings:
    def build(**changes: Any) -> ProfileShapesConfig:
        values: dict[str, Any] = {
            "shapes": str(file),
            "batches": (1, 4),
            "contexts": (16,),
            "timing": {"steps": 2, "min_rounds": 2, "max_rounds": 4},
            "engine": {"kind": "fake", "max_model_len": 256},
        }
        return parse_config(ProfileShapesConfig, values | changes, "the settings")

    return build


def run(config: ProfileShapesConfig, folder: Path) -> ShapeProfile:
    return read_record(ShapeProfile, profile_shapes(config, Store(folder)))


def by_depth(engine: FakeEngine) -> None:
    """A millisecond a layer, and one that no layer takes."""

    def timed(asked: Any) -> dict[int, list[StepSeconds]]:
        engine._count(asked.lookaheads)
        engine.timed.append(asked)
        layers = json.loads((asked.target / "config.json").read_text())["num_hidden_layers"]
        return {0: [StepSeconds(0.0, 0.001 * layers, 0.001, asked.context + 2.0)] * asked.steps}

    engine._time_steps = timed  # type: ignore[method-assign]


class TestCells:
    def test_every_shape_batch_and_context_is_there(self, tmp_path: Path, settings: Settings) -> None:
        cells = run(settings(contexts=(16, 64)), tmp_path).cells
        places = [(cell.group, cell.shape.layers, cell.shape.hidden, cell.batch, cell.context) for cell in cells]
        assert places == [
            (group, layers, hidden, b, c)
            for group, layers, hidden in (
                ("depth", 1, 32),
                ("depth", 2, 32),
                ("depth", 4, 32),
                ("width", 2, 64),
                ("width", 2, 32),
            )
            for b in (1, 4)
            for c in (19, 67)
        ]

    def test_the_figures_are_the_engines(self, tmp_path: Path, settings: Settings, engine: FakeEngine) -> None:
        by_depth(engine)
        for cell in run(settings(), tmp_path).cells:
            assert (cell.forward_ms, cell.step_ms) == pytest.approx((cell.shape.layers, cell.shape.layers + 1))
            assert cell.median_ms == pytest.approx(cell.step_ms)
            assert (cell.rounds, cell.context) == (2, 18)

    def test_a_shape_of_two_groups_is_measured_once(self, tmp_path: Path, settings: Settings, engine: FakeEngine) -> None:
        cells = run(settings(), tmp_path).cells
        assert len(engine.made) == 4
        assert len(engine.timed) == 2 * 4 * 2  # rounds, shapes, batch sizes
        twice = [cell for cell in cells if cell.shape == shape()]
        assert [cell.group for cell in twice] == ["depth", "depth", "width", "width"]
        assert [cell.step_ms for cell in twice[:2]] == [cell.step_ms for cell in twice[2:]]

    def test_each_is_plain_decoding_of_a_model_with_no_tokenizer(
        self, tmp_path: Path, settings: Settings, engine: FakeEngine
    ) -> None:
        run(settings(), tmp_path)
        assert set(engine.opened) == {("live", None, 0)}
        assert [config for config, _, tokenizer in engine.made if tokenizer is None] == [config for config, _, _ in engine.made]
        assert LLAMA | {"num_hidden_layers": 4} in [config for config, _, _ in engine.made]

    def test_rounds_visit_all_shapes_in_an_order_of_their_own(
        self, tmp_path: Path, settings: Settings, engine: FakeEngine
    ) -> None:
        run(settings(batches=(1,), timing={"min_rounds": 5, "max_rounds": 5}), tmp_path)
        orders = [tuple(one.target.name for one in engine.timed[low : low + 4]) for low in range(0, 20, 4)]
        assert {tuple(sorted(order)) for order in orders} == {("000", "001", "002", "003")}
        assert len(set(orders)) > 1

    def test_a_noisy_machine_until_patience_ends(self, tmp_path: Path, settings: Settings, engine: FakeEngine) -> None:
        ticks = iter(range(1000))
        engine.time_step = lambda k, b, c: StepSeconds(0.0, 0.01 * (1 + next(ticks) % 7), 0.0, c)
        record = run(settings(timing={"steps": 1, "min_rounds": 2, "max_rounds": 4}), tmp_path)
        assert {cell.rounds for cell in record.cells} == {4}

    def test_what_the_record_says_of_itself(self, tmp_path: Path, settings: Settings) -> None:
        record = run(settings(), tmp_path)
        assert (record.architecture, record.engine.kind, record.versions) == ("llama", "fake", {"fake": "1"})
        assert "load" not in record.machine
        assert not record.busy

    def test_the_random_weights_are_gone_at_the_end(self, tmp_path: Path, settings: Settings, engine: FakeEngine) -> None:
        folder = profile_shapes(settings(), Store(tmp_path))
        assert list(folder.rglob("*.safetensors")) == []
        assert not any(made.exists() for _, made, _ in engine.made)


class TestMemory:
    """How often an engine is opened says what was loaded together: there are four shapes and three rounds."""

    @pytest.fixture
    def three_rounds(self, settings: Settings) -> Settings:
        room = {"kind": "fake", "dtype": "bfloat16", "max_model_len": 16}
        return partial(settings, batches=(3,), timing={"steps": 1, "min_rounds": 3, "max_rounds": 3}, engine=room)

    def test_shapes_that_fit_are_loaded_once(self, tmp_path: Path, three_rounds: Settings, engine: FakeEngine) -> None:
        run(three_rounds(), tmp_path)
        assert len(engine.opened) == 4

    def test_shapes_that_do_not_fit_take_turns(self, tmp_path: Path, three_rounds: Settings, engine: FakeEngine) -> None:
        run(three_rounds(at_once_gb=1e-9), tmp_path)
        assert len(engine.opened) > 2 * 4  # the last of a round may be the first of the next
        assert len(engine.timed) == 3 * 4

    @pytest.mark.parametrize(("several_at_once", "ranks"), [(False, 1), (True, 2)])
    def test_an_engine_that_wants_the_machine_for_itself(
        self, tmp_path: Path, three_rounds: Settings, engine: FakeEngine, several_at_once: bool, ranks: int
    ) -> None:
        engine.several_at_once = several_at_once
        run(three_rounds(engine={"kind": "fake", "max_model_len": 16, "tensor_parallel": ranks}), tmp_path)
        assert len(engine.opened) > 2 * 4

    @pytest.mark.parametrize(("share", "loaded_once"), [(1.001, True), (0.999, False)])
    def test_weights_count_twice_and_so_does_the_cache_that_rows_can_fill(
        self, tmp_path: Path, three_rounds: Settings, engine: FakeEngine, share: float, loaded_once: bool
    ) -> None:
        shapes = [shape(layers=1), shape(), shape(layers=4), shape(hidden=64, head_size=16, intermediate=128)]
        needed = sum(2 * one.weight_bytes("bfloat16") + 2 * 3 * 16 * one.kv_bytes_per_token("bfloat16") for one in shapes)
        run(three_rounds(at_once_gb=share * needed / 2**30), tmp_path)
        assert (len(engine.opened) == 4) == loaded_once

    def test_a_cache_is_not_made_larger_than_was_asked_for(
        self, tmp_path: Path, three_rounds: Settings, engine: FakeEngine
    ) -> None:
        room = {"kind": "fake", "kv_cache_gb": 1}  # a shape that does not say its longest text
        run(three_rounds(engine=room, at_once_gb=4.1), tmp_path)
        assert len(engine.opened) == 4


class TestOnce:
    def test_the_second_call_does_nothing(self, tmp_path: Path, settings: Settings, plugins: Plugins) -> None:
        first = profile_shapes(settings(), Store(tmp_path))
        plugins.loaded.clear()
        assert profile_shapes(settings(), Store(tmp_path)) == first
        assert plugins.loaded == []

    def test_the_files_name_does_not_matter_and_what_it_says_does(self, tmp_path: Path, settings: Settings, file: Path) -> None:
        first = profile_shapes(settings(), Store(tmp_path))
        copy = tmp_path / "copy.yaml"
        copy.write_text("# the same\n" + file.read_text())
        assert profile_shapes(settings(shapes=str(copy)), Store(tmp_path)) == first
        file.write_text(yaml.safe_dump({"architecture": LLAMA, "groups": {"depth": DEPTH}}))
        assert profile_shapes(settings(), Store(tmp_path)) != first

    def test_an_interrupted_call_goes_on_with_the_round_it_was_at(
        self, tmp_path: Path, settings: Settings, plugins: Plugins
    ) -> None:
        whole = run(settings(), tmp_path / "whole")
        plugins.engines["fake"] = FakeEngine(breaks_after=11)  # one round is done, the second is not
        with pytest.raises(PowerCutError):
            run(settings(), tmp_path / "broken")
        plugins.engines["fake"] = rest = FakeEngine()
        assert run(settings(), tmp_path / "broken") == whole
        assert len(rest.timed) == 4 * 2
        assert rest.made == []  # all had their weights already

    def test_an_interrupted_call_goes_on_with_the_shape_it_was_at_if_they_are_loaded_one_by_one(
        self, tmp_path: Path, settings: Settings, plugins: Plugins
    ) -> None:
        alone = settings(at_once_gb=1e-9)
        whole = run(alone, tmp_path / "whole")
        plugins.engines["fake"] = FakeEngine(breaks_after=5)  # two shapes are done, the third is not
        with pytest.raises(PowerCutError):
            run(alone, tmp_path / "broken")
        plugins.engines["fake"] = rest = FakeEngine()
        assert run(alone, tmp_path / "broken") == whole
        assert len(rest.timed) == (2 * 4 - 2) * 2
        assert len(rest.made) == 1  # three had their weights already

    def test_others_on_the_machine_are_noted_even_if_interrupted_later(
        self, tmp_path: Path, settings: Settings, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shares = [0.9]
        monkeypatch.setattr(timing, "others_share", lambda: shares.pop() if shares else 0.0)
        engine.breaks_after = 9  # in the second round
        with pytest.raises(PowerCutError):
            run(settings(), tmp_path)
        engine.breaks_after = None
        assert run(settings(), tmp_path).busy

    def test_others_on_the_machine_are_noted(self, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        shares = [0.0, 0.9]
        monkeypatch.setattr(timing, "others_share", lambda: shares.pop(0) if shares else 0.0)
        assert run(settings(), tmp_path).busy


class TestRefused:
    def test_a_file_that_is_not_there(self, tmp_path: Path, settings: Settings) -> None:
        with pytest.raises(ConfigError, match="there is no configuration file"):
            run(settings(shapes=str(tmp_path / "nowhere.yaml")), tmp_path)

    @pytest.mark.parametrize(
        ("values", "problem"),
        [
            ({"architecture": LLAMA}, "groups is missing"),
            ({"groups": {"depth": DEPTH}}, "architecture is missing"),
            ({"architecture": LLAMA, "groups": {}}, "groups should have"),
            ({"architecture": LLAMA, "group": {"depth": DEPTH}}, "did you mean 'groups'?"),
            ({"architecture": LLAMA, "groups": {"depth": [3]}}, "depth"),
        ],
    )
    def test_a_file_of_something_else(
        self, tmp_path: Path, settings: Settings, file: Path, values: dict[str, Any], problem: str
    ) -> None:
        file.write_text(yaml.safe_dump(values))
        with pytest.raises(ConfigError) as caught:
            run(settings(), tmp_path)
        assert_explains(caught.value, file, problem, way_out="correct it; the settings are architecture, groups")

    @pytest.mark.timeout(3)
    def test_groups_with_nothing_in_them(self, tmp_path: Path, settings: Settings, file: Path) -> None:
        file.write_text(yaml.safe_dump({"architecture": LLAMA, "groups": {"depth": []}}))
        with pytest.raises(DraftsmithError, match="depth"):
            run(settings(), tmp_path)

    def test_a_shape_that_lacks_something(self, tmp_path: Path, settings: Settings, file: Path, engine: FakeEngine) -> None:
        lacking = {name: value for name, value in LLAMA.items() if name != "vocab_size"}
        file.write_text(yaml.safe_dump({"architecture": lacking, "groups": {"depth": DEPTH}}))
        with pytest.raises(ModelError) as caught:
            run(settings(), tmp_path)
        assert_explains(caught.value, "a shape of 'depth'", file, "vocab_size", way_out="add it")
        assert engine.made == []

    @pytest.mark.parametrize("own", [{"num_hidden_layers": 0}, {"hidden_size": "wide"}, {"vocab_size": -5}])
    def test_a_shape_that_cannot_be(self, tmp_path: Path, settings: Settings, file: Path, own: dict[str, Any]) -> None:
        file.write_text(yaml.safe_dump({"architecture": LLAMA, "groups": {"odd": [own]}}))
        with pytest.raises(DraftsmithError) as caught:
            run(settings(), tmp_path)
        assert "a shape of 'odd'" in caught.value.problem

    @pytest.mark.parametrize("changes", [{"batches": ()}, {"batches": (0,)}, {"contexts": (0,)}])
    def test_settings_that_cannot_be(self, settings: Settings, changes: dict[str, Any]) -> None:
        (name,) = changes
        with pytest.raises(ConfigError, match=name):
            settings(**changes)
