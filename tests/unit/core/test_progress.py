"""How long it still takes: counted from what this call did, said now and then."""

import io
import logging

import pytest
from rich.console import Console

from draftsmith.core import progress as module
from draftsmith.core.progress import Counter, progress


class Clock:
    """A clock that we turn."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_the_rest_takes_as_long_as_what_was_done(clock: Clock) -> None:
    counter = Counter("parts", total=10, already=0)
    assert counter.seconds_left() == float("inf")
    clock.now += 6
    counter.advance(2)
    assert counter.seconds_left() == pytest.approx(24)
    counter.advance(8)
    assert counter.seconds_left() == 0


def test_what_an_earlier_call_did_does_not_make_this_one_look_fast(clock: Clock) -> None:
    counter = Counter("parts", total=10, already=8)
    clock.now += 5
    counter.advance()
    assert counter.done == 9
    assert counter.seconds_left() == pytest.approx(5)


@pytest.mark.parametrize(
    ("seconds", "left"), [(31.0, "1m02s"), (28.0, None), (59.9, "2m00s"), (1800.0, "1h00m"), (5000.0, "2h46m")]
)
def test_a_log_file_gets_a_line_now_and_then(
    seconds: float, left: str | None, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "console", Console(file=io.StringIO()))
    with caplog.at_level(logging.INFO), progress("recording, shards", 3) as counter:
        clock.now += seconds
        counter.advance()
        clock.now += 1
        counter.advance()
    expected = [] if left is None else [f"recording, shards: 1 of 3, about {left} left"]
    assert caplog.messages == expected


def test_before_anything_is_done_nobody_knows(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    counter = Counter("recording, shards", total=3, already=1)
    clock.now += 31
    with caplog.at_level(logging.INFO):
        counter.advance(0)
    assert caplog.messages == ["recording, shards: 1 of 3, about an unknown time left"]


@pytest.mark.parametrize(("its_rank", "drawn"), [("0", True), ("1", False)])
def test_a_terminal_gets_a_bar_from_rank_0(its_rank: str, drawn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setenv("RANK", its_rank)
    monkeypatch.setattr(module, "console", Console(file=screen, force_terminal=True, width=80))
    with progress("scoring, shards", 4, already=1) as bar:
        bar.advance()
        assert (bar.done, bar.total) == (2, 4)
    assert ("scoring, shards" in screen.getvalue()) == drawn
    assert ("2/4" in screen.getvalue()) == drawn


def test_nothing_is_drawn_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(module, "console", Console(file=screen))
    with progress("scoring, shards", 4) as bar:
        bar.advance()
    assert screen.getvalue() == ""
