"""The picture of a run: what was measured against tokens seen, and losses only where they can be compared."""

from typing import Any

from draftsmith.core.records import DistilledCheckpoint, LearningPoint
from draftsmith.figures.learning import learning
from draftsmith.figures.save import svg
from tests.unit.builders import shape


def run(loss: str, *measured: float | None) -> DistilledCheckpoint:
    curve = tuple(LearningPoint(tokens=1000 * (i + 1), loss=3.0 - i, tokens_per_step=one) for i, one in enumerate(measured))
    return DistilledCheckpoint(
        student="small", student_fingerprint="s", trace="t", held_out="h", loss=loss, lookahead=5, shape=shape(),
        parameters=10, tokens=curve[-1].tokens, curve=curve, fingerprint="f",
    )  # fmt: skip


def panels(runs: dict[str, DistilledCheckpoint]) -> list[Any]:
    return learning(runs).to_dict()["hconcat"]


def test_what_was_measured_and_the_loss() -> None:
    measured, loss = panels({"one": run("forward_kl", 1.5, None, 2.0)})
    assert [one["tokens_per_step"] for one in measured["data"]["values"]] == [1.5, 2.0]
    assert [one["loss"] for one in loss["data"]["values"]] == [3.0, 2.0, 1.0]
    assert "lookahead 5" in measured["encoding"]["y"]["title"]


def test_losses_of_different_kinds_are_not_drawn_together() -> None:
    assert len(panels({"a": run("forward_kl", 1.5), "b": run("reverse_kl", 1.6)})) == 1
    assert len(panels({"a": run("forward_kl", 1.5), "b": run("forward_kl", 1.6)})) == 2


def test_it_can_be_drawn() -> None:
    assert "training tokens" in svg(learning({"one": run("forward_kl", 1.5, 2.0)}), dark=False)
