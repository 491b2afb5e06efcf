"""What the tests are made of: models of a few bytes, traces by hand, and an engine that needs no model."""

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from draftsmith.core.errors import DraftsmithError
from draftsmith.core.prompts import Prompt, split_of
from draftsmith.core.protocols import (
    Batching,
    Draft,
    DraftScore,
    EngineConfig,
    Generation,
    Limits,
    LiveRow,
    LiveRun,
    Request,
    StepSeconds,
)
from draftsmith.core.records import (
    AcceptanceCurve,
    AcceptancePoint,
    Profile,
    ProfileCell,
    Scorecard,
    ShapeCell,
    ShapeProfile,
    ThroughputPoint,
)
from draftsmith.core.sampling import Sampling
from draftsmith.core.shapes import Shape, shape_of
from draftsmith.core.store import write_json
from draftsmith.core.trace import Trace, TraceRow, describe_shard, write_shard
from draftsmith.core.vocabulary import Vocabulary

VOCABULARY = Vocabulary(model="target", tokens={i: chr(i) for i in range(128)}, rows=128)


def assert_explains(error: DraftsmithError, *named: object, way_out: str) -> None:
    """The message names the thing and its value, and says what to do."""
    for one in named:
        assert str(one) in error.problem
    assert way_out in error.way_out
    assert str(error) == f"{error.problem}\n  What to do: {error.way_out}"


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


# Models


def safetensors(tensors: dict[str, np.ndarray]) -> bytes:
    """The bytes of a safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + tensor.nbytes],
        }
        data += tensor.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


# A Llama of two layers, as its config.json says it.
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "vocab_size": 128,
}


def shape(**changes: Any) -> Shape:
    """The shape of that Llama, changed."""
    return Shape.model_validate(shape_of(LLAMA, "a Llama").model_dump() | changes)


def write_model(folder: Path, value: float = 0.0, config: str = '{"model_type": "llama"}') -> Path:
    """A checkpoint of one tensor, which holds `value`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes(safetensors({"weight": np.full(8, value, np.float32)}))
    return folder


# Traces and cards


def trace_row(name: str, output: Sequence[int], **changes: Any) -> TraceRow:
    """A row whose prompt is two tokens and whose output was certain, unless told otherwise."""
    row = TraceRow(
        prompt_id=name,
        dataset="fake",
        split="test",
        prompt_ids=ints(100, 101),
        output_ids=ints(*output),
        num_output=len(output),
        logprobs=np.zeros(len(output), np.float32),
        finish_reason="length",
        seed=7,
    )
    return replace(row, **changes)


def write_trace(folder: Path, shards: Sequence[Sequence[TraceRow]], **changes: Any) -> Path:
    """A finished trace of these rows."""
    paths = [folder / f"shard-{index:05d}.parquet" for index in range(len(shards))]
    for path, rows in zip(paths, shards, strict=True):
        write_shard(path, rows)
    values: dict[str, Any] = {
        "model_fingerprint": "f" * 32,
        "vocabulary_fingerprint": VOCABULARY.fingerprint,
        "model": "target",
        "engine": "fake",
        "versions": {"fake": "1"},
        "dtype": "float32",
        "first_drafted": 0,
        "sampling": Sampling(),
        "max_new_tokens": 16,
        "tail": 0,
        "top_logprobs": 0,
        "eos_ids": (1,),
        "split": "test",
        "datasets": ("fake",),
        "shards": tuple(describe_shard(path) for path in paths),
    }
    write_json(folder / "vocabulary.json", VOCABULARY.model_dump(mode="json"))
    write_json(folder / "record.json", Trace(**values | changes).model_dump(mode="json"))
    return folder


