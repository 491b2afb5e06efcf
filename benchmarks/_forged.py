"""The lab's own drafts: forged for TinyLlama and SmolLM2, each with its deep, thin equal. `just lab-drafts` builds them.

They take hours; every part resumes. They lie in DRAFTSMITH_LAB/drafts, by name, and later work takes them from there."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._drafts import copied
from benchmarks._evidence import Lab, open_lab
from benchmarks._taught import JUDGED, recorded
from draftsmith import api
from draftsmith.forge.contest import DEEP, OURS

HOURS = {"tinyllama": 1.0, "smollm2": 0.9}
TENSOR_PARALLEL = {"tinyllama": 2, "smollm2": 1}  # of vLLM, which serves it; SmolLM2 has nine heads
_ENGINE = {"dtype": "bfloat16", "threads": 2, "batch_size": 32}
_PROMPTS = {"tinyllama": 150, "smollm2": 400}
_BATCH = {"tinyllama": 8, "smollm2": 16}  # sequences a step


@dataclass(frozen=True)
class Forged:
    """A draft of the lab, the same with fewer output rows if that was faster, and its deep, thin equal."""

    draft: Path
    trimmed: Path | None
    deep: Path
    record: dict[str, Any]


def forged(lab: Lab, name: str) -> Forged:
    """Built on first use."""
    store = _store(lab)
    made = api.forge(
        target=getattr(lab, name),
        datasets=JUDGED,
        data=lab.data,
        hours=0.05 if lab.quick else HOURS[name],
        context=256,
        train_prompts=4 if lab.quick else _PROMPTS[name],
        held_prompts=4 if lab.quick else 32,
        live_prompts=2,  # `headline` runs them live on more
        max_new_tokens=_new_tokens(lab),
        learning={"batch": _BATCH[name], "micro_batch": 4, "length": 512, "save_every": 20},
        first_steps=2 if lab.quick else 20,
        timing={"steps": 4, "min_rounds": 2, "max_rounds": 2} if lab.quick else {"steps": 16, "min_rounds": 4, "max_rounds": 8},
        tensor_parallel=TENSOR_PARALLEL[name],
        engine=_ENGINE,
        store=store,
    )
    paths = {one.name: _named(lab, name, one.name, one.fingerprint, store) for one in made.record.contenders}
    record = made.record.model_dump(mode="json")
    whole, trimmed = OURS
    draft, deep = paths[whole], paths.get(DEEP)
    if draft is None or deep is None:
        sys.exit(f"the best draft of {name} has more than a quarter of its layers: none is four times as deep")
    return Forged(draft, paths.get(trimmed), deep, record)


def learnt_from(lab: Lab, name: str) -> Path:
    """What the target wrote for the forged draft to learn, as `forge` recorded it."""
    more: dict[str, Any] = {"max_new_tokens": _new_tokens(lab), "top_logprobs": 16, "engine": _ENGINE, "store": _store(lab)}
    return recorded(lab, getattr(lab, name), "train", JUDGED, _PROMPTS[name], **more)


def _store(lab: Lab) -> Path:
    return lab.drafts / ("quick-forge" if lab.quick else "forge")


def _new_tokens(lab: Lab) -> int:
    return 16 if lab.quick else 200


def _named(lab: Lab, target: str, name: str, fingerprint: str | None, store: Path) -> Path | None:
    """A checkpoint of the forge's store, copied to where people find it."""
    if fingerprint is None:
        return None
    folder = lab.drafts / f"{target}-{name.replace(', ', '-').replace(' ', '-')}-{fingerprint[:8]}"
    if not folder.exists():
        found = next(
            path.parent / "model"
            for kind in ("distilled", "checkpoints")
            for path in sorted((store / kind).glob("*/record.json"))
            if json.loads(path.read_text())["fingerprint"] == fingerprint
        )
        copied(found, folder)
    return folder


def main() -> None:
    """Build all of them, and say how long it took."""
    lab = open_lab("lab-drafts", quick=False)
    for name in ("smollm2", "tinyllama"):
        began = time.monotonic()
        made = forged(lab, name)
        hours = (time.monotonic() - began) / 3600
        print(
            f"{name}: {made.draft}, {made.deep}: {hours:.2f} hours now, {made.record['seconds'] / 3600:.2f} in all", flush=True
        )


if __name__ == "__main__":
    main()
