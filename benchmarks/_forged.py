"""The lab's own drafts: forged for TinyLlama and SmolLM2, each with its deep, thin equal. `just lab-drafts` builds them.

`forge` finds how to make them, once: a recipe, which stands in the repository, as does the text that they learn from. By it
anybody makes such drafts anew: shapes, layers, steps and learning rates are the recipe's. They lie in DRAFTSMITH_LAB/drafts,
and later work takes them from there."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._drafts import copied, layer_order
from benchmarks._evidence import ROOT, Lab, open_lab, own_arithmetic
from benchmarks._rounded import bfloat16_units
from benchmarks._taught import JUDGED, recorded
from draftsmith import api
from draftsmith.core.protocols import EngineConfig
from draftsmith.core.provenance import has_bf16_units, machine
from draftsmith.core.shapes import model_shape
from draftsmith.core.store import Store, digest, read_json, write_json
from draftsmith.core.timing import Timing
from draftsmith.forge.contest import DEEP, OURS, contenders
from draftsmith.forge.ground import ForgeConfig, prepare
from draftsmith.forge.rounds import Rounds, cut_by, sizes_of

DEEPER = 4  # times as deep as the draft is its deep, thin equal
HOURS = {"tinyllama": 1.7, "smollm2": 1.3}
TENSOR_PARALLEL = {"tinyllama": 2, "smollm2": 1}  # of vLLM, which serves it; SmolLM2 has nine heads
RECIPES = ROOT / "benchmarks" / "recipes"
_ENGINE = {"dtype": "bfloat16", "threads": 2, "batch_size": 64}
_PROMPTS = {"tinyllama": 400, "smollm2": 400}
_BATCH = {"tinyllama": 4, "smollm2": 2}  # sequences a step: of few tokens more is learnt in many small ones (docs/log.md)
_FIRST_STEPS = {"tinyllama": 40, "smollm2": 160}  # of the first shape, and of every learning rate that is tried
_RATES = {"tinyllama": (3e-5, 1e-4, 3e-4), "smollm2": (3e-4, 1e-3, 3e-3)}  # around the best of short trainings
_LOSS = "cross_entropy"  # as good as forward KL in `distill_losses`, and text alone will do: small enough to be carried
_LEAST_TOKENS = 100_000  # that the last draft must have learnt from: else there was no time to forge


@dataclass(frozen=True)
class Forged:
    """A draft of the lab, the same with fewer output rows if that was faster, and its deep, thin equal."""

    draft: Path
    trimmed: Path | None
    deep: Path


def recipe_of(lab: Lab, name: str) -> dict[str, Any]:
    """What forging came to: sizes, steps and learning rates."""
    path = (lab.drafts / "quick-recipes" if lab.quick else RECIPES) / f"{name}.json"
    if not path.exists():
        recipe, drafts = _forge(lab, name)
        for which, model in drafts.items():
            if not _place(lab, name, recipe, which).exists():
                copied(model, _place(lab, name, recipe, which))
        write_json(path, recipe)
    found: dict[str, Any] = read_json(path)
    return found


def forged(lab: Lab, name: str, recipe: dict[str, Any]) -> Forged:
    """Made by a recipe."""
    draft, deep = (draft_of(lab, name, recipe, which) for which in ("forged", "deep"))
    trimmed = None
    if rows := recipe["output_rows"]:
        how: dict[str, Any] = {"shape": {"rows": rows}, "engine": _ENGINE, "store": _store(lab)}
        trimmed = api.prune(source=draft, trace=learnt_from(lab, name), **how).folder / "model"
    return Forged(draft, trimmed, deep)


def learnt_from(lab: Lab, name: str) -> Path:
    """What the target wrote for the forged draft to learn, as `forge` records it."""
    more: dict[str, Any] = {"max_new_tokens": _new_tokens(lab), "engine": _ENGINE, "store": _store(lab)}
    return recorded(lab, getattr(lab, name), "train", JUDGED, _PROMPTS[name], carried=True, **more)


def check_units(name: str) -> None:
    """TinyLlama is for processors with units for bfloat16: without them verifying several tokens takes several times one, which
    is another regime than the headline's."""
    if name == "tinyllama" and has_bf16_units() is False:
        sys.exit("TinyLlama is forged and measured on a processor with units for bfloat16, and this one has none")