def curve(*tokens_per_step: float, error: float | None = 0.1) -> AcceptanceCurve:
    """A curve over lookaheads 1, 2, ..."""
    points = tuple(
        AcceptancePoint(
            lookahead=k,
            steps=100 / ratio,
            steps_std=0.0,
            tokens_per_step=ratio,
            tokens_per_step_error=error,
            accepted_per_step=ratio - 1,
            acceptance_by_position=(0.5,) * k,
            conditional_acceptance_by_position=(0.5,) * k,
            engine_accepted_by_position=None,
        )
        for k, ratio in enumerate(tokens_per_step, start=1)
    )
    return AcceptanceCurve(num_prompts=10, num_tokens=100, points=points)


def scorecard(**changes: Any) -> Scorecard:
    values: dict[str, Any] = {
        "trace": "t" * 32,
        "target": "target",
        "draft": {"kind": "model", "path": "models/draft/"},
        "draft_fingerprint": "d" * 32,
        "sampling": Sampling(),
        "scored_by": "fake",
        "served_by": "fake",
        "first_drafted": 0,
        "split": "test",
        "versions": {"fake": "1"},
        "overall": curve(1.5, 1.75),
        "by_dataset": {"fake": curve(1.5, 1.75)},
    }
    return Scorecard.model_validate(values | changes)


# Profiles and predictions


def profile_cell(lookahead: int, batch: int, context: int, **changes: Any) -> ProfileCell:
    """A step of 1 ms a drafted token, 10 ms of verification and 1 ms besides; an idle draft costs nothing."""
    values: dict[str, Any] = {"draft_ms": 1.0 * lookahead, "verify_ms": 10.0, "overhead_ms": 1.0 if lookahead else 0.0}
    whole = sum((values | changes)[f"{phase}_ms"] for phase in ("draft", "verify", "overhead"))
    spread = {"median_ms": whole, "low_ms": whole, "high_ms": whole, "error": 0.0, "rounds": 3}
    return ProfileCell(lookahead=lookahead, batch=batch, context=context, **spread | values | changes)


def profile_record(
    step: Callable[[int, int, int], ProfileCell] = profile_cell,
    lookaheads: Sequence[int] = (0, 1, 2, 4),
    batches: Sequence[int] = (1, 4),
    contexts: Sequence[int] = (128,),
    **changes: Any,
) -> Profile:
    """A profile on the engine `fake`; without changes the baseline is the idle draft's step."""
    cells = tuple(step(k, b, c) for k in lookaheads for b in batches for c in contexts)
    values: dict[str, Any] = {
        "target": "target",
        "target_fingerprint": "f" * 32,
        "target_shape": shape(),
        "draft": "draft",
        "draft_fingerprint": "d" * 32,
        "draft_shape": shape(layers=1),
        "engine": EngineConfig(kind="fake"),
        "dtype": "float32",
        "batching": Batching(admission="static", context="longest", clips_lookahead=False),
        "first_drafted": 0,
        "versions": {"fake": "1"},
        "machine": {"cpu": "a processor"},
        "busy": False,
        "plain": tuple(cell for cell in cells if cell.lookahead == 0),
        "cells": cells,
    }
    return Profile(**values | changes)


def shape_cell(group: str, step_ms: float, shape: Shape, **changes: Any) -> ShapeCell:
    values: dict[str, Any] = {
        "batch": 1,
        "context": 128,
        "forward_ms": 0.9 * step_ms,
        "step_ms": step_ms,
        "median_ms": step_ms,
        "error": 0.01,
        "rounds": 3,
    }
    return ShapeCell(group=group, shape=shape, **values | changes)


def shape_profile(*cells: ShapeCell) -> ShapeProfile:
    fixed = {"architecture": "llama", "engine": EngineConfig(kind="fake"), "versions": {}, "machine": {}, "busy": False}
    return ShapeProfile(cells=cells, **fixed)


def throughput_point(speedup: float, batch: int = 1, context: int = 128, **changes: Any) -> ThroughputPoint:
    """One point of a prediction, at lookahead 3 unless told otherwise."""
    values: dict[str, Any] = {
        "lookahead": 3,
        "tokens_per_step": 2.5,
        "tokens_per_second": 100.0 * speedup,
        "error": 0.01,
        "draft_ms": 3.0,
        "verify_ms": 10.0,
        "overhead_ms": 1.0,
    }
    return ThroughputPoint(speedup=speedup, batch=batch, context=context, **values | changes)


