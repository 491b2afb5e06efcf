"""How many tokens ahead at each batch size and context: the table that an engine with dynamic speculation takes, and what
a draft costs in memory. Reads ThroughputPoints and shapes; writes ScheduleCells and a MemoryCost.

Lookahead 0 switches speculation off while the draft stays loaded: its step is the one measured with an idle draft, which
may cost more than a plain step does without any draft."""

from collections.abc import Iterable, Mapping, Sequence

from draftsmith.core.records import MemoryCost, ScheduleCell, ThroughputPoint
from draftsmith.core.shapes import Shape


def best_lookaheads(points: Iterable[ThroughputPoint], switched_off: Mapping[tuple[int, int], float]) -> list[ScheduleCell]:
    """The lookahead with the highest throughput for every batch size and context. `switched_off` is the throughput there of a
    loaded draft that proposes nothing."""
    best = {place: (0, speed) for place, speed in switched_off.items()}
    for point in points:
        place = (point.batch, point.context)
        if point.tokens_per_second > best[place][1]:
            best[place] = (point.lookahead, point.tokens_per_second)
    return [
        ScheduleCell(
            batch=batch,
            context=context,
            lookahead=lookahead,
            tokens_per_second=speed,
            switched_off_tokens_per_second=switched_off[batch, context],
        )
        for (batch, context), (lookahead, speed) in sorted(best.items())
    ]


def vllm_schedule(cells: Sequence[ScheduleCell]) -> list[tuple[int, int, int]]:
    """vLLM's `num_speculative_tokens_per_batch_size`: inclusive ranges of batch sizes, each with its lookahead. It has no axis
    for contexts: give the cells of one context. The first range starts at 1, as vLLM demands, and the last one holds for all
    larger batches too: profile up to the largest batch that will be served."""
    ranges: list[tuple[int, int, int]] = []
    for cell in sorted(cells, key=lambda cell: cell.batch):
        begin = 1
        if ranges:
            first, _, lookahead = ranges[-1]
            # A range reaches up to the next measured batch size.
            ranges[-1] = (first, cell.batch - 1, lookahead)
            if lookahead == cell.lookahead:
                ranges[-1] = (first, cell.batch, lookahead)
                continue
            begin = cell.batch
        ranges.append((begin, cell.batch, cell.lookahead))
    return ranges


def memory_cost(
    target: Shape,
    draft: Shape,
    dtype: str,
    memory_gb: float,
    context: int,
    tensor_parallel: int = 1,
    target_weights: str | None = None,
) -> MemoryCost:
    """What a draft takes from the target's cache, and so the rows it displaces, with `memory_gb` for weights and caches of
    all devices together. `target_weights` is their own type where they are quantised."""
    total = memory_gb * 1e9
    weights, kv = target.weight_bytes(target_weights or dtype), target.kv_bytes_per_token(dtype)
    draft_weights, draft_kv = draft.weight_bytes(dtype), draft.kv_bytes_per_token(dtype)
    plain = max(0, int((total - weights) // (kv * context)))
    shared = max(0, int((total - weights - draft_weights) // ((kv + draft_kv) * context)))
    return MemoryCost(
        draft_weight_gb=draft_weights / 1e9,
        draft_kv_bytes_per_token=draft_kv,
        context=context,
        rows_without_draft=plain,
        rows_with_draft=shared,
        weight_gb_per_device=(weights + draft_weights) / 1e9 / tensor_parallel,
    )
