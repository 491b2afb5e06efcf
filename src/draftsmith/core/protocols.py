"""What an engine and a data set must offer. They speak numpy, paths and records; tensors stay inside the plugin."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import Field, model_validator

from draftsmith.core.config import StrictConfig
from draftsmith.core.prompts import Prompt
from draftsmith.core.sampling import DraftMethod, Sampling
from draftsmith.core.trace import FinishReason, Floats, Ints, TraceRow
from draftsmith.core.vocabulary import Vocabulary


class EngineConfig(StrictConfig):
    """How an engine runs its models, as deployed."""

    kind: str = "transformers"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = "auto"
    tensor_parallel: int = Field(1, ge=1)
    batch_size: int = Field(16, ge=1)
    threads: int | None = Field(None, ge=1)
    max_model_len: int | None = Field(None, ge=8)
    kv_cache_gb: float = Field(2.0, gt=0)
    quantization: str | None = None  # of the target's weights; transformers knows int8, vllm its own methods
    trust_remote_code: bool = False


class ModelDraft(StrictConfig):
    """A checkpoint that proposes token by token."""

    kind: Literal["model"] = "model"
    path: str
    method: DraftMethod = "greedy"


class NgramDraft(StrictConfig):
    """Prompt lookup: propose what followed the longest earlier occurrence of the last tokens."""

    kind: Literal["ngram"] = "ngram"
    max_ngram: int = Field(3, ge=1)
    min_ngram: int = Field(1, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"min_ngram {self.min_ngram} is above max_ngram {self.max_ngram}")
        return self


Draft = Annotated[ModelDraft | NgramDraft, Field(discriminator="kind")]


@dataclass(frozen=True)
class Request:
    """One prompt to continue. Its seed is its own, so a batch's make-up does not change what is drawn."""

    prompt_ids: Ints
    seed: int


@dataclass(frozen=True)
class Generation:
    """What a model wrote: `num_output` logical tokens, then the tail."""

    output_ids: Ints
    num_output: int
    logprobs: Floats
    finish_reason: FinishReason
    top_ids: Ints | None = None
    top_logprobs: Floats | None = None


@dataclass(frozen=True)
class DraftScore:
    """A draft's view of one row's output tokens, from one teacher-forced pass over prompt and output."""

    argmax_ids: Ints  # what a greedy draft proposes at each position
    logprobs: Floats  # log q(x) of the emitted token, after the draft's own processing
    top_gaps: Floats  # how far the draft's best logit lies above its second
    first_rank_above: Ints | None = None  # if ranks were given: the lowest rank of a token that the draft finds more likely


@dataclass(frozen=True)
class LiveRow:
    """One prompt's live speculative run. `step_tokens` are the tokens emitted by each step, the prefill not counted."""

    output_ids: Ints
    step_tokens: Ints
    finish_reason: FinishReason


@dataclass
class LiveRun:
    """A live run over many prompts, with the engine's own counters."""

    rows: list[LiveRow]
    seconds: float
    counters: dict[str, int] = field(default_factory=dict)
    accepted_per_position: list[int] = field(default_factory=list)
    phase_seconds: dict[str, float] = field(default_factory=dict)
    decode_tokens: int = 0  # emitted by the steps in which nothing was prefilled
    decode_seconds: float = 0.0  # of those steps


class Batching(StrictConfig):
    """How an engine decodes many prompts, `batch_size` at a time; what predicts its speed follows the same rule.

    Static: batches of like prompt length, each until its last row ends. Continuous: a row that ends makes room for the next.
    `context` is what attention costs go by when rows differ: the longest (rows are padded) or the mean."""

    admission: Literal["static", "continuous"]
    context: Literal["longest", "mean"]
    clips_lookahead: bool  # to what the output limit leaves


PHASES = ("draft", "verify", "overhead")


@dataclass(frozen=True)
class StepSeconds:
    """One step, timed. `context` is that of its rows before it, the longest or the mean as the engine's `Batching` says."""

    draft: float
    verify: float
    overhead: float
    context: float


@dataclass(frozen=True)
class Limits:
    """When generation ends: after `max_new_tokens`, or at one of `eos_ids`; `tail` more tokens are kept, marked."""

    max_new_tokens: int
    eos_ids: tuple[int, ...]
    tail: int = 0
    top_logprobs: int = 0


class Recorder(Protocol):
    """A loaded target."""

    eos_ids: tuple[int, ...]
    dtype: str
    vocabulary: Vocabulary

    def encode(self, prompt: Prompt) -> list[int]: ...
    def record(self, requests: Sequence[Request], sampling: Sampling, limits: Limits) -> list[Generation]: ...


class Scorer(Protocol):
    """A loaded draft."""

    vocabulary: Vocabulary

    def score(self, rows: Sequence[TraceRow], ranks: Ints | None = None) -> list[DraftScore]:
        """`ranks`: one for each output row of the draft. See `DraftScore.first_rank_above`."""
        ...


class LiveEngine(Protocol):
    """A target and a draft, loaded as they would serve. Lookahead 0 proposes nothing."""

    target_vocabulary: Vocabulary

    def run(self, requests: Sequence[Request], limits: Limits, lookahead: int | None = None) -> LiveRun:
        """Continue all prompts, by default at the lookahead the engine was made for."""
        ...

    def time_steps(self, batch: int, context: int, lookaheads: Sequence[int], steps: int) -> dict[int, list[StepSeconds]]:
        """Time `steps` steps at each lookahead, with `batch` made-up prompts of `context` tokens."""
        ...


class Engine(Protocol):
    """The face of one engine plugin."""

    first_drafted: Literal[0, 1]
    batching: Batching
    idle_draft_is_free: bool  # a loaded draft that proposes nothing leaves a step as fast as without it
    several_at_once: bool  # one process may hold more than one `live`

    def versions(self) -> dict[str, str]: ...

    def write_random_model(self, config: dict[str, Any], folder: Path, tokenizer: Path | None = None) -> None:
        """Save a checkpoint of this shape with random weights, with the tokenizer of another model if one is given."""
        ...

    def draft_sampling(self, sampling: Sampling) -> Sampling:
        """What a probabilistic draft's logits go through in this engine when the target uses `sampling`."""
        ...

    def recorder(self, model: Path, config: EngineConfig) -> AbstractContextManager[Recorder]: ...

    def scorer(self, draft: Path, sampling: Sampling, config: EngineConfig) -> AbstractContextManager[Scorer]: ...

    def live(
        self,
        target: Path,
        draft: Draft | None,
        lookahead: int,
        sampling: Sampling,
        config: EngineConfig,
        adjustable: bool = False,
    ) -> AbstractContextManager[LiveEngine]:
        """Without a draft and with lookahead 0, plain decoding; with a lookahead, proposals that cost nothing. `adjustable`:
        every lookahead up to the one given can be asked for, run by run."""
        ...


class Dataset(Protocol):
    """The face of one data-set plugin."""

    hub_name: str | None

    def prompts(self, folder: Path | None) -> Iterator[Prompt]: ...
