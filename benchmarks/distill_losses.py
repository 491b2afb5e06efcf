"""Every loss of distillation on the same cut: tokens per step on held-out prompts against training tokens, and one long run."""

from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks._drafts import depth_cut
from benchmarks._evidence import RESULTS, Lab, Result, run
from benchmarks._taught import JUDGED, Taught, lessons, recorded, training
from draftsmith import api
from draftsmith.figures.learning import learning
from draftsmith.figures.save import save_chart

LOSSES = (
    "forward_kl", "cross_entropy", "reverse_kl", "jensen_shannon", "total_variation", "argmax_miss", "acceptance_length",
)  # fmt: skip
RATES = (3e-4, 1e-3)  # for every loss, the better one counts
LAYERS, LOOKAHEAD = 5, 5
PROMPTS = 400  # of each data set: read once while losses are compared, and about five times in the long run
HELD_OUT = 64  # prompts of each judged data set, by which losses are told apart; curves are drawn by fewer
ENGINE = {"kind": "transformers", "dtype": "float32", "threads": 2}
PLAIN, AWARE = "forward_kl", ("acceptance_length", "total_variation", "argmax_miss")


def measure(lab: Lab) -> Result:
    """Tokens per step at lookahead 5 after the same tokens, and the bend of the curve of the best."""
    steps, long = (4, 8) if lab.quick else (50, 400)

    @cache
    def taught() -> dict[str, Any]:
        return lessons(lab, lab.smollm2, PROMPTS)

    @cache
    def held_out() -> Path:
        return recorded(lab, lab.smollm2, "probe", JUDGED, HELD_OUT, engine={**ENGINE, "batch_size": 64})

    def made(loss: str, rate: float, count: int) -> Any:
        cut, train = depth_cut(lab, LAYERS), training(lab, count, rate)
        checks = {"check_every": max(1, count // (2 if lab.quick else 10)), "lookahead": LOOKAHEAD}
        learnt = api.distill(student=cut, loss=loss, **taught(), **checks, train=train, store=lab.store)
        cell = Taught.judged(lab, learnt, held_out(), LOOKAHEAD, ENGINE)
        print(loss, rate, count, Taught.of(cell).curve, flush=True)
        return cell

    def distilled(loss: str, rate: float, count: int) -> Taught:
        return Taught.of(lab.kept(f"{loss}-{rate:g}-{count}", partial(made, loss, rate, count)))

    losses = LOSSES[:2] if lab.quick else LOSSES
    runs = {loss: {rate: distilled(loss, rate, steps) for rate in RATES} for loss in losses}
    best = {loss: max(tried, key=lambda rate: tried[rate].tokens_per_step) for loss, tried in runs.items()}
    kept = {loss: runs[loss][best[loss]] for loss in losses}
    ranked = sorted(losses, key=lambda loss: -kept[loss].tokens_per_step)
    winner = ranked[0]
    trained = distilled(winner, best[winner], long)
    bend = trained.curve
    aware = next((loss for loss in ranked if loss in AWARE), winner)  # a slice has none
    apart = {loss: kept[loss].against(kept[PLAIN]) for loss in ranked if loss != PLAIN}
    ahead, error = kept[aware].against(kept[PLAIN])
    recordings = len({one.record.trace for tried in runs.values() for one in tried.values()})
    at_the_edge = sum(rate == max(RATES) for rate in best.values())
    if not lab.quick:
        curves = {loss.replace("_", " "): one.record for loss, one in kept.items()}
        save_chart(learning(curves), RESULTS, "distill_losses", page=False)
        save_chart(learning({winner.replace("_", " "): trained.record}), RESULTS, "distill_losses-long", page=False)
    return Result(
        claim="Distillation on recorded output makes a cut accept; which loss does it best is measured",
        value="; ".join(f"{loss}: {kept[loss].tokens_per_step:.3f}" for loss in ranked),
        unit=f"tokens per step at lookahead {LOOKAHEAD} on held-out prompts, all after the same tokens; the best "
        f"acceptance-aware loss, {aware}, against plain {PLAIN}: {ahead:+.3f} ± {error:.3f}",
        goal="at least 5 losses on the same cut, the best acceptance-aware loss said against plain KL, one run of several "
        "million tokens",
        holds=lab.quick or (len(kept) >= 5 and trained.record.tokens >= 3e6 and _bends(bend)),
        spread="standard errors are paired over prompts, and know nothing of the chance in training: one seed; of the two "
        f"learning rates (details) the higher is better for {at_the_edge} of {len(losses)} losses: none higher was tried",
        workload=f"SmolLM2-135M-Instruct cut to {LAYERS} layers by depth, {kept[winner].record.tokens / 1e6:.2f}M tokens each, "
        f"the best loss {trained.record.tokens / 1e6:.2f}M (the text about five times), recorded output of the train prompts "
        f"of all data sets ({PROMPTS} of each, recorded {recordings} times in the same way, as machines changed), "
        f"{lab.arithmetic()}; judged by {HELD_OUT} prompts of the probe split of {', '.join(JUDGED)} each, curves by fewer",
        details={
            "tokens_per_step": {
                loss: {str(rate): one.tokens_per_step for rate, one in tried.items()} for loss, tried in runs.items()
            },
            f"ahead of {PLAIN}, and the standard error": apart,
            "curves": {loss: one.curve for loss, one in kept.items()},
            "long": {"loss": winner, "tokens_per_step": trained.tokens_per_step, "curve": bend},
        },
    )


def _bends(curve: list[tuple[int, float]]) -> bool:
    """Whether it rises, and less in its last third than in its first."""
    third = max(1, len(curve) // 3)
    first, last = (curve[end][1] - curve[end - third][1] for end in (third, -1)) if len(curve) > third else (0.0, 0.0)
    return first > last and curve[-1][1] > curve[0][1]


if __name__ == "__main__":
    run("distill_losses", measure, carried=True)
