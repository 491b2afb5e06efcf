"""The picture of tokens per step: what it shows, and the files it becomes."""

import sys
from pathlib import Path
from typing import Any

import pytest

from draftsmith.core.errors import MissingDependencyError
from draftsmith.core.protocols import EngineConfig
from draftsmith.core.records import LiveCard, LiveCell
from draftsmith.core.sampling import Sampling
from draftsmith.figures.save import save_chart
from draftsmith.figures.tokens_per_step import tokens_per_step
from tests.unit.builders import assert_explains, curve, scorecard


def live_card(**tokens_per_step: float | None) -> LiveCard:
    """A live run with `k3=2.5`: 2.5 tokens per step at lookahead 3."""
    cells = tuple(
        LiveCell(
            lookahead=int(name[1:]),
            num_prompts=1,
            tokens=10,
            steps=5,
            tokens_per_step=ratio,
            seconds=1.0,
            tokens_per_second=10.0,
            counters={},
            accepted_per_position=(),
            phase_seconds={},
            differences=(),
        )
        for name, ratio in tokens_per_step.items()
    )
    card = scorecard()
    return LiveCard(
        trace=card.trace,
        target=card.target,
        draft=card.draft,
        draft_fingerprint=card.draft_fingerprint,
        sampling=Sampling(),
        engine=EngineConfig(kind="vllm"),
        split="test",
        versions={},
        cells=cells,
    )


def values(spec: dict[str, Any], mark: str) -> list[dict[str, Any]]:
    """The data behind the layer of this mark."""
    (layer,) = (layer for layer in spec["layer"] if layer["mark"]["type"] == mark)
    return layer.get("data", spec.get("data"))["values"]


class TestChart:
    def test_tokens_per_step_against_lookahead(self) -> None:
        spec = tokens_per_step(scorecard()).to_dict()
        (line,) = (layer for layer in spec["layer"] if layer["mark"]["type"] == "line")
        assert (line["encoding"]["x"]["field"], line["encoding"]["y"]["field"]) == ("lookahead", "tokens_per_step")
        points = [(entry["lookahead"], entry["tokens_per_step"]) for entry in values(spec, "line")]
        assert points == [(1, 1.5), (2, 1.75)]

    def test_the_band_is_two_standard_errors_wide(self) -> None:
        entries = values(tokens_per_step(scorecard(overall=curve(1.5, error=0.1))).to_dict(), "area")
        assert (entries[0]["low"], entries[0]["high"]) == (pytest.approx(1.3), pytest.approx(1.7))

    def test_one_prompt_has_no_band(self) -> None:
        (entry,) = values(tokens_per_step(scorecard(overall=curve(1.5, error=None))).to_dict(), "area")
        assert entry["low"] == entry["high"] == 1.5

    def test_several_data_sets_have_a_line_each(self) -> None:
        card = scorecard(by_dataset={"mmlu": curve(1.2), "chat": curve(1.8)})
        assert {entry["prompts"] for entry in values(tokens_per_step(card).to_dict(), "line")} == {"all", "mmlu", "chat"}

    def test_one_data_set_is_all_there_is(self) -> None:
        assert {entry["prompts"] for entry in values(tokens_per_step(scorecard()).to_dict(), "line")} == {"all"}

    def test_live_runs_are_crosses_and_what_drafted_nothing_is_none(self) -> None:
        spec = tokens_per_step(scorecard(), [live_card(k0=1.0, k3=2.5, k4=None)]).to_dict()
        assert values(spec, "point") == [{"engine": "vllm", "lookahead": 3, "tokens_per_step": 2.5}]
        assert "crosses: live runs" in spec["title"]["subtitle"]

    @pytest.mark.parametrize(
        ("draft", "name"),
        [
            ({"kind": "model", "path": "models/small/"}, "small"),
            ({"kind": "model", "path": "org/small"}, "small"),
            ({"kind": "ngram"}, "prompt lookup"),
        ],
    )
    def test_the_title_names_draft_target_and_split(self, draft: dict[str, str], name: str) -> None:
        title = tokens_per_step(scorecard(draft=draft)).to_dict()["title"]
        assert title["text"] == f"{name} drafting for target"
        assert title["subtitle"].startswith("10 prompts of the test split")


def test_it_becomes_a_picture_a_drawing_and_a_page(tmp_path: Path) -> None:
    paths = save_chart(tokens_per_step(scorecard()), tmp_path, "chart")
    assert [path.name for path in paths] == ["chart.png", "chart.svg", "chart.html"]
    png, svg, page = (path.read_bytes() for path in paths)
    assert png.startswith(b"\x89PNG")
    assert b"<svg" in svg[:200]
    assert b"tokens per step" in svg
    assert b"</html>" in page
    assert b'src="http' not in page  # it opens without a network
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in paths}


def test_without_altair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(MissingDependencyError) as caught:
        tokens_per_step(scorecard())
    assert_explains(caught.value, "pictures need Altair", way_out="pip install 'draftsmith[report]'")


def test_without_vl_convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chart = tokens_per_step(scorecard())
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingDependencyError) as caught:
        save_chart(chart, tmp_path, "chart")
    assert_explains(caught.value, "pictures need vl-convert", way_out="pip install 'draftsmith[report]'")
    assert list(tmp_path.iterdir()) == []
