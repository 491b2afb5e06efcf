"""The headline: a forged draft against the deep, thin draft of equal parameters and equal training, live, on both engines."""

import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._drafts import copied
from benchmarks._evidence import Lab, Result, refuse_busy, run
from benchmarks._forged import DEEPER, TENSOR_PARALLEL, check_units, forged, recipe_of
from benchmarks._live import Group, passed, ratios, speed, spread, there_and_back
from benchmarks._taught import JUDGED, recorded
from draftsmith import api
from draftsmith.core.checkpoints import model_fingerprint
from draftsmith.core.protocols import EngineConfig
from draftsmith.core.provenance import has_bf16_units, machine, timed_on
from draftsmith.core.shapes import model_shape
from draftsmith.core.store import digest, read_json, write_json
from draftsmith.core.trace import TraceReader

LOOKAHEADS = (1, 2, 3, 4, 6, 8)
BATCHES = (1, 4, 8)
NEW_TOKENS, PROMPTS, ALONE = 200, 8, 4  # prompts of each data set; so many of them at batch 1, which takes the longest
GOAL, FASTER = 2.11, 1.5
PLAIN, COMPARED = "plain", ("forged", "deep")
SPEED, LOOPLESS = "tokens_per_second", "tokens_per_second_without_loops"
ENGINES: dict[str, dict[str, Any]] = {
    "transformers": {"kind": "transformers", "dtype": "bfloat16", "threads": 2},
    "vllm": {"kind": "vllm", "dtype": "bfloat16", "threads": 2, "max_model_len": 1280},
}


def measure(lab: Lab) -> Result:
    """Tokens per second of every draft on every data set, each at its own best lookahead, and plain decoding."""
    judged_by, names = ("smollm2", ("smollm2",)) if lab.quick else ("tinyllama", _in_turn())
    details: dict[str, Any] = {}
    for batches in (BATCHES[:1],) if lab.quick else (BATCHES[:1], BATCHES[1:]):  # what the goal is about comes first
        for name in names:
            recipe = recipe_of(lab, name)
            parts = details.setdefault(name, {"recipe": recipe, **{engine: [] for engine in ENGINES}})
            for engine in ENGINES:
                parts[engine].append(_part(lab, name, engine, recipe, batches))
    judged = {engine: details[judged_by][engine][0] for engine in ENGINES}
    cells = [{"engine": engine, **cell} for engine in ENGINES for cell in judged[engine]["cells"]]
    against = {engine: _mean([_ratio(cells, engine, dataset, "forged", "deep") for dataset in JUDGED]) for engine in ENGINES}
    everywhere = [(engine, dataset) for engine in ENGINES for dataset in JUDGED]
    straight = _mean([_ratio(cells, *where, "forged", "deep", LOOPLESS) for where in everywhere])
    looping = float(np.mean([_of(cells, *where, "forged")["looping_share"] for where in everywhere]))
    plain = {where: _of(cells, *where, "forged")["speedup"] for where in everywhere}
    holds = min(against.values()) >= GOAL and min(plain.values()) >= FASTER
    if not holds:
        details["what_limits_it"] = _limits(judged)
    return Result(
        claim="A forged draft against the deep, thin draft of equal parameters, trained alike: live throughput",
        value="; ".join(f"{engine}: {ratio:.2f} x" for engine, ratio in against.items())
        + f"; {min(plain.values()):.2f} to {max(plain.values()):.2f} x plain decoding",
        unit="throughput of the forged draft, TinyLlama-1.1B, batch 1, mean over data sets",
        goal="2.11 x the deep, thin draft (+111%), and at least 1.5 x plain decoding on each data set",
        holds=holds,
        spread=f"{looping:.0%} of the outputs loop (under half of their 4-grams differ); without them {straight:.2f} x over "
        "both engines; 10th to 90th percentiles over prompts stand with every cell",
        workload=f"{', '.join(names)}, bf16, {ALONE} prompts ({PROMPTS} in batches) of the test split of {', '.join(JUDGED)} "
        f"each, {NEW_TOKENS} new tokens, each draft at its own best lookahead by a profile of the pair and replay on the probe "
        "split; at batch 1 there and back; vLLM with tensor parallel 2 for TinyLlama; stories15M with more positions than it "
        "was trained on, since the prompts are longer; the forged draft has at most "
        f"1/{DEEPER} of its target's layers, so that there is one {DEEPER} x as deep; each target is forged once, and another "
        "machine that goes on makes its drafts alike: shapes, layers, steps and learning rates are the recipe's",
        details=details,
    )


def _in_turn() -> tuple[str, ...]:
    """What a processor can do first: TinyLlama is for those with units for bfloat16."""
    return ("smollm2", "tinyllama") if has_bf16_units() is False else ("tinyllama", "smollm2")


