"""Engine `transformers`: the reference. Records at a batch, scores a trace in one teacher-forced pass, runs our own loop live.

The first token is drafted like any other (first_drafted = 0): a step feeds the prompt's last token and verifies from there."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

from draftsmith.core.errors import EngineError, MissingDependencyError, ModelError
from draftsmith.core.protocols import (
    Batching,
    Draft,
    DraftScore,
    EngineConfig,
    Generation,
    Limits,
    LiveRow,
    LiveRun,
    NgramDraft,
    Request,
    StepSeconds,
)
from draftsmith.core.sampling import Sampling
from draftsmith.core.trace import Ints, TraceRow
from draftsmith.core.vocabulary import Vocabulary, check_same_tokens
from draftsmith.engines._attention import NAME as GROUPED_ATTENTION
from draftsmith.engines._checkpoint import Checkpoint
from draftsmith.engines._device import device_of
from draftsmith.engines._packed import pack
from draftsmith.engines._random_model import write_random_model
from draftsmith.engines._scoring import batches_to_score, score_batch
from draftsmith.engines._slots import SlotModel
from draftsmith.engines._speculative import Clocks, Decoding, FreeProposer, ModelProposer, NgramProposer, Proposer, decode

_WARM_STEPS = 2  # not timed: the first steps at a new size find buffers and code cold


def _load(checkpoint: Checkpoint, config: EngineConfig, quantization: str | None = None) -> SlotModel:
    if config.tensor_parallel > 1:
        raise EngineError(
            f"the transformers engine runs on one device, not on {config.tensor_parallel}",
            "use `--engine vllm` for tensor parallelism",
        )
    if config.threads:
        torch.set_num_threads(config.threads)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            checkpoint.path,
            dtype=config.dtype,
            attn_implementation=GROUPED_ATTENTION,
            trust_remote_code=config.trust_remote_code,
            use_safetensors=True,
            local_files_only=True,
        )
    except (ValueError, OSError) as error:
        raise ModelError(f"transformers cannot load {checkpoint.path}: {error}", "check the checkpoint") from None
    model = model.to(device_of(config)).eval()
    if quantization is not None:
        _quantize(model, quantization)
    else:
        pack(model)
    return SlotModel(model)


def _quantize(model: torch.nn.Module, method: str) -> None:
    if method != "int8":
        raise EngineError(
            f"the transformers engine does not know the quantization {method!r}", "it knows int8; vllm knows its own methods"
        )
    try:
        from torchao.quantization import Int8WeightOnlyConfig, quantize_
    except ModuleNotFoundError:
        raise MissingDependencyError("int8 weights need torchao", "pip install 'draftsmith[quantization]'") from None
    quantize_(model, Int8WeightOnlyConfig())


def _batches(requests: Sequence[Request], size: int) -> Iterator[list[int]]:
    """Indexes of requests in batches of like prompt length, so that little is padded."""
    order = sorted(range(len(requests)), key=lambda i: len(requests[i].prompt_ids))
    for low in range(0, len(order), size):
        yield order[low : low + size]


def _check_fits(longest: int, checkpoint: Checkpoint) -> None:
    if longest > checkpoint.max_positions:
        raise EngineError(
            f"a prompt with its output needs {longest} positions, {checkpoint.path.name} has {checkpoint.max_positions}",
            "ask for fewer new tokens or shorter contexts, or record shorter prompts (`record --max-prompt-tokens`)",
        )
    window = getattr(checkpoint.config.get_text_config(), "sliding_window", None)
    if window and longest > window:
        raise EngineError(
            f"{checkpoint.path.name} attends over a sliding window of {window} tokens, and {longest} are needed",
            "use `--engine vllm`: the transformers engine keeps one slot per position and has no window",
        )


def _made_up(batch: int, context: int, vocabulary: int) -> list[Request]:
    """Prompts for timing. Rows of a real batch differ in length, which takes another way through the cache: so do these."""
    rng = np.random.default_rng(0)
    lengths = np.maximum(1, context - np.arange(batch))
    return [Request(rng.integers(0, vocabulary, size=n).astype(np.int32), row) for row, n in enumerate(lengths)]


def _longest(requests: Sequence[Request], limits: Limits, lookahead: int) -> int:
    if min(len(request.prompt_ids) for request in requests) == 0:
        raise EngineError("a prompt has no tokens", "give every prompt some text")
    return max(len(request.prompt_ids) for request in requests) + limits.max_new_tokens + limits.tail + lookahead


class _Recorder:
    def __init__(self, path: Path, config: EngineConfig) -> None:
        self._checkpoint = Checkpoint(path, config.trust_remote_code)
        self._model, self._config = _load(self._checkpoint, config, config.quantization), config
        self.eos_ids = self._checkpoint.eos_ids
        self.vocabulary = self._checkpoint.vocabulary
        self.encode = self._checkpoint.encode
        self.dtype = str(self._model.model.dtype).removeprefix("torch.")

    def record(self, requests: Sequence[Request], sampling: Sampling, limits: Limits) -> list[Generation]:
        _check_fits(_longest(requests, limits, 0), self._checkpoint)
        results: list[Generation | None] = [None] * len(requests)
        for batch in _batches(requests, self._config.batch_size):
            chosen = [requests[i] for i in batch]
            rows = decode(self._model, None, 0, chosen, sampling, limits, Clocks(), keep_logprobs=True)
            for i, row in zip(batch, rows, strict=True):
                assert row.num_output is not None
                results[i] = Generation(
                    output_ids=np.array(row.tokens, dtype=np.int32),
                    num_output=row.num_output,
                    logprobs=np.array(row.logprobs, dtype=np.float32),
                    finish_reason=row.finish_reason,
                    top_ids=np.array(row.top_ids, dtype=np.int32) if limits.top_logprobs else None,
                    top_logprobs=np.array(row.top_logprobs, dtype=np.float32) if limits.top_logprobs else None,
                )
        return [result for result in results if result is not None]


class _Scorer:
    """One teacher-forced pass over prompt and output gives the draft's view of every output token."""

    def __init__(self, path: Path, sampling: Sampling, config: EngineConfig) -> None:
        self._checkpoint = Checkpoint(path, config.trust_remote_code)
        self._model = _load(self._checkpoint, config).model
        self._sampling, self._config = sampling, config
        self.vocabulary = self._checkpoint.vocabulary

    def score(self, rows: Sequence[TraceRow], ranks: Ints | None = None) -> list[DraftScore]:
        _check_fits(max(len(row.prompt_ids) + len(row.output_ids) for row in rows), self._checkpoint)
        scores: dict[int, DraftScore] = {}
        for batch in batches_to_score(rows, self._config.batch_size, self.vocabulary.rows):
            found = score_batch(self._model, [rows[i] for i in batch], self._sampling, ranks)
            scores |= dict(zip(batch, found, strict=True))
        return [scores[i] for i in range(len(rows))]


