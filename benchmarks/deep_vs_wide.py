"""Shallow and wide against deep and thin, at equal parameters, cut from real models and trained alike: the paper's Table 2."""

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._drafts import layer_order
from benchmarks._evidence import RESULTS, Lab, Result, refuse_busy, run
from benchmarks._rounded import bfloat16_units
from benchmarks._side_by_side import picture, table
from draftsmith import api
from draftsmith.core.families import cut_config, family_of
from draftsmith.core.provenance import has_bf16_units, machine
from draftsmith.core.shapes import Shape
from draftsmith.core.store import read_json, write_json
from draftsmith.figures.save import save_chart
from draftsmith.forge.rounds import pruners_by

LOOKAHEADS = (1, 2, 3, 5, 8)
TEST = ("hellaswag", "mmlu", "chat")
RATES = (1e-4, 3e-4, 1e-3)  # tried for every draft of a target, on a tenth of the tokens
_LENGTH, _BATCH = 256, 16


@dataclass(frozen=True)
class Case:
    """A target, two shapes of equal size to cut it to, and how."""

    target: Path
    shapes: dict[str, dict[str, int]]
    learned: bool  # by l0, before the training of what is left; else by depth and width
    reads: str  # the arithmetic in which the train split is recorded and what `width` keeps is chosen
    steps: int  # of the training of what is left
    rates: tuple[float, ...] = RATES


def measure(lab: Lab) -> Result:
    """Tokens per step, draft latency and predicted throughput of every draft, side by side."""
    trained = {
        case.target: [lab.kept(f"{case.target.name}-{name}", partial(_draft, lab, case, name)) for name in case.shapes]
        for case in _cases(lab)
    }
    drafts = []
    for target, ones in trained.items():
        times = lab.kept(f"{target.name}-times", partial(_timed, lab, target, ones))
        drafts += [{**one, **times[one["draft"]]} for one in ones]
    verdicts = {target: _compare([one for one in drafts if one["target"] == target]) for target in _targets(drafts)}
    behind = [_limit(drafts, target, one["throughput"]) for target, one in verdicts.items() if one["throughput"] <= 1]
    gain = min(one["throughput"] for one in verdicts.values())
    apart = max(abs(one["parameters"] - 1) for one in verdicts.values())
    if not lab.quick:
        save_chart(picture(drafts), RESULTS, "deep_vs_wide", page=False)
    return Result(
        claim="At equal parameters a shallow, wide draft is faster than a deep, thin one",
        value="; ".join(f"{target}: {one['throughput']:.2f} x" for target, one in verdicts.items()),
        unit="predicted throughput of the wide draft against the deep one, each at its best lookahead, batch 1",
        goal="above 1 (the paper: latency counts, not accuracy); parameters within 3%",
        holds=gain > 1 and apart <= 0.03,
        spread="standard errors: " + "; ".join(f"{target} {one['throughput error']:.1%}" for target, one in verdicts.items()),
        workload="SmolLM2-135M-Instruct by l0 and recovery, TinyLlama-1.1B by depth, width and recovery; RedPajama sample and "
        f"recorded output of the train split, learnt in {lab.arithmetic()}, {_BATCH * _LENGTH:,} tokens a step; HellaSwag, "
        "MMLU and chat of the test split, greedy, transformers, bf16",
        details={
            "table": table(drafts),
            "drafts": drafts,
            "wide against deep": verdicts,
            "what_holds": [f"{target}: {said}" for target, one in verdicts.items() for said in _says(one)],
            **({"what_limits_it": "; ".join(behind)} if behind else {}),
        },
    )


def _cases(lab: Lab) -> Iterator[Case]:
    smol = {
        "wide": {"layers": 5},
        "deep": {"layers": 15, "hidden": 384, "heads": 6, "kv_heads": 2, "intermediate": 1216},
    }
    # bf16 rounds differently from processor to processor; where it is cheap, all of them are to read the same.
    yield Case(lab.smollm2, smol, learned=True, reads="float32", steps=20 if lab.quick else 260)
    if not lab.quick:
        tiny = {
            "wide": {"layers": 2},
            "deep": {"layers": 12, "hidden": 1024, "heads": 16, "kv_heads": 2, "intermediate": 3392},
        }
        yield Case(lab.tinyllama, tiny, learned=False, reads=lab.arithmetic(), steps=245, rates=(3e-5, *RATES))


