"""The picture of a design: the front, a point a depth, and what to try next."""

from draftsmith.core.records import Design, DesignCandidate, LatencyModel
from draftsmith.figures.design import design
from draftsmith.figures.save import svg
from tests.unit.builders import shape


def candidate(layers: int, draft_ms: float, tokens_per_step: float, speedup: float) -> DesignCandidate:
    return DesignCandidate(
        shape=shape(layers=layers), parameters=1_000_000, tokens_per_second=100 * speedup, speedup=speedup, error=0.05,
        lookahead=3, tokens_per_step=tokens_per_step, acceptance=0.5, draft_ms=draft_ms, tokens=2_000_000,
    )  # fmt: skip


MADE = Design(
    source="big", engine="fake", considered=3, tokens=2_000_000, training_flops=None, shares={1: 1.0}, context=128,
    plain_tokens_per_second=100.0,
    by_depth=(candidate(2, 1.0, 2.0, 1.6), candidate(1, 0.5, 1.5, 1.3)),
    front=(candidate(1, 0.5, 1.5, 1.3), candidate(2, 1.0, 2.0, 1.6)),
    next_probe=candidate(2, 0.9, 1.9, 1.55), probes=(), law={},
    latency=LatencyModel(
        dtype="bfloat16", coefficients={}, most_tokens=1, num_shapes=4, unseen_error_median=0.0, unseen_error_worst=0.0,
        unseen_error_rms=0.0,
    ),
)  # fmt: skip


def test_a_point_a_depth_and_its_number() -> None:
    front, marks, labels, probe = design(MADE).to_dict()["layer"]
    assert [one["layers"] for one in marks["data"]["values"]] == [2, 1]
    assert labels["encoding"]["text"]["field"] == "layers"
    assert len(front["data"]["values"]) == 2
    assert probe["data"]["values"][0]["draft_ms"] == 0.9


def test_it_says_what_is_best() -> None:
    drawn = svg(design(MADE), dark=True)
    assert "2 layers, 1.60 x plain at lookahead 3" in drawn
    assert "milliseconds per token" in drawn
