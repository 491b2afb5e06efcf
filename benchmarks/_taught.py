"""What drafts of the lab are taught from, recorded output of a target over the train prompts of all data sets, and how they do
afterwards on prompts that were held out."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._drafts import copied
from benchmarks._evidence import ROOT, Lab
from draftsmith import api
from draftsmith.core.records import DistilledCheckpoint
from draftsmith.core.scores import read_scores, scores_path
from draftsmith.core.trace import TraceReader
from draftsmith.theory.acceptance import replay, row_chances

SHORT = ("hellaswag", "chat", "gsm8k", "humaneval", "specbench", "jsonl", "text")  # jsonl: RedPajama, text: WikiText
JUDGED = ("hellaswag", "mmlu", "chat")
TRACES = ROOT / "benchmarks" / "traces"  # recordings that take long and are small, for every machine that asks for the same
_KEPT = 16


@dataclass(frozen=True)
class Taught:
    """A draft that learnt, and how each held-out prompt went with it: its tokens, and the steps that they would take."""

    record: DistilledCheckpoint
    tokens: np.ndarray
    steps: np.ndarray

    @staticmethod
    def judged(lab: Lab, learnt: api.Kept[DistilledCheckpoint], held_out: Path, lookahead: int, engine: dict[str, Any]) -> Any:
        """As a cell keeps it; `of` reads it."""
        model = learnt.folder / "model"
        card = api.evaluate(trace=held_out, draft=model, lookaheads=(lookahead,), engine=engine, store=lab.store).folder
        trace = TraceReader(held_out)
        first, tokens, chances = trace.record.first_drafted, [], []
        for shard in range(len(trace.record.shards)):
            rows = trace.shard(shard)
            tokens += [row.num_output - first for row in rows]
            scores = read_scores(scores_path(card, shard), rows)
            chances += [row_chances(row, score, "greedy")[first:] for row, score in zip(rows, scores, strict=True)]
        steps = replay(chances, tokens, [lookahead]).steps[:, 0].tolist()
        return {"record": learnt.record.model_dump(mode="json"), "tokens": tokens, "steps": steps}

    @classmethod
    def of(cls, cell: Any) -> "Taught":
        return cls(DistilledCheckpoint.model_validate(cell["record"]), np.array(cell["tokens"]), np.array(cell["steps"]))

    @property
    def tokens_per_step(self) -> float:
        return float(self.tokens.sum() / self.steps.sum())

    @property
    def curve(self) -> list[tuple[int, float]]:
        """Tokens per step against training tokens, on the prompts that were looked at meanwhile."""
        return [(point.tokens, point.tokens_per_step) for point in self.record.curve if point.tokens_per_step is not None]

    def against(self, other: "Taught") -> tuple[float, float]:
        """By how many tokens per step it is ahead, with the standard error over prompts, which both had."""
        apart = self._residuals() - other._residuals()
        return self.tokens_per_step - other.tokens_per_step, float(np.linalg.norm(apart))

    def _residuals(self) -> np.ndarray:
        return np.asarray((self.tokens - self.tokens_per_step * self.steps) / self.steps.sum())


def recorded(
    lab: Lab, target: Path, split: str, datasets: tuple[str, ...], num_prompts: int, carried: bool = False, **more: Any
) -> Path:
    """Output of a target, in bfloat16, as it is served. If it is `carried` another machine's recording will do."""
    settings = {
        "store": lab.store,
        "max_prompt_tokens": 1024,
        "max_new_tokens": 16 if lab.quick else 128,
        "engine": {"kind": "transformers", "dtype": "bfloat16", "threads": 2, "batch_size": 32},
        **more,
    }
    there = Path(settings["store"]) / "traces"
    if carried and not lab.quick:
        for record in TRACES.glob("*/record.json"):
            if record.parent.suffix != ".partial":
                _copy(record.parent, there)
    folder = api.record(
        target=target,
        datasets=tuple(name for name in datasets if name != "chat" or _chats(target)),
        data=lab.data,
        split=split,
        num_prompts=4 if lab.quick else num_prompts,
        **settings,
    ).folder
    if carried and not lab.quick:
        kept = TraceReader(_copy(folder, TRACES)).record
        if kept.fingerprint != TraceReader(folder).record.fingerprint:
            sys.exit(f"{TRACES.name}/{folder.name} was made by {kept.versions}: install those, or remove all that came of it")
    return folder


def lessons(lab: Lab, target: Path, num_prompts: int) -> dict[str, Any]:
    """What `distill` takes: traces to learn from, with the target's most likely tokens, and one to look at meanwhile. What is
    learnt and cut by is so in float32: cells are carried, and bf16 rounds differently from processor to processor."""
    engine = {"kind": "transformers", "dtype": "float32", "threads": 2, "batch_size": 128}
    more: dict[str, Any] = {"engine": engine, "top_logprobs": _KEPT, "shard_size": engine["batch_size"]}
    train = recorded(lab, target, "train", SHORT, num_prompts, max_prompt_tokens=400, **more)
    found: dict[str, Any] = {"trace": train, "held_out": recorded(lab, target, "probe", JUDGED, 16, engine=engine)}
    if not lab.quick:  # five examples a question: long prompts, which take their time
        mmlu = recorded(lab, target, "train", ("mmlu",), max(1, num_prompts // 5), **more)
        found["text"] = {"mmlu": {"path": str(mmlu), "weight": 0.15}}
    return found


def training(lab: Lab, steps: int, rate: float, **more: Any) -> dict[str, Any]:
    """Steps of 16 x 512 tokens, unless `more` says otherwise."""
    return {
        "steps": steps, "batch": 16, "micro_batch": 8, "length": 512, "learning_rate": rate,
        "warmup_steps": max(1, steps // 20), "save_every": 20, "precision": lab.arithmetic(), **more,
    }  # fmt: skip


def _copy(trace: Path, place: Path) -> Path:
    """Unless it is there, whole."""
    folder = place / trace.name
    if not (folder / "record.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        place.mkdir(parents=True, exist_ok=True)
        copied(trace, folder)
    return folder


def _chats(target: Path) -> bool:
    """Whether it has a chat template."""
    return (
        any((target / name).exists() for name in ("chat_template.jinja",))
        or "chat_template" in (target / "tokenizer_config.json").read_text()
    )
