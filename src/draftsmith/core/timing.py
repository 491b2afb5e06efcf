"""Timings that can be trusted: rounds that visit every cell in turn, a mean with its error over rounds, a stop when the error
is small enough, and a look at who else uses the machine.

A machine's speed drifts over seconds and minutes. Visiting the cells in turn, in an order drawn anew each round, spreads a slow
minute over all of them, so that their ratios hold better than their values do."""

import os
import time
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from pydantic import Field

from draftsmith.core.config import StrictConfig
from draftsmith.core.log import log
from draftsmith.core.protocols import PHASES, StepSeconds
from draftsmith.core.records import ProfileCell

BUSY_SHARE = 0.1  # of one core, used by others: timings are no longer to be trusted
_LOOK_SECONDS = 0.5
_WORK = (0, 1, 2, 5, 6, 7)  # of /proc/stat: user, nice, system, (idle, iowait), irq, softirq, steal
_STEAL = 7

CellT = TypeVar("CellT", bound=Hashable)


class Timing(StrictConfig):
    """How long to measure: at least `min_rounds`, until every cell's error is below `tolerance`, at most `max_rounds`."""

    steps: int = Field(12, ge=1)
    min_rounds: int = Field(5, ge=2)
    max_rounds: int = Field(12, ge=2)
    tolerance: float = Field(0.02, gt=0)


class Visit(StrictConfig):
    """What one round saw of one cell: milliseconds of each phase and of the whole of every step, and the mean context."""

    draft_ms: tuple[float, ...]
    verify_ms: tuple[float, ...]
    overhead_ms: tuple[float, ...]
    context: float

    @classmethod
    def of(cls, steps: Iterable[StepSeconds]) -> "Visit":
        kept = list(steps)
        phases = {f"{name}_ms": tuple(1000.0 * getattr(step, name) for step in kept) for name in PHASES}
        return cls(**phases, context=float(np.mean([step.context for step in kept])))


@dataclass(frozen=True)
class Summary:
    """A cell over all rounds. Phases are means, because throughput goes by the mean; the median and the tenth and ninetieth
    percentile of whole steps show the spread; `error` is the relative standard error of the mean over rounds."""

    draft_ms: float
    verify_ms: float
    overhead_ms: float
    median_ms: float
    low_ms: float
    high_ms: float
    error: float
    rounds: int
    context: float


def summarise(visits: list[Visit]) -> Summary:
    """One cell's figures."""
    phases = {
        name: float(np.mean([np.mean(getattr(one, name)) for one in visits])) for name in (f"{phase}_ms" for phase in PHASES)
    }
    steps = [np.sum([one.draft_ms, one.verify_ms, one.overhead_ms], axis=0) for one in visits]
    low, median, high = np.percentile(np.concatenate(steps), (10, 50, 90))
    return Summary(
        **phases,
        median_ms=float(median),
        low_ms=float(low),
        high_ms=float(high),
        error=relative_error([float(np.mean(one)) for one in steps]),
        rounds=len(visits),
        context=float(np.mean([one.context for one in visits])),
    )


def relative_error(values: list[float]) -> float:
    """Standard error of the mean, over the mean; infinite for a single value."""
    if len(values) < 2:
        return float("inf")
    return float(np.std(values, ddof=1) / np.sqrt(len(values)) / np.mean(values))


class Rounds(Generic[CellT]):
    """Visits of many cells, by cell."""

    def __init__(self) -> None:
        self._visits: dict[CellT, list[Visit]] = defaultdict(list)

    def add(self, cell: CellT, visit: Visit) -> None:
        self._visits[cell].append(visit)

    def count(self, cell: CellT) -> int:
        return len(self._visits.get(cell, ()))

    def summaries(self) -> dict[CellT, Summary]:
        return {cell: summarise(visits) for cell, visits in self._visits.items()}

    def are_enough(self, timing: Timing) -> bool:
        """Whether every cell has been seen often enough, or there is no patience left."""
        if self.done >= timing.max_rounds:
            return True
        return self.done >= timing.min_rounds and self.worst_error() <= timing.tolerance

    @property
    def done(self) -> int:
        """Rounds that have visited every cell."""
        return min((len(visits) for visits in self._visits.values()), default=0)

    def worst_error(self) -> float:
        return max((summary.error for summary in self.summaries().values()), default=float("inf"))


def warn_if_uncertain(rounds: Rounds[CellT], timing: Timing, what: str) -> None:
    """Say so if patience ended before the errors were small enough."""
    if (worst := rounds.worst_error()) > timing.tolerance:
        log.warning("after %d rounds a %s is still uncertain by %.1f%%: the machine is noisy", rounds.done, what, 100 * worst)


def profile_cells(summaries: dict[tuple[int, int, int], Summary]) -> tuple[ProfileCell, ...]:
    """By lookahead, batch and the context asked for. Contexts may grow while they are timed: what stands in a cell is the mean
    that its steps really had, one for all cells that asked for the same."""
    asked = {context for _, _, context in summaries}
    real = {c: round(float(np.mean([one.context for cell, one in summaries.items() if cell[2] == c]))) for c in asked}
    return tuple(
        ProfileCell(lookahead=k, batch=batch, **{**asdict(one), "context": real[c]})
        for (k, batch, c), one in sorted(summaries.items())
    )


def others_share() -> float | None:
    """How much of a core others use while we wait for a moment, neighbours on the same host included; None if unknown."""
    before = _cpu_times()
    time.sleep(_LOOK_SECONDS)
    after = _cpu_times()
    if before is None or after is None:
        return None
    busy = sum(after[i] - before[i] for i in _WORK)
    return busy / os.sysconf("SC_CLK_TCK") / _LOOK_SECONDS


@dataclass
class Others:
    """Whether something else used the machine while this one was timed."""

    busy: bool = False


def others_seen() -> bool:
    """Whether something else uses the machine at this moment, while nothing of ours runs; said in a warning."""
    share = others_share()
    if share is None or share < BUSY_SHARE:
        return False
    log.warning("something else uses %.0f%% of a core: stop it, or these timings will be off", 100 * share)
    return True


@contextmanager
def lent() -> Iterator[Others]:
    """Whether the host kept much of the processors that it lends us while the body ran; known when it has ended."""
    others, before = Others(), _cpu_times()
    yield others
    share = _kept_share(before, _cpu_times())
    if share >= BUSY_SHARE:
        log.warning("the host of this machine kept %.0f%% of the processors' time: these timings will be off", 100 * share)
        others.busy = True


@contextmanager
def watched() -> Iterator[Others]:
    """Who else uses the machine while the body is timed, looked for twice: before, while nothing of ours runs, and then by what
    a host kept of the processors that it lends us. The answer is whole when the body has ended."""
    seen = others_seen()
    with lent() as others:
        others.busy = seen
        yield others


def _kept_share(before: list[int] | None, after: list[int] | None) -> float:
    """Of the processor time that was asked for, how much the host of a virtual machine gave to others."""
    if before is None or after is None:
        return 0.0
    asked = sum(after[i] - before[i] for i in _WORK)
    return (after[_STEAL] - before[_STEAL]) / max(asked, 1)


def _cpu_times() -> list[int] | None:
    try:
        return [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return None
