"""What we put into vLLM's workers to time a step from inside: a clock around the target's forward pass and around the
drafter, and a proposer that costs nothing. vLLM loads both by name, in every worker process."""

from collections.abc import Callable
from typing import Any

from draftsmith.engines._clock import now

CLOCK = f"{__name__}.StepClock"
FREE_PROPOSER = f"{__name__}.FreeProposer"


class StepClock:
    """Becomes a base class of vLLM's worker (`worker_extension_cls`); its methods are called by name in every rank."""

    model_runner: Any

    def draftsmith_start_clock(self) -> None:
        """Time these two from here on. The rest of a step is scheduling, sampling and bookkeeping."""
        self._draftsmith_seconds = {"draft": 0.0, "verify": 0.0}
        runner = self.model_runner
        runner.execute_model = self._draftsmith_timed("verify", runner.execute_model)
        if hasattr(runner, "propose_draft_token_ids"):
            runner.propose_draft_token_ids = self._draftsmith_timed("draft", runner.propose_draft_token_ids)
        elif runner.speculator is not None:  # vLLM's second model runner
            runner.speculator.propose = self._draftsmith_timed("draft", runner.speculator.propose)

    def draftsmith_read_clock(self) -> dict[str, float]:
        """Seconds since the last reading."""
        seconds = self._draftsmith_seconds
        self._draftsmith_seconds = dict.fromkeys(seconds, 0.0)
        return seconds

    def draftsmith_set_free_lookahead(self, lookahead: int) -> None:
        """vLLM does not tell a proposer of the kind below how many tokens it wants."""
        self.model_runner.drafter.lookahead = lookahead

    def _draftsmith_timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        device = self.model_runner.device

        def timed(*arguments: Any, **options: Any) -> Any:
            began = now(device)
            result = function(*arguments, **options)
            self._draftsmith_seconds[name] += now(device) - began
            return result

        return timed


class FreeProposer:
    """Proposes token 0, again and again, at no cost (vLLM's method `custom_class`): what is left of a step is verification."""

    def __init__(self, vllm_config: Any) -> None:
        self.lookahead = vllm_config.speculative_config.num_speculative_tokens

    def load_model(self, target: Any) -> None:
        """There is none."""

    def propose(self, sampled_token_ids: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        return [[0] * self.lookahead if tokens else [] for tokens in sampled_token_ids]
