"""Engine `vllm`: records at full batch, scores by prompt log-probabilities where that is valid, speculates live with the
engine's own counters. vLLM writes the first token straight from prefill, undrafted (first_drafted = 1).

The scheduler runs in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0): requests are all there before the first step, so batches
form the same way every time and a trace can be made again byte for byte. Tensor-parallel workers are processes of their own."""

import contextlib
import gc
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is for results

import numpy as np
import torch
import transformers
import vllm
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind

from draftsmith.core.errors import EngineError
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
from draftsmith.core.trace import TraceRow
from draftsmith.core.vocabulary import Vocabulary, check_same_tokens
from draftsmith.engines._checkpoint import Checkpoint
from draftsmith.engines._random_model import write_random_model
from draftsmith.engines._vllm_clock import CLOCK, FREE_PROPOSER

_COUNTERS = {
    "drafts": "vllm:spec_decode_num_drafts",
    "draft_tokens": "vllm:spec_decode_num_draft_tokens",
    "accepted_tokens": "vllm:spec_decode_num_accepted_tokens",
    "preemptions": "vllm:num_preemptions",
}
_WARM_STEPS = 2  # not timed: the first step after a change verifies what was proposed before it
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


@contextmanager
def _engine(checkpoint: Checkpoint, config: EngineConfig, **options: Any) -> Iterator[vllm.LLM]:
    """A vLLM engine, closed behind us so that the next one finds the memory free."""
    on_cpu = current_platform.is_cpu()
    if on_cpu:
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(config.kv_cache_gb)
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = _thread_binding(config)
    try:
        llm = vllm.LLM(
            model=str(checkpoint.path),
            dtype=config.dtype,
            tensor_parallel_size=config.tensor_parallel,
            max_model_len=config.max_model_len,
            max_num_seqs=config.batch_size,
            trust_remote_code=config.trust_remote_code,
            enforce_eager=on_cpu,  # compiling takes minutes on a CPU and gains little there
            enable_prefix_caching=False,
            logprobs_mode="processed_logprobs",
            disable_log_stats=False,
            load_format="safetensors",
            skip_tokenizer_init=not checkpoint.has_tokenizer,
            **options,
        )
    except (ValueError, RuntimeError, OSError) as error:
        raise EngineError(
            f"vLLM {vllm.__version__} could not start with {checkpoint.path.name}: {_reason(error)}",
            "`draftsmith doctor` checks the installation; a smaller --max-model-len or --batch-size needs less memory",
        ) from error
    try:
        yield llm
    finally:
        with contextlib.suppress(Exception):  # a shutdown that fails must not hide why we are leaving
            llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def _reason(error: BaseException) -> str:
    """The line that says why: a validation error opens with its count of errors, and tells the cause after it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return next((line.strip().split(" [type=")[0] for line in lines if "Value error, " in line), lines[0])


def _thread_binding(config: EngineConfig) -> str:
    """Which cores each rank computes on; `auto` leaves it to vLLM, which keeps one core free."""
    if config.threads is None and config.tensor_parallel == 1:
        return "auto"
    cores = sorted(os.sched_getaffinity(0))
    per_rank = max(1, (config.threads or len(cores)) // config.tensor_parallel)
    if per_rank * config.tensor_parallel > len(cores):
        raise EngineError(
            f"{config.tensor_parallel} ranks of {per_rank} threads need more than the {len(cores)} cores there are",
            "lower --threads or --tensor-parallel",
        )
    ranks = [cores[rank * per_rank : (rank + 1) * per_rank] for rank in range(config.tensor_parallel)]
    return "|".join(",".join(map(str, rank)) for rank in ranks)


def _params(request: Request, sampling: Sampling, limits: Limits, **more: Any) -> vllm.SamplingParams:
    """End tokens are given by us and not by the checkpoint's defaults, so that both engines stop at the same ones."""
    return vllm.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=None if sampling.is_greedy else request.seed,
        max_tokens=limits.max_new_tokens + limits.tail,
        ignore_eos=True,
        stop_token_ids=None if limits.tail else list(limits.eos_ids),
        detokenize=False,
        **more,
    )


def _prompt(ids: Any) -> dict[str, list[int]]:
    return {"prompt_token_ids": [int(token) for token in ids]}


def _logical_end(tokens: list[int], limits: Limits) -> tuple[int, Literal["eos", "length"]]:
    for i, token in enumerate(tokens[: limits.max_new_tokens]):
        if token in limits.eos_ids:
            return i + 1, "eos"
    return min(len(tokens), limits.max_new_tokens), "length"


