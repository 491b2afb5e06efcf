"""A live run on vLLM and a profile that take turns of a few steps, in one engine and over the same weights.

vLLM steps all the requests it has at once. So the scheduler is shown one set of them at a time: those of the live run, or those
of one place of the profile. The others rest, and keep their cache.

Prompts are read between turns and not timed. Most were read before, so vLLM keeps what it knows of them."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._turns import IDLE_SHARE, Cell, LiveTurn, Take, Task, Turns, begin, chunks, near, places_of
from draftsmith.core import registry
from draftsmith.core.protocols import EngineConfig, Limits, ModelDraft, Request
from draftsmith.core.sampling import Sampling
from draftsmith.core.timing import Visit
from draftsmith.engines._vllm_live import Live
from draftsmith.theory.batches import RowSteps, row_steps

_SLICE_TOKENS = 32  # of the live run, which then goes on from recorded text: bf16 output would leave it
_STEPS = 4  # of a turn, unless the profile steps after every live step
_BLOCK = 32  # tokens of a block of the cache, which is known again only as a whole
_GROWTH = 32  # tokens by which a place's rows may outgrow its context before they begin anew
_LEAST_VISITS = 2  # of a place that the live run was seldom near


@dataclass
class _Set:
    """Requests that step together: how long each is, by its id. Those that have ended are gone."""

    lookahead: int
    lengths: dict[str, float]
    resting: list[Any] = field(default_factory=list)


class _Sets:
    """Many sets of requests in one vLLM engine, of which all but one rest."""

    def __init__(self, live: Live) -> None:
        self._live, self._engine = live, live._llm.llm_engine
        self._scheduler: Any = self._engine.engine_core.engine_core.scheduler
        self._going, self._begun = _Set(0, {}), 0

    def go(self, one: _Set) -> None:
        """Wake this set; the one that was going rests."""
        if one is not self._going:
            self._going.resting = self._scheduler.running
            self._scheduler.running, self._going = one.resting, one
        self._live._set_lookahead(one.lookahead)

    def begin(self, requests: list[Request], limits: Limits, lookahead: int) -> tuple[_Set, list[str]]:
        """A new set, awake, up to where each row has a token or more; and the rows' ids."""
        ids = [str(self._begun + i) for i in range(len(requests))]
        one = _Set(lookahead, {row: float(len(request.prompt_ids)) for row, request in zip(ids, requests, strict=True)})
        self.go(one)
        self._live._add(requests, limits, self._begun)
        self._begun += len(requests)
        waiting = set(ids)
        while waiting:
            waiting -= {row for row, tokens in self.step().items() if tokens}
        return one, ids

    def step(self) -> dict[str, int]:
        """One step of the set that is awake: how many tokens each row got."""
        got = {}
        for output in self._engine.step():
            got[output.request_id] = len(output.outputs[0].token_ids)
            self._going.lengths[output.request_id] += got[output.request_id]
            if output.finished:
                del self._going.lengths[output.request_id]
        return got

    def visit(self, steps: int) -> Visit:
        """A turn of the profile."""
        return Visit.of([self._live._timed_step(self._going.lengths) for _ in range(steps)])

    def end(self) -> None:
        """The set that is awake."""
        self._engine.abort_request(list(self._going.lengths))


class _Profile:
    """Rows of one length and number, made up, for each place: one set that looks ahead, and where asked for one that does not.
    They are begun when first needed and stay for the next cells: reading their prompts takes long."""

    def __init__(self, sets: _Sets, live: Live) -> None:
        self._sets, self._live = sets, live
        self._at: dict[tuple[bool, int, int], _Set] = {}

    def turn(self, cell: Cell, steps: int) -> Visit:
        lookahead, batch, context = cell
        place = lookahead > 0, batch, context
        if place not in self._at:
            requests = self._live._made_up(batch, context)
            self._at[place], _ = self._sets.begin(requests, Limits(self._live._room() - context, ()), lookahead)
            self._sets.step()  # untimed: the first after its prompts were read
        here = self._at[place]
        changed, here.lookahead = here.lookahead != lookahead, lookahead
        self._sets.go(here)
        if changed:
            self._sets.step()  # untimed: it verifies what was proposed before the change
        visit = self._sets.visit(steps)
        if sum(here.lengths.values()) / len(here.lengths) > context + _GROWTH:
            self._sets.end()
            del self._at[place]
        return visit