def _forge(lab: Lab, name: str) -> tuple[dict[str, Any], dict[str, Path]]:
    """As `draftsmith forge` does, but for the live runs in the end, which a recipe does not hang on."""
    check_units(name)
    learnt_from(lab, name)  # forging finds it recorded
    target, precision, order = getattr(lab, name), own_arithmetic(), layer_order(lab, name)
    config = ForgeConfig(
        target=str(target),
        datasets=JUDGED,
        data=str(lab.data),
        hours=0.05 if lab.quick else HOURS[name],
        context=256,
        train_prompts=4 if lab.quick else _PROMPTS[name],
        held_prompts=4 if lab.quick else 32,
        live_prompts=1,
        max_new_tokens=_new_tokens(lab),
        loss=_LOSS,
        learning=_learning(name, precision),
        rates=_RATES[name],
        first_steps=2 if lab.quick else _FIRST_STEPS[name],
        layer_order=tuple(order),
        most_layers=model_shape(target).layers // DEEPER,
        timing=Timing(steps=4, min_rounds=2, max_rounds=2) if lab.quick else Timing(steps=16, min_rounds=4, max_rounds=8),
        tensor_parallel=TENSOR_PARALLEL[name],
        engine=EngineConfig(**_ENGINE),
    )
    folder = _store(lab) / name
    folder.mkdir(parents=True, exist_ok=True)
    rounds = Rounds(prepare(config, Store(_store(lab)), folder))
    last = rounds.go()
    if last.record.tokens < _LEAST_TOKENS and not lab.quick:
        sys.exit(f"{HOURS[name]} hours left time for {last.record.tokens:,} tokens of training: no draft is forged with so few")
    found = contenders(rounds, last)
    deep, decided = found.get(DEEP), read_json(folder / "decisions.json")
    if deep is None:
        sys.exit(f"no cut of {name} is {DEEPER} times as deep as its best draft and has as many parameters")
    (rate,) = (value for key, value in decided.items() if key.startswith("learning rate of") and key.endswith("round 2"))
    recipe = {
        "forged": {"sizes": sizes_of(last.shape), "rate": rate},
        "deep": {"sizes": sizes_of(model_shape(deep)), "rate": decided["learning rate of deep and thin"]},
        "steps": round(last.record.tokens / config.step_tokens),
        "output_rows": decided["output rows"] if OURS[1] in found else None,
        "precision": precision,
        "layer_order": order,
        "forged_on": machine()["cpu"],
        "shapes tried": [{"sizes": sizes_of(one.shape), "tokens": one.record.tokens} for one in rounds.trained],
        "decided": decided,
    }
    return recipe, {"forged": last.model, "deep": deep}


def draft_of(lab: Lab, name: str, recipe: dict[str, Any], which: str) -> Path:
    """The `forged` or the `deep` one: cut and trained as `forge` does, unless it is there."""
    folder = _place(lab, name, recipe, which)
    if folder.exists():
        return folder
    target, train, store = getattr(lab, name), learnt_from(lab, name), _store(lab)
    sizes = recipe[which]["sizes"]
    by = cut_by(recipe["layer_order"], sizes, model_shape(target))
    rows = ForgeConfig.model_fields["search_rows"].default
    cut = api.prune(source=target, trace=train, shape=sizes, pruners=by, num_rows=rows, engine=_ENGINE, store=store)
    steps = recipe["steps"]
    how = {"steps": steps, "warmup_steps": max(1, steps // 20), "learning_rate": recipe[which]["rate"]}
    with bfloat16_units():
        learning = {**_learning(name, recipe["precision"]), **how}
        made = api.distill(student=cut.folder / "model", trace=train, loss=_LOSS, train=learning, store=store)
    return copied(made.folder / "model", folder)


def _learning(name: str, precision: str) -> dict[str, Any]:
    return {"batch": _BATCH[name], "length": 512, "save_every": 100, "precision": precision}


def _place(lab: Lab, name: str, recipe: dict[str, Any], which: str) -> Path:
    return lab.drafts / f"{name}-{which}-{digest(recipe)[:8]}"


def _store(lab: Lab) -> Path:
    return lab.drafts / ("quick-forge" if lab.quick else "forge")


def _new_tokens(lab: Lab) -> int:
    return 16 if lab.quick else 200


def main() -> None:
    """Build all of them, and say how long it took."""
    lab = open_lab("lab-drafts", quick=False)
    for name in ("smollm2", "tinyllama"):
        began = time.monotonic()
        made = forged(lab, name, recipe_of(lab, name))
        print(f"{name}: {made.draft}, {made.deep}: {(time.monotonic() - began) / 3600:.2f} hours", flush=True)


if __name__ == "__main__":
    main()