class _Live:
    def __init__(self, target: Path, draft: Draft | None, lookahead: int, sampling: Sampling, config: EngineConfig) -> None:
        self._checkpoints = [Checkpoint(target, config.trust_remote_code)]
        self._target = _load(self._checkpoints[0], config, config.quantization)
        self._lookahead, self._sampling, self._config = lookahead, sampling, config
        self._proposer: Proposer | None = None
        if isinstance(draft, NgramDraft):
            self._proposer = NgramProposer(draft)
        elif draft is not None:
            checkpoint = Checkpoint(Path(draft.path), config.trust_remote_code)
            check_same_tokens(self.target_vocabulary, checkpoint.vocabulary)
            self._checkpoints.append(checkpoint)
            model = _load(checkpoint, config)
            self._proposer = ModelProposer(model, draft.method, sampling, self._checkpoints[0].rows)
        elif lookahead:
            self._proposer = FreeProposer()

    @property
    def target_vocabulary(self) -> Vocabulary:
        return self._checkpoints[0].vocabulary

    def run(self, requests: Sequence[Request], limits: Limits, lookahead: int | None = None) -> LiveRun:
        lookahead = self._lookahead if lookahead is None else lookahead
        for checkpoint in self._checkpoints:
            _check_fits(_longest(requests, limits, lookahead), checkpoint)
        clocks = Clocks()
        rows: dict[int, LiveRow] = {}
        for batch in _batches(requests, self._config.batch_size):
            chosen = [requests[i] for i in batch]
            written = decode(self._target, self._proposer, lookahead, chosen, self._sampling, limits, clocks)
            for i, row in zip(batch, written, strict=True):
                rows[i] = LiveRow(
                    output_ids=np.array(row.tokens, dtype=np.int32),
                    step_tokens=np.array(row.step_tokens, dtype=np.int32),
                    finish_reason=row.finish_reason,
                )
        steps = sum(len(row.step_tokens) for row in rows.values())
        tokens = sum(len(row.output_ids) for row in rows.values())
        phases = clocks.totals()
        return LiveRun(
            rows=[rows[i] for i in range(len(requests))],
            seconds=sum(phases.values()),
            counters={"steps": steps, "accepted_emitted": tokens - steps},
            phase_seconds=phases,
            decode_tokens=tokens,
            decode_seconds=sum(phases.values()) - clocks.prefill,
        )

    def time_steps(self, batch: int, context: int, lookaheads: Sequence[int], steps: int) -> dict[int, list[StepSeconds]]:
        most, limits = max(lookaheads), Limits((max(lookaheads) + 1) * (steps + _WARM_STEPS) * len(lookaheads), ())
        requests = _made_up(batch, context, self._checkpoints[0].rows)
        for checkpoint in self._checkpoints:
            _check_fits(_longest(requests, Limits(most + 1, ()), most), checkpoint)
        clocks = Clocks()
        decoding = Decoding(self._target, self._proposer, requests, self._sampling, limits, clocks, most)
        decoding.prefill()
        start_B = decoding.lengths_B
        timed: dict[int, list[StepSeconds]] = {}
        for lookahead in lookaheads:
            for _ in range(_WARM_STEPS + steps):
                decoding.lengths_B = start_B  # slots behind it are forgotten: every step has the same context
                decoding.step(lookahead)
            phases = clocks.steps[-steps:]
            timed[lookahead] = [StepSeconds(**phase, context=float(start_B.max())) for phase in phases]
        return timed


class _Transformers:
    first_drafted: Literal[0, 1] = 0
    batching = Batching(admission="static", context="longest", clips_lookahead=True)
    idle_draft_is_free = True
    several_at_once = True
    write_random_model = staticmethod(write_random_model)

    def versions(self) -> dict[str, str]:
        return {"torch": str(torch.__version__), "transformers": transformers.__version__}

    def draft_sampling(self, sampling: Sampling) -> Sampling:
        return sampling

    @contextmanager
    def recorder(self, model: Path, config: EngineConfig) -> Iterator[_Recorder]:
        yield _Recorder(model, config)

    @contextmanager
    def scorer(self, draft: Path, sampling: Sampling, config: EngineConfig) -> Iterator[_Scorer]:
        yield _Scorer(draft, sampling, config)

    @contextmanager
    def live(
        self,
        target: Path,
        draft: Draft | None,
        lookahead: int,
        sampling: Sampling,
        config: EngineConfig,
        adjustable: bool = False,
    ) -> Iterator[_Live]:
        yield _Live(target, draft, lookahead, sampling, config)


PLUGIN = _Transformers()