def _check_fits(llm: vllm.LLM, longest: int) -> None:
    """vLLM would refuse a long prompt with a traceback, and cut a long output short without a word."""
    room = llm.llm_engine.model_config.max_model_len
    if longest > room:
        raise EngineError(
            f"a prompt with its output needs {longest} positions, the engine has room for {room}",
            "raise --max-model-len, or ask for shorter contexts or fewer new tokens",
        )


def _longest(requests: Sequence[Request], limits: Limits) -> int:
    return max(len(request.prompt_ids) for request in requests) + limits.max_new_tokens + limits.tail


class _Recorder:
    def __init__(self, llm: vllm.LLM, checkpoint: Checkpoint) -> None:
        self._llm = llm
        self.eos_ids, self.vocabulary, self.encode = checkpoint.eos_ids, checkpoint.vocabulary, checkpoint.encode
        self.dtype = str(llm.llm_engine.model_config.dtype).removeprefix("torch.")

    def record(self, requests: Sequence[Request], sampling: Sampling, limits: Limits) -> list[Generation]:
        _check_fits(self._llm, _longest(requests, limits))
        params = [_params(request, sampling, limits, logprobs=limits.top_logprobs) for request in requests]
        prompts = [_prompt(request.prompt_ids) for request in requests]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return [self._generation(output.outputs[0], limits) for output in outputs]

    def _generation(self, output: Any, limits: Limits) -> Generation:
        tokens = list(output.token_ids)
        n, reason = _logical_end(tokens, limits)
        kept = min(len(tokens), n + limits.tail)
        top_ids: list[int] = []
        top_logprobs: list[float] = []
        for entries in output.logprobs[:kept] if limits.top_logprobs else ():
            best = sorted(entries.items(), key=lambda item: item[1].rank)[: limits.top_logprobs]
            top_ids.extend(token for token, _ in best)
            top_logprobs.extend(entry.logprob for _, entry in best)
        return Generation(
            output_ids=np.array(tokens[:kept], dtype=np.int32),
            num_output=n,
            logprobs=np.array(
                [entries[token].logprob for token, entries in zip(tokens[:kept], output.logprobs[:kept], strict=True)],
                dtype=np.float32,
            ),
            finish_reason=reason,
            top_ids=np.array(top_ids, dtype=np.int32) if limits.top_logprobs else None,
            top_logprobs=np.array(top_logprobs, dtype=np.float32) if limits.top_logprobs else None,
        )


class _Scorer:
    def __init__(self, llm: vllm.LLM, checkpoint: Checkpoint) -> None:
        self._llm, self.vocabulary = llm, checkpoint.vocabulary

    def score(self, rows: Sequence[TraceRow]) -> list[DraftScore]:
        _check_fits(self._llm, max(len(row.prompt_ids) + len(row.output_ids) for row in rows) + 1)
        params = vllm.SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=2, detokenize=False, flat_logprobs=True, ignore_eos=True
        )
        prompts = [_prompt(np.concatenate([row.prompt_ids, row.output_ids])) for row in rows]
        outputs = self._llm.generate(prompts, [params] * len(rows), use_tqdm=False)
        return [self._score(row, output.prompt_logprobs) for row, output in zip(rows, outputs, strict=True)]

    @staticmethod
    def _score(row: TraceRow, flat: Any) -> DraftScore:
        """vLLM lists, for each position, the token that stands there and then the two most likely ones."""
        starts = np.array(flat.start_indices)[len(row.prompt_ids) :]
        tokens, logprobs = np.array(flat.token_ids), np.array(flat.logprobs, dtype=np.float32)
        assert (tokens[starts] == row.output_ids).all()
        return DraftScore(
            argmax_ids=tokens[starts + 1].astype(np.int32),
            logprobs=logprobs[starts],
            top_gaps=logprobs[starts + 1] - logprobs[starts + 2],
        )


