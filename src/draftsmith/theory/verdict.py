"""Go or no-go: what the predicted speedups mean, in a sentence. Reads ThroughputPoints, writes a Verdict."""

from collections.abc import Sequence

from draftsmith.core.records import ThroughputPoint, Verdict

_SURE = 2.0  # standard errors


def judge(points: Sequence[ThroughputPoint]) -> Verdict:
    """By the best lookahead at each batch size and context. A speedup counts when it is two standard errors away from 1."""
    best: dict[tuple[int, int], ThroughputPoint] = {}
    for point in points:
        place = (point.context, point.batch)
        if point.lookahead > 0 and (place not in best or point.speedup > best[place].speedup):
            best[place] = point
    top = max(best.values(), key=lambda point: point.speedup)
    wins = {place for place, point in best.items() if point.speedup * (1 - _SURE * point.error) > 1}
    losses = {place for place, point in best.items() if point.speedup * (1 + _SURE * point.error) < 1}
    if len(wins) == len(best):
        return Verdict(answer="go", sentence=f"Go: {_speedup(top)}{_least(best)}.", best=top)
    if len(losses) == len(best):
        sentence = f"No-go: speculation slows decoding down everywhere; at best {_speedup(top)}."
        return Verdict(answer="no-go", sentence=sentence, best=top)
    if not wins:
        sentence = f"Too close to call: {_speedup(top)}. Measure longer, or take a faster or a better draft."
        return Verdict(answer="too close to call", sentence=sentence, best=top)
    sure = max((best[place] for place in wins), key=lambda point: point.speedup)
    return Verdict(answer="only where it pays", sentence=f"Only {_region(best, wins)}: there {_speedup(sure)}.", best=sure)


def _speedup(point: ThroughputPoint) -> str:
    margin = f" ± {_SURE * point.error * point.speedup:.2f}" if point.error else ""
    return f"{point.speedup:.2f}{margin} x plain decoding with lookahead {point.lookahead} {_place(point)}"


def _least(best: dict[tuple[int, int], ThroughputPoint]) -> str:
    worst = min(best.values(), key=lambda point: point.speedup)
    return f", and at least {worst.speedup:.2f} x {_place(worst)}" if len(best) > 1 else ""


def _place(point: ThroughputPoint) -> str:
    return f"at batch {point.batch}" + (f" and context {point.context}" if point.context else "")


def _region(best: dict[tuple[int, int], ThroughputPoint], wins: set[tuple[int, int]]) -> str:
    """Where it pays, as simply as it can be said."""
    contexts, batches = (sorted({place[i] for place in best}) for i in (0, 1))
    reach = {context: _leading([b for b in batches if (context, b) in best], context, wins) for context in contexts}
    if sum(len(reached) for reached in reach.values()) != len(wins):  # holes: list the places
        return "at " + "; ".join(f"batch {b}, context {c}" for c, b in sorted(wins))
    if len({tuple(reached) for reached in reach.values()}) == 1:
        return f"up to batch {reach[contexts[0]][-1]}"
    full = [c for c in contexts if reach[c] == batches]
    if full and full == contexts[: len(full)] and not any(reach[c] for c in contexts[len(full) :]):
        return f"up to context {full[-1]}"
    return "; ".join(f"up to batch {reached[-1]} at context {c}" for c, reached in reach.items() if reached)


def _leading(batches: list[int], context: int, wins: set[tuple[int, int]]) -> list[int]:
    """The batch sizes from the smallest on, as long as it pays."""
    taken = []
    for batch in batches:
        if (context, batch) not in wins:
            break
        taken.append(batch)
    return taken
