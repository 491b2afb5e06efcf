"""Drafts with a known acceptance, made from the target itself: noisy copies, and a cut of its layers without training.

They are built once into DRAFTSMITH_LAB/drafts, tuned on prompts of the probe split."""

import json
import shutil
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks._evidence import ROOT, Lab, own_arithmetic
from draftsmith import api
from draftsmith.core.shapes import model_shape
from draftsmith.core.store import read_json, write_json
from draftsmith.core.trace import TraceReader, TraceRow

LAYERS = ROOT / "benchmarks" / "layers"
_SEED = 1234
_TUNE_SETTINGS: dict[str, Any] = {
    "split": "probe",
    "num_prompts": 8,
    "max_new_tokens": 48,
    "engine": {"dtype": "float32", "threads": 2},
}
_TUNE_PROMPTS: dict[str, dict[str, Any]] = {
    "smollm2": {"datasets": ("hellaswag", "chat", "gsm8k"), "max_prompt_tokens": 256},
    "tinyllama": {"datasets": ("hellaswag", "chat", "gsm8k"), "max_prompt_tokens": 256},
    "stories": {"datasets": ("hellaswag", "gsm8k"), "max_prompt_tokens": 192},  # it has 256 positions, and no chat template
}


# Strength of the noise for the share of tokens a copy should agree on; found by bisection on the tuning prompts.
_NOISE = {("smollm2", 0.7): 0.109, ("smollm2", 0.3): 0.206, ("stories", 0.7): 0.12}

# The layers that `draftsmith prune --layers N` kept of SmolLM2 (pruner `depth`, 12 rows of the tuning prompts, float32).
_DEPTHS = {
    20: (0, 1, 2, 6, 8, 9, 10, 11, 15, 16, 18, 19, 20, 21, 22, 23, 24, 27, 28, 29),
    11: (0, 1, 2, 8, 10, 11, 19, 20, 21, 24, 28),
    5: (0, 1, 2, 19, 21),
}


def noisy_copy(lab: Lab, acceptance: float, of: Literal["smollm2", "stories"] = "smollm2") -> Path:
    """A copy of a target with Gaussian noise on every matrix, so that it agrees on about this share of tokens."""
    target: Path = getattr(lab, of)
    noise = _NOISE[of, acceptance]

    def build(rows: list[TraceRow]) -> tuple[Any, dict[str, float]]:
        model = _with_noise(target, noise)
        return model, {"noise": noise, "agreement": _agreement(model, rows)}

    return _built(lab, of, lab.drafts / f"{of}-noisy-{round(100 * acceptance)}", build)


def layer_cut(lab: Lab) -> Path:
    """The cut that loses the most layers and still agrees on 10 to 50% of tokens: layers go one by one, each time the one
    whose loss hurts agreement least."""
    folder = lab.drafts / "smollm2-cut"

    def build(rows: list[TraceRow]) -> tuple[Any, dict[str, Any]]:
        model = _load(lab.smollm2)
        layers = list(model.model.layers)
        rows = sorted(rows, key=lambda row: len(row.prompt_ids))[:12]
        kept, found = list(range(len(layers))), (1.0, list(range(len(layers))))
        candidates = kept[1:-1]  # the first and the last layer are never the cheapest to lose
        while True:
            tried = []
            for one in candidates:
                rest = [layer for layer in kept if layer != one]
                _keep_layers(model, layers, rest)
                tried.append((_agreement(model, rows), one))
            agreed, lost = max(tried)
            kept.remove(lost)
            print(f"without {lost}: {len(kept)} layers agree on {agreed:.1%}", flush=True)
            if agreed < 0.10:
                break
            found = (agreed, list(kept))
            # What was dear to lose a moment ago is not worth trying again at once, but may be once the cheap ones are gone.
            cheap = [one for _, one in sorted(tried, reverse=True)[1:13]]
            candidates = cheap if len(cheap) > 5 else kept[1:-1]
        agreed, kept = found
        _keep_layers(model, layers, kept)
        return model, {"layers_kept": kept, "agreement": agreed}

    return _built(lab, "smollm2", folder, build)