def _part(lab: Lab, name: str, engine: str, recipe: dict[str, Any], batches: tuple[int, ...]) -> dict[str, Any]:
    """A target in an engine. What is expected, and every data set, is a cell: drafts have to be made before, and a machine that
    is had for some hours has time for a few of them."""
    words = f"{name}-{engine}-{'-'.join(map(str, batches))}-{digest(recipe)[:8]}"
    served = {**ENGINES[engine], **({"tensor_parallel": TENSOR_PARALLEL[name]} if engine == "vllm" else {})}

    @cache
    def drafts() -> dict[str, Path | str]:
        check_units(name)
        return _drafts(lab, name, recipe, alone=batches == BATCHES[:1])

    def expected() -> dict[str, Any]:
        shapes = {one: model_shape(path) for one, path in drafts().items() if isinstance(path, Path)}
        assert shapes["deep"].layers >= DEEPER * shapes["forged"].layers
        assert abs(shapes["deep"].parameters / shapes["forged"].parameters - 1) <= 0.03
        points = {one: _expected(lab, getattr(lab, name), path, served, batches) for one, path in drafts().items()}
        return {
            "expected": [{"draft": one, **point} for one, found in points.items() for point in found.values()],
            "shapes": {one: shape.model_dump() for one, shape in shapes.items()},
            "machine": timed_on(machine()),
        }

    promised = lab.kept(f"{words}-expected", expected)

    def run(dataset: str) -> dict[str, Any]:
        if promised["machine"]["bf16_units"] != has_bf16_units():
            sys.exit(f"lookaheads of {name} on {engine} are those of the other kind of processor, as to units for bfloat16")
        new_tokens = 16 if lab.quick else NEW_TOKENS
        trace = recorded(lab, getattr(lab, name), "test", JUDGED, PROMPTS, max_new_tokens=new_tokens)
        cells = []
        for batch in batches:
            lookaheads = {one["draft"]: one["lookahead"] for one in promised["expected"] if one["batch"] == batch}
            config = EngineConfig(**served, batch_size=batch)
            found = _cells(lab, getattr(lab, name), drafts(), lookaheads, trace, dataset, config)
            cells += [{"batch": batch, **cell} for cell in found]
            print(name, engine, batch, found, flush=True)
        prints = {one: model_fingerprint(path) for one, path in drafts().items() if isinstance(path, Path)}
        return {"cells": cells, "fingerprints": prints, "machine": timed_on(machine())}

    live = {dataset: lab.kept(f"{words}-{dataset}", partial(run, dataset)) for dataset in JUDGED}
    return {**promised, "cells": [cell for one in live.values() for cell in one.pop("cells")], "live": live}


def _drafts(lab: Lab, name: str, recipe: dict[str, Any], alone: bool) -> dict[str, Path | str]:
    """All that run at batch 1; at others the two that are compared."""
    made = forged(lab, name, recipe)
    drafts: dict[str, Path | str] = {"forged": made.draft, "deep": made.deep}
    if alone:
        drafts["ngram"] = "ngram"
        if made.trimmed is not None:
            drafts["forged, fewer output rows"] = made.trimmed
        if name == "tinyllama":
            drafts["stories15M"] = _with_positions(lab, 2048)
    return drafts


def _with_positions(lab: Lab, positions: int) -> Path:
    """stories15M for contexts that it was not trained on: its positions are rotations, and can be had for any length."""
    folder = lab.drafts / f"stories15m-{positions}-positions"
    if not folder.exists():
        made = copied(lab.stories, folder.with_name(f"{folder.name}.copy"))
        config = read_json(made / "config.json")
        write_json(made / "config.json", {**config, "max_position_embeddings": positions})
        made.rename(folder)
    return folder


def _expected(
    lab: Lab, target: Path, draft: Path | str, engine: dict[str, Any], batches: tuple[int, ...]
) -> dict[int, dict[str, Any]]:
    """By batch size: the best lookahead, the split of its step, and what would be at parity with plain decoding."""
    probe = recorded(lab, target, "probe", JUDGED, 16)
    card = api.evaluate(
        trace=probe, draft=draft, lookaheads=LOOKAHEADS, serve=engine["kind"], store=lab.store,
        engine={"kind": "transformers", "dtype": "bfloat16", "threads": 2},
    )  # fmt: skip
    profile = api.profile(
        target=target, draft=draft, lookaheads=LOOKAHEADS, batches=batches, contexts=(256,), store=lab.store, engine=engine,
        timing={"steps": 4, "min_rounds": 2, "max_rounds": 2} if lab.quick else {"steps": 15, "min_rounds": 2, "max_rounds": 2},
    )  # fmt: skip
    refuse_busy(lab, profile.record.busy, profile.folder)
    made = api.predict(profile=profile.folder, scorecard=card.folder, store=lab.store).record
    found = {}
    for batch in batches:
        best = max((one for one in made.points if one.batch == batch), key=lambda one: one.tokens_per_second)
        parity = [one.model_dump() for one in made.inverses if (one.batch, one.lookahead) == (batch, best.lookahead)]
        found[batch] = {**best.model_dump(), "inverses": parity}
    return found


