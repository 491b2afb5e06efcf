"""A live run and a profile that take turns, so that both see the machine in the same moments."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from draftsmith.core.protocols import EngineConfig, Limits, Request, StepSeconds
from draftsmith.core.sampling import Sampling
from draftsmith.core.timing import Rounds, Visit
from draftsmith.core.trace import TraceRow
from draftsmith.theory.batches import RowSteps, row_steps

Cell = tuple[int, int, int]  # lookahead, batch, context asked for
IDLE_SHARE = 0.1  # of the profile: without proposals, for the older formulas and where an engine's last steps look less far
PROFILED = 0.5  # of the live steps have a step of the profile beside them
_WARM_STEPS = 3
_LEAST_STEPS = 8  # of a place that a step-by-step run was seldom near


@dataclass(frozen=True)
class LiveTurn:
    """A stretch of a live run: what it took, the steps it took, and the steps that were predicted."""

    tokens: int
    seconds: float
    live: list[RowSteps]
    predicted: list[RowSteps]


@dataclass
class Turns:
    """All of one cell."""

    max_new_tokens: int
    acceptance: float
    context: float
    rounds: Rounds[Cell] = field(default_factory=Rounds)
    runs: list[LiveTurn] = field(default_factory=list)


@dataclass(frozen=True)
class Task:
    """What one cell runs: recorded rows with the draft's chances, how far ahead, how many rows at once, and where to end."""

    rows: list[TraceRow]
    chances: list[np.ndarray]
    lookahead: int
    batch: int
    eos_ids: tuple[int, ...]
    max_new_tokens: int


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
    """Step by step: after every other live step, by lot, one step of the profile, in a cache of its own over the same
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

    def take(task: Task) -> Turns:
        rows, chances, lookahead, batch = task.rows, task.chances, task.lookahead, task.batch
        turns, rng = begin(task), np.random.default_rng(0)
        places = places_of(batch, contexts)
        profiled = {place: decoding(_made_up(*place, vocabulary), Limits(64, ())) for place in places}
        starts = {place: one.lengths_B for place, one in profiled.items()}
        seen: dict[Cell, list[StepSeconds]] = {}

        def profile_step(place: tuple[int, int], k: int) -> None:
            one = profiled[place]
            one.lengths_B = starts[place]
            for written in one.written:  # nothing is kept of what is made up
                written.tokens.clear()
                written.step_tokens.clear()
            one.step(k)
            seen.setdefault((k, *place), []).append(StepSeconds(**one.clocks.steps.pop(), context=float(starts[place].max())))

        for place in places:
            for k in (lookahead, 0) * _WARM_STEPS:
                profile_step(place, k)
        seen.clear()
        for chunk in chunks(task):
            live = decoding([Request(rows[i].prompt_ids, 0) for i in chunk], Limits(task.max_new_tokens, task.eos_ids))
            while len(live.rows):
                place = near(places, len(live.rows), int(live.lengths_B.max()), rng)
                live.step(lookahead)
                if rng.random() < PROFILED:
                    profile_step(place, 0 if rng.random() < IDLE_SHARE else lookahead)
            turns.runs.append(
                LiveTurn(
                    tokens=sum(len(one.tokens) for one in live.written),
                    seconds=sum(sum(step.values()) for step in live.clocks.steps),
                    live=[
                        RowSteps(len(rows[i].prompt_ids), np.array(one.step_tokens))
                        for i, one in zip(chunk, live.written, strict=True)
                    ],
                    predicted=[
                        RowSteps(len(rows[i].prompt_ids), row_steps(chances[i], rows[i].num_output, lookahead, rng))
                        for i in chunk
                    ],
                )
            )
        for place in places:  # a place that the run was never near still needs some steps
            for k in (lookahead, 0):
                while len(seen.get((k, *place), [])) < _LEAST_STEPS:
                    profile_step(place, k)
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
