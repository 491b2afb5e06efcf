"""The pictures of a prediction: what they show, with units on their axes."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftsmith.core.config import parse_config
from draftsmith.core.records import Prediction
from draftsmith.core.store import Store, read_record
from draftsmith.figures.prediction import break_even, page_sections, step_split, throughput
from draftsmith.figures.save import save_chart, svg
from draftsmith.stages.predict import PredictConfig, predict
from tests.unit.builders import curve, profile_record, save_record, scorecard


@pytest.fixture
def from_records(tmp_path: Path) -> Prediction:
    """Lookaheads 1 to 4, batch sizes 1 and 4, contexts 128 and 1024."""
    profile = save_record(tmp_path / "profile", profile_record(contexts=(128, 1024)))
    card = save_record(tmp_path / "card", scorecard(overall=curve(1.5, 1.9, 2.2, 2.4, error=0.15)))
    asked = parse_config(PredictConfig, {"profile": str(profile), "scorecard": str(card)}, "the settings")
    return read_record(Prediction, predict(asked, Store(tmp_path)))


@pytest.fixture
def from_numbers(tmp_path: Path) -> Callable[..., Prediction]:
    def build(**changes: float) -> Prediction:
        numbers = {"plain_ms": 20.0, "draft_ms": 2.0, "overhead_ms": 1.0} | changes
        asked = {"numbers": numbers, "tokens_per_step": {1: 1.6, 3: 2.5}}
        return read_record(Prediction, predict(parse_config(PredictConfig, asked, "the settings"), Store(tmp_path)))

    return build


def axes(chart: Any) -> set[str]:
    """The titles of all axes, as a reader sees them."""
    return set(re.findall(r"[XY]-axis titled '([^']*)'", svg(chart, dark=False)))


def layers(chart: Any, mark: str) -> list[list[dict[str, Any]]]:
    """The data behind this mark, a list a panel."""
    spec = chart.to_dict()
    return [
        (layer.get("data") or panel.get("data") or spec["data"])["values"]
        for panel in spec["hconcat"]
        for layer in panel.get("layer", [panel])
        if layer["mark"]["type"] == mark
    ]


class TestThroughput:
    def test_its_axes_have_units(self, from_records: Prediction) -> None:
        assert axes(throughput(from_records)) == {"lookahead (tokens proposed per step)", "tokens per second"}

    def test_a_panel_a_context_with_every_point(self, from_records: Prediction) -> None:
        panels = layers(throughput(from_records), "line")
        assert len(panels) == 2
        for panel, context in zip(panels, (128, 1024), strict=True):
            expected = {(p.lookahead, str(p.batch), p.tokens_per_second) for p in from_records.points if p.context == context}
            assert {(one["lookahead"], one["batch"], one["tokens_per_second"]) for one in panel} == expected

    def test_the_band_is_two_standard_errors_wide(self, from_records: Prediction) -> None:
        (first, *_), _ = layers(throughput(from_records), "area")
        assert first["low"] == pytest.approx(first["tokens_per_second"] * (1 - 2 * 0.1))
        assert first["high"] == pytest.approx(first["tokens_per_second"] * (1 + 2 * 0.1))

    def test_dashed_is_plain_decoding(self, from_records: Prediction) -> None:
        for panel in layers(throughput(from_records), "rule"):
            assert {(one["batch"], round(one["plain"], 6)) for one in panel} == {("1", 100.0), ("4", 400.0)}

    def test_a_large_error_leaves_the_picture_whole(self, from_records: Prediction) -> None:
        """Its axis is logarithmic: a band that reaches zero would take everything else with it."""
        points = tuple(point.model_copy(update={"error": 0.6}) for point in from_records.points)
        chart = throughput(from_records.model_copy(update={"points": points}))
        assert all(one["low"] > 0 for panel in layers(chart, "area") for one in panel)

    def test_batch_sizes_are_in_order(self, tmp_path: Path) -> None:
        profile = save_record(tmp_path / "profile", profile_record(batches=(1, 2, 16)))
        asked = parse_config(PredictConfig, {"profile": str(profile), "acceptance": 0.5}, "the settings")
        text = svg(throughput(read_record(Prediction, predict(asked, Store(tmp_path)))), dark=False)
        assert "with 3 values: 1, 2, 16" in text

    def test_the_title_names_draft_target_and_engine(self, from_records: Prediction) -> None:
        assert throughput(from_records).to_dict()["title"]["text"] == "draft drafting for target on fake"

    def test_typed_numbers_have_no_context(self, from_numbers: Callable[..., Prediction]) -> None:
        (panel,) = throughput(from_numbers()).to_dict()["hconcat"]
        assert panel["title"] == "any context"


class TestStepSplit:
    def test_its_axes_have_units(self, from_records: Prediction) -> None:
        assert axes(step_split(from_records)) == {"lookahead (tokens proposed per step)", "milliseconds per step"}

    def test_the_phases_of_every_point(self, from_records: Prediction) -> None:
        spec = step_split(from_records).to_dict()
        values = spec["data"]["values"] if "data" in spec else spec["spec"]["data"]["values"]
        assert len(values) == 3 * len(from_records.points)
        at = {(one["place"], one["lookahead"], one["phase"]): one["milliseconds"] for one in values}
        assert at["batch 4, context 1024", 3, "draft"] == pytest.approx(3.0)
        assert at["batch 1, context 128", 3, "verify"] == pytest.approx(10.0)
        assert at["batch 1, context 128", 1, "overhead"] == pytest.approx(1.0)


class TestBreakEven:
    def test_its_axes_have_units(self, from_records: Prediction) -> None:
        assert axes(break_even(from_records)) == {"lookahead (tokens proposed per step)", "tokens per step"}

    def test_what_is_needed_and_what_there_is(self, from_records: Prediction) -> None:
        panel, _ = layers(break_even(from_records), "line")
        at = {(one["line"], one["lookahead"]): one["tokens_per_step"] for one in panel}
        assert at["this draft has", 3] == 2.2
        assert at["needed at batch 4", 3] == pytest.approx(1.4)
        assert at["most there can be", 3] == 4

    def test_where_nothing_would_do_no_line_is_drawn(self, from_numbers: Callable[..., Prediction]) -> None:
        (panel,) = layers(break_even(from_numbers(draft_ms=500.0)), "line")
        assert {one["line"] for one in panel} == {"this draft has", "most there can be"}


class TestPage:
    def test_the_answer_first_and_every_point_at_the_end(self, from_records: Prediction) -> None:
        sections = page_sections(from_records)
        assert sections[0].heading == "How many tokens ahead"
        assert [row[:3] for row in sections[0].rows] == [
            (str(one.context), str(one.batch), str(one.lookahead)) for one in from_records.schedule
        ]
        assert len(sections[-1].rows) == len(from_records.points)
        assert sum(section.chart is not None for section in sections) == 3
        for section in sections:
            assert all(len(row) == len(section.columns) for row in section.rows)

    def test_typed_numbers_hold_for_any_context(self, from_numbers: Callable[..., Prediction]) -> None:
        """Not for a context of no tokens."""
        for section in page_sections(from_numbers()):
            if "context" in section.columns:
                at = list(section.columns).index("context")
                assert {row[at] for row in section.rows} == {"any"}

    def test_where_there_is_no_answer_it_says_why(self, from_numbers: Callable[..., Prediction]) -> None:
        (first, _) = page_sections(from_numbers(draft_ms=500.0))[-1].rows
        assert first[-1].startswith("none: it would take")


def test_they_become_pictures(tmp_path: Path, from_records: Prediction) -> None:
    paths = save_chart(step_split(from_records), tmp_path / "pictures", "split", page=False)
    assert [path.name for path in paths] == ["split.png", "split.svg"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
