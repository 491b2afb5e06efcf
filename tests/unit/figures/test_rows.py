"""The picture of output rows: a line a lookahead, and what the whole head gives."""

from draftsmith.core.records import RowsCard, RowsPoint
from draftsmith.figures.rows import rows
from draftsmith.figures.save import svg
from tests.unit.builders import curve

CARD = RowsCard(
    trace="t", counted="c", target="big", draft="small", draft_fingerprint="f", split="probe",
    points=(
        RowsPoint(rows=1024, ceiling=0.9, curve=curve(1.4, 1.6, 1.7)),
        RowsPoint(rows=32000, ceiling=1.0, curve=curve(1.5, 1.75, 1.9)),
    ),
)  # fmt: skip


def test_a_line_a_lookahead_and_what_the_whole_head_gives() -> None:
    limits, lines = rows(CARD).to_dict()["layer"]
    assert [(one["rows"], one["lookahead"]) for one in lines["data"]["values"]] == [
        (1024, "1"), (1024, "3"), (32000, "1"), (32000, "3"),
    ]  # fmt: skip
    assert [one["tokens_per_step"] for one in limits["data"]["values"]] == [1.5, 1.9]


def test_it_can_be_drawn() -> None:
    assert "output rows kept" in svg(rows(CARD), dark=True)
