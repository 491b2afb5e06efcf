"""The records that evaluation writes. A record is small, versioned JSON; a Trace, which is large, has its own module."""

from typing import Literal

from draftsmith.core.config import StrictConfig
from draftsmith.core.prompts import Split
from draftsmith.core.protocols import Draft, EngineConfig
from draftsmith.core.sampling import Sampling


class AcceptancePoint(StrictConfig):
    """What one lookahead gives. Errors are standard errors over prompts.

    By position: `acceptance` is the share of steps that accepted their m-th proposal, `conditional` the share among those
    that got to look at it. Both clip the lookahead to what remains of the output. `engine_accepted` are expected counts as
    vLLM counts them, unclipped; None where the trace has no tail to tell."""

    lookahead: int
    steps: float
    steps_std: float
    tokens_per_step: float
    tokens_per_step_error: float | None  # None for a single prompt, which has no spread
    accepted_per_step: float
    acceptance_by_position: tuple[float, ...]
    conditional_acceptance_by_position: tuple[float, ...]
    engine_accepted_by_position: tuple[float, ...] | None


class AcceptanceCurve(StrictConfig):
    """Tokens per step against lookahead, over a set of prompts."""

    num_prompts: int
    num_tokens: int
    points: tuple[AcceptancePoint, ...]

    def at(self, lookahead: int) -> AcceptancePoint:
        return next(point for point in self.points if point.lookahead == lookahead)


class Scorecard(StrictConfig):
    """A draft replayed against a trace: `draftsmith evaluate`."""

    kind: Literal["scorecard"] = "scorecard"
    schema_version: Literal[1] = 1
    trace: str
    target: str
    draft: Draft
    draft_fingerprint: str | None
    sampling: Sampling
    scored_by: str | None
    served_by: str
    first_drafted: Literal[0, 1]
    split: Split
    versions: dict[str, str]
    overall: AcceptanceCurve
    by_dataset: dict[str, AcceptanceCurve]


class Difference(StrictConfig):
    """Where a live output first leaves the recorded one. `position` counts output tokens from 0."""

    prompt_id: str
    position: int
    live_token: int | None
    recorded_token: int | None


class LiveCell(StrictConfig):
    """One lookahead of a live run. `differences` is only meant for greedy sampling, where outputs should be identical."""

    lookahead: int
    num_prompts: int
    tokens: int
    steps: int
    tokens_per_step: float | None  # None where no token was drafted for
    seconds: float
    tokens_per_second: float
    counters: dict[str, int]
    accepted_per_position: tuple[int, ...]
    phase_seconds: dict[str, float]
    differences: tuple[Difference, ...]


class LiveCard(StrictConfig):
    """A draft run live with its target: `draftsmith evaluate --live`."""

    kind: Literal["livecard"] = "livecard"
    schema_version: Literal[1] = 1
    trace: str
    target: str
    draft: Draft
    draft_fingerprint: str | None
    sampling: Sampling
    engine: EngineConfig
    split: Split
    versions: dict[str, str]
    cells: tuple[LiveCell, ...]
