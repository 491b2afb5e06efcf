"""The flow, in code: which stages there are, in which order, and what passes between them. The one place where it stands."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Stage:
    """One stage: its verb, what it reads and writes, and what it runs on."""

    verb: str
    reads: tuple[str, ...]
    writes: str
    runs_on: Literal["engine", "nothing"]
    summary: str


STAGES = (
    Stage("record", ("target", "prompts"), "Trace", "engine", "run the target once and keep what it wrote"),
    Stage("profile", ("target", "draft or shape"), "Profile", "engine", "time the steps of the engine that will serve"),
    Stage("profile --shapes", ("shapes",), "ShapeProfile", "engine", "time models that need not exist"),
    Stage("prune --plan", ("source",), "TrainingPlan", "nothing", "what training a cut would take on your devices"),
    Stage("prune", ("source", "Trace"), "PrunedCheckpoint", "engine", "cut a source to a shape"),
    Stage("distill", ("draft", "Trace"), "DistilledCheckpoint", "engine", "let a draft learn from the target"),
    Stage("evaluate", ("Trace", "draft"), "Scorecard", "engine", "replay a draft against the trace, at every lookahead"),
    Stage("evaluate --rows", ("Trace", "draft"), "RowsCard", "engine", "the same with fewer output rows, every size"),
    Stage("design", ("source", "Profile", "ShapeProfile", "Scorecard"), "Design", "nothing", "which shape to cut"),
    Stage("evaluate --live", ("Trace", "target", "draft"), "LiveCard", "engine", "run both together and count for real"),
    Stage("predict", ("Profile", "Scorecard"), "Prediction", "nothing", "is it worth it, and how many tokens ahead"),
)