@contextmanager
def vllm_turns(target: Path, draft: Path, most: int, config: EngineConfig, contexts: Sequence[int]) -> Iterator[Take]:
    """After every turn of the live run, or every other by lot, one of the profile, at a place near to where the live run is."""
    plugin = registry.load("engines", "vllm")
    kept = {"enable_prefix_caching": True, "block_size": _BLOCK}
    with plugin.live(target, ModelDraft(path=str(draft)), most, Sampling(), config, adjustable=True, **kept) as live:
        sets = _Sets(live)
        profile = _Profile(sets, live)

        def take(task: Task) -> Turns:
            turns, rng = begin(task), np.random.default_rng(0)
            places = places_of(task.batch, contexts)
            cells = [(task.lookahead, *place) for place in places] + [(0, task.batch, context) for context in contexts]
            for chunk, first in product(chunks(task), range(0, task.max_new_tokens, _SLICE_TOKENS)):
                going = [i for i in chunk if task.rows[i].num_output - first > 1]
                turn, beside = turns.undisturbed(partial(_live_slice, sets, profile, task, going, first, places, rng))
                if turn:
                    turns.runs.append(turn)
                for cell, visit in beside:
                    turns.rounds.add(cell, visit)
            for cell in cells:
                while turns.rounds.count(cell) < _LEAST_VISITS:
                    turns.rounds.add(cell, turns.undisturbed(partial(profile.turn, cell, _STEPS)))
            return turns

        yield take


def _live_slice(
    sets: _Sets,
    profile: _Profile,
    task: Task,
    going: list[int],
    first: int,
    places: list[tuple[int, int]],
    rng: np.random.Generator,
) -> tuple[LiveTurn | None, list[tuple[Cell, Visit]]]:
    """The rows that are `going` at token `first` of their output, some tokens further, and visits of the profile in between.
    None where no row goes so far, or each ended with its first token, though the recorded one went on."""
    if not going:
        return None, []
    rows, beside, steps = task.rows, [], 1 if task.every_step else _STEPS
    requests = [Request(np.concatenate([rows[i].prompt_ids, rows[i].output_ids[:first]]), 0) for i in going]
    limits = Limits(min(_SLICE_TOKENS, task.max_new_tokens - first), task.eos_ids)
    running, ids = sets.begin(requests, limits, task.lookahead)
    begun = dict(running.lengths)  # some rows may have stepped while others were prefilled
    if not begun:
        return None, []
    sizes: dict[str, list[int]] = {row: [] for row in begun}
    seconds = 0.0
    while running.lengths:
        context = round(sum(running.lengths.values()) / len(running.lengths))
        place = near(places, len(running.lengths), context, rng)
        sets.go(running)
        for _ in range(steps):
            if running.lengths:
                began = time.perf_counter()
                got = sets.step()
                seconds += time.perf_counter() - began
                for row, tokens in got.items():
                    sizes[row].append(tokens)
        if rng.random() < task.profiled:
            idle = rng.random() < IDLE_SHARE
            cell = (0, task.batch, place[1]) if idle else (task.lookahead, *place)
            beside.append((cell, profile.turn(cell, steps)))
    turn = LiveTurn(
        tokens=sum(map(sum, sizes.values())),
        seconds=seconds,
        live=[RowSteps(round(begun[row]), np.array(steps, dtype=np.int64)) for row, steps in sizes.items()],
        predicted=[_predicted(task, i, first, begun[row], rng) for i, row in zip(going, ids, strict=True) if row in begun],
    )
    return turn, beside


def _predicted(task: Task, i: int, first: int, begun: float, rng: np.random.Generator) -> RowSteps:
    """The steps of a slice of recorded row `i`, from where the live run had `begun` tokens of it."""
    row = task.rows[i]
    at = round(begun) - len(row.prompt_ids)
    end = min(row.num_output, first + _SLICE_TOKENS)
    return RowSteps(round(begun), row_steps(task.chances[i][at:], end - at, task.lookahead, rng))