class _Live:
    def __init__(
        self,
        llm: vllm.LLM,
        checkpoint: Checkpoint,
        draft: Draft | None,
        lookahead: int,
        sampling: Sampling,
        config: EngineConfig,
        adjustable: bool,
    ) -> None:
        self._llm, self._lookahead, self._sampling, self._config = llm, lookahead, sampling, config
        self._adjustable, self._free, self._clock_runs = adjustable, draft is None and lookahead > 0, False
        self._checkpoint = checkpoint

    @property
    def target_vocabulary(self) -> Vocabulary:
        return self._checkpoint.vocabulary

    def run(self, requests: Sequence[Request], limits: Limits, lookahead: int | None = None) -> LiveRun:
        _check_fits(self._llm, _longest(requests, limits))
        self._set_lookahead(self._lookahead if lookahead is None else lookahead)
        engine = self._llm.llm_engine
        before, positions_before = self._counters()
        began = time.perf_counter()
        self._add(requests, limits)
        deltas: list[list[list[int]]] = [[] for _ in requests]
        unfinished, decode_tokens, decode_seconds = len(requests), 0, 0.0
        while engine.has_unfinished_requests():
            # A request that could run and has no token yet is being prefilled in this step.
            decoding = sum(1 for one in deltas if one) - (len(requests) - unfinished)
            only_decodes = decoding == min(self._config.batch_size, unfinished)
            step_began, emitted = time.perf_counter(), 0
            for output in engine.step():
                tokens = list(output.outputs[0].token_ids)
                deltas[int(output.request_id)].append(tokens)
                emitted, unfinished = emitted + len(tokens), unfinished - output.finished
            if only_decodes:
                decode_tokens, decode_seconds = decode_tokens + emitted, decode_seconds + time.perf_counter() - step_began
        seconds = time.perf_counter() - began
        after, positions_after = self._counters()
        return LiveRun(
            rows=[self._row(steps, limits) for steps in deltas],
            seconds=seconds,
            counters={name: after[name] - before[name] for name in after},
            accepted_per_position=[b - a for a, b in zip(positions_before, positions_after, strict=True)],
            decode_tokens=decode_tokens,
            decode_seconds=decode_seconds,
        )

    def time_steps(self, batch: int, context: int, lookaheads: Sequence[int], steps: int) -> dict[int, list[StepSeconds]]:
        engine, rounds = self._llm.llm_engine, _WARM_STEPS + steps
        limits = Limits(sum((k + 1) * rounds for k in lookaheads) + 2 * (max(lookaheads) + 1), ())
        prompts = np.random.default_rng(0).integers(0, self._checkpoint.rows, size=(batch, context)).astype(np.int32)
        requests = [Request(prompt, row) for row, prompt in enumerate(prompts)]
        _check_fits(self._llm, _longest(requests, limits))
        if batch > self._config.batch_size:
            raise EngineError(f"the engine has room for {self._config.batch_size} rows, not {batch}", "ask for smaller batches")
        if not self._clock_runs:
            self._llm.collective_rpc("draftsmith_start_clock")
            self._clock_runs = True
        self._set_lookahead(lookaheads[0])
        self._add(requests, limits)
        lengths = dict.fromkeys(map(str, range(batch)), float(context))
        while min(lengths.values()) == context:
            self._step(lengths)
        timed: dict[int, list[StepSeconds]] = {}
        for lookahead in lookaheads:
            self._set_lookahead(lookahead)
            timed[lookahead] = []
            for step in range(rounds):
                length = sum(lengths.values()) / batch
                self._llm.collective_rpc("draftsmith_read_clock")
                began = time.perf_counter()
                self._step(lengths)
                total = time.perf_counter() - began
                inside = self._llm.collective_rpc("draftsmith_read_clock")[0]
                if step >= _WARM_STEPS:
                    overhead = total - inside["draft"] - inside["verify"]
                    timed[lookahead].append(StepSeconds(inside["draft"], inside["verify"], overhead, length))
        engine.abort_request(list(lengths))
        while engine.has_unfinished_requests():
            engine.step()
        return timed

    def _add(self, requests: Sequence[Request], limits: Limits) -> None:
        for i, request in enumerate(requests):
            params = _params(request, self._sampling, limits, output_kind=RequestOutputKind.DELTA)
            self._llm.llm_engine.add_request(str(i), _prompt(request.prompt_ids), params)

    def _step(self, lengths: dict[str, float]) -> None:
        for output in self._llm.llm_engine.step():
            lengths[output.request_id] += len(output.outputs[0].token_ids)

    def _set_lookahead(self, lookahead: int) -> None:
        """Of the next steps. vLLM looks it up by batch size; ours is the same for all."""
        if not self._adjustable:
            if lookahead != self._lookahead:
                raise EngineError(
                    f"this vLLM engine speculates {self._lookahead} tokens ahead, not {lookahead}", "start another engine"
                )
            return
        scheduler = self._llm.llm_engine.engine_core.engine_core.scheduler
        scheduler.dynamic_sd_lookup = [lookahead] * len(scheduler.dynamic_sd_lookup)
        if self._free:
            self._llm.collective_rpc("draftsmith_set_free_lookahead", args=(lookahead,))

    def _row(self, steps: list[list[int]], limits: Limits) -> LiveRow:
        tokens = [token for step in steps for token in step]
        _, reason = _logical_end(tokens, limits)
        sizes = [len(step) for step in steps if step]
        # The first delta is the prefill's token. No step of ours made it, so it is not counted.
        return LiveRow(np.array(tokens, dtype=np.int32), np.array(sizes[1:], dtype=np.int32), reason)

    def _counters(self) -> tuple[dict[str, int], list[int]]:
        metrics = {metric.name: metric for metric in self._llm.get_metrics()}
        counts = {name: int(metrics[key].value) for name, key in _COUNTERS.items() if key in metrics}
        positions = metrics[_PER_POSITION].values if _PER_POSITION in metrics else [0] * self._lookahead
        return counts, [int(value) for value in positions]


