"""Every loss of distillation on the same cut: tokens per step on held-out prompts against training tokens, and one long run."""

from typing import Any

from benchmarks._evidence import RESULTS, Lab, Result, run
from benchmarks._taught import lessons, shallow_cut, training
from draftsmith import api
from draftsmith.figures.learning import learning
from draftsmith.figures.save import save_chart

LOSSES = (
    "cross_entropy", "forward_kl", "reverse_kl", "jensen_shannon", "total_variation", "argmax_miss", "acceptance_length",
)  # fmt: skip
RATES = (3e-4, 1e-3)  # for every loss, the better one counts
LAYERS, LOOKAHEAD = 5, 5


def measure(lab: Lab) -> Result:
    """Tokens per step at lookahead 5 after the same tokens, and the bend of the curve of the best."""
    taught = lessons(lab, lab.smollm2, 1500)
    cut = shallow_cut(lab, lab.smollm2, LAYERS, taught["trace"])
    steps, long = (4, 8) if lab.quick else (50, 500)

    def distilled(loss: str, rate: float, count: int) -> Any:
        checks = {"check_every": max(1, count // (2 if lab.quick else 10)), "lookahead": LOOKAHEAD}
        made = api.distill(student=cut, loss=loss, **taught, **checks, train=training(count, rate), store=lab.store)
        print(loss, rate, count, [p.tokens_per_step for p in made.record.curve if p.tokens_per_step], flush=True)
        return made

    losses = LOSSES[:2] if lab.quick else LOSSES
    runs = {loss: {rate: distilled(loss, rate, steps) for rate in RATES} for loss in losses}
    best = {loss: max(tried, key=lambda rate: _last(tried[rate])) for loss, tried in runs.items()}
    kept = {loss: runs[loss][best[loss]] for loss in losses}
    reached = {loss: _last(one) for loss, one in kept.items()}
    winner = max(reached, key=lambda loss: reached[loss])
    trained = distilled(winner, best[winner], long)
    bend = [(point.tokens, point.tokens_per_step) for point in trained.record.curve if point.tokens_per_step]
    aware = max(("acceptance_length", "total_variation", "argmax_miss"), key=lambda one: reached.get(one, 0.0))
    if not lab.quick:
        curves = {loss.replace("_", " "): one.record for loss, one in kept.items()}
        save_chart(learning(curves), RESULTS, "distill_losses", page=False)
        save_chart(learning({winner.replace("_", " "): trained.record}), RESULTS, "distill_losses_long", page=False)
    return Result(
        claim="Distillation on recorded output makes a cut accept; which loss does it best is measured",
        value="; ".join(f"{loss}: {reached[loss]:.3f}" for loss in sorted(reached, key=lambda one: -reached[one])),
        unit=f"tokens per step at lookahead {LOOKAHEAD} on the probe split, all after the same tokens",
        goal="at least 5 losses on the same cut, the best acceptance-aware loss said against plain KL, one run of several "
        "million tokens",
        holds=lab.quick or (len(reached) >= 5 and trained.record.tokens >= 3e6 and bend[-1][1] > bend[0][1]),
        spread="the two learning rates of each loss are in the details",
        workload=f"SmolLM2-135M-Instruct cut to {LAYERS} layers by depth, {kept[winner].record.tokens / 1e6:.2f}M tokens each, "
        f"the best loss {trained.record.tokens / 1e6:.2f}M, recorded output of the train prompts of all data sets, bf16",
        details={
            "tokens_per_step": {loss: {str(rate): _last(one) for rate, one in tried.items()} for loss, tried in runs.items()},
            "acceptance-aware against forward KL": {aware: reached.get(aware), "forward_kl": reached.get("forward_kl")},
            "curves": {loss: _curve(one) for loss, one in kept.items()},
            "long": {"loss": winner, "curve": bend},
        },
    )


def _last(made: Any) -> float:
    return next(point.tokens_per_step for point in reversed(made.record.curve) if point.tokens_per_step is not None)


def _curve(made: Any) -> list[tuple[int, float]]:
    return [(point.tokens, point.tokens_per_step) for point in made.record.curve if point.tokens_per_step is not None]


if __name__ == "__main__":
    run("distill_losses", measure)
