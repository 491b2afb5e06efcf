"""A live run and a profile that take turns, so that both see the machine in the same moments."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from draftsmith.core import registry
from draftsmith.core.protocols import EngineConfig, Limits, LiveEngine, ModelDraft, Request, StepSeconds
from draftsmith.core.sampling import Sampling
from draftsmith.core.timing import Rounds, Visit
from draftsmith.core.trace import TraceRow
from draftsmith.theory.batches import RowSteps, row_steps

Cell = tuple[int, int, int]  # lookahead, batch, context asked for
_IDLE_SHARE = 0.1  # of the profile: without proposals, for the older formulas and where an engine's last steps look less far
_PROFILED = 0.5  # of the live steps have a step of the profile beside them
_WARM_STEPS = 3
_SLICE_TOKENS = 32
_VISIT_STEPS = 16
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

    VERSION: ClassVar[int] = 4  # of what a turn is: cells measured in another way are not mixed in
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


def _begin(task: Task) -> Turns:
    accepted = np.concatenate([one[: row.num_output] for one, row in zip(task.chances, task.rows, strict=True)])
    context = float(np.mean([len(row.prompt_ids) + row.num_output / 2 for row in task.rows]))
    return Turns(task.max_new_tokens, float(accepted.mean()), context)


def _places(batch: int, contexts: Sequence[int]) -> list[tuple[int, int]]:
    """Rows end one after the other, so every smaller batch is met as well. None is left to a line between two others: a step's
    time has stairs."""
    return [(b, c) for b in range(1, batch + 1) for c in contexts]


def _chunks(task: Task) -> list[list[int]]:
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
        turns, rng = _begin(task), np.random.default_rng(0)
        places = _places(batch, contexts)
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
        for chunk in _chunks(task):
            live = decoding([Request(rows[i].prompt_ids, 0) for i in chunk], Limits(task.max_new_tokens, task.eos_ids))
            while len(live.rows):
                near = _near(places, len(live.rows), int(live.lengths_B.max()), rng)
                live.step(lookahead)
                if rng.random() < _PROFILED:
                    profile_step(near, 0 if rng.random() < _IDLE_SHARE else lookahead)
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


def _some_step(rows: list[RowSteps], rng: np.random.Generator) -> tuple[int, int]:
    """How many rows a step had, and their mean context: a step drawn by lot."""
    step = int(rng.integers(max(len(row.step_tokens) for row in rows)))
    going = [row for row in rows if len(row.step_tokens) > step]
    return len(going), round(float(np.mean([row.first_context + row.step_tokens[:step].sum() for row in going])))


def _near(places: list[tuple[int, int]], rows: int, context: int, rng: np.random.Generator) -> tuple[int, int]:
    """A grid point around the place, drawn with the weight that interpolation gives it."""
    chosen = []
    for wanted, axis in ((rows, sorted({b for b, _ in places})), (context, sorted({c for _, c in places}))):
        low = max([point for point in axis if point <= wanted], default=axis[0])
        high = min([point for point in axis if point >= wanted], default=axis[-1])
        chosen.append(high if high > low and rng.random() < (wanted - low) / (high - low) else low)
    return chosen[0], chosen[1]


@contextmanager
def vllm_turns(target: Path, draft: Path, most: int, config: EngineConfig, contexts: Sequence[int]) -> Iterator[Take]:
    """In slices: the live run goes on from recorded text for 32 tokens, then a few steps are profiled at a place near to one of
    its steps, drawn by lot, and so on."""
    plugin = registry.load("engines", "vllm")
    engine: AbstractContextManager[LiveEngine] = plugin.live(
        target, ModelDraft(path=str(draft)), most, Sampling(), config, adjustable=True
    )
    with engine as live:

        def take(task: Task) -> Turns:
            rows, chances, lookahead, batch = task.rows, task.chances, task.lookahead, task.batch
            turns, rng = _begin(task), np.random.default_rng(0)
            places = _places(batch, contexts)

            def visit(place: tuple[int, int], k: int) -> None:
                turns.rounds.add((k, *place), Visit.of(live.time_steps(*place, (k,), _VISIT_STEPS)[k]))

            for k in (lookahead, 0):
                live.time_steps(batch, contexts[0], (k,), _VISIT_STEPS)  # warm
            for chunk, begin in product(_chunks(task), range(0, task.max_new_tokens, _SLICE_TOKENS)):
                going = [i for i in chunk if rows[i].num_output - begin > 1]
                if not going:
                    continue
                ends = {i: min(rows[i].num_output, begin + _SLICE_TOKENS) for i in going}
                requests = [Request(np.concatenate([rows[i].prompt_ids, rows[i].output_ids[:begin]]), 0) for i in going]
                limits = Limits(min(_SLICE_TOKENS, task.max_new_tokens - begin), task.eos_ids)
                outcome = live.run(requests, limits, lookahead)
                firsts = [len(request.prompt_ids) + 1 for request in requests]
                turn = LiveTurn(
                    tokens=outcome.decode_tokens,
                    seconds=outcome.decode_seconds,
                    live=[
                        RowSteps(first, np.asarray(row.step_tokens, dtype=np.int64))
                        for first, row in zip(firsts, outcome.rows, strict=True)
                    ],
                    predicted=[
                        RowSteps(first, row_steps(chances[i][begin + 1 :], ends[i] - begin - 1, lookahead, rng))
                        for first, i in zip(firsts, going, strict=True)
                    ],
                )
                turns.runs.append(turn)
                if any(len(row.step_tokens) for row in turn.live):
                    visit(_near(places, *_some_step(turn.live, rng), rng), lookahead)
                if rng.random() < _IDLE_SHARE:
                    visit((batch, int(rng.choice(contexts))), 0)
            for place in places:
                for k in (lookahead, 0) if place[0] == batch else (lookahead,):
                    while turns.rounds.count((k, *place)) < 2:
                        visit(place, k)
            return turns

        yield take