class _Vllm:
    first_drafted: Literal[0, 1] = 1
    batching = Batching(admission="continuous", context="mean", clips_lookahead=False)
    idle_draft_is_free = False  # vLLM keeps the draft's cache up to date: one pass of the draft a step
    write_random_model = staticmethod(write_random_model)

    def versions(self) -> dict[str, str]:
        return {"torch": str(torch.__version__), "transformers": transformers.__version__, "vllm": vllm.__version__}

    def draft_sampling(self, sampling: Sampling) -> Sampling:
        return sampling.model_copy(update={"top_k": 0, "top_p": 1.0})

    @contextmanager
    def recorder(self, model: Path, config: EngineConfig) -> Iterator[_Recorder]:
        checkpoint = Checkpoint(model, config.trust_remote_code)
        with _engine(checkpoint, config, max_logprobs=-1, quantization=config.quantization) as llm:
            yield _Recorder(llm, checkpoint)

    @contextmanager
    def scorer(self, draft: Path, sampling: Sampling, config: EngineConfig) -> Iterator[_Scorer]:
        if not sampling.is_greedy and (sampling.temperature, sampling.top_k, sampling.top_p) != (1.0, 0, 1.0):
            raise EngineError(
                f"vLLM's prompt log-probabilities carry no temperature, and the trace was sampled with {sampling}",
                "score this trace with `--engine transformers`",
            )
        checkpoint = Checkpoint(draft, config.trust_remote_code)
        with _engine(checkpoint, config) as llm:
            yield _Scorer(llm, checkpoint)

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
        checkpoint = Checkpoint(target, config.trust_remote_code)
        options: dict[str, Any] = {"worker_extension_cls": CLOCK, "quantization": config.quantization}
        if lookahead:
            options["speculative_config"] = _speculation(checkpoint, draft, lookahead, config, adjustable)
        with _engine(checkpoint, config, **options) as llm:
            yield _Live(llm, checkpoint, draft, lookahead, sampling, config, adjustable and lookahead > 0)


def _speculation(
    target: Checkpoint, draft: Draft | None, lookahead: int, config: EngineConfig, adjustable: bool
) -> dict[str, Any]:
    speculation: dict[str, Any] = {"num_speculative_tokens": lookahead}
    if adjustable:
        speculation["num_speculative_tokens_per_batch_size"] = [(1, config.batch_size, lookahead)]
    if draft is None:
        return {**speculation, "method": "custom_class", "model": FREE_PROPOSER}
    if isinstance(draft, NgramDraft):
        return {
            **speculation,
            "method": "ngram",
            "prompt_lookup_max": draft.max_ngram,
            "prompt_lookup_min": draft.min_ngram,
        }
    other = Checkpoint(Path(draft.path), config.trust_remote_code)
    check_same_tokens(target.vocabulary, other.vocabulary)
    if other.vocabulary.rows != target.vocabulary.rows:
        raise EngineError(
            f"vLLM wants drafts with the target's {target.vocabulary.rows} output rows, "
            f"{other.path.name} has {other.vocabulary.rows}",
            "pad the draft's embedding and output rows, or use `--engine transformers`",
        )
    return {
        **speculation,
        "method": "draft_model",
        "model": str(other.path),
        "draft_tensor_parallel_size": config.tensor_parallel,
        "draft_sample_method": draft.method,
    }


PLUGIN = _Vllm()