def depth_cut(lab: Lab, layers: int) -> Path:
    """The target with so many of its layers and no training: those of `_DEPTHS`."""

    def build(rows: list[TraceRow]) -> tuple[Any, dict[str, Any]]:
        model, kept = _load(lab.smollm2), _DEPTHS[layers]
        _keep_layers(model, model.model.layers, kept)
        return model, {"layers_kept": kept, "agreement": _agreement(model, rows)}

    return _built(lab, "smollm2", lab.drafts / f"smollm2-depth-{layers}", build)


def layer_order(lab: Lab, of: str) -> list[int]:
    """The layers of a target as they go one by one, by tokens per step on tuning prompts. Searched for once, and written
    down: a search takes long, and cuts to all depths follow from one."""
    path = (lab.drafts / "quick-layers" if lab.quick else LAYERS) / f"{of}.json"
    if not path.exists():
        write_json(path, _by_depth(getattr(lab, of)) if lab.quick else _searched(lab, of))
    found: list[int] = read_json(path)
    return found


def _by_depth(target: Path) -> list[int]:
    """The last first: for slices, whose cuts need not be good."""
    return list(range(model_shape(target).layers - 1, 0, -1))


def _searched(lab: Lab, of: str) -> list[int]:
    target, store = getattr(lab, of), lab.drafts / "layers" / of
    engine = {"dtype": own_arithmetic(), "threads": 2}
    api.prune(source=target, trace=_tuning_trace(lab, of), shape={"layers": 1}, num_rows=12, engine=engine, store=store)
    last = next((store / "searches").glob("depth-*/001-layers.json"))  # another search may have been broken off
    rounds = sorted(last.parent.glob("*-layers.json"), reverse=True)
    stay = [set(range(model_shape(target).layers)), *(set(read_json(path)[0]["layers"]) for path in rounds)]
    return [(more - fewer).pop() for more, fewer in pairwise(stay)]


def copied(model: Path, folder: Path) -> Path:
    """A checkpoint under a name that people know it by; whole, or not there."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(model, partial)
    return partial.rename(folder)


def _tuning_trace(lab: Lab, of: str) -> Path:
    settings = {**_TUNE_SETTINGS, **_TUNE_PROMPTS[of]}
    return api.record(target=getattr(lab, of), data=lab.data, store=lab.drafts / "tuning", **settings).folder


def _built(lab: Lab, of: str, folder: Path, build: Callable[[list[TraceRow]], tuple[Any, dict[str, Any]]]) -> Path:
    if (folder / "how.json").exists():
        return folder
    target: Path = getattr(lab, of)
    with torch.inference_mode():
        model, how = build(list(TraceReader(_tuning_trace(lab, of)).rows()))
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    AutoTokenizer.from_pretrained(target).save_pretrained(partial)
    (partial / "how.json").write_text(json.dumps(how))
    partial.rename(folder)
    return folder


def _load(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def _keep_layers(model: Any, layers: Sequence[Any], kept: Sequence[int]) -> None:
    model.model.layers = torch.nn.ModuleList(layers[i] for i in kept)
    model.config.num_hidden_layers = len(kept)
    model.config.layer_types = None


def _with_noise(path: Path, strength: float) -> Any:
    model = _load(path)
    generator = torch.Generator().manual_seed(_SEED)
    for name, weight in sorted(model.named_parameters()):
        if weight.ndim == 2 and "embed" not in name:
            noise = torch.randn(weight.shape, generator=generator)
            weight.data += strength * weight.std() * noise
    return model


def _agreement(model: Any, rows: list[TraceRow]) -> float:
    """The share of recorded tokens that are the model's argmax."""
    width = max(len(row.prompt_ids) + len(row.output_ids) for row in rows)
    tokens = np.zeros((len(rows), width), dtype=np.int64)
    for at, row in enumerate(rows):
        tokens[at, : len(row.prompt_ids) + len(row.output_ids)] = np.concatenate([row.prompt_ids, row.output_ids])
    hidden = model.model(input_ids=torch.from_numpy(tokens), use_cache=False).last_hidden_state
    hits = total = 0
    for at, row in enumerate(rows):
        first = len(row.prompt_ids) - 1
        logits = model.lm_head(hidden[at, first : first + row.num_output])
        hits += int((logits.argmax(dim=-1).numpy() == row.output_ids[: row.num_output]).sum())
        total += row.num_output
    return hits / total