def _cells(
    lab: Lab,
    target: Path,
    drafts: dict[str, Path | str],
    lookaheads: dict[str, int],
    folder: Path,
    dataset: str,
    config: EngineConfig,
) -> list[dict[str, Any]]:
    """Of every draft. At batch 1 plain decoding, the forged draft and the deep one run there and back, all else once."""
    trace = TraceReader(folder)
    rows = [row for row in trace.rows() if row.dataset == dataset][: ALONE if config.batch_size == 1 else None]
    passes_kept = replace(lab, cells=lab.store / "cells" / "headline-passes")  # of this machine: nobody else goes on with them

    def run(one: str, way: str) -> list[dict[str, Any]]:
        draft, lookahead = (None, 0) if one == PLAIN else (drafts[one], lookaheads[one])
        what = model_fingerprint(draft)[:8] if isinstance(draft, Path) else draft or one
        words = (target.name, folder.name, dataset, config.kind, config.batch_size, what, lookahead, way)
        measure = partial(passed, lab, target, draft, lookahead, trace, rows, config)
        kept: list[dict[str, Any]] = passes_kept.kept("-".join(map(str, words)), measure)
        return kept

    passes = there_and_back((PLAIN, *COMPARED), run) if config.batch_size == 1 else {}
    passes |= {one: [[Group(**group) for group in run(one, "once")]] for one in (PLAIN, *drafts) if one not in passes}
    plain = speed(passes[PLAIN])
    found: list[dict[str, Any]] = [{"dataset": dataset, "draft": PLAIN, "tokens_per_second": plain}]
    for one in drafts:
        groups = [group for way in passes[one] for group in way]
        tokens = speed(passes[one])
        cell = {
            "dataset": dataset,
            "draft": one,
            "lookahead": lookaheads[one],
            "tokens_per_second": tokens,
            "speedup": tokens / plain,
            **_steps(groups),
            "phase_seconds": {
                phase: sum(group.phase_seconds.get(phase, 0.0) for group in groups) for phase in groups[0].phase_seconds
            },
            "differing": sum(group.differing for group in groups),
            "busy_groups": sum(group.busy for group in groups),
        }
        # Steps take as long in a loop as elsewhere, so speed goes with tokens per step.
        straight, mean = cell["tokens_per_step_without_loops"], cell["tokens_per_step"]
        cell["tokens_per_second_without_loops"] = None if straight is None or not mean else tokens * straight / mean
        if one in COMPARED:
            cell["speedup_of_groups"] = spread(ratios(passes[one], passes[PLAIN]))
        if one == "forged":
            cell["against_deep_of_groups"] = spread(ratios(passes["forged"], passes["deep"]))
        found.append(cell)
    return found


def _steps(here: list[Group]) -> dict[str, Any]:
    """Tokens per step, of all outputs and of those that do not go round in circles (under half of their 4-grams differ)."""
    rows = [row for group in here for row in zip(group.written, group.steps, group.distinct, strict=True)]
    straight = [(written, steps) for written, steps, distinct in rows if distinct >= 0.5]
    counted = sum(steps for _, steps in straight)
    return {
        "tokens_per_step": sum(written for written, _, _ in rows) / sum(steps for _, steps, _ in rows),
        "tokens_per_step_of_prompts": spread([written / steps for written, steps, _ in rows if steps]),
        "looping_share": float(np.mean([distinct < 0.5 for _, _, distinct in rows])),
        "tokens_per_step_without_loops": sum(written for written, _ in straight) / counted if counted else None,
    }


def _limits(found: dict[str, Any]) -> str:
    """Where a step of the forged draft goes at batch 1, and the tokens per step that the goal would need of it."""
    said = []
    for engine in ENGINES:
        (one,) = (one for one in found[engine]["expected"] if one["draft"] == "forged")
        speeds = [cell for cell in found[engine]["cells"] if cell["draft"] == "forged"]
        slowest = min(speeds, key=lambda cell: cell["speedup"])
        needed = FASTER * slowest["tokens_per_step"] / slowest["speedup"]
        split = ", ".join(f"{name} {one[f'{name}_ms']:.0f} ms" for name in ("draft", "verify", "overhead"))
        said.append(
            f"{engine}, lookahead {one['lookahead']}: {split} a step; {slowest['dataset']} has "
            f"{slowest['tokens_per_step']:.2f} tokens per step where {FASTER} x plain needs {needed:.2f}"
        )
    return "; ".join(said)


def _of(cells: list[dict[str, Any]], engine: str, dataset: str, draft: str) -> dict[str, Any]:
    (found,) = (one for one in cells if (one["engine"], one["dataset"], one["draft"]) == (engine, dataset, draft))
    return found


def _ratio(cells: list[dict[str, Any]], engine: str, dataset: str, one: str, other: str, what: str = SPEED) -> float:
    """Not a number where one of them has nothing to show, such as outputs without loops."""
    ours, theirs = (_of(cells, engine, dataset, name)[what] for name in (one, other))
    return float("nan") if ours is None or theirs is None else float(ours / theirs)


def _mean(values: list[float]) -> float:
    return float(np.exp(np.nanmean(np.log(values))))


if __name__ == "__main__":
    run("headline", measure, carried=True)
