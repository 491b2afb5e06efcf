"""Plugins by name. A plugin is one module with a `PLUGIN` object, in this package's folder of its group or behind an
installed entry point `draftsmith.<group>`. Listing the names imports nothing."""

import difflib
import importlib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from draftsmith.core.errors import MissingDependencyError, UnknownPluginError

GROUPS = {"engines": "engine", "datasets": "dataset", "families": "family", "pruners": "pruner"}
_EXTRAS = {"pruners": "training", "datasets": "datasets"}  # an engine's extra has its own name
_PACKAGE_ROOT = Path(__file__).resolve().parent.parent


@cache
def _installed(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"draftsmith.{group}")}


def names(group: str) -> tuple[str, ...]:
    """The plugins of a group, alphabetically: our own files and what other packages registered."""
    assert group in GROUPS, group
    own = {path.stem for path in (_PACKAGE_ROOT / group).glob("*.py") if not path.stem.startswith("_")}
    return tuple(sorted(own | set(_installed(group))))


def load(group: str, name: str) -> Any:
    """The `PLUGIN` object of one plugin. Imports it, and so whatever it stands on."""
    if name not in names(group):
        close = difflib.get_close_matches(name, names(group), n=1)
        raise UnknownPluginError(
            f"there is no {GROUPS[group]} {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""),
            f"use one of {', '.join(names(group))}",
        )
    foreign = _installed(group).get(name)
    try:
        return foreign.load() if foreign else importlib.import_module(f"draftsmith.{group}.{name}").PLUGIN
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing == "draftsmith":
            raise
        raise MissingDependencyError(
            f"the {GROUPS[group]} {name!r} needs the package {missing!r}, which is not installed",
            f"see the documentation of the package that brings {name!r}"
            if foreign
            else f"pip install 'draftsmith[{_EXTRAS.get(group, name)}]', then `draftsmith doctor`",
        ) from error
