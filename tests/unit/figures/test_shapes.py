"""The picture of shapes: time against what a group varies, and the line through it."""

import re
import warnings
from typing import Any

import pytest

from draftsmith.figures.save import svg
from draftsmith.figures.shapes import shapes, varied_axis
from tests.unit.builders import shape, shape_cell, shape_profile

DEPTH = [shape_cell("depth", 1.0 + 0.5 * layers, shape(layers=layers)) for layers in (2, 4, 8)]
WIDTH = [shape_cell("width", 3.0 + hidden / 1000, shape(hidden=hidden, intermediate=2 * hidden)) for hidden in (32, 64, 256)]


def panels(*cells: Any) -> dict[str, Any]:
    """By the group's name."""
    return {panel["title"]["text"]: panel for panel in shapes(shape_profile(*cells)).to_dict()["concat"]}


def values(panel: Any, mark: str) -> list[dict[str, Any]]:
    (layer,) = (layer for layer in panel["layer"] if layer["mark"]["type"] == mark)
    return layer["data"]["values"]


def test_a_panel_a_group() -> None:
    assert list(panels(*DEPTH, *WIDTH)) == ["depth", "width"]


def test_time_against_what_varies() -> None:
    found = panels(*DEPTH, *WIDTH)
    assert [(one["x"], one["milliseconds"]) for one in values(found["depth"], "point")] == [(2, 2.0), (4, 3.0), (8, 5.0)]
    assert [one["x"] for one in values(found["width"], "point")] == [32, 64, 256]


def test_the_line_and_what_it_says() -> None:
    found = panels(*DEPTH)["depth"]
    assert found["title"]["subtitle"] == "0.5 ms per layer, R² 1.000"
    ends = [(one["x"], one["milliseconds"]) for one in values(found, "line")]
    assert ends == [(2, pytest.approx(2.0)), (8, pytest.approx(5.0))]


def test_no_line_where_something_else_varies_too() -> None:
    found = panels(*DEPTH, shape_cell("depth", 9.0, shape(layers=4, hidden=256)))["depth"]
    assert "subtitle" not in found["title"]
    assert [layer["mark"]["type"] for layer in found["layer"]] == ["rule", "point"]


def test_the_bars_are_two_standard_errors() -> None:
    first, *_ = values(panels(*DEPTH)["depth"], "rule")
    assert (first["low"], first["high"]) == (pytest.approx(2.0 * 0.98), pytest.approx(2.0 * 1.02))


def test_its_axes_have_units() -> None:
    text = svg(shapes(shape_profile(*DEPTH, *WIDTH)), dark=False)
    assert set(re.findall(r"[XY]-axis titled '([^']*)'", text)) == {"layers", "hidden size", "milliseconds per step"}


def test_the_heading_says_where() -> None:
    assert shapes(shape_profile(*DEPTH)).to_dict()["title"] == "llama shapes on fake, batch 1, context 128"


def test_only_one_batch_and_context_is_drawn() -> None:
    more = [shape_cell("depth", 99.0, shape(layers=layers), batch=4) for layers in (2, 4, 8)]
    assert len(values(panels(*DEPTH, *more)["depth"], "point")) == 3


@pytest.mark.parametrize(
    ("changes", "axis"),
    [
        ([{"layers": 1}, {"layers": 2, "hidden": 99}], "layers"),
        ([{"hidden": 1}, {"hidden": 2, "intermediate": 9}], "hidden"),
        ([{"vocabulary": 1}, {"vocabulary": 2}], "vocabulary"),
        ([{"kv_heads": 1}, {"kv_heads": 2}], "kv_heads"),
        ([{"intermediate": 1}, {"intermediate": 2}], "intermediate"),
        ([{}], "layers"),
    ],
)
def test_what_a_group_is_about(changes: list[dict[str, int]], axis: str) -> None:
    assert varied_axis([shape_cell("g", 1.0, shape(**one)) for one in changes]) == axis


@pytest.mark.parametrize("cells", [DEPTH[:1], [*DEPTH[:1], *DEPTH[:1]]])
def test_through_one_shape_goes_no_line(cells: list[Any]) -> None:
    """There is nothing to say about what a layer costs."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (panel,) = panels(*cells).values()
    assert "per layer" not in str(panel["title"])
