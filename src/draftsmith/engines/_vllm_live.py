"""vLLM speculating live: over prompts with its own counters, and step by step with the clocks of `_vllm_clock`."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import vllm
from vllm.sampling_params import RequestOutputKind

from draftsmith.core.errors import EngineError
from draftsmith.core.protocols import (
    Draft,
    EngineConfig,
    Limits,
    LiveRow,
    LiveRun,
    ModelDraft,
    NgramDraft,
    Request,
    StepSeconds,
)
from draftsmith.core.sampling import Sampling
from draftsmith.core.vocabulary import Vocabulary, check_same_tokens
from draftsmith.engines._checkpoint import Checkpoint
from draftsmith.engines._vllm_clock import FREE_PROPOSER
from draftsmith.engines._vllm_requests import check_fits, logical_end, longest, sampling_params, token_prompt

_COUNTERS = {
    "drafts": "vllm:spec_decode_num_drafts",
    "draft_tokens": "vllm:spec_decode_num_draft_tokens",
    "accepted_tokens": "vllm:spec_decode_num_accepted_tokens",
    "preemptions": "vllm:num_preemptions",
}
_WARM_STEPS = 2  # not timed: the first step after a change verifies what was proposed before it
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


class Live:
    """A running engine. Its lookahead can be lowered between steps if it was started as adjustable."""

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
        self._draft = Checkpoint(Path(draft.path), config.trust_remote_code) if isinstance(draft, ModelDraft) else None

    @property
    def target_vocabulary(self) -> Vocabulary:
        return self._checkpoint.vocabulary

    def run(self, requests: Sequence[Request], limits: Limits, lookahead: int | None = None) -> LiveRun:
        self._check_room(requests, limits)
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
        engine, blocks = self._llm.llm_engine, _there_and_back(lookaheads, steps)
        requests = self._made_up(batch, context)
        self._check_room(requests, Limits(sum((k + 1) * (_WARM_STEPS + n) for k, n in blocks), ()))
        limits = Limits(self._room() - context, ())  # rows must not end while they are timed
        if batch > self._config.batch_size:
            raise EngineError(f"the engine has room for {self._config.batch_size} rows, not {batch}", "ask for smaller batches")
        self._set_lookahead(lookaheads[0])
        self._add(requests, limits)
        lengths = dict.fromkeys(map(str, range(batch)), float(context))
        while min(lengths.values()) == context:
            self._step(lengths)
        timed: dict[int, list[StepSeconds]] = {lookahead: [] for lookahead in lookaheads}
        for lookahead, count in blocks:
            self._set_lookahead(lookahead)
            for step in range(_WARM_STEPS + count):
                timed_step = self._timed_step(lengths)
                if step >= _WARM_STEPS:
                    timed[lookahead].append(timed_step)
        engine.abort_request(list(lengths))
        while engine.has_unfinished_requests():
            engine.step()
        return timed

    def _room(self) -> int:
        """Positions of a row. Past a draft's last position vLLM would go on without a word, proposing nothing of use."""
        room = self._llm.llm_engine.model_config.max_model_len
        return room if self._draft is None else min(room, self._draft.max_positions - self._lookahead)

    def _check_room(self, requests: Sequence[Request], limits: Limits) -> None:
        check_fits(self._room(), longest(requests, limits))

    def _made_up(self, batch: int, context: int) -> list[Request]:
        prompts = np.random.default_rng(0).integers(0, self._checkpoint.rows, size=(batch, context)).astype(np.int32)
        return [Request(prompt, row) for row, prompt in enumerate(prompts)]

    def _add(self, requests: Sequence[Request], limits: Limits, first_id: int = 0) -> None:
        for i, request in enumerate(requests, first_id):
            params = sampling_params(request, self._sampling, limits, output_kind=RequestOutputKind.DELTA)
            self._llm.llm_engine.add_request(str(i), token_prompt(request.prompt_ids), params)

    def _step(self, lengths: dict[str, float]) -> int:
        """How many rows emitted something."""
        outputs = self._llm.llm_engine.step()
        for output in outputs:
            lengths[output.request_id] += len(output.outputs[0].token_ids)
        return sum(1 for output in outputs if output.outputs[0].token_ids)

    def _timed_step(self, lengths: dict[str, float]) -> StepSeconds:
        """As the clocks see it. All rows must take part."""
        if not self._clock_runs:
            self._llm.collective_rpc("draftsmith_start_clock")
            self._clock_runs = True
        length = sum(lengths.values()) / len(lengths)
        self._llm.collective_rpc("draftsmith_read_clock")
        began = time.perf_counter()
        emitted = self._step(lengths)
        total = time.perf_counter() - began
        if emitted != len(lengths):
            raise EngineError(
                f"only {emitted} of {len(lengths)} rows ran in a timed step",
                "give the engine more cache, or time smaller batches",
            )
        inside = self._llm.collective_rpc("draftsmith_read_clock")[0]
        return StepSeconds(inside["draft"], inside["verify"], total - inside["draft"] - inside["verify"], length)

    def _set_lookahead(self, lookahead: int) -> None:
        """Of the next steps. vLLM looks it up by batch size; ours is the same for all."""
        if lookahead > self._lookahead or (lookahead != self._lookahead and not self._adjustable):
            raise EngineError(
                f"this vLLM engine speculates {self._lookahead} tokens ahead, not {lookahead}", "start another engine"
            )
        if not self._adjustable:
            return
        scheduler = self._llm.llm_engine.engine_core.engine_core.scheduler
        scheduler.dynamic_sd_lookup = [lookahead] * len(scheduler.dynamic_sd_lookup)
        if self._free:
            self._llm.collective_rpc("draftsmith_set_free_lookahead", args=(lookahead,))

    def _row(self, steps: list[list[int]], limits: Limits) -> LiveRow:
        tokens = [token for step in steps for token in step]
        _, reason = logical_end(tokens, limits)
        sizes = [len(step) for step in steps if step]
        # The first delta is the prefill's token. No step of ours made it, so it is not counted.
        return LiveRow(np.array(tokens, dtype=np.int32), np.array(sizes[1:], dtype=np.int32), reason)

    def _counters(self) -> tuple[dict[str, int], list[int]]:
        metrics = {metric.name: metric for metric in self._llm.get_metrics()}
        counts = {name: int(metrics[key].value) for name, key in _COUNTERS.items() if key in metrics}
        positions = metrics[_PER_POSITION].values if _PER_POSITION in metrics else [0] * self._lookahead
        return counts, [int(value) for value in positions]


def _there_and_back(lookaheads: Sequence[int], steps: int) -> list[tuple[int, int]]:
    """Lookaheads with how many steps to time, in order and then in reverse: contexts grow on the way, and each lookahead has
    the same mean context."""
    return [(k, steps - steps // 2) for k in lookaheads] + [(k, steps // 2) for k in reversed(lookaheads) if steps > 1]


def speculation(
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