def _draft(lab: Lab, case: Case, name: str) -> dict[str, Any]:
    train = _recorded(lab, case.target, "train", ("hellaswag", "chat", "gsm8k"), 200, case.reads)
    text = {**_web(lab), "answers": {"path": str(train), "weight": 1.0}}
    arithmetic = lab.arithmetic()
    learning = _train(8 if lab.quick else 120, 1e-4, arithmetic)
    by: Any
    if case.learned:
        by = [{"kind": "l0", "settings": {"text": text, "train": learning, "mask_rate": 1.0, "price_rate": 5.0}}]
    else:
        by = pruners_by(layer_order(lab, "tinyllama"), case.shapes[name])
    common: dict[str, Any] = {"trace": train, "engine": {"dtype": case.reads, "threads": 2}, "store": lab.store}
    with bfloat16_units():
        cut = api.prune(source=case.target, shape=case.shapes[name], pruners=by, **common)

    def recovered(steps: int, rate: float) -> Any:
        distill = {"kind": "distill", "settings": {"text": text, "train": _train(steps, rate, arithmetic)}}
        with bfloat16_units():
            return api.prune(source=cut.folder / "model", shape={}, pruners=[distill], **common)

    def searched(rate: float) -> float:
        return _last_loss(recovered(max(2, case.steps // 10), rate).folder)

    tried = {rate: lab.kept(f"{case.target.name}-{name}-{rate:g}", partial(searched, rate)) for rate in case.rates}
    rate = min(tried, key=lambda one: tried[one])
    kept = recovered(case.steps, rate)
    model = kept.folder / "model"
    test = _recorded(lab, case.target, "test", TEST, 64, "bfloat16")
    card = api.evaluate(trace=test, draft=model, lookaheads=LOOKAHEADS, engine=_engine("bfloat16"), store=lab.store)
    row = {
        "target": case.target.name,
        "draft": name,
        "shape": kept.record.shape.model_dump(),
        "parameters": kept.record.parameters,
        "layers_kept": list(cut.record.layers_kept),
        "tokens_trained": _BATCH * _LENGTH * (case.steps + (learning["steps"] if case.learned else 0)),
        "rates_tried": {str(one): loss for one, loss in tried.items()},
        "rate": rate,
        "loss": _last_loss(kept.folder),
        "tokens_per_step": {str(point.lookahead): point.tokens_per_step for point in card.record.overall.points},
        "tokens_per_step_error": {str(point.lookahead): point.tokens_per_step_error for point in card.record.overall.points},
        "by_dataset": {one: curve.at(3).tokens_per_step for one, curve in card.record.by_dataset.items()},
        "trained_on": machine()["cpu"],
    }
    print(row, flush=True)
    return row


def _timed(lab: Lab, target: Path, drafts: list[dict[str, Any]]) -> dict[str, Any]:
    """By draft: its time and its throughput at the lookahead that is best for it. They may have been trained on different
    machines, so they are timed on one, by shape: what a model has learned does not change how long it takes."""
    if has_bf16_units() is False and not lab.quick:
        sys.exit("all drafts are trained; they are to be timed on a processor with units for bfloat16, and this one has none")
    config, found = read_json(target / "config.json"), {}
    for one in drafts:
        folder, shape = lab.store / "shapes" / f"{target.name}-{one['draft']}", Shape(**one["shape"])
        write_json(folder / "config.json", cut_config(config, shape, range(shape.layers), family_of(config, str(target))))
        profile = api.profile(
            target=target,
            draft=folder,
            lookaheads=LOOKAHEADS,
            batches=(1,),
            contexts=(256,),
            timing={"steps": 6, "min_rounds": 2, "max_rounds": 2}
            if lab.quick
            else {"steps": 16, "min_rounds": 5, "max_rounds": 12},
            engine=_engine("bfloat16"),
            store=lab.store,
        )
        refuse_busy(lab, profile.record.busy, profile.folder)
        accepted = {int(lookahead): tokens for lookahead, tokens in one["tokens_per_step"].items()}
        best = api.predict(profile=profile.folder, tokens_per_step=accepted, store=lab.store).record.verdict.best
        replayed = (one["tokens_per_step_error"][str(best.lookahead)] or 0.0) / best.tokens_per_step
        found[one["draft"]] = {
            "draft_ms_per_token": best.draft_ms / best.lookahead,
            "best_lookahead": best.lookahead,
            "tokens_per_second": best.tokens_per_second,
            "speedup": best.speedup,
            "speedup_error": math.hypot(best.error, replayed),
            "timed_on": machine()["cpu"],
        }
    return found


def _train(steps: int, rate: float, arithmetic: str) -> dict[str, Any]:
    return {
        "steps": steps, "batch": _BATCH, "micro_batch": 16, "length": _LENGTH, "learning_rate": rate,
        "warmup_steps": max(1, steps // 20), "precision": arithmetic, "save_every": 20,
    }  # fmt: skip


def _web(lab: Lab) -> dict[str, Any]:
    """The corpus of Sheared-LLaMA in little, with its weights."""
    shares = {"c4-rp": 0.492, "github": 0.022, "book": 0.091, "stackexchange": 0.021, "wiki": 0.031, "arxiv": 0.01, "cc": 0.333}
    found: dict[str, Any] = {}
    for name, share in shares.items():
        files = sorted((lab.data / "redpajama_sample").glob(f"sample_{name}[0-9]*.jsonl"))
        found |= {file.stem: {"path": str(file), "weight": share / len(files)} for file in files}
    return found


def _recorded(lab: Lab, target: Path, split: str, datasets: tuple[str, ...], num_prompts: int, dtype: str) -> Path:
    return api.record(
        target=target,
        datasets=datasets,
        data=lab.data,
        split=split,
        num_prompts=4 if lab.quick else num_prompts,
        max_prompt_tokens=256 if lab.quick else 1024,
        max_new_tokens=16 if lab.quick else 128,
        engine={**_engine(dtype), "batch_size": 64},
        store=lab.store,
    ).folder


def _engine(dtype: str) -> dict[str, Any]:
    return {"kind": "transformers", "dtype": dtype, "threads": 2, "batch_size": 32}


def _last_loss(folder: Path) -> float:
    """Of what is left, over the last tenth of its steps."""
    (notes,) = folder.glob("*-distill/training.jsonl")
    losses = [json.loads(line)["loss"] for line in notes.read_text().splitlines()]
    last = losses[-max(1, len(losses) // 10) :]
    return float(sum(last) / len(last))


def _says(verdict: dict[str, float]) -> list[str]:
    """The three statements of the paper about drafts of equal size, each with what was found."""
    latency, tokens, throughput = (verdict[name] for name in ("draft latency", "tokens per step at lookahead 3", "throughput"))
    return [
        f"the shallow one drafts faster: {_holds(latency < 1)}, {latency:.2f} x the time of the deep one",
        f"the deep one is accepted more: {_holds(tokens < 1)}, {tokens:.2f} x its tokens per step by the shallow one",
        f"the shallow one is faster in all: {_holds(throughput > 1)}, {throughput:.2f} x the throughput of the deep one",
    ]


def _limit(drafts: list[dict[str, Any]], target: str, throughput: float) -> str:
    """What the shallow draft would have to accept to be as fast as the deep one."""
    (wide,) = (one for one in drafts if (one["target"], one["draft"]) == (target, "wide"))
    has = wide["tokens_per_step"][str(wide["best_lookahead"])]
    return (
        f"{target}: after {wide['tokens_trained'] / 1e6:.2f}M tokens the shallow draft has {has:.2f} tokens per step at "
        f"lookahead {wide['best_lookahead']}, and would be as fast as the deep one at {has / throughput:.2f}"
    )


def _holds(found: bool) -> str:
    return "holds" if found else "does not hold"


def _targets(drafts: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(one["target"] for one in drafts))


def _compare(drafts: list[dict[str, Any]]) -> dict[str, float]:
    wide, deep = (next(one for one in drafts if one["draft"] == name) for name in ("wide", "deep"))
    return {
        "throughput": wide["speedup"] / deep["speedup"],  # each against plain decoding in its own profile
        "throughput error": math.hypot(wide["speedup_error"], deep["speedup_error"]),  # relative, as theirs are
        "draft latency": wide["draft_ms_per_token"] / deep["draft_ms_per_token"],
        "tokens per step at lookahead 3": wide["tokens_per_step"]["3"] / deep["tokens_per_step"]["3"],
        "parameters": wide["parameters"] / deep["parameters"],
    }


if __name__ == "__main__":
    run("deep_vs_wide", measure, carried=True)
