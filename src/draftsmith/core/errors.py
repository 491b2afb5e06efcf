"""The errors a user may meet. Each names the thing, its value, and the way out."""

from typing import Any


class DraftsmithError(Exception):
    """Base of every error draftsmith raises on purpose; the command line prints it without a traceback."""

    def __init__(self, problem: str, way_out: str) -> None:
        super().__init__(f"{problem}\n  What to do: {way_out}")
        self.problem = problem
        self.way_out = way_out

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors cross process borders whole: executors send them back from their workers."""
        return type(self), (self.problem, self.way_out)


class ConfigError(DraftsmithError):
    """A setting that does not exist or cannot have this value. Where several were checked together, `settings` has the dotted
    name of each wrong one (empty if the text says it) and what is wrong, and `verb` whose they are, if they are a verb's: a
    caller may name them as its user does."""

    def __init__(self, problem: str, way_out: str, verb: str = "", settings: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(problem, way_out)
        self.verb = verb
        self.settings = settings

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.way_out, self.verb, self.settings)


class UnknownPluginError(DraftsmithError):
    """A name that no plugin of the group answers to."""


class MissingDependencyError(DraftsmithError):
    """Something optional is needed and not installed."""


class DataError(DraftsmithError):
    """A data set that is not where it was said to be, or not what it was said to be."""


class RecordError(DraftsmithError):
    """A record that is missing, damaged, or made by an incompatible version."""


class ModelError(DraftsmithError):
    """A checkpoint that cannot be used as asked."""


class PlanError(DraftsmithError):
    """A cut that cannot be made, or a shape that cannot be had."""


class TrainingError(DraftsmithError):
    """A run whose loss is no number any more."""


class VocabularyError(DraftsmithError):
    """Two models whose tokens do not mean the same strings."""


class PredictionError(DraftsmithError):
    """A question that what was measured cannot answer."""


class EngineError(DraftsmithError):
    """An engine that cannot do what was asked of it."""
