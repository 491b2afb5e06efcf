"""Timings: means and errors by hand, when it is enough, and who else uses the machine."""

import logging
import time

import numpy as np
import pytest

from draftsmith.core import timing
from draftsmith.core.config import parse_config
from draftsmith.core.errors import ConfigError
from draftsmith.core.protocols import StepSeconds
from draftsmith.core.timing import Rounds, Timing, Visit, others_share, relative_error, summarise, watched


def visit(*verify_ms: float, context: float = 100.0) -> Visit:
    """Steps of which 1 ms is drafting and 2 ms is overhead."""
    count = len(verify_ms)
    return Visit(draft_ms=(1.0,) * count, verify_ms=verify_ms, overhead_ms=(2.0,) * count, context=context)


class TestVisit:
    def test_seconds_become_milliseconds_and_contexts_a_mean(self) -> None:
        steps = [StepSeconds(0.001, 0.010, 0.002, 100.0), StepSeconds(0.003, 0.020, 0.004, 104.0)]
        seen = Visit.of(iter(steps))
        assert seen.draft_ms == pytest.approx((1.0, 3.0))
        assert seen.verify_ms == pytest.approx((10.0, 20.0))
        assert seen.overhead_ms == pytest.approx((2.0, 4.0))
        assert seen.context == 102.0


class TestSummary:
    def test_rounds_count_alike_however_many_steps_they_have(self) -> None:
        summary = summarise([visit(10, 20, 30), visit(40)])
        assert (summary.draft_ms, summary.verify_ms, summary.overhead_ms, summary.rounds) == (1.0, 30.0, 2.0, 2)

    def test_the_spread_is_that_of_whole_steps_of_all_rounds(self) -> None:
        verify = np.random.default_rng(1).random(40)
        summary = summarise([visit(*verify[:25]), visit(*verify[25:])])
        expected = np.percentile(verify + 3, (10, 50, 90))
        assert (summary.low_ms, summary.median_ms, summary.high_ms) == pytest.approx(tuple(expected))

    def test_the_error_is_that_of_the_mean_over_rounds(self) -> None:
        """Whole steps of 12, 14 and 16 ms: a deviation of 2."""
        summary = summarise([visit(8, 10), visit(11), visit(13, 13)])
        assert summary.error == pytest.approx(2 / np.sqrt(3) / 14)

    def test_what_varies_within_a_round_is_no_error(self) -> None:
        assert summarise([visit(1, 19), visit(10)]).error == 0.0

    def test_the_context_is_the_mean(self) -> None:
        assert summarise([visit(1, context=10), visit(1, context=13)]).context == 11.5

    def test_one_value_has_an_unknown_error(self) -> None:
        assert relative_error([3.0]) == float("inf")

    def test_errors_shrink_with_the_root_of_the_rounds(self) -> None:
        rng = np.random.default_rng(0)
        few, many = (np.mean([relative_error(list(rng.normal(10, 1, n))) for _ in range(300)]) for n in (8, 32))
        assert many / few == pytest.approx(0.5, rel=0.1)


class TestRounds:
    TIMING = Timing(min_rounds=3, max_rounds=5, tolerance=0.02)

    def seen(self, **cells: list[float]) -> Rounds[str]:
        rounds: Rounds[str] = Rounds()
        for name, values in cells.items():
            for value in values:
                rounds.add(name, visit(value))
        return rounds

    def test_nothing_is_not_enough(self) -> None:
        assert not Rounds().are_enough(self.TIMING)
        assert Rounds().worst_error() == float("inf")

    @pytest.mark.parametrize(
        ("values", "enough"),
        [
            ([10, 10], False),  # too few, however well they agree
            ([10, 10, 10], True),
            ([10, 20, 10], False),
            ([10, 20, 10, 20], False),
            ([10, 20, 10, 20, 10], True),  # no patience left
        ],
    )
    def test_until_it_is_certain_or_takes_too_long(self, values: list[float], enough: bool) -> None:
        assert self.seen(a=values).are_enough(self.TIMING) is enough

    def test_the_worst_cell_decides(self) -> None:
        rounds = self.seen(calm=[10, 10, 10], wild=[10, 20, 10])
        assert not rounds.are_enough(self.TIMING)
        assert rounds.worst_error() == rounds.summaries()["wild"].error > rounds.summaries()["calm"].error

    def test_the_cell_seen_least_decides(self) -> None:
        assert not self.seen(often=[10] * 9, seldom=[10] * 2).are_enough(self.TIMING)

    def test_every_cell_has_its_own_summary(self) -> None:
        summaries = self.seen(a=[10, 20], b=[5]).summaries()
        assert {name: (one.verify_ms, one.rounds) for name, one in summaries.items()} == {"a": (15.0, 2), "b": (5.0, 1)}

    @pytest.mark.parametrize("values", [{"steps": 0}, {"min_rounds": 1}, {"max_rounds": 1}, {"tolerance": 0.0}])
    def test_a_timing_that_cannot_be(self, values: dict[str, float]) -> None:
        (name,) = values
        with pytest.raises(ConfigError, match=f"{name} should .*got {values[name]!r}"):
            parse_config(Timing, values, "the timing")