def save_record(folder: Path, record: Any) -> Path:
    """A record's folder, as a stage would leave it."""
    write_json(folder / "record.json", record.model_dump(mode="json"))
    return folder


# Plugins


def question(index: int) -> Prompt:
    """The index-th prompt of our data set; all of them fall into the test split."""
    return Prompt(dataset="fake", key=_QUESTIONS[index], text=_QUESTIONS[index])


_QUESTIONS = [text for i in range(99) if split_of(text := f"question {i}{'?' * (i % 3)}") == "test"]


@dataclass
class FakeDataset:
    """A data set of the first `size` questions."""

    size: int = 7
    hub_name: str | None = None
    folders: list[Path | None] = field(default_factory=list)

    def prompts(self, folder: Path | None) -> Iterator[Prompt]:
        self.folders.append(folder)
        return (question(i) for i in range(self.size))


def agreeing(row: TraceRow) -> DraftScore:
    """A draft that would have written what the target wrote."""
    return DraftScore(row.output_ids, row.logprobs, np.ones_like(row.logprobs))


def obedient(request: Request, lookahead: int, limits: Limits) -> LiveRow:
    """A live row whose draft is always right: the recorded output, lookahead + 1 tokens a step."""
    output = target_output(request, limits)
    full, rest = divmod(len(output), lookahead + 1)
    return LiveRow(output, ints(*[lookahead + 1] * full, *[rest] * bool(rest)), "length")


def target_output(request: Request, limits: Limits) -> np.ndarray:
    """What our target writes: it depends on the prompt and on its seed, and on nothing else."""
    start = int(request.prompt_ids.sum()) + request.seed
    return ints(*((start + 7 * i) % 90 + 32 for i in range(limits.max_new_tokens + limits.tail)))


def even_step(lookahead: int, batch: int, context: int) -> StepSeconds:
    """A machine that never drifts: 1 ms a drafted token, 10 ms and 1 ms a row of verification, 0.5 ms besides. While it is
    timed the context is 3 tokens longer than asked for."""
    return StepSeconds(draft=0.001 * lookahead, verify=0.010 + 0.001 * batch, overhead=0.0005, context=context + 3.0)


@dataclass(frozen=True)
class Timed:
    """One call of `time_steps`."""

    target: Path
    draft: Draft | None
    batch: int
    context: int
    lookaheads: tuple[int, ...]
    steps: int


class PowerCutError(Exception):
    """The machine goes down."""


