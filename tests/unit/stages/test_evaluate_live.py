"""Live runs: one cell a lookahead, compared with the recorded outputs token by token."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from draftsmith.core.checkpoints import model_fingerprint
from draftsmith.core.config import parse_config
from draftsmith.core.errors import ConfigError, ModelError
from draftsmith.core.protocols import Limits, LiveRow, ModelDraft, NgramDraft, Request
from draftsmith.core.records import Difference, LiveCard
from draftsmith.core.sampling import Sampling
from draftsmith.core.store import Store, read_record, write_json
from draftsmith.stages.evaluate_live import EvaluateLiveConfig, evaluate_live, first_difference
from tests.unit.builders import FakeEngine, Plugins, PowerCutError, assert_explains, ints, trace_row, write_model, write_trace

ROWS = [
    trace_row("a", [11, 12, 13, 14]),
    trace_row("b", [21, 22, 23], prompt_ids=ints(7), seed=8),
    trace_row("c", [31, 1, 99], num_output=2, finish_reason="eos", prompt_ids=ints(9)),
]
OUTPUTS = {tuple(row.prompt_ids): row.output_ids[: row.num_output] for row in ROWS}


def faithful(request: Request, lookahead: int, limits: Limits) -> LiveRow:
    """Writes what was recorded, lookahead + 1 tokens a step."""
    output = OUTPUTS[tuple(request.prompt_ids)]
    full, rest = divmod(len(output), lookahead + 1)
    return LiveRow(output, ints(*[lookahead + 1] * full, *[rest] * bool(rest)), "length")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_model(tmp_path / "target", 1.0)


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return write_model(tmp_path / "draft")


@pytest.fixture
def settings(tmp_path: Path, target: Path, draft: Path, engine: FakeEngine) -> Callable[..., EvaluateLiveConfig]:
    engine.live_row = faithful
    trace = write_trace(tmp_path / "trace", [ROWS[:2], ROWS[2:]], model_fingerprint=model_fingerprint(target))

    def build(**changes: Any) -> EvaluateLiveConfig:
        values = {
            "trace": str(trace),
            "target": str(target),
            "draft": {"kind": "model", "path": str(draft)},
            "lookaheads": (0, 1, 3),
            "engine": {"kind": "fake"},
        }
        return parse_config(EvaluateLiveConfig, values | changes, "the settings")

    return build


Settings = Callable[..., EvaluateLiveConfig]


def run(config: EvaluateLiveConfig, folder: Path) -> LiveCard:
    return read_record(LiveCard, evaluate_live(config, Store(folder)))


class TestCells:
    def test_tokens_and_steps_are_counted(self, tmp_path: Path, settings: Settings) -> None:
        """Outputs of 4, 3 and 2 tokens."""
        cells = run(settings(), tmp_path).cells
        assert [cell.lookahead for cell in cells] == [0, 1, 3]
        assert [cell.steps for cell in cells] == [9, 2 + 2 + 1, 1 + 1 + 1]
        assert [cell.tokens_per_step for cell in cells] == [1, pytest.approx(9 / 5), 3]
        for cell in cells:
            assert (cell.num_prompts, cell.tokens, cell.seconds, cell.tokens_per_second) == (3, 9, 2.0, 4.5)
            assert cell.differences == ()

    def test_a_first_token_from_prefill_is_no_steps(self, tmp_path: Path, settings: Settings, engine: FakeEngine) -> None:
        engine.first_drafted = 1
        assert run(settings(lookaheads=(1,)), tmp_path).cells[0].tokens_per_step == pytest.approx((9 - 3) / 5)

    def test_no_step_no_tokens_per_step(self, tmp_path: Path, settings: Settings, engine: FakeEngine) -> None:
        """The prefill wrote the only token there is."""
        engine.first_drafted = 1
        engine.live_row = lambda request, lookahead, limits: LiveRow(ints(11), ints(), "length")
        cell = run(settings(lookaheads=(1,)), tmp_path).cells[0]
        assert (cell.tokens, cell.steps, cell.tokens_per_step) == (3, 0, None)

    def test_the_engines_own_counters_are_kept(self, tmp_path: Path, settings: Settings) -> None:
        cell = run(settings(lookaheads=(1,)), tmp_path).cells[0]
        assert (cell.counters, cell.accepted_per_position, cell.phase_seconds) == ({"drafts": 3}, (2, 1), {"draft": 0.5})

    @pytest.mark.parametrize(("decoded", "speed"), [((6, 1.5), 4.0), ((0, 0.0), None)])
    def test_throughput_of_the_steps_in_which_nothing_was_prefilled(
        self, tmp_path: Path, settings: Settings, engine: FakeEngine, decoded: tuple[int, float], speed: float | None
    ) -> None:
        engine.decoded = decoded
        assert run(settings(lookaheads=(1,)), tmp_path).cells[0].decode_tokens_per_second == speed

    def test_plain_decoding_loads_no_draft(self, tmp_path: Path, settings: Settings, draft: Path, engine: FakeEngine) -> None:
        run(settings(lookaheads=(0, 3)), tmp_path)
        assert engine.opened == [("live", None, 0), ("live", ModelDraft(path=str(draft)), 3)]

    def test_prompt_lookup(self, tmp_path: Path, settings: Settings, engine: FakeEngine) -> None:
        card = run(settings(draft={"kind": "ngram", "max_ngram": 2}, lookaheads=(1,)), tmp_path)
        assert engine.opened == [("live", NgramDraft(max_ngram=2), 1)]
        assert card.draft_fingerprint is None

    @pytest.mark.parametrize(("changes", "shift"), [({}, 1), ({"seed_shift": 0}, 0), ({"seed_shift": 5}, 5)])
    def test_prompts_and_ends_are_the_recorded_ones_and_seeds_are_shifted(
        self, tmp_path: Path, settings: Settings, engine: FakeEngine, changes: dict[str, int], shift: int
    ) -> None:
        seen: list[tuple[Any, ...]] = []

        def look(request: Request, lookahead: int, limits: Limits) -> LiveRow:
            seen.append((request.prompt_ids.tolist(), request.seed - shift, limits))
            return faithful(request, lookahead, limits)

        engine.live_row = look
        run(settings(lookaheads=(1,), **changes), tmp_path)
        limits = Limits(16, (1,))
        assert seen == [([100, 101], 7, limits), ([7], 8, limits), ([9], 7, limits)]

    def test_outputs_and_steps_are_kept_beside_the_card(self, tmp_path: Path, settings: Settings) -> None:
        folder = evaluate_live(settings(), Store(tmp_path))
        table = pq.read_table(folder / "lookahead-03.parquet").to_pydict()
        assert table["prompt_id"] == ["a", "b", "c"]
        assert table["output_ids"] == [[11, 12, 13, 14], [21, 22, 23], [31, 1]]
        assert table["step_tokens"] == [[4], [3], [2]]

    def test_the_card_says_what_was_run(self, tmp_path: Path, settings: Settings, draft: Path) -> None:
        card = run(settings(), tmp_path)
        assert (card.target, card.split, card.versions, card.sampling) == ("target", "test", {"fake": "1"}, Sampling())
        assert (card.engine.kind, card.draft_fingerprint) == ("fake", model_fingerprint(draft))


class TestDifferences:
    def test_each_prompts_first_one_is_listed(self, tmp_path: Path, settings: Settings, engine: FakeEngine) -> None:
        def stray(request: Request, lookahead: int, limits: Limits) -> LiveRow:
            output = OUTPUTS[tuple(request.prompt_ids)].copy()
            if lookahead and request.prompt_ids[0] != 7:
                output[1:] = 50
            return LiveRow(output, ints(len(output)), "length")

        engine.live_row = stray
        plain, speculative, _ = run(settings(), tmp_path).cells
        assert plain.differences == ()
        assert speculative.differences == (
            Difference(prompt_id="a", position=1, live_token=50, recorded_token=12),
            Difference(prompt_id="c", position=1, live_token=50, recorded_token=1),
        )

    @pytest.mark.parametrize(
        ("live", "expected"),
        [
            ([11, 12, 13], None),
            ([99, 12, 99], (0, 99, 11)),
            ([11, 12, 99], (2, 99, 13)),
            ([11, 12], (2, None, 13)),
            ([], (0, None, 11)),
            ([11, 12, 13, 14], (3, 14, None)),  # the recorded 14 is the tail
        ],
    )
    def test_where_the_first_one_is(self, live: list[int], expected: tuple[int, int | None, int | None] | None) -> None:
        row = trace_row("a", [11, 12, 13, 14], num_output=3)
        found = first_difference(row, LiveRow(ints(*live), ints(), "length"))
        assert (found and (found.position, found.live_token, found.recorded_token)) == expected


class TestOnce:
    def test_the_second_call_does_nothing(self, tmp_path: Path, settings: Settings, plugins: Plugins) -> None:
        first = evaluate_live(settings(), Store(tmp_path))
        plugins.loaded.clear()
        assert evaluate_live(settings(), Store(tmp_path)) == first
        assert plugins.loaded == []

    def test_an_interrupted_call_runs_only_the_missing_cells(
        self, tmp_path: Path, settings: Settings, plugins: Plugins
    ) -> None:
        whole = run(settings(), tmp_path / "whole")
        plugins.engines["fake"] = FakeEngine(live_row=faithful, breaks_after=1)
        with pytest.raises(PowerCutError):
            run(settings(), tmp_path / "broken")
        plugins.engines["fake"] = rest = FakeEngine(live_row=faithful)
        assert run(settings(), tmp_path / "broken") == whole
        assert [lookahead for _, _, lookahead in rest.opened] == [1, 3]

    def test_a_damaged_cell_is_refused(self, tmp_path: Path, settings: Settings, plugins: Plugins) -> None:
        plugins.engines["fake"] = FakeEngine(live_row=faithful, breaks_after=1)
        with pytest.raises(PowerCutError):
            run(settings(), tmp_path)
        (cell,) = tmp_path.glob("live/*/lookahead-00.json")
        write_json(cell, {"lookahead": 0})
        plugins.engines["fake"] = FakeEngine(live_row=faithful)
        with pytest.raises(ConfigError) as caught:
            run(settings(), tmp_path)
        assert_explains(caught.value, f"{cell} cannot be used", "tokens_per_step", way_out="correct it")


class TestRefused:
    def test_another_target(self, tmp_path: Path, settings: Settings, plugins: Plugins) -> None:
        other = write_model(tmp_path / "other", 2.0)
        with pytest.raises(ModelError) as caught:
            run(settings(target=str(other)), tmp_path)
        assert_explains(caught.value, other, "not the model that wrote the trace (target)", way_out="give the recorded target")
        assert plugins.loaded == []

    def test_a_copy_of_the_target_is_the_target(self, tmp_path: Path, settings: Settings) -> None:
        copy = write_model(tmp_path / "copy", 1.0)
        assert run(settings(target=str(copy)), tmp_path).target == "target"

    def test_a_negative_lookahead(self, tmp_path: Path, settings: Settings) -> None:
        with pytest.raises(ConfigError, match=r"lookaheads.*greater than or equal to 0"):
            run(settings(lookaheads=(-1,)), tmp_path)

    def test_the_engine_is_given_the_folder_of_the_draft(
        self, tmp_path: Path, settings: Settings, draft: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        run(settings(draft={"kind": "model", "path": "~/draft"}, lookaheads=(3,)), tmp_path)
        ((_, given, _),) = engine.opened
        assert Path(given.path) == draft