class TestOthers:
    @pytest.fixture
    def looks(self, monkeypatch: pytest.MonkeyPatch) -> list[list[int] | None]:
        """What two looks at the processors' clocks find, a second apart and 100 ticks a second."""
        found: list[list[int] | None] = [[0] * 8]
        monkeypatch.setattr(timing, "_cpu_times", lambda: found.pop(0))
        monkeypatch.setattr(timing, "_LOOK_SECONDS", 1.0)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        monkeypatch.setattr(timing.os, "sysconf", lambda name: 100)
        return found

    @pytest.mark.parametrize(
        ("ticks", "share"),
        [
            ([0, 0, 0, 400, 0, 0, 0, 0], 0.0),
            ([0, 0, 0, 200, 200, 0, 0, 0], 0.0),  # waiting for a disk is not work
            ([50, 0, 0, 350, 0, 0, 0, 0], 0.5),
            ([100, 20, 30, 240, 0, 4, 6, 0], 1.6),
            ([0, 0, 0, 300, 0, 0, 0, 100], 1.0),  # a neighbour on the same host
        ],
    )
    def test_how_much_of_a_core_they_use(self, looks: list[list[int] | None], ticks: list[int], share: float) -> None:
        looks.append(ticks)
        assert others_share() == pytest.approx(share)

    def test_nobody_knows(self, looks: list[list[int] | None]) -> None:
        looks[:] = [None, None]
        assert others_share() is None

    def test_it_says_so(self, looks: list[list[int] | None], caplog: pytest.LogCaptureFixture) -> None:
        looks += [[75, 0, 0, 325, 0, 0, 0, 0]] * 3
        with caplog.at_level(logging.WARNING), watched() as others:
            pass
        assert others.busy
        assert caplog.messages == ["something else uses 75% of a core: stop it, or these timings will be off"]

    @pytest.mark.parametrize("ticks", [[5, 0, 0, 395, 0, 0, 0, 0], None])
    def test_a_little_or_nothing_known_is_no_reason_to_speak(
        self, looks: list[list[int] | None], caplog: pytest.LogCaptureFixture, ticks: list[int] | None
    ) -> None:
        looks += [ticks] * 3
        with watched() as others:
            pass
        assert not others.busy
        assert caplog.text == ""

    @pytest.mark.parametrize(
        ("ticks", "warned"),
        [
            ([60, 0, 0, 0, 0, 0, 0, 40], "the host of this machine kept 40% of the processors' time"),
            ([60, 0, 0, 300, 0, 0, 0, 40], "kept 40%"),  # a processor that nothing of ours asked for is not missed
            ([95, 0, 0, 300, 0, 0, 0, 5], ""),
        ],
    )
    def test_what_the_host_keeps_is_seen_only_while_something_runs(
        self, looks: list[list[int] | None], caplog: pytest.LogCaptureFixture, ticks: list[int], warned: str
    ) -> None:
        looks += [[0] * 8, [0] * 8, ticks]
        with caplog.at_level(logging.WARNING), watched() as others:
            assert not others.busy
        assert others.busy == bool(warned)
        assert warned in caplog.text

    def test_a_real_look_finds_something_sensible(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timing, "_LOOK_SECONDS", 0.02)
        share = others_share()
        assert share is None or share >= 0
