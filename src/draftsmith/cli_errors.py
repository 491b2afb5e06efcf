"""Errors about settings, in the words of the command line: a setting is named by the option that sets it."""

from collections.abc import Mapping

from draftsmith.core.errors import ConfigError, DraftsmithError

_RENAMED = {"hours": "--budget", "wanted_tokens_per_second": "--wanted"}


def said(error: DraftsmithError, options: Mapping[str, set[str]]) -> str:
    """What to print of an error; each verb has these options."""
    if not isinstance(error, ConfigError):
        return str(error)
    verb, known = error.verb, options.get(error.verb)
    if known is None or not error.settings:  # one setting, settings of something within a verb, or a file
        return str(error)
    named = [(option_of(name, known), text) for name, text in error.settings]
    way_out = f"`draftsmith {verb} --help` lists the options" if all(name in known for name, _ in named) else error.way_out
    return f"{verb} cannot run: {'; '.join(f'{name} {text}'.strip() for name, text in named)}\n  What to do: {way_out}"


def option_of(setting: str, known: set[str]) -> str:
    """The option of a setting such as `engine.batch_size` or `lookaheads.0`; the setting itself where there is none."""
    for part in reversed(setting.split(".")):
        for name in (part, part.removesuffix("s"), part.removesuffix("es")):
            option = _RENAMED.get(name, f"--{name.replace('_', '-')}")
            if option in known:
                return option
    return setting
