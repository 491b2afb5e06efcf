"""Learned masks end at precisely the shape that was asked for, or are refused with a reason before training starts."""

from typing import Any

from benchmarks._evidence import Lab, Result, run
from benchmarks._text import own_text, text_of
from draftsmith import api
from draftsmith.core.errors import DraftsmithError
from draftsmith.core.shapes import model_shape

# stories15M has 6 layers, 6 heads of 48, 768 neurons, 288 hidden dimensions.
REQUESTS: tuple[dict[str, int], ...] = (
    {"layers": 5},
    {"layers": 1},
    {"heads": 3, "kv_heads": 3},
    {"heads": 1, "kv_heads": 1},
    {"intermediate": 700},
    {"intermediate": 17},
    {"hidden": 144},
    {"layers": 3, "heads": 4, "kv_heads": 4, "hidden": 96, "intermediate": 256},
    {"layers": 2, "hidden": 192, "intermediate": 511},
    {"layers": 4, "heads": 2, "kv_heads": 2, "intermediate": 64},
)
IMPOSSIBLE: tuple[dict[str, int], ...] = (
    {"layers": 7},
    {"heads": 4},
    {"heads": 6, "kv_heads": 4},
    {"hidden": 289},
    {"hidden": 145},
    {"intermediate": 0},
    {},
)


def measure(lab: Lab) -> Result:
    """Ten shapes that can be had, and seven that cannot."""
    trace = own_text(lab, lab.stories, 64, 96)
    made = [_cut(lab, trace, wanted) for wanted in (REQUESTS[-1:] if lab.quick else REQUESTS)]
    refused = [_refusal(lab, trace, wanted) for wanted in IMPOSSIBLE]
    exact = sum(one["exact"] for one in made)
    said = sum(one["refused"] is not None for one in refused)
    return Result(
        claim="l0 ends at precisely the shape asked for, or says why not before it trains",
        value=f"{exact} of {len(made)} exact, {said} of {len(refused)} impossible ones refused",
        unit="requests",
        goal="all",
        holds=exact == len(made) and said == len(refused),
        spread="none: counts, not timings",
        workload="stories15M, 30 steps of 8 sequences of 128 tokens each, float32",
        details={"requests": made, "impossible": refused},
    )


def _settings(lab: Lab, trace: Any, wanted: dict[str, int]) -> dict[str, Any]:
    train = {"steps": 30, "batch": 8, "micro_batch": 8, "length": 128, "precision": "float32", "warmup_steps": 5}
    masks = {"mask_rate": 0.5, "price_rate": 0.5}
    return {
        "source": lab.stories,
        "trace": trace,
        "shape": wanted,
        "pruners": [{"kind": "l0", "settings": {"text": text_of(trace), "train": train, **masks}}],
        "engine": {"threads": 2},
        "store": lab.store,
    }


def _cut(lab: Lab, trace: Any, wanted: dict[str, int]) -> dict[str, Any]:
    kept = api.prune(**_settings(lab, trace, wanted))
    asked = model_shape(lab.stories).model_copy(update=wanted)
    found = model_shape(kept.folder / "model")
    row = {"asked": wanted, "found": found.model_dump(), "exact": found == asked}
    print(row, flush=True)
    return row


def _refusal(lab: Lab, trace: Any, wanted: dict[str, int]) -> dict[str, Any]:
    try:
        api.prune(**_settings(lab, trace, wanted))
    except DraftsmithError as error:
        return {"asked": wanted, "refused": error.problem, "way_out": error.way_out}
    return {"asked": wanted, "refused": None}


if __name__ == "__main__":
    run("exact_shape", measure)
