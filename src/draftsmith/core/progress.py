"""Progress of a long command with a time estimate: a bar on a terminal, a line now and then in a log file."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from draftsmith.core.log import console, log, rank

_SECONDS_BETWEEN_LINES = 30.0


class Counter:
    """Counts what is done of a known total; `already` of it was done by an earlier, interrupted call."""

    def __init__(self, what: str, total: int, already: int) -> None:
        self.what, self.total, self.done, self._already = what, total, already, already
        self._started = self._spoke = time.monotonic()

    def advance(self, amount: int = 1, note: str = "") -> None:
        """`note` is said beside the count: a speed, a loss."""
        self.done += amount
        now = time.monotonic()
        if now - self._spoke >= _SECONDS_BETWEEN_LINES:
            self._spoke = now
            said = f"{self.what}: {self.done} of {self.total}" + (f", {note}" if note else "")
            log.info("%s, about %s left", said, _duration(self.seconds_left()))

    def seconds_left(self) -> float:
        fresh = self.done - self._already
        elapsed = time.monotonic() - self._started
        return elapsed / fresh * (self.total - self.done) if fresh else float("inf")


class _Bar(Counter):
    def __init__(self, what: str, total: int, already: int, bar: Progress) -> None:
        super().__init__(what, total, already)
        self._bar = bar
        self._task = bar.add_task(what, total=total, completed=already)

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.done += amount
        self._bar.update(self._task, advance=amount, description=f"{self.what}, {note}" if note else self.what)


@contextmanager
def progress(what: str, total: int, already: int = 0) -> Iterator[Counter]:
    """Follow a loop of `total` parts."""
    if console.is_terminal and rank() == 0:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            yield _Bar(what, total, already, bar)
    else:
        yield Counter(what, total, already)


def _duration(seconds: float) -> str:
    if seconds == float("inf"):
        return "an unknown time"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}h{minutes % 60:02d}m" if minutes >= 60 else f"{minutes}m{rest:02d}s"
