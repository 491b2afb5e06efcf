"""What a run would take, before anything is loaded: LLaMA-7B to Llama-3.1-70B on up to 512 ranks; a small run held to it."""

import json
import shutil
import time
from typing import Any

from benchmarks._evidence import Lab, Result, run
from benchmarks._ranks import start
from draftsmith import api

_LLAMA: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False}
SOURCES: dict[str, dict[str, int]] = {
    "llama-7b": {
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "vocab_size": 32000,
    },
    "llama-65b": {
        "hidden_size": 8192, "intermediate_size": 22016, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 64, "vocab_size": 32000,
    },
    "llama-3.1-70b": {
        "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "vocab_size": 128256,
    },
}  # fmt: skip
# The C library keeps freed blocks below 32 MB for later; told to give them back, what a process holds is what it uses.
KEPT = "with freed blocks that are kept"
HEAPS = {"in use": {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}, KEPT: {}}
RUNS = (("llama-7b", 8), ("llama-65b", 64), ("llama-65b", 512), ("llama-3.1-70b", 64), ("llama-3.1-70b", 512))


def measure(lab: Lab) -> Result:
    """Plans of large runs, and the peak memory of a small one against its plan."""
    plans = [_large(lab, *one) for one in (RUNS[:1] if lab.quick else RUNS)]
    small = _small(lab)
    with_kept = small["planned_bytes"] / small["real_bytes"][KEPT] - 1
    return Result(
        claim="--plan says what training takes on ranks that are not there; a real small run keeps to it",
        value=f"{100 * small['error']:+.1f}% of the memory in use; {100 * with_kept:+.0f}% of the process, with the freed "
        "blocks that the C library keeps",
        unit="predicted against the real peak of a rank",
        goal="within 10%",
        holds=abs(small["error"]) <= 0.10,
        spread="none: one run of each, its memory as the operating system counts it",
        workload="SmolLM2-135M-Instruct on 2 ranks over gloo, 2 x 256 tokens a pass, float32; plans for "
        + ", ".join(f"{name} on {ranks}" for name, ranks in RUNS),
        details={"small": small, "plans": plans},
    )


def _large(lab: Lab, name: str, ranks: int) -> dict[str, Any]:
    folder = lab.store / "training_plan" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**_LLAMA, **SOURCES[name], "max_position_embeddings": 4096}))
    train = {"steps": 3200, "batch": 512, "micro_batch": 1, "length": 4096, "save_activations": False}
    settings = {"text": {"web": {"path": "not read"}}, "train": train}
    began = time.monotonic()
    kept = api.plan_training(
        source=folder, shape={"layers": 8}, pruners=[{"kind": "l0", "settings": settings}], ranks=ranks, store=lab.store
    )
    whole = kept.record.model_dump(exclude={"kind", "schema_version", "stages"})
    row = {**whole, **kept.record.stages[0].model_dump(), "seconds_to_plan": time.monotonic() - began}
    print(name, ranks, f"{row['peak_bytes'] / 1e9:.1f} GB", f"{row['hours']:.1f} h", flush=True)
    return row


def _small(lab: Lab) -> dict[str, Any]:
    web = lab.data / "redpajama_sample" / "sample_wiki1.jsonl"
    train = {"steps": 3, "batch": 4, "micro_batch": 2, "length": 256, "precision": "float32", "save_every": 1000}
    settings = {"text": {"web": {"path": str(web)}}, "train": train}
    pruners = [{"kind": "l0", "settings": settings}]
    whole = api.plan_training(source=lab.smollm2, shape={"layers": 5}, pruners=pruners, ranks=2, store=lab.store).record
    plan = whole.stages[0]
    folder = lab.store / "training_plan" / "small"
    job = {"source": str(lab.smollm2), "folder": str(folder), "wanted": {"layers": 5}, **settings}
    peaks = {}
    for name, environment in HEAPS.items():
        shutil.rmtree(folder, ignore_errors=True)
        said = start(job, 2, environment=environment)
        assert said is not None
        peaks[name] = said["peak_bytes"]
    error = plan.peak_bytes / peaks["in use"] - 1
    return {"planned_bytes": plan.peak_bytes, "real_bytes": peaks, "error": error, "by_kind": plan.memory_bytes}


if __name__ == "__main__":
    run("training_plan", measure)
