"""Engine `vllm`: records at full batch, scores by prompt log-probabilities where that is valid, speculates live with the
engine's own counters. vLLM writes the first token straight from prefill, undrafted (first_drafted = 1).

The scheduler runs in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0): requests are all there before the first step, so batches
form the same way every time and a trace can be made again byte for byte. Tensor-parallel workers are processes of their own."""

import contextlib
import gc
import os
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

from draftsmith.core.errors import EngineError
from draftsmith.core.protocols import Batching, Draft, DraftScore, EngineConfig, Generation, Limits, Request
from draftsmith.core.sampling import Sampling
from draftsmith.core.trace import Ints, TraceRow
from draftsmith.engines._checkpoint import Checkpoint
from draftsmith.engines._random_model import write_random_model
from draftsmith.engines._vllm_clock import CLOCK
from draftsmith.engines._vllm_live import Live, speculation
from draftsmith.engines._vllm_requests import check_fits, logical_end, longest, sampling_params, token_prompt


@contextmanager
def _engine(checkpoint: Checkpoint, config: EngineConfig, **options: Any) -> Iterator[vllm.LLM]:
    """A vLLM engine, closed behind us so that the next one finds the memory free."""
    on_cpu = current_platform.is_cpu()
    options.setdefault("enable_prefix_caching", False)  # what is timed must not hang on what ran before
    if on_cpu:
        options["kv_cache_memory_bytes"] = int(config.kv_cache_gb * 2**30)
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


class _Recorder:
    def __init__(self, llm: vllm.LLM, checkpoint: Checkpoint) -> None:
        self._llm = llm
        self.eos_ids, self.vocabulary, self.encode = checkpoint.eos_ids, checkpoint.vocabulary, checkpoint.encode
        self.dtype = str(llm.llm_engine.model_config.dtype).removeprefix("torch.")

    def record(self, requests: Sequence[Request], sampling: Sampling, limits: Limits) -> list[Generation]:
        check_fits(self._llm.llm_engine.model_config.max_model_len, longest(requests, limits))
        params = [sampling_params(request, sampling, limits, logprobs=limits.top_logprobs) for request in requests]
        prompts = [token_prompt(request.prompt_ids) for request in requests]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return [self._generation(output.outputs[0], limits) for output in outputs]

    def _generation(self, output: Any, limits: Limits) -> Generation:
        tokens = list(output.token_ids)
        n, reason = logical_end(tokens, limits)
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

    def score(self, rows: Sequence[TraceRow], ranks: Ints | None = None) -> list[DraftScore]:
        if ranks is not None:
            raise EngineError("vLLM does not say what a draft thinks of all tokens", "score with `--engine transformers`")
        room = self._llm.llm_engine.model_config.max_model_len
        check_fits(room, max(len(row.prompt_ids) + len(row.output_ids) for row in rows) + 1)
        params = vllm.SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=2, detokenize=False, flat_logprobs=True, ignore_eos=True
        )
        prompts = [token_prompt(np.concatenate([row.prompt_ids, row.output_ids])) for row in rows]
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


class _Vllm:
    first_drafted: Literal[0, 1] = 1
    batching = Batching(admission="continuous", context="mean", clips_lookahead=False)
    idle_draft_is_free = False  # vLLM keeps the draft's cache up to date: one pass of the draft a step
    several_at_once = current_platform.is_cpu()  # on a GPU the first engine takes nearly all of the memory
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
        **options: Any,
    ) -> Iterator[Live]:
        """`options` are vLLM's own, for those who know that this is vLLM."""
        checkpoint = Checkpoint(target, config.trust_remote_code)
        options |= {"worker_extension_cls": CLOCK, "quantization": config.quantization}
        if lookahead:
            options["speculative_config"] = speculation(checkpoint, draft, lookahead, config, adjustable)
        with _engine(checkpoint, config, **options) as llm:
            yield Live(llm, checkpoint, draft, lookahead, sampling, config, adjustable and lookahead > 0)


PLUGIN = _Vllm()
