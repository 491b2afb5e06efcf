"""The errors a user may meet. Each names the thing, its value, and the way out."""


class DraftsmithError(Exception):
    """Base of every error draftsmith raises on purpose; the command line prints it without a traceback."""

    def __init__(self, problem: str, way_out: str) -> None:
        super().__init__(f"{problem}\n  What to do: {way_out}")
        self.problem = problem
        self.way_out = way_out

    def __reduce__(self) -> tuple[type["DraftsmithError"], tuple[str, str]]:
        """Errors cross process borders whole: executors send them back from their workers."""
        return type(self), (self.problem, self.way_out)


class ConfigError(DraftsmithError):
    """A setting that does not exist or cannot have this value."""


class SettingsError(ConfigError):
    """Settings that were checked together. It keeps the name of each, so that a caller may say it as its user does."""

    def __init__(self, where: str, problems: tuple[tuple[str, str], ...], way_out: str) -> None:
        super().__init__(f"{where} cannot be used: " + "; ".join(" ".join(one).strip() for one in problems), way_out)
        self.where = where
        self.problems = problems  # the dotted name, empty where the text says it, and what is wrong

    def __reduce__(self) -> tuple[type["SettingsError"], tuple[str, tuple[tuple[str, str], ...], str]]:  # type: ignore[override]
        return type(self), (self.where, self.problems, self.way_out)


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
