"""Every loss of distillation on the same cut: tokens per step on held-out prompts against training tokens, and one long run."""

from functools import cache, partial
from typing import Any

from benchmarks._drafts import depth_cut
from benchmarks._evidence import RESULTS, Lab, Result, run
from benchmarks._taught import lessons, training
from draftsmith import api
from draftsmith.core.records import DistilledCheckpoint
from draftsmith.figures.learning import learning
from draftsmith.figures.save import save_chart

LOSSES = (
    "forward_kl", "cross_entropy", "reverse_kl", "jensen_shannon", "total_variation", "argmax_miss", "acceptance_length",
)  # fmt: skip
RATES = (3e-4, 1e-3)  # for every loss, the better one counts
LAYERS, LOOKAHEAD = 5, 5
PROMPTS = 400  # of each data set: read once while losses are compared, and about five times in the long run


def measure(lab: Lab) -> Result:
    """Tokens per step at lookahead 5 after the same tokens, and the bend of the curve of the best."""
    steps, long = (4, 8) if lab.quick else (50, 400)

    @cache
    def taught() -> dict[str, Any]:
        return lessons(lab, lab.smollm2, PROMPTS)

    def made(loss: str, rate: float, count: int) -> dict[str, Any]:
        cut, train = depth_cut(lab, LAYERS), training(lab, count, rate)
        checks = {"check_every": max(1, count // (2 if lab.quick else 10)), "lookahead": LOOKAHEAD}
        record = api.distill(student=cut, loss=loss, **taught(), **checks, train=train, store=lab.store).record
        print(loss, rate, count, _curve(record), flush=True)
        return record.model_dump(mode="json")

    def distilled(loss: str, rate: float, count: int) -> DistilledCheckpoint:
        return DistilledCheckpoint.model_validate(lab.kept(f"{loss}-{rate:g}-{count}", partial(made, loss, rate, count)))

    losses = LOSSES[:2] if lab.quick else LOSSES
    runs = {loss: {rate: distilled(loss, rate, steps) for rate in RATES} for loss in losses}
    best = {loss: max(tried, key=lambda rate: _last(tried[rate])) for loss, tried in runs.items()}
    kept = {loss: runs[loss][best[loss]] for loss in losses}
    reached = {loss: _last(one) for loss, one in kept.items()}
    winner = max(reached, key=lambda loss: reached[loss])
    trained = distilled(winner, best[winner], long)
    bend = _curve(trained)
    aware = max(("acceptance_length", "total_variation", "argmax_miss"), key=lambda one: reached.get(one, 0.0))
    if not lab.quick:
        curves = {loss.replace("_", " "): one for loss, one in kept.items()}
        save_chart(learning(curves), RESULTS, "distill_losses", page=False)
        save_chart(learning({winner.replace("_", " "): trained}), RESULTS, "distill_losses_long", page=False)
    return Result(
        claim="Distillation on recorded output makes a cut accept; which loss does it best is measured",
        value="; ".join(f"{loss}: {reached[loss]:.3f}" for loss in sorted(reached, key=lambda one: -reached[one])),
        unit=f"tokens per step at lookahead {LOOKAHEAD} on the probe split, all after the same tokens",
        goal="at least 5 losses on the same cut, the best acceptance-aware loss said against plain KL, one run of several "
        "million tokens",
        holds=lab.quick or (len(reached) >= 5 and trained.tokens >= 3e6 and _bends(bend)),
        spread="the two learning rates of each loss are in the details",
        workload=f"SmolLM2-135M-Instruct cut to {LAYERS} layers by depth, {kept[winner].tokens / 1e6:.2f}M tokens each, "
        f"the best loss {trained.tokens / 1e6:.2f}M, recorded output of the train prompts of all data sets ({PROMPTS} of "
        f"each), {lab.arithmetic()}",
        details={
            "tokens_per_step": {loss: {str(rate): _last(one) for rate, one in tried.items()} for loss, tried in runs.items()},
            "acceptance-aware against forward KL": {aware: reached.get(aware), "forward_kl": reached.get("forward_kl")},
            "curves": {loss: _curve(one) for loss, one in kept.items()},
            "long": {"loss": winner, "curve": bend},
        },
    )


def _bends(curve: list[tuple[int, float]]) -> bool:
    """Whether it rises, and less in its last third than in its first."""
    third = max(1, len(curve) // 3)
    first, last = (curve[end][1] - curve[end - third][1] for end in (third, -1)) if len(curve) > third else (0.0, 0.0)
    return first > last and curve[-1][1] > curve[0][1]


def _last(made: DistilledCheckpoint) -> float:
    return _curve(made)[-1][1]


def _curve(made: DistilledCheckpoint) -> list[tuple[int, float]]:
    return [(point.tokens, point.tokens_per_step) for point in made.curve if point.tokens_per_step is not None]


if __name__ == "__main__":
    run("distill_losses", measure, carried=True)