@dataclass
class FakeEngine:
    """Does what an engine does, without a model. `breaks_after` calls it goes down; `opened`, `calls`, `timed` and `made` (the
    random models, with the tokenizer's folder) say what was asked."""

    first_drafted: Literal[0, 1] = 0
    version: str = "1"
    vocabulary: Vocabulary = VOCABULARY
    score_row: Callable[[TraceRow], DraftScore] = agreeing
    live_row: Callable[[Request, int, Limits], LiveRow] = obedient
    seconds: float = 2.0
    decoded: tuple[int, float] = (0, 0.0)  # tokens, and seconds, of the steps in which nothing was prefilled
    breaks_after: int | None = None
    opened: list[tuple[Any, ...]] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    eos_ids: tuple[int, ...] = (1,)
    dtype: str = "float32"
    batching: Batching = field(default_factory=lambda: Batching(admission="static", context="longest", clips_lookahead=True))
    idle_draft_is_free: bool = True
    several_at_once: bool = True
    time_step: Callable[[int, int, int], StepSeconds] = even_step
    timed: list[Timed] = field(default_factory=list)
    made: list[tuple[dict[str, Any], Path, Path | None]] = field(default_factory=list)

    def versions(self) -> dict[str, str]:
        return {"fake": self.version}

    def draft_sampling(self, sampling: Sampling) -> Sampling:
        return sampling.model_copy(update={"top_k": 0})

    @contextmanager
    def recorder(self, model: Path, config: EngineConfig) -> Iterator["FakeEngine"]:
        self.opened.append(("recorder", model, config))
        yield self

    @contextmanager
    def scorer(self, draft: Path, sampling: Sampling, config: EngineConfig) -> Iterator[SimpleNamespace]:
        self.opened.append(("scorer", draft, sampling))
        yield SimpleNamespace(vocabulary=self.vocabulary, score=self._score)

    @contextmanager
    def live(
        self,
        target: Path,
        draft: Draft | None,
        lookahead: int,
        sampling: Sampling,
        config: EngineConfig,
        adjustable: bool = False,
    ) -> Iterator[SimpleNamespace]:
        assert (target / "config.json").exists()
        self.opened.append(("live", draft, lookahead))

        def time_steps(batch: int, context: int, lookaheads: Sequence[int], steps: int) -> dict[int, list[StepSeconds]]:
            assert batch <= config.batch_size
            assert max(lookaheads) <= lookahead if adjustable else set(lookaheads) == {lookahead}
            return self._time_steps(Timed(target, draft, batch, context, tuple(lookaheads), steps))

        yield SimpleNamespace(target_vocabulary=self.vocabulary, run=partial(self._live, lookahead), time_steps=time_steps)

    def write_random_model(self, config: dict[str, Any], folder: Path, tokenizer: Path | None = None) -> None:
        self.made.append((config, folder, tokenizer))
        write_model(folder, config=json.dumps(config))

    def encode(self, prompt: Prompt) -> list[int]:
        assert prompt.text is not None
        return [ord(sign) for sign in prompt.text]

    def record(self, requests: Sequence[Request], sampling: Sampling, limits: Limits) -> list[Generation]:
        self._count(requests)
        return [self._generation(target_output(request, limits), limits) for request in requests]

    @staticmethod
    def _generation(output: np.ndarray, limits: Limits) -> Generation:
        best = limits.top_logprobs
        return Generation(
            output_ids=output,
            num_output=limits.max_new_tokens,
            logprobs=-output.astype(np.float32) / 100,
            finish_reason="length",
            top_ids=np.repeat(output, best) if best else None,
            top_logprobs=np.zeros(len(output) * best, np.float32) if best else None,
        )

    def _score(self, rows: Sequence[TraceRow]) -> list[DraftScore]:
        self._count(rows)
        return [self.score_row(row) for row in rows]

    def _live(self, lookahead: int, requests: Sequence[Request], limits: Limits) -> LiveRun:
        self._count(requests)
        rows = [self.live_row(request, lookahead, limits) for request in requests]
        return LiveRun(rows, self.seconds, {"drafts": 3}, [2, 1], {"draft": 0.5}, *self.decoded)

    def _time_steps(self, asked: Timed) -> dict[int, list[StepSeconds]]:
        self._count(asked.lookaheads)
        self.timed.append(asked)
        return {k: [self.time_step(k, asked.batch, asked.context) for _ in range(asked.steps)] for k in asked.lookaheads}

    def _count(self, work: Sequence[object]) -> None:
        if self.breaks_after is not None and len(self.calls) >= self.breaks_after:
            raise PowerCutError
        self.calls.append(len(work))


@dataclass
class Plugins:
    """What other packages have installed; `loaded` lists what was really imported."""

    engines: dict[str, Any] = field(default_factory=dict)
    datasets: dict[str, Any] = field(default_factory=dict)
    loaded: list[str] = field(default_factory=list)

    def installed(self, group: str) -> dict[str, Any]:
        there: dict[str, Any] = getattr(self, group)
        return {name: SimpleNamespace(name=name, load=partial(self._load, there, name)) for name in there}

    def _load(self, there: dict[str, Any], name: str) -> Any:
        self.loaded.append(name)
        if isinstance(there[name], Exception):
            raise there[name]
        return there[name]
