"""A live run and a profile that take turns, so that both see the machine in the same moments."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from draftsmith.core.protocols import EngineConfig, Limits, Request, StepSeconds
from draftsmith.core.sampling import Sampling
from draftsmith.core.timing import Rounds, Visit, lent
from draftsmith.core.trace import TraceRow
from draftsmith.theory.batches import RowSteps, row_steps

Cell = tuple[int, int, int]  # lookahead, batch, context asked for
IDLE_SHARE = 0.1  # of the profile: without proposals, for the older formulas and where an engine's last steps look less far
_PROFILED = 0.5  # of the live turns have one of the profile beside them, unless every step has
_WARM_STEPS = 3
_LEAST_STEPS = 8  # of a place that a step-by-step run was seldom near
_PATIENCE_SECONDS = 600.0  # that a cell may lose to the host of the machine beyond what counts: bursts come at its start too

T = TypeVar("T")


@dataclass(frozen=True)
class LiveTurn:
    """A stretch of a live run: what it took, the steps it took, and the steps that were predicted."""

    tokens: int
    seconds: float
    live: list[RowSteps]
    predicted: list[RowSteps]


@dataclass
class Turns:
    """All of one cell. `busy`: the host of the machine kept much of it, for longer than there was patience."""

    max_new_tokens: int
    acceptance: float
    context: float
    rounds: Rounds[Cell] = field(default_factory=Rounds)
    runs: list[LiveTurn] = field(default_factory=list)
    busy: bool = False
    _counted: float = 0.0
    _lost: float = 0.0

    def undisturbed(self, stretch: Callable[[], T]) -> T:
        """What was measured without the host's taking much of the machine; a stretch in which it did is run again. That hangs
        on what the host says alone, never on what was measured. No more time is lost so than counts, and `_PATIENCE_SECONDS`;
        then the cell is `busy`, and nothing is run again."""
        while True:
            began = time.perf_counter()
            with lent() as others:
                found = stretch()
            took = time.perf_counter() - began
            self.busy |= others.busy and self._lost + took > self._counted + _PATIENCE_SECONDS
            if self.busy or not others.busy:
                self._counted += took
                return found
            self._lost += took


@dataclass(frozen=True)
class Task:
    """What one cell runs: recorded rows with the draft's chances, how far ahead, how many rows at once, where to end, and
    whether every step has one of the profile beside it: for steps so long that the machine changes between two turns."""

    rows: list[TraceRow]
    chances: list[np.ndarray]
    lookahead: int
    batch: int
    eos_ids: tuple[int, ...]
    max_new_tokens: int
    every_step: bool

    @property
    def profiled(self) -> float:
        """Which share of the live turns has one of the profile beside it."""
        return 1.0 if self.every_step else _PROFILED


Take = Callable[[Task], Turns]


def begin(task: Task) -> Turns:
    accepted = np.concatenate([one[: row.num_output] for one, row in zip(task.chances, task.rows, strict=True)])
    context = float(np.mean([len(row.prompt_ids) + row.num_output / 2 for row in task.rows]))
    return Turns(task.max_new_tokens, float(accepted.mean()), context)


def places_of(batch: int, contexts: Sequence[int]) -> list[tuple[int, int]]:
    """Rows end one after the other, so every smaller batch is met as well. None is left to a line between two others: a step's
    time has stairs."""
    return [(b, c) for b in range(1, batch + 1) for c in contexts]


def chunks(task: Task) -> list[list[int]]:
    order = sorted(range(len(task.rows)), key=lambda i: len(task.rows[i].prompt_ids))
    return [order[low : low + task.batch] for low in range(0, len(order), task.batch)]


@contextmanager
def transformers_turns(target: Path, draft: Path, most: int, config: EngineConfig, contexts: Sequence[int]) -> Iterator[Take]:
    """Step by step: after every live step, or every other by lot, one step of the profile, in a cache of its own over the same
    weights, at a place near to where the live run is."""
    from draftsmith.engines._checkpoint import Checkpoint
    from draftsmith.engines._slots import SlotModel
    from draftsmith.engines._speculative import Clocks, Decoding, ModelProposer
    from draftsmith.engines.transformers import _load, _made_up

    checkpoints = [Checkpoint(path, False) for path in (target, draft)]
    models = [_load(checkpoint, config).model for checkpoint in checkpoints]
    vocabulary = checkpoints[0].rows

    def decoding(requests: list[Request], limits: Limits) -> Decoding:
        proposer = ModelProposer(SlotModel(models[1]), "greedy", Sampling(), vocabulary)
        begun = Decoding(SlotModel(models[0]), proposer, requests, Sampling(), limits, Clocks(), most)
        begun.prefill()
        return begun

    @cache  # they stay for the next cells: reading their prompts takes long
    def made_up(place: tuple[int, int]) -> tuple[Decoding, torch.Tensor]:
        begun = decoding(_made_up(*place, vocabulary), Limits(64, ()))
        return begun, begun.lengths_B

    def take(task: Task) -> Turns:
        rows, chances, lookahead, batch = task.rows, task.chances, task.lookahead, task.batch
        turns, rng = begin(task), np.random.default_rng(0)
        places = places_of(batch, contexts)
        seen: dict[Cell, list[StepSeconds]] = {}

        def profiled(place: tuple[int, int], k: int) -> tuple[Cell, StepSeconds]:
            one, start_B = made_up(place)
            one.lengths_B = start_B
            for written in one.written:  # nothing is kept of what is made up
                written.tokens.clear()
                written.step_tokens.clear()
            one.step(k)
            return (k, *place), StepSeconds(**one.clocks.steps.pop(), context=float(start_B.max()))

        def stretch(chunk: list[int]) -> tuple[LiveTurn, list[tuple[Cell, StepSeconds]]]:
            live = decoding([Request(rows[i].prompt_ids, 0) for i in chunk], Limits(task.max_new_tokens, task.eos_ids))
            beside = []
            while len(live.rows):
                place = near(places, len(live.rows), int(live.lengths_B.max()), rng)
                live.step(lookahead)
                if rng.random() < task.profiled:
                    beside.append(profiled(place, 0 if rng.random() < IDLE_SHARE else lookahead))
            turn = LiveTurn(
                tokens=sum(len(one.tokens) for one in live.written),
                seconds=sum(sum(step.values()) for step in live.clocks.steps),
                live=[
                    RowSteps(len(rows[i].prompt_ids), np.array(one.step_tokens))
                    for i, one in zip(chunk, live.written, strict=True)
                ],
                predicted=[
                    RowSteps(len(rows[i].prompt_ids), row_steps(chances[i], rows[i].num_output, lookahead, rng)) for i in chunk
                ],
            )
            return turn, beside

        for place in places:
            for k in (lookahead, 0) * _WARM_STEPS:
                profiled(place, k)
        for chunk in chunks(task):
            turn, beside = turns.undisturbed(partial(stretch, chunk))
            turns.runs.append(turn)
            for cell, step in beside:
                seen.setdefault(cell, []).append(step)
        for place in places:  # a place that the run was never near still needs some steps
            for k in (lookahead, 0):
                steps = seen.setdefault((k, *place), [])
                while len(steps) < _LEAST_STEPS:
                    steps.append(turns.undisturbed(partial(profiled, place, k))[1])
        for cell, steps in seen.items():
            for part in np.array_split(np.arange(len(steps)), 4):
                turns.rounds.add(cell, Visit.of([steps[i] for i in part]))
        return turns

    with torch.inference_mode():
        yield take


def near(places: list[tuple[int, int]], rows: int, context: int, rng: np.random.Generator) -> tuple[int, int]:
    """A grid point around the place, drawn with the weight that interpolation gives it."""
    chosen = []
    for wanted, axis in ((rows, sorted({b for b, _ in places})), (context, sorted({c for _, c in places}))):
        low = max([point for point in axis if point <= wanted], default=axis[0])
        high = min([point for point in axis if point >= wanted], default=axis[-1])
        chosen.append(high if high > low and rng.random() < (wanted - low) / (high - low) else low)
    return chosen[0], chosen[1]
