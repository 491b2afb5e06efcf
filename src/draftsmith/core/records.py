"""The records that stages write. A record is small, versioned JSON; a Trace, which is large, has its own module."""

from typing import Any, Literal

from draftsmith.core.config import StrictConfig
from draftsmith.core.prompts import Split
from draftsmith.core.protocols import Batching, Draft, EngineConfig
from draftsmith.core.sampling import Sampling
from draftsmith.core.shapes import Shape


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

    @property
    def looked_at_by_position(self) -> tuple[float, ...]:
        """How many steps got to look at their m-th proposal: those that accepted the one before it."""
        return tuple(self.steps * share for share in (1.0, *self.acceptance_by_position[:-1]))


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


class RowsPoint(StrictConfig):
    """So many output rows. `ceiling` is the share of emitted tokens among them: no draft can have more accepted."""

    rows: int
    ceiling: float
    curve: AcceptanceCurve


class RowsCard(StrictConfig):
    """A draft replayed with fewer output rows, the whole head last: `draftsmith evaluate --rows`."""

    kind: Literal["rowscard"] = "rowscard"
    schema_version: Literal[1] = 1
    trace: str
    counted: str
    target: str
    draft: str
    draft_fingerprint: str
    split: Split
    points: tuple[RowsPoint, ...]


class PrunedCheckpoint(StrictConfig):
    """A model cut from another: `draftsmith prune`. It lies in `model` beside the record."""

    kind: Literal["checkpoint"] = "checkpoint"
    schema_version: Literal[1] = 1
    source: str
    source_fingerprint: str
    trace: str
    shape: Shape
    parameters: int
    layers_kept: tuple[int, ...]
    pruners: tuple[str, ...]
    fingerprint: str


class LatencyModel(StrictConfig):
    """Step time from shape, fitted to a ShapeProfile, for passes of up to `most_tokens` new tokens. `cache_gb` is the size of
    the cache that small models stay in, 0 if none shows. Errors are relative, on shapes left out of the fit in turn."""

    dtype: str
    coefficients: dict[str, float]
    cache_gb: float = 0.0
    most_tokens: int
    num_shapes: int
    unseen_error_median: float
    unseen_error_worst: float
    unseen_error_rms: float


class DesignCandidate(StrictConfig):
    """A shape, and what is expected of it. `lookahead`, `tokens_per_step` and `draft_ms` (a token) are at the first batch size;
    `acceptance` is that of a step's first proposal, `error` the relative standard deviation of the throughput."""

    shape: Shape
    parameters: int
    tokens_per_second: float
    speedup: float
    error: float
    lookahead: int
    tokens_per_step: float
    acceptance: float
    draft_ms: float
    tokens: int  # that it is to be trained on


class DesignProbe(StrictConfig):
    """A shape that was trained and replayed, and what the law makes of it: the first proposal's acceptance."""

    shape: Shape
    tokens: int
    acceptance: float
    fitted_acceptance: float


class Design(StrictConfig):
    """Which shape to cut: `draftsmith design`. `by_depth` holds the best candidate of every depth, the best first; `front`
    those that no other beats in both draft time and acceptance; `next_probe` what would be worth knowing."""

    kind: Literal["design"] = "design"
    schema_version: Literal[2] = 2
    source: str
    engine: str
    considered: int
    tokens: int | None
    training_flops: float | None
    shares: dict[int, float]
    context: int
    plain_tokens_per_second: float
    by_depth: tuple[DesignCandidate, ...]
    front: tuple[DesignCandidate, ...]
    next_probe: DesignCandidate
    probes: tuple[DesignProbe, ...]
    law: dict[str, tuple[float, float]]  # each slope and its standard deviation
    latency: LatencyModel

    @property
    def training(self) -> str:
        """How much of it a draft is to have."""
        if self.tokens is not None:
            return f"{self.tokens / 1e6:.1f}M tokens"
        return f"{self.training_flops:.1e} flops of training"


class LearningPoint(StrictConfig):
    """A moment of a run: tokens seen, the mean loss since the point before, and tokens per step if they were measured."""

    tokens: int
    loss: float
    tokens_per_step: float | None = None


class DistilledCheckpoint(StrictConfig):
    """A model that has learnt from the target: `draftsmith distill`. It lies in `model` beside the record."""

    kind: Literal["distilled"] = "distilled"
    schema_version: Literal[1] = 1
    student: str
    student_fingerprint: str
    trace: str
    held_out: str | None
    loss: str
    lookahead: int
    shape: Shape
    parameters: int
    tokens: int
    curve: tuple[LearningPoint, ...]
    fingerprint: str


class Contender(StrictConfig):
    """A draft that ran live, at its better lookahead. `speedup` is over plain decoding in the same run."""

    name: str
    fingerprint: str | None
    parameters: int | None
    layers: int | None
    lookahead: int
    tokens_per_step: float | None
    tokens_per_second: float
    plain_tokens_per_second: float
    speedup: float
    differing_outputs: int


class Forged(StrictConfig):
    """The draft that was made for a target, and what it was measured against: `draftsmith forge`. It lies in `model` beside the
    record."""

    kind: Literal["forged"] = "forged"
    schema_version: Literal[1] = 1
    target: str
    source: str
    engine: str
    batch: int
    best: str
    speedup: float
    lookahead: int
    shape: Shape
    tokens: int
    contenders: tuple[Contender, ...]
    shapes_trained: int
    seconds: float
    fingerprint: str


class TrainingStage(StrictConfig):
    """What one pruner's training would take. Bytes are those of one rank at a step's peak, and of a checkpoint."""

    pruner: str
    memory_bytes: dict[str, int]
    peak_bytes: int
    fits: bool
    checkpoint_bytes: int
    tokens: int
    tokens_per_second: float
    hours: float


