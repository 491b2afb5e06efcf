"""Go or no-go: the four answers, and sentences that say where."""

import pytest

from draftsmith.core.records import ThroughputPoint
from draftsmith.theory.verdict import judge
from tests.unit.builders import throughput_point as point


def grid(**speedups: float) -> list[ThroughputPoint]:
    """`b4_c128=1.2`: a speedup of 1.2 at batch 4 and context 128."""
    places = {name: tuple(int(part[1:]) for part in name.split("_")) for name in speedups}
    return [point(speedup, batch=places[name][0], context=places[name][1]) for name, speedup in speedups.items()]


class TestAnswers:
    def test_go(self) -> None:
        verdict = judge(grid(b1_c128=1.8, b4_c128=1.2))
        assert verdict.answer == "go"
        assert verdict.sentence == (
            "Go: 1.80 ± 0.04 x plain decoding with lookahead 3 at batch 1 and context 128, "
            "and at least 1.20 x at batch 4 and context 128."
        )

    def test_go_at_the_only_place(self) -> None:
        verdict = judge([point(1.8, error=0.0, context=0)])
        assert (verdict.answer, verdict.sentence) == ("go", "Go: 1.80 x plain decoding with lookahead 3 at batch 1.")

    def test_no_go(self) -> None:
        verdict = judge(grid(b1_c128=0.9, b4_c128=0.7))
        assert verdict.answer == "no-go"
        assert verdict.sentence == (
            "No-go: speculation slows decoding down everywhere; "
            "at best 0.90 ± 0.02 x plain decoding with lookahead 3 at batch 1 and context 128."
        )

    def test_too_close_to_call(self) -> None:
        verdict = judge(grid(b1_c128=1.01, b4_c128=0.7))
        assert verdict.answer == "too close to call"
        assert verdict.sentence.startswith("Too close to call: 1.01 ± 0.02 x plain decoding")
        assert "Measure longer" in verdict.sentence

    def test_only_where_it_pays(self) -> None:
        verdict = judge(grid(b1_c128=1.5, b4_c128=0.7))
        assert verdict.answer == "only where it pays"
        assert verdict.sentence == (
            "Only up to batch 1: there 1.50 ± 0.03 x plain decoding with lookahead 3 at batch 1 and context 128."
        )

    @pytest.mark.parametrize(
        ("speedup", "error", "answer"),
        [
            (1.1, 0.04, "go"),
            (1.1, 0.05, "too close to call"),
            (0.9, 0.05, "no-go"),
            (0.9, 0.06, "too close to call"),
            (1.0, 0.0, "too close to call"),
        ],
    )
    def test_two_standard_errors_are_sure(self, speedup: float, error: float, answer: str) -> None:
        assert judge([point(speedup, error=error)]).answer == answer


class TestBest:
    def test_the_best_lookahead_at_each_place_decides(self) -> None:
        verdict = judge([point(0.6, lookahead=8), point(1.4, lookahead=2), point(1.2, lookahead=4)])
        assert (verdict.answer, verdict.best.lookahead, verdict.best.speedup) == ("go", 2, 1.4)

    def test_the_largest_speedup_of_all_places_is_the_best(self) -> None:
        assert judge(grid(b1_c128=1.2, b4_c128=1.7, b8_c128=1.3)).best.batch == 4

    def test_switched_off_is_no_speculation(self) -> None:
        verdict = judge([point(1.0, lookahead=0), point(0.8)])
        assert (verdict.answer, verdict.best.lookahead) == ("no-go", 3)


class TestRegion:
    def region(self, **speedups: float) -> str:
        sentence = judge(grid(**speedups)).sentence
        assert sentence.startswith("Only ")
        return sentence.removeprefix("Only ").split(": there")[0]

    def test_small_batches(self) -> None:
        found = self.region(b1_c128=1.5, b4_c128=1.2, b8_c128=0.8, b1_c1024=1.4, b4_c1024=1.1, b8_c1024=0.9)
        assert found == "up to batch 4"

    def test_short_contexts(self) -> None:
        found = self.region(b1_c128=1.5, b4_c128=1.2, b1_c1024=1.4, b4_c1024=1.3, b1_c4096=0.9, b4_c4096=0.8)
        assert found == "up to context 1024"

    def test_fewer_rows_at_longer_contexts(self) -> None:
        found = self.region(b1_c128=1.5, b4_c128=1.2, b8_c128=0.9, b1_c1024=1.4, b4_c1024=0.8, b8_c1024=0.7)
        assert found == "up to batch 4 at context 128; up to batch 1 at context 1024"

    def test_nothing_at_some_context(self) -> None:
        found = self.region(b1_c128=1.5, b4_c128=0.9, b1_c1024=0.9, b4_c1024=0.8)
        assert found == "up to batch 1 at context 128"

    def test_long_contexts_only(self) -> None:
        assert "at context 1024" in self.region(b1_c128=0.9, b4_c128=0.9, b1_c1024=1.5, b4_c1024=1.4)

    def test_holes_are_listed(self) -> None:
        assert self.region(b1_c128=0.9, b4_c128=1.3, b8_c128=0.9) == "at batch 4, context 128"
        found = self.region(b1_c128=1.5, b4_c128=0.9, b8_c128=1.2)
        assert found == "at batch 1, context 128; batch 8, context 128"

    def test_what_is_unsure_does_not_count(self) -> None:
        assert self.region(b1_c128=1.5, b4_c128=1.01) == "up to batch 1"

    def test_the_speedup_named_is_one_of_that_region(self) -> None:
        """Batch 4 looks faster, but nobody can be sure of it."""
        verdict = judge([point(1.3, batch=1), point(1.5, batch=4, error=0.4)])
        assert verdict.answer == "only where it pays"
        assert verdict.sentence.startswith("Only up to batch 1: there 1.30 ")
        assert "at batch 4" not in verdict.sentence
