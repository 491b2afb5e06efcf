"""Whose bottleneck? Where a step's time goes, per engine, batch and context; and a quantised target beside its bf16 self."""

from pathlib import Path
from typing import Any

from benchmarks._drafts import layer_cut
from benchmarks._evidence import Lab, Result, run
from draftsmith import api
from draftsmith.core.protocols import PHASES
from draftsmith.core.records import Profile, ProfileCell
from draftsmith.core.store import read_json, write_json

LOOKAHEADS = (1, 3, 5, 8)
ACCEPTANCE = 0.6  # for the verdicts beside the split: a draft that accepts three tokens of five
ENGINES = ("transformers", "vllm")


def measure(lab: Lab) -> Result:
    """Shares of draft, verify and overhead in every cell."""
    profiles: dict[str, Profile] = {}
    verdicts: dict[str, str] = {}
    for engine in ENGINES:
        for name, target, draft, contexts in _pairs(lab):
            _one(lab, f"{name}, {engine}", target, draft, contexts, {"kind": engine}, profiles, verdicts)
    name, target, draft, contexts = _pairs(lab)[-1]
    int8 = {"kind": "transformers", "quantization": "int8"}
    _one(lab, f"{name} with int8 weights, transformers", target, draft, contexts, int8, profiles, verdicts)
    cells = {name: [_shares(cell) for cell in profile.cells if cell.lookahead > 0] for name, profile in profiles.items()}
    every = [cell for one in cells.values() for cell in one]
    drafting = sum(cell["draft"] > cell["verify"] for cell in every)
    return Result(
        claim="Drafting takes longer in some places and verifying in others: each of the two studies is right somewhere",
        value=f"{drafting} of {len(every)}",
        unit="cells in which drafting takes longer than verifying",
        goal="the split per engine, batch and context, and which of the two studies holds where",
        holds=0 < drafting < len(every),
        spread=f"largest standard error of a cell {max(c.error for p in profiles.values() for c in p.cells):.1%}",
        workload=f"SmolLM2-135M-Instruct with its layer cut, TinyLlama-1.1B with a shape of two of its layers, "
        f"bf16, lookahead {LOOKAHEADS}, "
        "both engines; TinyLlama with int8 weights on transformers",
        details={"sentence": _sentence(cells), "cells": cells, "verdicts at acceptance 0.6": verdicts},
    )


def _pairs(lab: Lab) -> list[tuple[str, Path, Path, tuple[int, ...]]]:
    if lab.quick:
        return [("SmolLM2", lab.smollm2, lab.smollm2, (64,))]
    return [
        ("SmolLM2", lab.smollm2, layer_cut(lab), (128, 1024, 4096)),
        ("TinyLlama", lab.tinyllama, _shallow(lab, 2), (128, 1024)),
    ]


def _shallow(lab: Lab, layers: int) -> Path:
    """TinyLlama's own shape with fewer layers, which gets random weights: latency needs no training."""
    config = read_json(lab.tinyllama / "config.json")
    write_json(lab.store / f"tinyllama-{layers}-layers" / "config.json", {**config, "num_hidden_layers": layers})
    return lab.store / f"tinyllama-{layers}-layers"


def _one(
    lab: Lab,
    name: str,
    target: Path,
    draft: Path,
    contexts: tuple[int, ...],
    engine: dict[str, Any],
    profiles: dict[str, Profile],
    verdicts: dict[str, str],
) -> None:
    kept = api.profile(
        target=target,
        draft=draft,
        lookaheads=LOOKAHEADS,
        batches=(1, 2) if lab.quick else (1, 8),
        contexts=contexts,
        timing={"steps": 4, "min_rounds": 2, "max_rounds": 2} if lab.quick else {"steps": 12, "max_rounds": 6},
        engine={"dtype": "bfloat16", "threads": 2, "max_model_len": max(contexts) + 896, "kv_cache_gb": 4, **engine},
        store=lab.store,
    )
    profiles[name] = kept.record
    predicted = api.predict(profile=kept.folder, acceptance=ACCEPTANCE, store=lab.store)
    verdicts[name] = predicted.record.verdict.sentence
    print(name, verdicts[name], flush=True)


def _shares(cell: ProfileCell) -> dict[str, float]:
    phases = {name: getattr(cell, f"{name}_ms") / cell.step_ms for name in PHASES}
    return {"lookahead": cell.lookahead, "batch": cell.batch, "context": cell.context, "step_ms": cell.step_ms, **phases}


def _sentence(cells: dict[str, list[dict[str, float]]]) -> str:
    """Where drafting is the larger part, by pair and batch: from which lookahead on."""
    parts = []
    for name, all_cells in cells.items():
        for batch in sorted({cell["batch"] for cell in all_cells}):
            chosen = [cell for cell in all_cells if cell["batch"] == batch]
            drafting = [all(c["draft"] > c["verify"] for c in chosen if c["lookahead"] >= k) for k in LOOKAHEADS]
            where = f"from lookahead {LOOKAHEADS[drafting.index(True)]} on" if any(drafting) else "nowhere throughout"
            parts.append(f"{name}, batch {batch:.0f}: drafting takes longer than verifying {where}")
    return "; ".join(parts) + "."


if __name__ == "__main__":
    run("step_split", measure)