class TrainingPlan(StrictConfig):
    """What a run would take: `draftsmith prune --plan`. One stage for every pruner that trains, in their order."""

    kind: Literal["training-plan"] = "training-plan"
    schema_version: Literal[2] = 2
    source: str
    ranks: int
    device: str
    efficiency: float
    stages: tuple[TrainingStage, ...]


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
    decode_tokens_per_second: float | None = None  # over the steps in which nothing was prefilled

    @property
    def speed(self) -> float:
        """Tokens per second of decoding, where the engine tells it from reading prompts; else of the whole run."""
        return self.decode_tokens_per_second or self.tokens_per_second


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


class ProfileCell(StrictConfig):
    """Steps of one kind, timed. Phases are means, because throughput goes by the mean; the median and the tenth and ninetieth
    percentile are of whole steps; `error` is the relative standard error of a whole step's mean over rounds."""

    lookahead: int
    batch: int
    context: int
    draft_ms: float
    verify_ms: float
    overhead_ms: float
    median_ms: float
    low_ms: float
    high_ms: float
    error: float
    rounds: int

    @property
    def step_ms(self) -> float:
        return self.draft_ms + self.verify_ms + self.overhead_ms


class Profile(StrictConfig):
    """Measured step times of an engine on a machine: `draftsmith profile`.

    `plain` is the baseline: steps of the target alone. `cells` were measured with the draft loaded; their lookahead 0 is the
    draft idle. Without a draft, or with prompt lookup, proposals cost nothing and a step is verification."""

    kind: Literal["profile"] = "profile"
    schema_version: Literal[1] = 1
    target: str
    target_fingerprint: str
    target_shape: Shape
    draft: str | None
    draft_fingerprint: str | None
    draft_shape: Shape | None
    engine: EngineConfig
    dtype: str
    batching: Batching
    first_drafted: Literal[0, 1]
    versions: dict[str, str]
    machine: dict[str, Any]
    busy: bool  # something else used the machine meanwhile
    plain: tuple[ProfileCell, ...]
    cells: tuple[ProfileCell, ...]


class ShapeCell(StrictConfig):
    """One shape with random weights, timed in plain decoding. `forward_ms` is the model's part of `step_ms`."""

    group: str
    shape: Shape
    batch: int
    context: int
    forward_ms: float
    step_ms: float
    median_ms: float
    error: float
    rounds: int


class ShapeProfile(StrictConfig):
    """Step times of many shapes: `draftsmith profile --shapes`."""

    kind: Literal["shapeprofile"] = "shapeprofile"
    schema_version: Literal[1] = 1
    architecture: str
    engine: EngineConfig
    versions: dict[str, str]
    machine: dict[str, Any]
    busy: bool
    cells: tuple[ShapeCell, ...]


class ScheduleCell(StrictConfig):
    """The best lookahead at one batch size and context; 0 is switched off, with the draft still loaded."""

    batch: int
    context: int
    lookahead: int
    tokens_per_second: float
    switched_off_tokens_per_second: float


class MemoryCost(StrictConfig):
    """What a draft takes: its weights, its cache, and so the rows that no longer fit at a context length."""

    draft_weight_gb: float
    draft_kv_bytes_per_token: int
    context: int
    rows_without_draft: int
    rows_with_draft: int
    weight_gb_per_device: float


class ThroughputPoint(StrictConfig):
    """What one lookahead gives at one batch size and context. `speedup` is over plain decoding there, and `error` its
    relative standard error, from acceptance and from both timings."""

    lookahead: int
    batch: int
    context: int
    tokens_per_step: float
    tokens_per_second: float
    speedup: float
    error: float
    draft_ms: float
    verify_ms: float
    overhead_ms: float


class Inverse(StrictConfig):
    """The paper's questions asked backwards at one lookahead, batch size and context; None and why where no answer exists.

    `parity_tokens_per_step`: at which this draft is as fast as plain decoding. `parity_draft_ms`: how long the drafted run may
    take for that. `required_tokens_per_step`: for the tokens per second that were wished for, if any were."""

    lookahead: int
    batch: int
    context: int
    parity_tokens_per_step: float | None
    parity_tokens_per_step_reason: str
    parity_draft_ms: float | None
    parity_draft_ms_reason: str
    wanted_tokens_per_second: float | None
    required_tokens_per_step: float | None
    required_tokens_per_step_reason: str


class Verdict(StrictConfig):
    """Whether to speculate. `best` is the point with the largest speedup, among sure gains if there are any."""

    answer: Literal["go", "no-go", "only where it pays", "too close to call"]
    sentence: str
    best: ThroughputPoint


class FormulaPoint(StrictConfig):
    """The same prediction by the older formulas, for comparison; batch 1 at the shortest context."""

    lookahead: int
    ours: float
    paper: float
    leviathan: float


class Prediction(StrictConfig):
    """Throughput from acceptance and step times: `draftsmith predict`."""

    kind: Literal["prediction"] = "prediction"
    schema_version: Literal[1] = 1
    target: str
    draft: str
    engine: str
    replayed_batches: bool  # real batches, row by row; otherwise full ones
    plain_tokens_per_second: tuple[tuple[int, int, float], ...]  # batch, context
    points: tuple[ThroughputPoint, ...]
    schedule: tuple[ScheduleCell, ...]
    vllm_schedules: dict[int, tuple[tuple[int, int, int], ...]]  # by context
    inverses: tuple[Inverse, ...]
    formulas: tuple[FormulaPoint, ...]
    memory: MemoryCost | None
    verdict: Verdict
    caveats: tuple[str, ...] = ()  # why the numbers may be worse than they look
