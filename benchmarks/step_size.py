"""How many tokens a step of training should have where there are few: the same text and tokens in few large steps or many small
ones."""

from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks._drafts import depth_cut
from benchmarks._evidence import Lab, Result, run
from benchmarks._taught import JUDGED, Taught, recorded, training
from draftsmith import api
from draftsmith.core.errors import TrainingError

SIZES = (1, 4, 16)  # sequences a step
RATES = (3e-4, 1e-3, 3e-3)  # for every size, the best one counts
LAYERS, LOOKAHEAD, LENGTH = 5, 5, 512
SEQUENCES, PROMPTS, HELD_OUT = 480, 200, 32
ENGINE = {"kind": "transformers", "dtype": "bfloat16", "threads": 2, "batch_size": 64}


def measure(lab: Lab) -> Result:
    """Tokens per step at lookahead 5 after the same tokens, by sequences a step."""
    sizes, rates = (SIZES[1:], RATES[:1]) if lab.quick else (SIZES, RATES)

    @cache
    def text(split: str, datasets: tuple[str, ...], num_prompts: int) -> Path:
        kept: dict[str, Any] = {"top_logprobs": 16} if split == "train" else {}
        return recorded(lab, lab.smollm2, split, datasets, num_prompts, engine=ENGINE, **kept)

    def made(size: int, rate: float) -> Any:
        steps = (64 if lab.quick else SEQUENCES) // size
        try:
            learnt = api.distill(
                student=depth_cut(lab, LAYERS),
                trace=text("train", ("hellaswag", "chat", "gsm8k"), PROMPTS),
                held_out=text("probe", JUDGED, HELD_OUT),
                lookahead=LOOKAHEAD,
                check_every=max(1, steps // 5),
                train=training(lab, steps, rate, batch=size, micro_batch=min(size, 8), save_every=max(1, steps // 3)),
                store=lab.store,
            )
        except TrainingError as error:  # the rate is too high for steps of this size
            print(size, rate, error.problem, flush=True)
            return None
        cell = Taught.judged(lab, learnt, text("probe", JUDGED, HELD_OUT), LOOKAHEAD, ENGINE)
        print(size, rate, Taught.of(cell).tokens_per_step, Taught.of(cell).curve, flush=True)
        return cell

    cells = {size: {rate: lab.kept(f"{size}-{rate:g}", partial(made, size, rate)) for rate in rates} for size in sizes}
    found = {size: {rate: Taught.of(cell) for rate, cell in tried.items() if cell} for size, tried in cells.items()}
    best_rate = {size: max(tried, key=lambda rate: tried[rate].tokens_per_step) for size, tried in found.items()}
    best = {size: tried[best_rate[size]] for size, tried in found.items()}
    largest = best[max(sizes)]
    apart = {size: one.against(largest) for size, one in best.items() if one is not largest}
    at_the_edge = [size for size in sizes if best_rate[size] in (min(rates), max(rates))]
    return Result(
        claim="A draft that learns from little text learns more of it in many small steps",
        value="; ".join(
            f"{size * LENGTH:,} tokens a step: {one.tokens_per_step:.3f} (rate {best_rate[size]:g})"
            for size, one in best.items()
        ),
        unit=f"tokens per step at lookahead {LOOKAHEAD} on held-out prompts, all after the same tokens",
        goal="whether that is so: the smallest steps ahead of the largest by more than three standard errors",
        holds=lab.quick or apart[min(sizes)][0] > 3 * apart[min(sizes)][1],
        spread="ahead of the largest steps, paired over prompts, with the standard error: "
        + "; ".join(f"{size * LENGTH:,} tokens {ahead:+.3f} ± {error:.3f}" for size, (ahead, error) in apart.items())
        + f"; one seed; the best rate is at an edge of those tried for {len(at_the_edge)} of {len(sizes)} sizes",
        workload=f"SmolLM2-135M-Instruct cut to {LAYERS} layers by depth, forward KL over its 16 most likely tokens, "
        f"{largest.record.tokens / 1e6:.2f}M tokens, recorded output of the train split of HellaSwag, chat and GSM8K "
        f"({PROMPTS} prompts of each), {lab.arithmetic()}; {HELD_OUT} prompts of the probe split of {', '.join(JUDGED)} each",
        details={
            "tokens_per_step": {
                str(size): {str(rate): one.tokens_per_step for rate, one in tried.items()} for size, tried in found.items()
            },
            "curves": {str(size): one.curve for size, one in best.items()},
        },
    )


if __name__ == "__main__":
    run("step_size", measure)
