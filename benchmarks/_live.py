"""Live passes over recorded prompts, one draft after the other, there and back: what figures of throughput are made of."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._evidence import Lab, refuse_busy
from draftsmith.core import registry
from draftsmith.core.protocols import EngineConfig, Limits, ModelDraft, NgramDraft, Request
from draftsmith.core.sampling import Sampling
from draftsmith.core.timing import lent
from draftsmith.core.trace import TraceReader, TraceRow
from draftsmith.stages.evaluate_live import first_difference

_TRIES = 3  # of a group while the host keeps much of the machine


@dataclass(frozen=True)
class Group:
    """As many prompts of one data set as fit into a batch, run to their ends. `busy`: the host kept much of the machine.
    `distinct`: the share of 4-grams that are no repetition."""

    dataset: str
    tokens: int  # of decoding, as are the seconds
    seconds: float
    written: list[int]  # by row
    steps: list[int]
    distinct: list[float]
    differing: int  # rows whose output is not the recorded one
    phase_seconds: dict[str, float]
    busy: bool

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def passed(
    lab: Lab,
    target: Path,
    draft: Path | str | None,
    lookahead: int,
    trace: TraceReader,
    rows: Sequence[TraceRow],
    config: EngineConfig,
) -> list[dict[str, Any]]:
    """Every group of `rows`, in their order, in one engine. Without a draft it is plain decoding."""
    proposer = None if draft is None else NgramDraft() if draft == "ngram" else ModelDraft(path=str(draft))
    limits = Limits(trace.record.max_new_tokens, trace.record.eos_ids)
    engine = registry.load("engines", config.kind)
    found = []
    with engine.live(target, proposer, lookahead, Sampling(), config) as live:
        live.run([Request(rows[0].prompt_ids, 0)], Limits(8, ()))  # warm
        for group in groups(rows, config.batch_size):
            for _ in range(_TRIES):
                with lent() as others:
                    outcome = live.run([Request(row.prompt_ids, 0) for row in group], limits)
                if not others.busy:
                    break
            refuse_busy(lab, others.busy)
            found.append(
                Group(
                    dataset=group[0].dataset,
                    tokens=outcome.decode_tokens,
                    seconds=outcome.decode_seconds,
                    written=[len(one.output_ids) - engine.first_drafted for one in outcome.rows],
                    steps=[len(one.step_tokens) for one in outcome.rows],
                    distinct=[_distinct(list(one.output_ids)) for one in outcome.rows],
                    differing=sum(first_difference(row, one) is not None for row, one in zip(group, outcome.rows, strict=True)),
                    phase_seconds=outcome.phase_seconds,
                    busy=others.busy,
                )
            )
    return [asdict(one) for one in found]


def _distinct(tokens: Sequence[int]) -> float:
    grams = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
    return len(set(grams)) / len(grams) if grams else 1.0


def groups(rows: Sequence[TraceRow], size: int) -> list[list[TraceRow]]:
    """Of one data set each."""
    found = []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        own = [row for row in rows if row.dataset == dataset]
        found += [own[first : first + size] for first in range(0, len(own), size)]
    return found


def there_and_back(names: Sequence[str], run: Callable[[str, str], list[dict[str, Any]]]) -> dict[str, list[list[Group]]]:
    """By name, one pass in the order given and one in the other: what drifts with time drifts for all of them."""
    found: dict[str, list[list[Group]]] = {name: [] for name in names}
    for way, order in (("there", list(names)), ("back", list(names)[::-1])):
        for name in order:
            found[name].append([Group(**one) for one in run(name, way)])
    return found


def speed(passes: Sequence[Sequence[Group]]) -> float:
    """Tokens per second over all passes."""
    groups = [one for way in passes for one in way]
    return sum(one.tokens for one in groups) / sum(one.seconds for one in groups)


def ratios(one: Sequence[Sequence[Group]], other: Sequence[Sequence[Group]]) -> list[float]:
    """Of the speeds of the same groups, pass by pass."""
    return [
        first.speed / second.speed
        for ours, theirs in zip(one, other, strict=True)
        for first, second in zip(ours, theirs, strict=True)
        if first.tokens and second.tokens
    ]


def spread(values: Sequence[float]) -> list[float]:
    """10th and 90th percentile."""
    return [float(value) for value in np.percentile(values, [10, 90])]
