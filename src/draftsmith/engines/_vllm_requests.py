"""What all uses of vLLM share: how a request is put, and where its output ends."""

from collections.abc import Sequence
from typing import Any, Literal

import vllm

from draftsmith.core.errors import EngineError
from draftsmith.core.protocols import Limits, Request
from draftsmith.core.sampling import Sampling


def sampling_params(request: Request, sampling: Sampling, limits: Limits, **more: Any) -> vllm.SamplingParams:
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


def token_prompt(ids: Any) -> dict[str, list[int]]:
    return {"prompt_token_ids": [int(token) for token in ids]}


def logical_end(tokens: list[int], limits: Limits) -> tuple[int, Literal["eos", "length"]]:
    for i, token in enumerate(tokens[: limits.max_new_tokens]):
        if token in limits.eos_ids:
            return i + 1, "eos"
    return min(len(tokens), limits.max_new_tokens), "length"


def check_fits(room: int, longest: int) -> None:
    """vLLM would refuse a long prompt with a traceback, and cut a long output short without a word."""
    if longest > room:
        raise EngineError(
            f"a prompt with its output needs {longest} positions, the engine has room for {room}",
            "raise --max-model-len, or ask for shorter contexts or fewer new tokens",
        )


def longest(requests: Sequence[Request], limits: Limits) -> int:
    return max(len(request.prompt_ids) for request in requests) + limits.max_new_tokens + limits.tail
