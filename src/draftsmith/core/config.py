"""Strict settings: frozen pydantic models that refuse unknown keys, and the one way to check values against them."""

import difflib
import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from draftsmith.core.errors import ConfigError


class StrictConfig(BaseModel):
    """Base of every setting: immutable, and a typo is an error rather than a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False)


ConfigT = TypeVar("ConfigT", bound=BaseModel)


def parse_config(kind: type[ConfigT], values: dict[str, Any], where: str, verb: str = "") -> ConfigT:
    """Build `kind` from plain values; `where` says in the error message what the user should edit, `verb` whose settings all
    of them are."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        found = error.errors()
        causes = [item for item in found if not any(_holds(item["loc"], other["loc"]) for other in found)]
        wrong = tuple(_explain(kind, dict(item)) for item in causes)
        raise ConfigError(
            f"{where} cannot be used: " + "; ".join(f"{name} {text}".strip() for name, text in wrong),
            f"correct it; the settings are {', '.join(kind.model_fields)}",
            verb,
            wrong,
        ) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a YAML file, not yet checked against a config class."""
    if not path.is_file():
        raise ConfigError(f"there is no configuration file {path}", "check the path")
    try:
        values = yaml.safe_load(path.read_text()) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}", "correct the file") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds a {type(values).__name__}, not settings", "write it as `name: value` lines")
    return values


def _holds(outer: tuple[Any, ...], inner: tuple[Any, ...]) -> bool:
    """Whether the one is wrong only because of the other within it."""
    return len(outer) < len(inner) and inner[: len(outer)] == outer and outer != ()


def _explain(kind: type[BaseModel], error: dict[str, Any]) -> tuple[str, str]:
    """A setting, and what is wrong with it."""
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(str(error["loc"][-1]), _fields_at(kind, error["loc"][:-1]), n=1)
        return "", f"there is no setting {name!r}" + (f", did you mean {close[0]!r}?" if close else "")
    if error["type"] == "missing":
        return name, "is missing"
    text = re.sub(r"^(Value error, |\w+ (?=should ))", "", str(error["msg"]))
    if not name:
        return "", text
    return name, f"{text if text.startswith('should') else f'is wrong: {text}'} (got {error['input']!r})"


def _fields_at(kind: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    """The settings that exist where a wrong one was given, however deep."""
    here: Any = kind
    for part in path:
        field = here.model_fields.get(part) if isinstance(here, type) and issubclass(here, BaseModel) else None
        if field is None:
            return []
        here = field.annotation
    return list(here.model_fields) if isinstance(here, type) and issubclass(here, BaseModel) else []
