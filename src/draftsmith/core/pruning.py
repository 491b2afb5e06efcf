"""What a pruner must offer, and what it is asked. Paths, shapes, plans and recorded rows; tensors stay inside the plugin."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field

from draftsmith.core.config import StrictConfig
from draftsmith.core.errors import RecordError
from draftsmith.core.families import check_shape, cut_config, family_of
from draftsmith.core.keep_plans import KeepPlan
from draftsmith.core.protocols import EngineConfig
from draftsmith.core.sampling import Sampling
from draftsmith.core.shapes import Shape, model_shape
from draftsmith.core.store import read_json
from draftsmith.core.trace import TraceRow
from draftsmith.core.vocabulary import Vocabulary

_PATIENCE = 6 * 3600  # seconds
_UNFINISHED = "unfinished"


class WantedShape(StrictConfig):
    """The sizes to cut to; what is left out stays as it is in the source."""

    layers: int | None = Field(None, ge=1)
    heads: int | None = Field(None, ge=1)
    kv_heads: int | None = Field(None, ge=1)
    hidden: int | None = Field(None, ge=1)
    intermediate: int | None = Field(None, ge=1)
    rows: int | None = Field(None, ge=1)

    def of(self, source: Path) -> tuple[Shape, Shape]:
        """The source's shape and the one wanted, if it can be had."""
        config, whole = read_json(source / "config.json"), model_shape(source)
        wanted = whole.model_copy(update=self.model_dump(exclude_none=True, exclude={"rows"}))
        wanted = wanted.with_rows(self.rows or wanted.vocabulary)
        family = family_of(config, str(source))
        check_shape(family, whole, wanted)
        cut_config(config, wanted, range(wanted.layers), family)
        return whole, wanted


class PrunerChoice(StrictConfig):
    """A pruner by name, and its own settings."""

    kind: str
    settings: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class PruneJob:
    """A source, the shape wanted, and recorded output of the target to judge a cut by."""

    source: Path
    wanted: Shape
    rows: Sequence[TraceRow]
    sampling: Sampling
    vocabulary: Vocabulary  # of the target: a draft must mean the same strings
    engine: EngineConfig
    scratch: Path  # where a pruner may keep what it has found
    searches: Path  # the same for what does not hang on the shape wanted, so that other runs can use it
    trace: Path | None = None  # all that was recorded; `rows` are some of it

    @property
    def unfinished(self) -> Path:
        """What is kept only to go on from after an interruption: removed once the run has finished."""
        return self.scratch / _UNFINISHED


@dataclass(frozen=True)
class TrainingCost:
    """What a run would take of each rank, and in all."""

    memory_bytes: dict[str, int]  # at the peak of a step, by kind
    checkpoint_bytes: int
    tokens: int
    flops_per_token: float


def forget_unfinished(run: Path) -> None:
    """Of a run that has finished: checkpoints of training are several times as large as what it made."""
    for folder in run.glob(f"*/{_UNFINISHED}"):
        shutil.rmtree(folder)


def wait_for(path: Path) -> None:
    """Of several ranks the first one writes; the others find what it wrote."""
    for _ in range(_PATIENCE):
        if path.exists():
            return
        time.sleep(1.0)
    raise RecordError(f"the first rank has not written {path}", "see what it says, and run the same command again")


class Pruner(Protocol):
    """The face of one pruner plugin."""

    cuts: tuple[str, ...]  # the sizes of a Shape that it can make smaller
    trains: bool  # it runs on all ranks, and leaves other weights than the source's

    def versions(self) -> dict[str, str]: ...

    def identity(self, settings: dict[str, Any]) -> dict[str, Any]:
        """What of its settings, defaults included, the outcome depends on. Refuses settings that it does not know."""
        ...

    def plan(self, job: PruneJob, so_far: KeepPlan, settings: dict[str, Any]) -> KeepPlan:
        """What stays of that which a plan so far has kept."""
        ...

    def cut(self, job: PruneJob, plan: KeepPlan, folder: Path) -> None:
        """Write what a plan keeps as a checkpoint of its own, with the weights that belong to the plan."""
        ...

    def expect(self, source: Path, wanted: Shape, settings: dict[str, Any], ranks: int) -> TrainingCost | None:
        """What training would cost, without anything loaded but a config. None: it does not train."""
        ...
